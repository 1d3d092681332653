//! Formats the files of `/proc/PID` that describe a process's memory: `maps`, `smaps`, `pagemap`
//! and the like.

use super::process::Subject;
use super::{numbers, reader};
use crate::arch::keys;
use crate::files::from_root;
use crate::mem::{UserSpace, forced, machine, payer, uaccess, vdso};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general::CAP_SYS_ADMIN;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange};
use vellum::arch::{Arch, Attrs, Kind, Marker};
use vellum::frame::policy::{Advice, LargeFolios};
use vellum::frame::{HUGE_ORDER, flag};
use vellum::vma::{Prot, Vma, VmaFlags};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::{Sink, Source};
use vellum_kernel::proc::Text;
use vellum_kernel::proc::maps::{self as words, MapsEntry, Traits, Usage};
use vellum_kernel::proc::process::Memory;

/// Returns the address space of a file's process; `None` once the process has released it.
pub fn space(subject: &Subject) -> Result<Option<Arc<UserSpace>>, Errno> {
    Ok(subject.process()?.memory())
}

/// Returns the VMAs, as of one moment.
pub fn vmas(memory: &UserSpace) -> Result<Vec<Vma>, Errno> {
    let mut vmas = Vec::new();
    let mut full = false;
    memory.engine.vmas(0, |vma| {
        full = vmas.try_reserve(1).is_err();
        if !full {
            vmas.push(*vma);
        }
        !full
    });
    if full { Err(Errno::ENOMEM) } else { Ok(vmas) }
}

/// The path shown for shared memory without a file.
const SHARED: &[u8] = b"/dev/zero (deleted)";
/// The device shown for shared memory without a file, as on Linux.
const SHARED_DEVICE: Device = Device { major: 0, minor: 1 };

