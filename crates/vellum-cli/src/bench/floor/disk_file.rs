//! The floor of operations on a file of a disk: copies between its pages and a program's buffer,
//! between its pages and the disk's words, and PTEs and descriptors written.

use std::hint::black_box;

use vellum_linux::region::evict_caches;
use vellum_linux::time::{Stopwatch, Time};
use vellum_linux::workload::case::{Case, PAGE};
use vellum_linux::workload::data::{Page, WORDS};
use vellum_linux::workload::files::{Contents, FileOp, READ, check, random_pages};

use super::Arena;
use super::swapped::repeated;
use crate::bench::contender::{Sample, Skip};
use crate::bench::memory::Mapped;

/// The memory of one case, kept between its runs.
pub struct DiskFile {
    /// The pages in memory.
    pages: Mapped<Page>,
    /// The word of each page on the disk.
    disk: Mapped<u64>,
    /// The pages in the order of random reads.
    random: Vec<u64>,
    contents: Contents,
}

impl DiskFile {
    /// Allocates the memory of a case.
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn new(case: &Case) -> rustix::io::Result<DiskFile> {
        let pages = case.pages() as usize;
        let (pages, disk) = (Mapped::zeroed(pages)?, Mapped::zeroed(pages)?);
        Ok(DiskFile { pages, disk, random: random_pages(case), contents: Contents::default() })
    }

    /// Times `op`: for [`FileOp::PageoutDirty`] the writes to the disk alone. All pages are in
    /// memory afterwards.
    ///
    /// # Errors
    /// There is too little memory, or a page has other contents afterwards.
    pub fn measure(&mut self, arena: &mut Arena, op: FileOp) -> Result<Sample, Skip> {
        let order = arena.case.arm.order(arena.case.folios());
        let write = timed(|| self.write(arena, &order))?;
        let sync = timed(|| self.sync())?;
        if op.is_cold() {
            self.pages.fill(Page([0; WORDS]));
        }
        let mut buffer = vec![0; READ as usize];
        let op_time = match op {
            FileOp::Write | FileOp::Fsync => write,
            FileOp::Read => timed(|| self.read(arena, true, &mut buffer))?,
            FileOp::ReadAgain => timed(|| self.read(arena, false, &mut buffer))?,
            FileOp::ReadRandom => timed(|| self.read_random(arena, &mut buffer))?,
            FileOp::Map => timed(|| self.map(arena, true))?,
            FileOp::MapAgain => timed(|| self.map(arena, false))?,
            FileOp::Pageout => Time::default(),
            FileOp::PageoutDirty => sync,
        };
        black_box(buffer);
        // No program dirties the pages of the floor.
        check(self.pages.len() as u64, FileOp::Pageout, |number, page| {
            *page = self.pages[number as usize];
            Ok(())
        })?;
        Ok(Sample { op: op_time, back: Some(sync), ..Sample::default() })
    }

    /// Writes the file, folio by folio in this order.
    #[inline(never)]
    fn write(&mut self, arena: &mut Arena, order: &[u64]) {
        let (folio, bytes) = (arena.case.pages_per_folio() as usize, arena.case.folio_bytes());
        for &n in order {
            let from = self.contents.bytes(n * bytes, bytes);
            let pages = self.pages[n as usize * folio..].iter_mut();
            for (page, from) in pages.zip(from.chunks_exact(PAGE as usize)) {
                page.bytes_mut().copy_from_slice(from);
            }
            arena.insert(n as usize);
        }
    }

    /// Writes all pages to the disk.
    #[inline(never)]
    fn sync(&mut self) {
        for (page, word) in self.pages.iter().zip(self.disk.iter_mut()) {
            *word = repeated(page).unwrap_or(0);
        }
    }

    /// Reads the file to a buffer, with `cold` from the disk.
    #[inline(never)]
    fn read(&mut self, arena: &mut Arena, cold: bool, buffer: &mut [u8]) {
        let folio = arena.case.pages_per_folio() as usize;
        for (n, (page, word)) in self.pages.iter_mut().zip(self.disk.iter()).enumerate() {
            if cold {
                page.0.fill(*word);
                if n.is_multiple_of(folio) {
                    arena.insert(n / folio);
                }
            }
            let at = n * PAGE as usize % buffer.len();
            buffer[at..at + PAGE as usize].copy_from_slice(page.bytes());
        }
    }

    /// Reads page after page from the disk to a buffer, in random order.
    #[inline(never)]
    fn read_random(&mut self, arena: &mut Arena, buffer: &mut [u8]) {
        for &n in &self.random {
            let (Some(page), Some(word)) = (self.pages.get_mut(n as usize), self.disk.get(n as usize)) else { return };
            page.0.fill(*word);
            arena.insert(n as usize);
            buffer[..PAGE as usize].copy_from_slice(page.bytes());
        }
    }

    /// Maps the file folio by folio, with `cold` from the disk.
    #[inline(never)]
    fn map(&mut self, arena: &mut Arena, cold: bool) {
        let folio = arena.case.pages_per_folio() as usize;
        let both = self.pages.chunks_exact_mut(folio).zip(self.disk.chunks_exact(folio));
        for (n, (pages, words)) in both.enumerate() {
            if cold {
                pages.iter_mut().zip(words).for_each(|(page, word)| page.0.fill(*word));
            }
            arena.map(n);
        }
    }
}

/// Times `act`, with nothing of it in the caches.
fn timed(act: impl FnOnce()) -> Result<Time, Skip> {
    evict_caches()?;
    let watch = Stopwatch::start();
    act();
    Ok(watch.time())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::bench::floor::tests::placement;

    #[test]
    fn pages_come_from_the_disk_and_not_from_the_buffer() {
        let case = Case::of(4 << 20, 64);
        let (mut arena, mut file) = (Arena::new(&case, placement(&case)).unwrap(), DiskFile::new(&case).unwrap());
        arena.fill();
        for &op in FileOp::value_variants() {
            // `measure` checks the contents.
            file.measure(&mut arena, op).unwrap();
        }
        // One word of the disk decides what a read returns.
        file.disk[5] ^= 1;
        let mut buffer = vec![0; READ as usize];
        file.read(&mut arena, true, &mut buffer);
        assert_ne!(file.pages[5].bytes(), file.contents.bytes(5 * PAGE, PAGE));
        assert_eq!(file.pages[6].bytes(), file.contents.bytes(6 * PAGE, PAGE));
    }
}
