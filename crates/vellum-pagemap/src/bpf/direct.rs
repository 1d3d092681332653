//! Finds the kernel's direct map: page-table entries have physical addresses, and kernel memory is
//! read by virtual address.
//!
//! Linux maps all memory linearly. The base address differs after each boot, in steps of 1 GiB, and
//! many kernels don't export it (`/proc/kallsyms` has variables with `CONFIG_KALLSYMS_ALL` only,
//! and `/proc/kcore` may be missing). So candidates are tried. A candidate base gives a physical
//! address to each of some kernel structures whose virtual addresses are known, and these have to
//! be slab pages (`/proc/kpageflags`). That leaves few candidates, mostly one, and avoids reads
//! where there is no memory. A candidate is proved by a page of this process whose frame number
//! `pagemap` reports: the memory at the candidate's address of that frame has to equal the page,
//! word by word.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::WalkerError;
use super::program::{KernelMemory, PAGE};

/// The distance between candidate bases.
const STEP: u64 = 1 << 30;

/// The direct map.
#[derive(Clone, Copy, Debug)]
pub(super) struct DirectMap {
    /// The virtual address of physical address 0.
    pub(super) base: u64,
    /// A power of two above all physical addresses.
    pub(super) end: u64,
}

impl DirectMap {
    /// Finds the direct map. `structures` are the virtual addresses of some small kernel objects.
    /// These lie in slab pages, which the check of the page flags relies on.
    ///
    /// # Errors
    /// Page flags or frames can't be read, or no candidate matches.
    pub(super) fn find(
        memory: &mut impl KernelMemory,
        structures: &[u64],
        own: &MarkerPage,
    ) -> Result<Self, WalkerError> {
        let pages = Pages::open().map_err(WalkerError::NoFlags)?;
        let place = own.physical().ok_or(WalkerError::Denied)?;
        Self::among(memory, &pages, structures, place, own.page()).ok_or(WalkerError::Unknown)
    }

    /// Returns the candidate that maps the physical address `place` to memory with the contents
    /// `page`.
    fn among(
        memory: &mut impl KernelMemory,
        pages: &Pages,
        structures: &[u64],
        place: u64,
        page: &[u64],
    ) -> Option<Self> {
        let first = structures.iter().copied().min()?;
        let base = (0..)
            .map(|n| (first / STEP * STEP).wrapping_sub(n * STEP))
            .take_while(|base| pages.flags(first.wrapping_sub(*base)).is_some())
            .filter(|base| structures.iter().all(|at| pages.structures(at.wrapping_sub(*base))))
            .find(|base| memory.page(base.wrapping_add(place)).is_ok_and(|read| read == *page))?;
        Some(DirectMap { base, end: pages.end() })
    }

    /// Returns the physical address in a page-table entry. Masks off the bits above all physical
    /// addresses, which are flags (AMD: memory encryption).
    pub(super) fn physical(&self, entry: u64) -> u64 {
        entry & (self.end - 1) & !(PAGE - 1)
    }

    /// Returns the virtual address in the direct map of the memory to which a page-table entry
    /// points.
    pub(super) fn address(&self, entry: u64) -> u64 {
        self.base.wrapping_add(self.physical(entry))
    }
}

/// Page flags by physical address (Linux, `Documentation/admin-guide/mm/pagemap.rst`).
struct Pages(File);

impl Pages {
    fn open() -> io::Result<Self> {
        File::open("/proc/kpageflags").map(Pages)
    }

    /// Returns the flags of the page at physical address `place`, or `None` beyond the end of
    /// memory.
    fn flags(&self, place: u64) -> Option<u64> {
        let mut flags = [0; 8];
        self.0.read_exact_at(&mut flags, place / PAGE * 8).ok()?;
        Some(u64::from_ne_bytes(flags))
    }

    /// Returns whether the page at physical address `place` is a slab page (`KPF_SLAB`).
    fn structures(&self, place: u64) -> bool {
        self.flags(place).is_some_and(|flags| flags >> 7 & 1 == 1)
    }

