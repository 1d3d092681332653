//! Where the kernel has mapped all memory: a table's entry says where in memory the next table is,
//! and the kernel's memory is read by address.
//!
//! Linux has all memory mapped in one stretch of addresses. It begins somewhere else after each
//! boot, in steps of 1 GiB, and many kernels don't say where (symbols of variables are in
//! `/proc/kallsyms` with `CONFIG_KALLSYMS_ALL` only, and `/proc/kcore` may not be there). So it is
//! found by trial. Each possible beginning says where in memory some structures are whose addresses
//! are known: there have to be pages for such (`/proc/kpageflags`). That leaves few, mostly one,
//! and keeps us from reading where there is no memory. The proof is a page of our own, of which
//! `pagemap` says where in memory it is: it has to be there word by word.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::Refused;
use super::program::{Memory, PAGE};

/// From one possible beginning to the next.
const STEP: u64 = 1 << 30;

/// The mapping of all memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direct {
    /// The address of the beginning of memory.
    pub(super) base: u64,
    /// A power of two: all memory lies before that.
    pub(super) end: u64,
}

impl Direct {
    /// Find it. `structures`: the addresses of some that are small, so that they share pages with
    /// others.
    pub(super) fn find(memory: &mut impl Memory, structures: &[u64], own: &Own) -> Result<Self, Refused> {
        let pages = Pages::open().map_err(Refused::NoFlags)?;
        let place = own.place().ok_or(Refused::Denied)?;
        Self::among(memory, &pages, structures, place, own.page()).ok_or(Refused::Unknown)
    }

    /// The one by which the page at a place in memory says what it has to.
    fn among(memory: &mut impl Memory, pages: &Pages, structures: &[u64], place: u64, page: &[u64]) -> Option<Self> {
        let first = structures.iter().copied().min()?;
        let base = (0..)
            .map(|n| (first / STEP * STEP).wrapping_sub(n * STEP))
            .take_while(|base| pages.flags(first.wrapping_sub(*base)).is_some())
            .filter(|base| structures.iter().all(|at| pages.structures(at.wrapping_sub(*base))))
            .find(|base| memory.page(base.wrapping_add(place)).is_ok_and(|read| read == *page))?;
        Some(Direct { base, end: pages.end() })
    }

    /// Where in memory an entry leads to. (Bits that no memory's place has mean something else: on
    /// AMD, that it is encrypted.)
    pub(super) fn place(&self, entry: u64) -> u64 {
        entry & (self.end - 1) & !(PAGE - 1)
    }

    /// Where that is read.
    pub(super) fn address(&self, entry: u64) -> u64 {
        self.base.wrapping_add(self.place(entry))
    }
}

/// What pages of memory are used for (Linux, `Documentation/admin-guide/mm/pagemap.rst`).
struct Pages(File);

impl Pages {
    fn open() -> io::Result<Self> {
        File::open("/proc/kpageflags").map(Pages)
    }

    /// None: there is no memory from here on.
    fn flags(&self, place: u64) -> Option<u64> {
        let mut flags = [0; 8];
        self.0.read_exact_at(&mut flags, place / PAGE * 8).ok()?;
        Some(u64::from_ne_bytes(flags))
    }

    /// Whether it is a page of small structures (`KPF_SLAB`).
    fn structures(&self, place: u64) -> bool {
        self.flags(place).is_some_and(|flags| flags >> 7 & 1 == 1)
    }

    fn end(&self) -> u64 {
        (30..52).map(|bit| 1 << bit).find(|end| self.flags(*end).is_none()).unwrap_or(1 << 52)
    }
}

/// A page of our own, like which there is no other.
pub(super) struct Own {
    words: Vec<u64>,
    /// Where in these it begins.
    first: usize,
}

impl Own {
    pub(super) fn new() -> Self {
        let words: Vec<u64> = (0..2 * PAGE / 8).map(|_| fastrand::u64(..)).collect();
        let start = words.as_ptr().addr() as u64;
        Own { first: ((start.next_multiple_of(PAGE) - start) / 8) as usize, words }
    }

    fn page(&self) -> &[u64] {
        &self.words[self.first..][..PAGE as usize / 8]
    }

    pub(super) fn address(&self) -> u64 {
        self.page().as_ptr().addr() as u64
    }

    /// Where in memory it is. None: that is not for us to know.
    pub(super) fn place(&self) -> Option<u64> {
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
    /// How much memory there is, and where in it structures are, and the page that has to be found.
    const ALL: u64 = 24 << 30;
    const STRUCTURES: [u64; 2] = [(17 << 30) + 0x1040, (18 << 30) + 0x5ac0];
    const OWN: u64 = 3 << 30 | 0x7000;

    /// Memory in which one page says something.
    struct One {
        page: Page,
        reads: Vec<u64>,
    }

    impl Memory for One {
        fn pages(&mut self, at: &[u64]) -> io::Result<Vec<io::Result<Page>>> {
            self.reads.extend(at);
            Ok(at.iter().map(|at| Ok(if *at == BASE + OWN { self.page } else { [0; 512] })).collect())
        }
    }

    /// What is told of memory that has structures at these places, and then is not told of any
    /// more.
    fn pages(structures: &[u64]) -> Pages {
        let file = tempfile::tempfile().unwrap();
        file.set_len(ALL / PAGE * 8).unwrap();
        for place in structures {
            file.write_all_at(&(1u64 << 7).to_ne_bytes(), place / PAGE * 8).unwrap();
        }
        Pages(file)
    }

    fn find(told: &[u64]) -> (Option<Direct>, Vec<u64>) {
        let mut memory = One { page: [7; 512], reads: Vec::new() };
        let found = Direct::among(&mut memory, &pages(told), &STRUCTURES.map(|place| BASE + place), OWN, &[7; 512]);
        (found, memory.reads)
    }

    #[test]
    fn the_mapping_is_found_wherever_it_begins() {
        let (found, reads) = find(&STRUCTURES);
        let found = found.unwrap();
        assert_eq!((found.base, found.end), (BASE, 32 << 30));
        assert_eq!(reads, [BASE + OWN], "nothing is read by chance");
    }

    /// Structures may happen to be where a wrong beginning would have them: the page tells.
    #[test]
    fn what_only_looks_like_it_is_not_taken() {
        let wrong = STRUCTURES.map(|place| place - (5 << 30));
        let (found, reads) = find(&[wrong, STRUCTURES].concat());
        assert_eq!(found.unwrap().base, BASE);
        assert_eq!(reads, [BASE + (5 << 30) + OWN, BASE + OWN]);
        assert!(find(&wrong).0.is_none());
    }

    /// One of them is elsewhere: it is not the mapping that they are in, and no page is read.
    #[test]
    fn all_structures_have_to_be_in_it() {
        let (found, reads) = find(&STRUCTURES[..1]);
        assert!(found.is_none() && reads.is_empty());
    }
}
