//! Which frames pages are in, and which folios those are of. That is for root only
//! (`CAP_SYS_ADMIN`): others are told frame 0.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use procfs::process::Process;

use crate::{Categories, Region, Unreadable};

/// Entries, or flags, that are read at once.
const AT_ONCE: usize = 1 << 13;
/// Sizes of blocks that translations may be of, in pages of 4 KiB: 16 KiB, 64 KiB, 2 MiB.
pub const BLOCKS: [u64; 3] = [4, 16, 512];
/// Folios' orders are below this.
pub const ORDERS: usize = 20;

/// Bits of `/proc/kpageflags` (Linux, `include/uapi/linux/kernel-page-flags.h`).
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;

/// A process's frames.
#[derive(Debug)]
pub struct Frames {
    pagemap: File,
    flags: File,
    page: u64,
    entries: Vec<u8>,
}

/// How memory lies in frames, in pages. What is mapped huge counts as its pages everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lies {
    /// Pages that are in memory, and whose frames are known.
    pub pages: u64,
    /// Of these, in folios of each order; not only those that are mapped whole.
    pub by_order: [u64; ORDERS],
    /// Blocks of 2 MiB of them that are mapped by entries of upper tables; a page of 1 GiB is 512.
    pub huge: u64,
    /// Pages in frames that are in a row for at least so long, wherever that begins, by size of
    /// block.
    pub contiguous: [u64; 3],
    /// Blocks that are contiguous, and aligned both as addresses and as frames; not those that are
    /// mapped huge.
    pub congruent: [u64; 3],
    /// Those of them that are in one folio, as Linux wants of what it maps by contiguous entries.
    pub in_folio: [u64; 3],
    /// Congruent blocks of the smallest size that are not in a block of the second size that is in
    /// one folio.
    pub small_apart: u64,
}

impl Frames {
    /// Those of a process. None: this user may not know them.
    ///
    /// # Errors
    /// [`Unreadable`]: it is gone, or may not be read at all.
    pub fn open(process: &Process) -> Result<Option<Self>, Unreadable> {
        let pagemap = process.open_relative("pagemap").map_err(|error| Unreadable::of(process.pid, error))?;
        let Ok(flags) = File::open("/proc/kpageflags") else { return Ok(None) };
        let page = rustix::param::page_size() as u64;
        Ok(Some(Frames { pagemap, flags, page, entries: vec![0; AT_ONCE * 8] }))
    }

    /// Add how pages lie that are alike, in a VMA whose pages are of this size ([`crate::Vma`]).
    /// `tell` is told of each part of a folio, in ascending order: from which address to which, and
    /// the folio's order.
    ///
    /// # Errors
    /// Whatever reading says.
    pub fn add(
        &mut self,
        region: &Region,
        size: u64,
        lies: &mut Lies,
        tell: &mut impl FnMut(u64, u64, usize),
    ) -> io::Result<()> {
        if !region.categories.contains(Categories::PRESENT) {
            return Ok(());
        }
        let pages = region.len() / self.page;
        // Of hugetlbfs, all are told to be huge, even if they are smaller than what an upper table
        // maps.
        let folio = if size > self.page { size / self.page } else { BLOCKS[2] };
        if region.categories.contains(Categories::HUGE) && folio >= BLOCKS[2] {
            lies.pages += pages;
            lies.huge += pages.div_ceil(BLOCKS[2]);
            lies.by_order[(folio.ilog2() as usize).min(ORDERS - 1)] += pages;
            BLOCKS.iter().zip(&mut lies.contiguous).for_each(|(_, count)| *count += pages);
            tell(region.start, region.end, 9);
            return Ok(());
        }
        let mut at = region.start;
        let mut run = Run { at, frame: 0, pages: 0 };
        while at < region.end {
            let count = ((region.end - at) / self.page).min(AT_ONCE as u64) as usize;
            let mut entries = std::mem::take(&mut self.entries);
            let read = self.pagemap.read_at(&mut entries[..count * 8], at / self.page * 8);
            let frames = entries[..read.as_ref().map_or(0, |read| *read)].as_chunks().0;
            for entry in frames {
                // The frame is in the lower 55 bits of what is present; 0 is no frame of a
                // process's.
                let entry = u64::from_ne_bytes(*entry);
                let frame = if entry >> 63 == 1 { entry & ((1 << 55) - 1) } else { 0 };
                if frame == 0 || run.pages == 0 || run.frame + run.pages != frame {
                    self.run(&run, lies, tell)?;
                    run = Run { at, frame, pages: 0 };
                }
                run.pages += u64::from(frame != 0);
                at += self.page;
            }
            let none = frames.is_empty();
            self.entries = entries;
            read?;
            if none {
                break;
            }
        }
        self.run(&run, lies, tell)
    }