/// Calls `tell` with what `maps` shows of a VMA.
pub fn describe<T>(memory: &UserSpace, vma: &Vma, tell: impl FnOnce(&MapsEntry<'_>) -> T) -> T {
    let VirtRange { start, end } = *vma.range;
    let (heap, stack) = (*memory.heap.lock(), memory.image.lock().stack);
    let file = memory.mapped(vma.backing.tag()).filter(|_| vma.backing.tag() != 0);
    let path = file.as_ref().map(|file| from_root(|view| view.names.path_of_mapped(file, view.root)));
    let anonymous = vma.backing.is_anonymous();
    let kind: &[u8] = if anonymous { b"[anon:" } else { b"[anon_shmem:" };
    let own = memory.vma_name(vma).map(|own| [kind, &own, b"]"].concat());
    let vdso = vdso::name(vma);
    let name = match &path {
        Some(path) => path.as_slice(),
        None if let Some(own) = &own => own.as_slice(),
        None if let Some(name) = vdso => name,
        None if !anonymous => SHARED,
        None if start <= stack && stack < end => b"[stack]",
        None if start < heap.end && end > heap.start => b"[heap]",
        None => b"",
    };
    let (device, inode) = match &file {
        Some(file) => (file.device, file.inode),
        None if anonymous || vdso.is_some() => (Device::default(), 0),
        None => (SHARED_DEVICE, 1),
    };
    tell(&MapsEntry {
        range: start..end,
        read: vma.prot.contains(Prot::READ),
        write: vma.prot.contains(Prot::WRITE),
        execute: vma.prot.contains(Prot::EXEC),
        shared: vma.backing.is_shared(),
        offset: if anonymous || vdso.is_some() { 0 } else { vma.backing.offset(start) },
        device,
        inode,
        name,
    })
}

/// Returns the contents of `maps`.
pub fn maps(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let Some(memory) = space(subject)? else { return Ok(Vec::new()) };
    let vmas = vmas(&memory)?;
    Text::of(|text| vmas.iter().try_for_each(|vma| describe(&memory, vma, |shown| words::line(text, shown))))
}

/// Returns the resident and swapped pages of a VMA, by kind.
fn usage(memory: &UserSpace, vma: &Vma) -> Usage {
    let found = memory.engine.usage(*vma.range);
    let arch = memory.engine.arch();
    let block_size = |level| match arch.cont_bits(level) {
        0 => 0,
        bits => 1 << (arch.level_shift(level) + bits),
    };
    Usage {
        cont_blocks: found.cont_blocks,
        cont_block_sizes: [1, 2].map(block_size),
        rss: found.resident,
        pss: found.pss.all,
        pss_dirty: found.pss.dirty,
        pss_anon: found.pss.anonymous,
        pss_shmem: found.pss.all - found.pss.anonymous,
        shared_clean: found.shared.all - found.shared.dirty,
        shared_dirty: found.shared.dirty,
        private_clean: (found.resident - found.shared.all) - (found.dirty - found.shared.dirty),
        private_dirty: found.dirty - found.shared.dirty,
        referenced: found.referenced,
        anonymous: found.anonymous,
        anon_huge: found.huge - found.huge_shmem - found.huge_file,
        shmem_huge: found.huge_shmem,
        file_huge: found.huge_file,
        hugetlb_shared: found.hugetlb_shared,
        hugetlb_private: found.hugetlb_private,
        swap: found.swap + found.swap_shmem,
        swap_pss: found.swap,
        locked: if vma.flags.contains(VmaFlags::LOCKED) { found.pss.all } else { 0 },
        ..Usage::default()
    }
}

/// Returns the two-letter codes of `VmFlags`. `soft_dirty`: whether the space's PTEs record which
/// pages are written.
fn flags(vma: &Vma, soft_dirty: bool) -> Vec<&'static str> {
    let shared = vma.backing.is_shared();
    let has = |flag| vma.flags.contains(flag);
    let letters = [
        (vma.prot.contains(Prot::READ), "rd"),
        (vma.prot.contains(Prot::WRITE), "wr"),
        (vma.prot.contains(Prot::EXEC), "ex"),
        (shared, "sh"),
        (true, "mr"),
        (true, "mw"),
        (true, "me"),
        (shared, "ms"),
        (has(VmaFlags::GROWSDOWN), "gd"),
        (has(VmaFlags::LOCKED), "lo"),
        (has(VmaFlags::SEQ_READ), "sr"),
        (has(VmaFlags::RAND_READ), "rr"),
        (has(VmaFlags::DONTFORK), "dc"),
        (vma.prot.contains(Prot::WRITE) && !shared && !has(VmaFlags::NORESERVE), "ac"),
        (has(VmaFlags::NORESERVE), "nr"),
        (has(VmaFlags::HUGETLB), "ht"),
        (has(VmaFlags::WIPEONFORK), "wf"),
        (has(VmaFlags::DONTDUMP), "dd"),
        (soft_dirty && !has(VmaFlags::SOFT_DIRTY_CLEARED), "sd"),
        (has(VmaFlags::UFFD_MISSING), "um"),
        (has(VmaFlags::UFFD_WP), "uw"),
        (vma.advice == Advice::Huge, "hg"),
        (vma.advice == Advice::NoHuge, "nh"),
        (has(VmaFlags::MERGEABLE), "mg"),
        (has(VmaFlags::DROPPABLE), "dp"),
        (has(VmaFlags::MAYBE_GUARD), "gu"),
    ];
    letters.into_iter().filter(|(set, _)| *set).map(|(_, letters)| letters).collect()
}

/// Returns true if a VMA is eligible for huge pages: it is large enough, and the policy allows
/// them.
fn huge(vma: &Vma) -> bool {
    let order = vellum::frame::HUGE_ORDER;
    let size = FRAME_SIZE << order;
    let allowed = machine().policy().orders(vma.advice) >> order & 1 != 0;
    let first = vma.range.start.next_multiple_of(size);
    allowed && vma.backing.is_anonymous() && first.saturating_add(size) <= vma.range.end
}

/// Returns the contents of `smaps`.
pub fn smaps(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let Some(memory) = space(subject)? else { return Ok(Vec::new()) };
    let vmas = vmas(&memory)?;
    let soft_dirty = memory.engine.arch().supported().contains(Attrs::SOFT_DIRTY);
    Text::of(|text| {
        vmas.iter().try_for_each(|vma| {
            let usage = usage(&memory, vma);
            let key = (keys::count() > 1).then_some(vma.prot.key());
            let traits = Traits {
                page: if vma.is_hugetlb() { FRAME_SIZE << HUGE_ORDER } else { FRAME_SIZE },
                huge: huge(vma),
                key,
                flags: &flags(vma, soft_dirty),
            };
            describe(&memory, vma, |shown| words::smaps_entry(text, shown, &usage, &traits))
        })
    })
}

/// Returns the contents of `smaps_rollup`.
pub fn rollup(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let memory = space(subject)?.ok_or(Errno::ESRCH)?;
    let vmas = vmas(&memory)?;
    let mut sum = Usage::default();
    vmas.iter().for_each(|vma| sum += &usage(&memory, vma));
    let range = vmas.first().map_or(0, |first| first.range.start)..vmas.last().map_or(0, |last| last.range.end);
    Text::of(|text| words::rollup(text, range, &sum))
}

