//! Rebuilds the address space of a traced program, with pages of any size.
//!
//! The program ran with 4 KiB pages. A kernel with larger pages places mappings at their multiples
//! and rounds lengths up; so this module chooses an address for each mapping: the original one
//! where possible.

use std::collections::{BTreeMap, HashMap};

use vellum::addr::{FRAME_SHIFT, align_down, align_up};
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{Advise, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_linux::workload::shuffle::{SEED, shuffle};
use vellum_sim::{Fast, Silicon};

use super::trace::{Change, PAGE_SHIFT};
use crate::bench::contender::Skip;

/// `MAP_FIXED` or `MAP_FIXED_NOREPLACE`.
const FIXED: u64 = 0x10 | 0x10_0000;
/// `MADV_DONTNEED`.
const DONTNEED: u64 = 4;
/// The addresses reserved for the heap.
const HEAP: u64 = 1 << 30;

/// A mapping of the program.
#[derive(Clone, Copy)]
struct Placed {
    end: u64,
    /// The address of the mapping's first byte in the rebuilt address space.
    at: u64,
}

/// The rebuilt address space. Addresses that methods take are the traced program's.
pub struct World<'m, A: Silicon> {
    machine: &'m Machine<'m, Fast<A>>,
    space: &'m AddressSpace<'m, Fast<A>>,
    arch: A,
    /// True if program text is in large folios.
    text: bool,
    /// The mappings, by their original address.
    placed: BTreeMap<u64, Placed>,
    /// Mappings that existed at the start and were not accessed yet. The first access maps them.
    existing: Vec<Change>,
    files: HashMap<u64, Object<'m, Fast<A>>>,
    heap_end: Option<u64>,
}

impl<'m, A: Silicon> World<'m, A> {
    /// Returns an empty address space. `text`: program text is put into large folios.
    pub fn new(machine: &'m Machine<'m, Fast<A>>, space: &'m AddressSpace<'m, Fast<A>>, arch: A, text: bool) -> Self {
        World {
            machine,
            space,
            arch,
            text,
            placed: BTreeMap::new(),
            existing: Vec::new(),
            files: HashMap::new(),
            heap_end: None,
        }
    }

    /// Returns the address in the rebuilt address space of the byte at the program's address `at`.
    /// A mapping that existed at the start is made at its first access.
    ///
    /// # Errors
    /// Nothing is mapped there, or the engine can't map it.
    pub fn translate(&mut self, at: u64) -> Result<u64, Skip> {
        if let Some(new) = self.find(at) {
            return Ok(new);
        }
        let contains = |change: &Change| match *change {
            Change::Existing { at: start, len, .. } => at >= start && at - start < len,
            _ => false,
        };
        let Some(found) = self.existing.iter().position(contains) else {
            return Err(Skip::system("replay", format!("nothing is mapped at {at:#x}")));
        };
        if let Change::Existing { at, len, rights, file, offset } = self.existing.swap_remove(found) {
            self.map(at, len, rights, 0, file, offset)?;
        }
        self.find(at).ok_or_else(|| Skip::system("replay", format!("nothing could be mapped at {at:#x}")))
    }

    fn find(&self, at: u64) -> Option<u64> {
        let (start, placed) = self.placed.range(..=at).next_back()?;
        (at < placed.end).then(|| placed.at + (at - start))
    }

    /// Applies a change of the program's mappings.
    ///
    /// # Errors
    /// The engine can't apply it.
    pub fn change(&mut self, change: Change) -> Result<(), Skip> {
        match change {
            Change::Existing { .. } => self.existing.push(change),
            Change::Map { at, len, rights, flags, file, offset } => {
                return self.map(at, len, rights, flags, file, offset);
            }
            Change::Unmap { at, len } => return self.unmap(at, len),
            Change::Protect { at, len, rights } => {
                for (start, end) in self.parts(at, len) {
                    self.protect(start, end, prot(rights))?;
                }
            }
            Change::Break { end } => return self.grow_heap(end),
            Change::Remap { at, len, to, to_len } => {
                // The contents are not copied: the program touches them again at the new address.
                self.unmap(at, len)?;
                return self.map(to, to_len, 3, 0, 0, 0);
            }
            Change::Advise { at, len, advice } if advice == DONTNEED => {
                for (start, end) in self.parts(at, len) {
                    let (start, end) = self.inside(start, end);
                    if start < end {
                        let done = self.space.advise(start, end - start, Advise::DontNeed);
                        done.map_err(|error| Skip::system("advise", error))?;
                    }
                }
            }
            Change::Advise { .. } => {}
        }
        Ok(())
    }