    fn end(&self) -> u64 {
        (30..52).map(|bit| 1 << bit).find(|end| self.flags(*end).is_none()).unwrap_or(1 << 52)
    }
}

/// A page of this process with random contents, by which the direct map is recognized.
pub(super) struct MarkerPage {
    words: Vec<u64>,
    /// The index of the page's first word.
    first: usize,
}

impl MarkerPage {
    pub(super) fn new() -> Self {
        let words: Vec<u64> = (0..2 * PAGE / 8).map(|_| fastrand::u64(..)).collect();
        let start = words.as_ptr().addr() as u64;
        MarkerPage { first: ((start.next_multiple_of(PAGE) - start) / 8) as usize, words }
    }

    fn page(&self) -> &[u64] {
        &self.words[self.first..][..PAGE as usize / 8]
    }

    pub(super) fn address(&self) -> u64 {
        self.page().as_ptr().addr() as u64
    }

    /// Returns the page's physical address, or `None` if this user may not know it.
    pub(super) fn physical(&self) -> Option<u64> {
        let mut entry = [0; 8];
        let pagemap = File::open("/proc/self/pagemap").ok()?;
        pagemap.read_exact_at(&mut entry, self.address() / PAGE * 8).ok()?;
        let frame = u64::from_ne_bytes(entry) & ((1 << 55) - 1);
        (frame != 0).then_some(frame * PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::program::Page;

    const BASE: u64 = 0xffff_9a43_c000_0000;
    /// The size of memory, the physical addresses of the structures, and of the page to find.
    const ALL: u64 = 24 << 30;
    const STRUCTURES: [u64; 2] = [(17 << 30) + 0x1040, (18 << 30) + 0x5ac0];
    const MARKER: u64 = 3 << 30 | 0x7000;

    /// Memory with contents in one page only.
    struct One {
        page: Page,
        reads: Vec<u64>,
    }

    impl KernelMemory for One {
        fn pages(&mut self, at: &[u64]) -> io::Result<Vec<io::Result<Page>>> {
            self.reads.extend(at);
            Ok(at.iter().map(|at| Ok(if *at == BASE + MARKER { self.page } else { [0; 512] })).collect())
        }
    }

    /// Page flags of memory with slab pages at these addresses.
    fn pages(structures: &[u64]) -> Pages {
        let file = tempfile::tempfile().unwrap();
        file.set_len(ALL / PAGE * 8).unwrap();
        for place in structures {
            file.write_all_at(&(1u64 << 7).to_ne_bytes(), place / PAGE * 8).unwrap();
        }
        Pages(file)
    }

    fn find(slab: &[u64]) -> (Option<DirectMap>, Vec<u64>) {
        let mut memory = One { page: [7; 512], reads: Vec::new() };
        let found =
            DirectMap::among(&mut memory, &pages(slab), &STRUCTURES.map(|place| BASE + place), MARKER, &[7; 512]);
        (found, memory.reads)
    }

    #[test]
    fn the_direct_map_is_found_at_any_base() {
        let (found, reads) = find(&STRUCTURES);
        let found = found.unwrap();
        assert_eq!((found.base, found.end), (BASE, 32 << 30));
        assert_eq!(reads, [BASE + MARKER], "no other page is read");
    }

    /// A wrong base may put the structures on slab pages by chance: the page's contents decide.
    #[test]
    fn a_base_with_wrong_page_contents_is_rejected() {
        let wrong = STRUCTURES.map(|place| place - (5 << 30));
        let (found, reads) = find(&[wrong, STRUCTURES].concat());
        assert_eq!(found.unwrap().base, BASE);
        assert_eq!(reads, [BASE + (5 << 30) + MARKER, BASE + MARKER]);
        assert!(find(&wrong).0.is_none());
    }

    /// One structure is not on a slab page: the candidate is rejected, and no page is read.
    #[test]
    fn a_base_without_all_structures_is_rejected() {
        let (found, reads) = find(&STRUCTURES[..1]);
        assert!(found.is_none() && reads.is_empty());
    }
}
