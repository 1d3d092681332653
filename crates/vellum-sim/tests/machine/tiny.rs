//! The smallest memory manager that is one: tables of 4 KiB pages (of x86-64, unless asked for others), a bump allocator with
//! a free list, one lock a table. It tells its platform what it does in the same words as the engine, so tests can have it do the wrong thing.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use vellum::addr::{FRAME_SIZE, Pfn, PhysAddr, VirtRange};
use vellum::arch::{Arch, Attrs, Kind, X86_64};
use vellum::platform::{CpuSet, Event, Invalidation, Platform, SpaceId};
use vellum::sync::RawSpin;
use vellum_sim::{Access, Handler};

pub const ARCH: X86_64 = X86_64::four_levels();
pub const RW: Attrs = Attrs::READ.union(Attrs::WRITE);
pub const PAGE: u64 = FRAME_SIZE;

/// Memory: frames, and what is known of them.
pub struct Tiny<'m, P> {
    pub p: &'m P,
    locks: Vec<RawSpin>,
    free: Mutex<VecDeque<Pfn>>,
}

impl<'m, P: Platform> Tiny<'m, P> {
    pub fn new(p: &'m P) -> Self {
        let end = p.regions().iter().map(|r| r.base.0 + r.len).max().unwrap();
        let frames = p.regions().iter().flat_map(|r| r.base.pfn().0..PhysAddr(r.base.0 + r.len).pfn().0).map(Pfn);
        Tiny { p, locks: (0..end / FRAME_SIZE).map(|_| RawSpin::new()).collect(), free: Mutex::new(frames.collect()) }
    }

    pub fn event(&self, event: Event) {
        if P::ENABLED {
            self.p.event(event);
        }
    }

    /// A zeroed frame. Last freed, first used: the worst case for whoever still holds a translation.
    pub fn frame(&self) -> Pfn {
        let pfn = self.free.lock().unwrap().pop_front().expect("out of memory");
        self.event(Event::Allocated(pfn, 1));
        for word in 0..FRAME_SIZE / 8 {
            self.word(pfn, word).store(0, Ordering::Relaxed);
        }
        pfn
    }

    /// 512 frames, aligned.
    pub fn huge_frame(&self) -> Pfn {
        self.folio(9)
    }

    /// Frames that belong together, aligned.
    pub fn folio(&self, order: u8) -> Pfn {
        let head = self.reserve(order);
        self.event(Event::Allocated(head, 1 << order));
        head
    }

    /// Aligned frames, of which nobody was told yet.
    pub fn reserve(&self, order: u8) -> Pfn {
        let mut free = self.free.lock().unwrap();
        let last = (1 << order) - 1;
        let head = *free.iter().find(|f| f.is_aligned(order) && free.contains(&f.add(last))).expect("out of memory");
        free.retain(|f| f.0 < head.0 || f.0 > head.0 + last);
        head
    }

    pub fn give_back(&self, pfn: Pfn, frames: u32) {
        self.event(Event::Freed(pfn, frames));
        let mut free = self.free.lock().unwrap();
        (0..frames).rev().for_each(|i| free.push_front(pfn.add(i)));
    }

    pub fn word(&self, pfn: Pfn, index: u64) -> &AtomicU64 {
        let at = self.p.direct_map().wrapping_add((pfn.addr().0 + 8 * index) as usize);
        // SAFETY: an aligned word of the machine's memory, which only atomics and this manager reach.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    pub fn entry(&self, table: Pfn, index: u16) -> u64 {
        self.word(table, index as u64).load(Ordering::Acquire)
    }

    pub fn table(&self, level: u8, id: SpaceId) -> Pfn {
        let pfn = self.frame();
        self.event(Event::TableBorn(pfn, level, id));
        pfn
    }

    pub fn lock(&self, table: Pfn) {
        self.event(Event::Locking(table));
        self.locks[table.0 as usize].lock(self.p);
        self.event(Event::Locked(table));
    }

    pub fn unlock(&self, table: Pfn) {
        self.event(Event::Unlocking(table));
        self.locks[table.0 as usize].unlock(self.p);
    }

    /// Write an entry that hardware can't change meanwhile: because it is not present, or says all that hardware may add.
    pub fn store(&self, table: Pfn, index: u16, new: u64) {
        self.event(Event::Store(table, index, self.entry(table, index), new));
        self.word(table, index as u64).store(new, Ordering::Release);
    }

    /// Write an entry that hardware may change.
    pub fn exchange(&self, table: Pfn, index: u16, new: u64) -> u64 {
        self.event(Event::Exchange(table, index, new));
        self.word(table, index as u64).swap(new, Ordering::AcqRel)
    }

    /// Clear an entry whose accessed and dirty nobody will ask for.
    pub fn discard(&self, table: Pfn, index: u16) -> u64 {
        let old = self.entry(table, index);
        self.event(Event::Discard(table, index, old));
        self.word(table, index as u64).store(0, Ordering::Release);
        old
    }
}

/// An address space.
pub struct Space<'t, 'm, P, A = X86_64> {
    pub t: &'t Tiny<'m, P>,
    pub arch: A,
    pub id: SpaceId,
    pub root: Pfn,
    cpus: AtomicU64,
    /// Where faults are answered, with a page of zeros.
    pub mapped: VirtRange,
}