    fn map(&mut self, at: u64, len: u64, rights: u64, flags: u64, file: u64, offset: u64) -> Result<(), Skip> {
        let len = align_up(len, PAGE_SHIFT).ok_or_else(|| Skip::system("map", "too long"))?;
        let (page, prot) = (1 << self.arch.page_shift(), prot(rights));
        let inside = (flags & FIXED != 0).then(|| self.find(at)).flatten();
        let (start, end) = match inside {
            // The mapping lies in a range that the program has reserved. The start of an anonymous
            // mapping is rounded up, so that it does not replace the last page of a file mapping
            // before it.
            Some(new) if file == 0 => (up(new, page), up(new + len, page)),
            Some(new) => (down(new, page), up(new + len, page)),
            None => {
                self.unmap(at, len)?;
                let skew = if file == 0 { at % page } else { offset % page };
                let hint = at.wrapping_sub(skew);
                (if hint % page == 0 { hint } else { 0 }, 0)
            }
        };
        let (addr, bytes, flags) = match inside {
            Some(_) => (start, end.saturating_sub(start), MapFlags::FIXED),
            None => (start, up(len + offset % page, page), MapFlags::empty()),
        };
        if bytes == 0 {
            return Ok(());
        }
        let request = MapRequest { addr, len: bytes, prot, flags: flags | MapFlags::NORESERVE };
        let mapped = match file {
            0 => self.space.map(request),
            file => {
                let from = down(offset, page);
                let object = self.file(file)?;
                // Refuse a mapping larger than the machine's memory: `fill` could not make its
                // pages resident, nor even hold the list of them.
                let frames = self.machine.frames().total();
                if bytes >> FRAME_SHIFT > frames {
                    let available = (frames << FRAME_SHIFT) >> 20;
                    return Err(Skip::Memory { needed: bytes >> 20, available });
                }
                fill(&object, from, bytes, self.text && prot.contains(Prot::EXEC))?;
                self.space.map_object(request, &object, from)
            }
        };
        let mapped = mapped.map_err(|error| Skip::system("map", error))?;
        if inside.is_none() {
            let skew = if file == 0 { 0 } else { offset % page };
            self.placed.insert(at, Placed { end: at + len, at: mapped + skew });
        }
        Ok(())
    }

    fn file(&mut self, file: u64) -> Result<Object<'m, Fast<A>>, Skip> {
        if let Some(object) = self.files.get(&file) {
            return Ok(object.clone());
        }
        let object = Object::new(self.machine, &self.arch, MemcgId::ROOT, file, 1 << 40);
        let object = object.map_err(|error| Skip::system("object", error))?;
        self.files.insert(file, object.clone());
        Ok(object)
    }

    fn unmap(&mut self, at: u64, len: u64) -> Result<(), Skip> {
        let parts = self.parts(at, len);
        let end = at.saturating_add(len);
        let over: Vec<(u64, Placed)> =
            self.placed.range(..end).rev().take_while(|(_, p)| p.end > at).map(|(s, p)| (*s, *p)).collect();
        for (start, placed) in over {
            self.placed.remove(&start);
            if start < at {
                self.placed.insert(start, Placed { end: at, ..placed });
            }
            if placed.end > end {
                self.placed.insert(end, Placed { end: placed.end, at: placed.at + (end - start) });
            }
        }
        for (start, end) in parts {
            let (start, end) = self.inside(start, end);
            if start < end {
                self.space.unmap(start, end - start).map_err(|error| Skip::system("unmap", error))?;
            }
        }
        Ok(())
    }

    /// Changes the protection of a range. Rights are added to every page that the range touches,
    /// and removed only from pages that lie in the range entirely.
    fn protect(&self, start: u64, end: u64, prot: Prot) -> Result<(), Skip> {
        let page = 1 << self.arch.page_shift();
        let (start, end) =
            if prot.contains(Prot::WRITE) { (down(start, page), up(end, page)) } else { self.inside(start, end) };
        if start >= end {
            return Ok(());
        }
        self.space.protect(start, end - start, prot).map_err(|error| Skip::system("protect", error))
    }

    fn grow_heap(&mut self, end: u64) -> Result<(), Skip> {
        let Some(before) = self.heap_end.replace(end) else {
            // Reserve the addresses of the largest heap now, so that the heap can grow in place.
            let request = MapRequest { addr: 0, len: HEAP, prot: Prot::empty(), flags: MapFlags::NORESERVE };
            let at = self.space.map(request).map_err(|error| Skip::system("map", error))?;
            self.placed.insert(end, Placed { end: end + HEAP, at });
            return Ok(());
        };
        if end > before
            && let Some(start) = self.find(before)
        {
            self.protect(start, start + (end - before), Prot::READ | Prot::WRITE)?;
        }
        Ok(())
    }

    /// Returns the ranges of the rebuilt address space to which the program's range `at..at + len`
    /// is mapped, one for each mapping in it.
    fn parts(&self, at: u64, len: u64) -> Vec<(u64, u64)> {
        let end = at.saturating_add(len);
        let over = self.placed.range(..end).rev().take_while(|(_, placed)| placed.end > at);
        over.map(|(&start, placed)| {
            let (from, to) = (start.max(at), placed.end.min(end));
            (placed.at + (from - start), placed.at + (to - start))
        })
        .collect()
    }

    /// Shrinks a range to the whole pages inside it.
    fn inside(&self, start: u64, end: u64) -> (u64, u64) {
        let page = 1 << self.arch.page_shift();
        (up(start, page), down(end, page))
    }
}

fn down(at: u64, page: u64) -> u64 {
    align_down(at, page.trailing_zeros())
}

fn up(at: u64, page: u64) -> u64 {
    down(at + page - 1, page)
}

fn prot(rights: u64) -> Prot {
    Prot::from_bits_truncate(rights as u8)
}

/// Makes a file's pages resident, as if other programs had read them before: page by page in random
/// order, so that frames are not contiguous, or with `large` in large folios.
///
/// # Errors
/// There is too little memory.
fn fill<A: Silicon>(object: &Object<'_, Fast<A>>, from: u64, len: u64, large: bool) -> Result<(), Skip> {
    let shift = object.page_shift();
    let failed = |error| Skip::system("fill", error);
    if large {
        return object.allocate(from..from + len, MemcgId::ROOT).map_err(failed);
    }
    let mut pages: Vec<u64> = (from >> shift..(from + len) >> shift).collect();
    shuffle(&mut pages, &mut { SEED });
    pages.into_iter().try_for_each(|page| object.page_or_new(page, MemcgId::ROOT).map(drop).map_err(failed))
}
