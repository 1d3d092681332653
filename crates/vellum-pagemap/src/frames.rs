//! Reads the frames and folios that pages are in, for root (`CAP_SYS_ADMIN`). For other users Linux
//! reports frame 0.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use procfs::process::Process;

use crate::{Categories, Region, Unreadable};

/// Pagemap entries, or page flags, that are read at once.
const AT_ONCE: usize = 1 << 13;
/// Block sizes that one TLB entry may hold, in 4 KiB pages: 16 KiB, 64 KiB, 2 MiB.
pub const BLOCKS: [u64; 3] = [4, 16, 512];
/// Folio orders are below this.
pub const ORDERS: usize = 20;

/// Bits of `/proc/kpageflags` (Linux, `include/uapi/linux/kernel-page-flags.h`).
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;

/// The frames of a process.
#[derive(Debug)]
pub struct Frames {
    pagemap: File,
    flags: File,
    page: u64,
    entries: Vec<u8>,
}

/// The folios and the contiguity of a process's memory, in pages. Memory mapped by huge PTEs counts
/// as its pages everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolioStats {
    /// The number of present pages whose frames Linux reported.
    pub pages: u64,
    /// Of these, pages in folios of each order, whether the folio is mapped whole or not.
    pub by_order: [u64; ORDERS],
    /// The number of 2 MiB blocks that huge PTEs map; a 1 GiB page counts 512.
    pub huge: u64,
    /// For each size in [`BLOCKS`], the number of pages in runs of contiguous frames that are at
    /// least as long. Alignment is ignored.
    pub contiguous: [u64; 3],
    /// For each size in [`BLOCKS`], the number of blocks of contiguous frames that are aligned in
    /// both virtual and physical addresses. Leaves out blocks that huge PTEs map.
    pub aligned: [u64; 3],
    /// The number of `aligned` blocks that lie within one folio, which Linux requires for a cont
    /// block.
    pub in_folio: [u64; 3],
    /// The number of `aligned` blocks of the smallest size (16 KiB) that lie in no 64 KiB block of
    /// `in_folio`.
    pub aligned_outside_folios: u64,
}

impl Frames {
    /// Opens the frames of a process. Returns `None` if this user may not read frames.
    ///
    /// # Errors
    /// [`Unreadable`]: the process is gone, or may not be read at all.
    pub fn open(process: &Process) -> Result<Option<Self>, Unreadable> {
        let pagemap = process.open_relative("pagemap").map_err(|error| Unreadable::of(process.pid, error))?;
        let Ok(flags) = File::open("/proc/kpageflags") else { return Ok(None) };
        let page = rustix::param::page_size() as u64;
        Ok(Some(Frames { pagemap, flags, page, entries: vec![0; AT_ONCE * 8] }))
    }

