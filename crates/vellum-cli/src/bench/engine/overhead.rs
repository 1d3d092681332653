//! Counts the memory that the engine takes to describe and to map memory.

use vellum::frame::Frame;
use vellum::memcg::MemcgId;
use vellum::platform::Memory;
use vellum_linux::workload::case::{Case, PAGE};

use super::{Engine, map, shape, touch};
use crate::bench::contender::Skip;

/// Bytes that the engine takes besides the program's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Bytes of the machine.
    pub machine: u64,
    /// The descriptors of the machine's frames, which have the rmap keys, the memcgs and the links
    /// of the LRU lists, too.
    pub descriptors: u64,
    /// All else that the boot took: the bitmaps of free frames, memcgs, per-CPU structures and the
    /// zero folio.
    pub boot: u64,
    /// The page tables of an address space with the region.
    pub tables: u64,
    /// All else that the address space took: VMAs and per-CPU counters.
    pub space: u64,
}

impl Engine {
    /// Counts the memory of the machine and of an address space with the touched region of `case`.
    ///
    /// # Errors
    /// The engine can't map the region.
    pub fn overhead(&self, case: &Case) -> Result<Overhead, Skip> {
        let booted = self.booted()?;
        let frames = booted.machine.frames();
        let free = || frames.free_frames() * PAGE;
        let before = free();
        let machine: u64 = booted.machine.platform().regions().iter().map(|region| region.len).sum();
        let descriptors = machine / PAGE * size_of::<Frame>() as u64;
        let space = booted.space(case.folio_kib, MemcgId::ROOT)?;
        let range = map(&space, case.bytes)?;
        let program = booted.cpu.enter(&space);
        touch(&program, range)?;
        shape(&space, &program, range, case)?;
        let tables = space.stats().tables;
        Ok(Overhead {
            machine,
            descriptors,
            boot: machine - before - descriptors,
            tables,
            space: before - free() - case.bytes - tables,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 << 20;

    #[test]
    fn only_page_tables_depend_on_how_memory_is_mapped() {
        let engine = Engine::of(BYTES);
        let of = |folio_kib, huge| engine.overhead(&Case { huge, ..Case::of(BYTES, folio_kib) }).unwrap();
        let small = of(4, false);
        assert_eq!(small.descriptors, small.machine / 128, "32 bytes for a frame of 4 KiB");
        assert!(small.boot > 0 && small.boot < small.descriptors, "{small:?}");
        // A table of each level above the last, and a last one for each 2 MiB.
        assert_eq!(small.tables, (3 + BYTES / (2 << 20)) * PAGE);
        assert!(small.space > 0 && small.space <= 4 * PAGE, "{small:?}");
        for (folio_kib, huge) in [(64, false), (2048, false), (2048, true)] {
            let tables = if huge { 3 * PAGE } else { small.tables };
            assert_eq!(of(folio_kib, huge), Overhead { tables, ..small }, "{folio_kib} KiB");
        }
    }
}
