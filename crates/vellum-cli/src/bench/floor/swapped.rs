//! The floor of swap: a page that repeats one word is stored as that word, any other page is
//! compressed, and the page's PTE refers to the record of where it is.

use std::hint::black_box;

use bytemuck::Zeroable;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use vellum_linux::region::evict_caches;
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::case::{Case, PAGE};
use vellum_linux::workload::data::{Data, Page, WORDS};

use super::{ATTRIBUTES, Arena, Descriptor, FIRST_FRAME, FRAME, FreeList, LARGE, frame_of};
use crate::bench::contender::{Sample, Skip};
use crate::bench::memory::Mapped;

/// The largest compressed size of a page.
const LONGEST: usize = get_maximum_output_size(PAGE as usize);

/// The bit of a PTE whose page is swapped out.
const OUT: u64 = 1 << 1;

/// The record of a swapped-out page.
#[derive(Clone, Copy, Zeroable)]
struct Record {
    /// The compressed size in bytes; 0 if one word fills the page.
    len: u64,
    /// The offset of the compressed bytes, or the word that fills the page.
    at: u64,
}

/// The memory of one case, kept between its runs.
pub struct Swap {
    pages: Mapped<Page>,
    records: Mapped<Record>,
    compressed: Mapped<u8>,
    table: CompressTable,
}

impl Swap {
    /// Allocates the memory of a case.
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn new(case: &Case) -> rustix::io::Result<Swap> {
        let pages = case.pages() as usize;
        Ok(Swap {
            pages: Mapped::zeroed(pages)?,
            records: Mapped::zeroed(pages)?,
            compressed: Mapped::zeroed(pages * LONGEST)?,
            table: CompressTable::small(),
        })
    }

    /// Times swap-out of a filled arena, and swap-in.
    ///
    /// # Errors
    /// There is too little memory, or a page came back with other contents.
    pub fn measure(&mut self, arena: &mut Arena, data: Data) -> Result<Sample, Skip> {
        (0..).zip(self.pages.iter_mut()).for_each(|(number, page)| *page = data.page(number));
        evict_caches()?;
        let watch = Stopwatch::start();
        black_box(self.swap_out(arena));
        let op = watch.time();
        // Clear the pages, so that the comparison afterwards proves that swap-in restored them.
        self.pages.fill(Page([0; WORDS]));
        evict_caches()?;
        let watch = Stopwatch::start();
        self.swap_in(arena);
        let back = Some(watch.time());
        data.check(self.pages.len() as u64, |number, page| {
            *page = self.pages[number as usize];
            Ok(())
        })?;
        Ok(Sample { op, back, ..Sample::default() })
    }

    /// Stores all pages and frees their folios. Returns the number of folios.
    #[inline(never)]
    fn swap_out(&mut self, arena: &mut Arena) -> u64 {
        let (folio, pages) = (arena.entries_of_a_folio(), arena.case.pages_per_folio() as usize);
        let mut free = FreeList::default();
        let mut end = 0;
        for entries in arena.entries.chunks_exact_mut(folio) {
            let head = frame_of(entries[0]);
            let Some(descriptor) = arena.descriptors.get_mut(head) else { break };
            for entry in entries.iter_mut() {
                *entry = ((*entry & FRAME) - (FIRST_FRAME << 12)) | OUT;
            }
            self.store(descriptor.page as usize, pages, &mut end);
            descriptor.maps = descriptor.maps.wrapping_sub(folio as u32);
            descriptor.references = descriptor.references.wrapping_sub(folio as u32);
            if descriptor.references == 0 {
                free.push(head, descriptor);
            }
        }
        free.folios
    }

    /// Restores all pages, in folios of the case's size.
    #[inline(never)]
    fn swap_in(&mut self, arena: &mut Arena) {
        let (folio, pages) = (arena.entries_of_a_folio(), arena.case.pages_per_folio() as usize);
        let leaf = if arena.case.huge { LARGE } else { 0 };
        for entries in arena.entries.chunks_exact_mut(folio) {
            let slot = (entries[0] >> 12) as usize;
            let page = arena.descriptors[slot].page;
            self.restore(page as usize, pages);
            for entry in entries.iter_mut() {
                *entry = ((*entry & FRAME) + (FIRST_FRAME << 12)) | ATTRIBUTES | leaf;
            }
            let mappings = folio as u32;
            arena.descriptors[slot] = Descriptor { references: mappings, maps: mappings, page, ..Zeroable::zeroed() };
        }
    }

    /// Stores `count` pages from page `first` on. `end` is the offset behind the last compressed
    /// byte, and advances.
    #[inline(always)]
    fn store(&mut self, first: usize, count: usize, end: &mut usize) {
        let pages = self.pages[first..].iter().zip(&mut self.records[first..]);
        for (page, record) in pages.take(count) {
            *record = match repeated(page) {
                Some(word) => Record { len: 0, at: word },
                None => {
                    let room = &mut self.compressed[*end..*end + LONGEST];
                    let len = compress_into_with_table(page.bytes(), room, &mut self.table).unwrap_or(0);
                    let at = *end as u64;
                    *end += len;
                    Record { len: len as u64, at }
                }
            };
        }
    }

    /// Restores `count` pages from page `first` on.
    #[inline(always)]
    fn restore(&mut self, first: usize, count: usize) {
        let pages = self.pages[first..].iter_mut().zip(&self.records[first..]);
        for (page, record) in pages.take(count) {
            if record.len == 0 {
                page.0.fill(record.at);
            } else {
                let bytes = &self.compressed[record.at as usize..][..record.len as usize];
                // Ignore an error: the comparison of the contents finds it.
                let _ = decompress_into(bytes, page.bytes_mut());
            }
        }
    }
}

/// Returns the word that fills a page, if one does.
#[inline(always)]
pub fn repeated(page: &Page) -> Option<u64> {
    let word = page.0[0];
    page.0.as_chunks::<16>().0.iter().all(|chunk| chunk.iter().all(|&other| other == word)).then_some(word)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use vellum_linux::workload::arm::Arm;

    use super::*;
    use crate::bench::floor::PRESENT;
    use crate::bench::floor::tests::placement;

    #[test]
    fn every_folio_is_swapped_out_once_and_restored() {
        let small = [4, 64, 2048].map(|folio_kib| Case::of(4 << 20, folio_kib));
        let cases = small.into_iter().chain([Case { huge: true, ..Case::of(4 << 20, 2048) }]);
        for case in cases.flat_map(|case| Arm::value_variants().iter().map(move |&arm| Case { arm, ..case })) {
            for data in [Data::SameFilled, Data::Compressible] {
                let (mut arena, mut swap) = (Arena::new(&case, placement(&case)).unwrap(), Swap::new(&case).unwrap());
                arena.fill();
                let before = arena.entries.to_vec();
                // `measure` checks the contents.
                swap.measure(&mut arena, data).unwrap();
                assert_eq!(arena.entries[..], before);
                assert_eq!(swap.swap_out(&mut arena), case.folios(), "{} {}", data.name(), case.label());
                assert!(arena.descriptors.iter().all(|descriptor| descriptor.references == 0 && descriptor.maps == 0));
                assert!(arena.entries.iter().all(|entry| entry & PRESENT == 0));
            }
        }
    }

    #[test]
    fn only_a_same_filled_page_is_stored_as_a_word() {
        let mut page = Data::SameFilled.page(7);
        assert_eq!(repeated(&page), Some(page.0[0]));
        page.0[WORDS - 1] ^= 1;
        assert_eq!(repeated(&page), None);
    }
}