impl<'t, 'm, P: Platform> Space<'t, 'm, P> {
    pub fn new(t: &'t Tiny<'m, P>, id: u32, mapped: VirtRange) -> Self {
        Space::with_arch(t, ARCH, id, mapped)
    }
}

impl<'t, 'm, P: Platform, A: Arch> Space<'t, 'm, P, A> {
    pub fn with_arch(t: &'t Tiny<'m, P>, arch: A, id: u32, mapped: VirtRange) -> Self {
        let id = SpaceId(id.into());
        Space { t, arch, id, root: t.table(arch.levels(), id), cpus: AtomicU64::new(0), mapped }
    }

    /// The table of `level` for `va`, made if missing.
    pub fn table(&self, va: u64, level: u8) -> Pfn {
        let mut table = self.root;
        for above in (level + 1..=self.arch.levels()).rev() {
            let index = self.arch.index(va, above) as u16;
            self.t.lock(table);
            if self.arch.kind(self.t.entry(table, index), above) == Kind::None {
                let new = self.t.table(above - 1, self.id);
                self.t.store(table, index, self.arch.table(new.addr()));
            }
            let next = self.arch.table_addr(self.t.entry(table, index)).pfn();
            self.t.unlock(table);
            table = next;
        }
        table
    }

    /// The table of `level` for `va`, which is there, found without locks.
    pub fn table_unlocked(&self, va: u64, level: u8) -> Pfn {
        (level + 1..=self.arch.levels()).rev().fold(self.root, |table, above| {
            self.arch.table_addr(self.t.entry(table, self.arch.index(va, above) as u16)).pfn()
        })
    }

    pub fn slot(&self, va: u64, level: u8) -> (Pfn, u16) {
        (self.table(va, level), self.arch.index(va, level) as u16)
    }

    /// Map a frame where nothing is mapped.
    pub fn map(&self, va: u64, pfn: Pfn, attrs: Attrs, level: u8) {
        let (table, index) = self.slot(va, level);
        self.t.lock(table);
        self.t.store(table, index, self.arch.leaf(pfn.addr(), attrs, level));
        self.t.unlock(table);
    }

    /// Where a block begins, and its entries: those of 64 KiB around an address.
    pub fn block(&self, va: u64) -> (Pfn, Range<u16>) {
        let (table, index) = self.slot(va, 1);
        let n = 1 << self.arch.block_bits(1);
        let first = index & !(n - 1);
        (table, first..first + n)
    }

    /// The entries of a block that maps frames from this one on.
    pub fn joined(&self, head: Pfn, attrs: Attrs) -> impl Iterator<Item = u64> {
        self.singles(head, attrs).map(|raw| self.arch.join(raw))
    }

    /// The same, each by itself.
    pub fn singles(&self, head: Pfn, attrs: Attrs) -> impl Iterator<Item = u64> {
        (0..1 << self.arch.block_bits(1)).map(move |i| self.arch.leaf(head.add(i).addr(), attrs, 1))
    }

    /// Write the entries of a block, where hardware has nothing to record.
    pub fn write(&self, va: u64, raw: impl Iterator<Item = u64>) {
        let (table, entries) = self.block(va);
        self.t.lock(table);
        entries.zip(raw).for_each(|(index, raw)| self.t.store(table, index, raw));
        self.t.unlock(table);
    }

    /// Take a page out, and drop it from every TLB; the frame is the caller's to free.
    pub fn unmap(&self, va: u64, level: u8) -> Pfn {
        let (table, index) = self.slot(va, level);
        self.t.lock(table);
        let old = self.t.exchange(table, index, 0);
        self.t.unlock(table);
        self.flush(va, level, false);
        self.arch.leaf_pfn(old, level)
    }

    pub fn flush(&self, va: u64, level: u8, tables: bool) {
        let shift = self.arch.level_shift(level);
        let ranges = [VirtRange::new(va >> shift << shift, 1 << shift).unwrap()];
        self.invalidate(&ranges, shift, tables);
    }

    pub fn invalidate(&self, ranges: &[VirtRange], stride_shift: u32, tables: bool) {
        let what = Invalidation { space: self.id, root: self.root, ranges, stride_shift, tables };
        self.t.p.invalidate(&what, &CpuSet::from_words([self.cpus.load(Ordering::SeqCst), 0, 0, 0]));
    }
}

impl<P: Platform, A: Arch> Handler for Space<'_, '_, P, A> {
    type Error = &'static str;

    fn root(&self) -> Pfn {
        self.root
    }

    fn space_id(&self) -> SpaceId {
        self.id
    }

    fn fault(&self, va: u64, access: Access) -> Result<(), Self::Error> {
        if !self.mapped.contains(va) || access == Access::Execute {
            return Err("segmentation fault");
        }
        let (table, index) = self.slot(va, 1);
        let new = self.t.frame();
        self.t.lock(table);
        let lost = self.t.entry(table, index) != 0;
        if !lost {
            self.t.store(table, index, self.arch.leaf(new.addr(), RW, 1));
        }
        self.t.unlock(table);
        if lost {
            self.t.give_back(new, 1);
        }
        Ok(())
    }

    fn enter(&self, cpu: usize) {
        self.cpus.fetch_or(1 << cpu, Ordering::SeqCst);
    }

    fn leave(&self, cpu: usize) {
        self.cpus.fetch_and(!(1 << cpu), Ordering::SeqCst);
    }
}