    /// Frames in a row.
    fn run(&mut self, run: &Run, lies: &mut Lies, tell: &mut impl FnMut(u64, u64, usize)) -> io::Result<()> {
        if run.pages == 0 {
            return Ok(());
        }
        lies.pages += run.pages;
        for (size, count) in BLOCKS.iter().zip(&mut lies.contiguous) {
            *count += if run.pages >= *size { run.pages } else { 0 };
        }
        let folios = self.folios(run)?;
        for folio in &folios {
            lies.by_order[folio.order.min(ORDERS - 1)] += folio.pages;
            let start = run.at + folio.at * self.page;
            tell(start, start + folio.pages * self.page, folio.order);
        }
        lies.add_blocks(run.at / self.page, run, &folios);
        Ok(())
    }

    /// The folios that a run is of.
    fn folios(&self, run: &Run) -> io::Result<Vec<Folio>> {
        let mut flags = vec![0u8; run.pages as usize * 8];
        self.flags.read_exact_at(&mut flags, run.frame * 8)?;
        let mut folios = folios_of(flags.as_chunks().0);
        // The first may have begun before, and the last one go on behind: how large they are is
        // read there.
        let last = folios.len() - 1;
        for (n, folio) in folios.iter_mut().enumerate().filter(|(_, folio)| folio.order != 0) {
            let known = n != 0 && n != last;
            let pages = if known { folio.pages } else { self.size(run.frame + folio.at)? };
            folio.order = pages.next_power_of_two().ilog2() as usize;
        }
        Ok(folios)
    }

    /// How many pages the folio has that a frame is of.
    fn size(&self, frame: u64) -> io::Result<u64> {
        let mut flags = [0u8; 512 * 8];
        // Folios are aligned to their size, and a larger one than this would be mapped huge.
        let start = frame / 512 * 512;
        self.flags.read_exact_at(&mut flags, start * 8)?;
        let tail = |frame: u64| {
            let flags = flags.as_chunks().0[(frame - start) as usize];
            u64::from_ne_bytes(flags) & TAIL != 0
        };
        let head = (start..=frame).rev().find(|frame| !tail(*frame)).unwrap_or(start);
        let end = (frame + 1..start + 512).find(|frame| !tail(*frame)).unwrap_or(start + 512);
        Ok(end - head)
    }
}

impl Lies {
    /// Counts the blocks in a run whose first page has the number `first`, and whose folios are
    /// these.
    pub(crate) fn add_blocks(&mut self, first: u64, run: &Run, folios: &[Folio]) {
        let blocks = |size: u64| {
            let aligned = first % size == run.frame % size;
            let begin = first.next_multiple_of(size);
            let end = (first + run.pages) / size * size;
            (begin..if aligned { end } else { begin }).step_by(size as usize)
        };
        let in_folio = |page: u64, size: u64| {
            let offset = page - first;
            // The last that begins no later. There are as many folios as pages at worst, and a look
            // at each for each block would take minutes for a run of some GiB.
            let before = folios.partition_point(|folio| folio.at <= offset);
            folios[..before].last().is_some_and(|folio| offset + size <= folio.at + folio.pages)
        };
        let mut large = Vec::new();
        for (n, size) in BLOCKS.into_iter().enumerate().rev() {
            for page in blocks(size) {
                self.congruent[n] += 1;
                let inside = in_folio(page, size);
                self.in_folio[n] += u64::from(inside);
                if n == 1 && inside {
                    large.push(page);
                }
                if n == 0 && large.binary_search(&(page / BLOCKS[1] * BLOCKS[1])).is_err() {
                    self.small_apart += 1;
                }
            }
        }
    }
}

/// Pages in a row in frames in a row.
pub(crate) struct Run {
    pub(crate) at: u64,
    pub(crate) frame: u64,
    pub(crate) pages: u64,
}

/// A part of a run that is of one folio.
#[derive(Debug)]
pub(crate) struct Folio {
    /// Pages from the beginning of the run.
    pub(crate) at: u64,
    pub(crate) pages: u64,
    /// 0, or more: how large it is, is not known yet.
    order: usize,
}

/// Returns the folios that frames in a row are of, by what `/proc/kpageflags` says of each.
pub(crate) fn folios_of(flags: &[[u8; 8]]) -> Vec<Folio> {
    let mut folios: Vec<Folio> = Vec::new();
    for (at, flags) in (0..).zip(flags) {
        let flags = u64::from_ne_bytes(*flags);
        match folios.last_mut() {
            Some(folio) if flags & TAIL != 0 => folio.pages += 1,
            _ => folios.push(Folio { at, pages: 1, order: usize::from(flags & (HEAD | TAIL) != 0) }),
        }
    }
    folios
}