/// Returns a process's memory counts, for `status`, `stat` and `statm`.
pub fn figures(memory: &UserSpace) -> Memory {
    let stats = memory.engine.stats();
    let image = memory.image.lock().clone();
    let (mut data, mut stack, mut executable) = (0, 0, 0);
    memory.engine.vmas(0, |vma| {
        let (len, prot) = (vma.range.len(), vma.prot);
        if vma.flags.contains(VmaFlags::GROWSDOWN) {
            stack += len;
        } else if prot.contains(Prot::WRITE) && !vma.backing.is_shared() {
            data += len;
        } else if prot.contains(Prot::EXEC) && !prot.contains(Prot::WRITE) {
            executable += len;
        }
        true
    });
    let code = image.code[1] - image.code[0];
    Memory {
        peak: stats.peak_mapped,
        size: stats.mapped,
        locked: stats.locked,
        pinned: 0,
        denies_huge: memory.engine.limits().large_folios == LargeFolios::None,
        peak_resident: stats.peak_rss,
        anonymous: stats.anon,
        file: stats.file,
        shmem: stats.shmem,
        data,
        stack,
        code,
        libraries: u64::saturating_sub(executable, code),
        page_tables: stats.tables,
        swap: stats.swap,
        hugetlb: stats.hugetlb,
        code_range: image.code,
        data_range: image.data,
        heap_start: memory.heap.lock().start,
        stack_start: image.stack,
        argument_range: image.arguments,
        environment_range: image.environment,
    }
}

/// The bits of an entry for the PFN; for a swapped page, the swap device and above it the slot.
const PLACE: u64 = (1 << 55) - 1;
const SLOT_SHIFT: u32 = 5;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OBJECTS: u64 = 1 << 61;
const ALONE: u64 = 1 << 56;
const GUARD: u64 = 1 << 58;
const WATCHED: u64 = 1 << 57;
const SOFT_DIRTY: u64 = 1 << 55;

/// Serves `pagemap`: eight bytes per page.
pub fn pagemap(subject: &Subject, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
    let Some(memory) = space(subject)? else { return Ok(0) };
    // PFNs are shown only with `CAP_SYS_ADMIN`, as on Linux.
    let shown = if reader()?.credentials().has(CAP_SYS_ADMIN) { !0 } else { !PLACE };
    numbers(at, to, crate::arch::paging::user_end() >> FRAME_SHIFT, |first, entries| {
        look(&memory, first, entries);
        entries.iter_mut().for_each(|entry| *entry &= shown);
    })
}

/// Notes in `present`, by 0 or 1, which pages, from page `first` on, are in memory or on a swap
/// device.
///
/// # Errors
///
/// `ENOMEM`.
pub fn present(memory: &UserSpace, first: u64, present: &mut [u8]) -> Result<(), Errno> {
    let mut entries = Vec::new();
    payer::reserve(&mut entries, present.len())?;
    entries.resize(present.len(), 0);
    look(memory, first, &mut entries);
    for (is_present, entry) in present.iter_mut().zip(entries) {
        *is_present = u8::from(entry & (PRESENT | SWAPPED) != 0);
    }
    Ok(())
}