    /// Adds the pages of `region`, of a VMA whose page size is `size` ([`crate::Vma`]), to `stats`.
    /// Calls `each` for each part of a folio in the region, in ascending order, with the part's
    /// start and end address and the folio's order.
    ///
    /// # Errors
    /// The error of a failed read.
    pub fn add(
        &mut self,
        region: &Region,
        size: u64,
        stats: &mut FolioStats,
        each: &mut impl FnMut(u64, u64, usize),
    ) -> io::Result<()> {
        if !region.categories.contains(Categories::PRESENT) {
            return Ok(());
        }
        let pages = region.len() / self.page;
        // Linux reports all pages of a hugetlbfs as huge, even if they are smaller than the 2 MiB
        // that a huge PTE maps.
        let folio = if size > self.page { size / self.page } else { BLOCKS[2] };
        if region.categories.contains(Categories::HUGE) && folio >= BLOCKS[2] {
            stats.pages += pages;
            stats.huge += pages.div_ceil(BLOCKS[2]);
            stats.by_order[(folio.ilog2() as usize).min(ORDERS - 1)] += pages;
            BLOCKS.iter().zip(&mut stats.contiguous).for_each(|(_, count)| *count += pages);
            each(region.start, region.end, 9);
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
                // The frame number is in the lower 55 bits of a present entry. Frame 0 means that
                // Linux did not report it, as no process has frame 0.
                let entry = u64::from_ne_bytes(*entry);
                let frame = if entry >> 63 == 1 { entry & ((1 << 55) - 1) } else { 0 };
                if frame == 0 || run.pages == 0 || run.frame + run.pages != frame {
                    self.run(&run, stats, each)?;
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
        self.run(&run, stats, each)
    }

    /// Adds a run of contiguous frames to `stats`, and calls `each` for its folios.
    fn run(&mut self, run: &Run, stats: &mut FolioStats, each: &mut impl FnMut(u64, u64, usize)) -> io::Result<()> {
        if run.pages == 0 {
            return Ok(());
        }
        stats.pages += run.pages;
        for (size, count) in BLOCKS.iter().zip(&mut stats.contiguous) {
            *count += if run.pages >= *size { run.pages } else { 0 };
        }
        let folios = self.folios(run)?;
        for folio in &folios {
            stats.by_order[folio.order.min(ORDERS - 1)] += folio.pages;
            let start = run.at + folio.at * self.page;
            each(start, start + folio.pages * self.page, folio.order);
        }
        stats.add_blocks(run.at / self.page, run, &folios);
        Ok(())
    }

    /// Returns the folios of a run.
    fn folios(&self, run: &Run) -> io::Result<Vec<Folio>> {
        let mut flags = vec![0u8; run.pages as usize * 8];
        self.flags.read_exact_at(&mut flags, run.frame * 8)?;
        let mut folios = folios_of(flags.as_chunks().0);
        // Read the sizes of the first and the last folio separately: the first may begin before the
        // run, and the last may end after it.
        let last = folios.len() - 1;
        for (n, folio) in folios.iter_mut().enumerate().filter(|(_, folio)| folio.order != 0) {
            let known = n != 0 && n != last;
            let pages = if known { folio.pages } else { self.size(run.frame + folio.at)? };
            folio.order = pages.next_power_of_two().ilog2() as usize;
        }
        Ok(folios)
    }

    /// Returns the number of pages of the folio that `frame` is in.
    fn size(&self, frame: u64) -> io::Result<u64> {
        let mut flags = [0u8; 512 * 8];
        // Read the flags of the aligned 2 MiB around the frame: folios are aligned to their size,
        // and [`Frames::add`] does not come here for larger ones, which huge PTEs map.
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

impl FolioStats {
    /// Counts the blocks in a run whose first page has the number `first`, and whose folios are
    /// `folios`.
    pub(crate) fn add_blocks(&mut self, first: u64, run: &Run, folios: &[Folio]) {
        let blocks = |size: u64| {
            let aligned = first % size == run.frame % size;
            let begin = first.next_multiple_of(size);
            let end = (first + run.pages) / size * size;
            (begin..if aligned { end } else { begin }).step_by(size as usize)
        };
        let in_folio = |page: u64, size: u64| {
            let offset = page - first;
            // A binary search for the last folio that begins at or before the block: a run of some
            // GiB may have a million folios, and a linear search for each block would take minutes.
            let before = folios.partition_point(|folio| folio.at <= offset);
            folios[..before].last().is_some_and(|folio| offset + size <= folio.at + folio.pages)
        };
        let mut large = Vec::new();
        for (n, size) in BLOCKS.into_iter().enumerate().rev() {
            for page in blocks(size) {
                self.aligned[n] += 1;
                let inside = in_folio(page, size);
                self.in_folio[n] += u64::from(inside);
                if n == 1 && inside {
                    large.push(page);
                }
                if n == 0 && large.binary_search(&(page / BLOCKS[1] * BLOCKS[1])).is_err() {
                    self.aligned_outside_folios += 1;
                }
            }
        }
    }
}

/// A run of pages in contiguous frames.
pub(crate) struct Run {
    pub(crate) at: u64,
    pub(crate) frame: u64,
    pub(crate) pages: u64,
}

/// A part of a run within one folio.
#[derive(Debug)]
pub(crate) struct Folio {
    /// The offset from the start of the run, in pages.
    pub(crate) at: u64,
    pub(crate) pages: u64,
    /// The folio's order. Until [`Frames::folios`] has computed it: 0 for a folio of one page, 1
    /// for any other.
    order: usize,
}

/// Returns the folios of contiguous frames, by the `/proc/kpageflags` of each.
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