/// Fills `entries` with the entries of `pagemap` from page `first` on.
fn look(memory: &UserSpace, first: u64, entries: &mut [u64]) {
    let start = first << FRAME_SHIFT;
    let range = VirtRange { start, end: start + ((entries.len() as u64) << FRAME_SHIFT) };
    let arch = memory.engine.arch();
    memory.engine.vmas(start, |vma| {
        if vma.range.start < range.end && !vma.flags.contains(VmaFlags::SOFT_DIRTY_CLEARED) {
            let part = vma.range.intersect(&range);
            let places = (part.start - start) >> FRAME_SHIFT..(part.end - start) >> FRAME_SHIFT;
            entries[places.start as usize..places.end as usize].fill(SOFT_DIRTY);
        }
        vma.range.start < range.end
    });
    memory.engine.runs(range, |run| {
        let part = run.range(arch).intersect(&range);
        let places = ((part.start - start) >> FRAME_SHIFT) as usize..((part.end - start) >> FRAME_SHIFT) as usize;
        match run.kind {
            Kind::Leaf => {
                let mut pfn = run.pfn(arch).add(((part.start - run.va) >> FRAME_SHIFT) as u32);
                let attrs = run.attrs(arch);
                let watched = if attrs.contains(Attrs::UFFD_WP) { WATCHED } else { 0 };
                for entry in &mut entries[places] {
                    let (_, frame) = machine().frames().head(pfn);
                    let state = frame.state();
                    *entry |= PRESENT | watched | u64::from(pfn.0);
                    *entry |= if state.has(flag::OBJECT) { OBJECTS } else { 0 };
                    let maps = u64::from(frame.counts().maps);
                    *entry |= if maps <= 1 << state.order() && !state.has(flag::ZERO_FOLIO) { ALONE } else { 0 };
                    *entry |= if attrs.contains(Attrs::SOFT_DIRTY) { SOFT_DIRTY } else { 0 };
                    pfn = pfn.add(1);
                }
            }
            Kind::Swap => {
                let swapped = arch.swap_entry(run.raw);
                let first = (swapped.slot << arch.page_order()) + ((part.start - run.va) >> FRAME_SHIFT);
                let said = |attr, bit| if swapped.attrs.contains(attr) { bit } else { 0 };
                let marks = said(Attrs::SOFT_DIRTY, SOFT_DIRTY) | said(Attrs::UFFD_WP, WATCHED);
                for (slot, entry) in (first..).zip(&mut entries[places]) {
                    *entry |= SWAPPED | slot << SLOT_SHIFT | u64::from(swapped.device) | marks;
                }
            }
            Kind::Marker => {
                let mark = match arch.marker_of(run.raw) {
                    Some(Marker::Guard) => GUARD,
                    Some(Marker::UffdWp) => WATCHED,
                    _ => 0,
                };
                entries[places].iter_mut().for_each(|entry| *entry |= mark);
            }
            _ => {}
        }
    });
}

/// Handles a read of `mem`.
pub fn read(subject: &Subject, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
    let Some(memory) = space(subject)? else { return Ok(0) };
    let mut done = 0;
    let mut buffer = [0; 1024];
    while to.room() > 0 {
        let wanted = to.room().min(buffer.len());
        let wanted = &mut buffer[..wanted];
        let place = at.wrapping_add(done as u64);
        // A debugger may read where the process itself may not.
        let copied = match keys::with_all(|| uaccess::read_some(&memory, place, wanted)) {
            0 => forced::read(&memory, place, wanted),
            copied => copied,
        };
        if copied == 0 {
            return if done == 0 { Err(Errno::EIO) } else { Ok(done) };
        }
        match to.put(&buffer[..copied]) {
            Ok(put) => done += put,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Handles a write to `mem`.
pub fn write(subject: &Subject, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
    let Some(memory) = space(subject)? else { return Ok(0) };
    let mut done = 0;
    let mut buffer = [0; 1024];
    while from.left() > 0 {
        let wanted = from.left().min(buffer.len());
        let taken = match from.take(&mut buffer[..wanted]) {
            Ok(taken) => taken,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        };
        let place = at.wrapping_add(done as u64);
        let copied = keys::with_all(|| uaccess::write_some(&memory, place, &buffer[..taken]));
        // A debugger may write where the process itself may not.
        let copied = copied + forced::write(&memory, place.wrapping_add(copied as u64), &buffer[copied..taken]);
        done += copied;
        if copied < taken {
            return if done == 0 { Err(Errno::EIO) } else { Ok(done) };
        }
    }
    Ok(done)
}

/// Handles a write to `clear_refs`.
pub fn clear(subject: &Subject, value: &[u8]) -> Result<(), Errno> {
    let memory = space(subject)?;
    let forget = |concerns: fn(&Vma) -> bool| {
        let Some(memory) = &memory else { return Ok(()) };
        let vmas = vmas(memory)?;
        for vma in vmas.iter().filter(|vma| concerns(vma)) {
            memory.engine.clear_accessed_dirty(*vma.range, Attrs::ACCESSED, |_, _| ());
        }
        Ok(())
    };
    match value.trim_ascii() {
        b"1" => forget(|_| true),
        b"2" => forget(|vma| vma.backing.is_anonymous()),
        b"3" => forget(|vma| !vma.backing.is_anonymous()),
        b"4" => memory.map_or(Ok(()), |memory| memory.engine.clear_soft_dirty().map_err(|_| Errno::EOPNOTSUPP)),
        // The engine has no way to reset the peak resident size.
        b"5" => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}
