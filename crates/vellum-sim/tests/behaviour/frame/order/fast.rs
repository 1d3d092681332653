//! The physical order of page tables after memory was freed page by page: they are allocated in
//! ascending order again.
//!
//! Nothing breaks otherwise, but everything gets slower the longer a machine runs, which no fresh
//! machine shows.

use std::sync::atomic::Ordering::Relaxed;

use vellum::addr::VirtRange;
use vellum::arch::{Arch, X86_64};
use vellum::memcg::MemcgId;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Access, Config, Cpu, Fast, Simulated};

const TABLES: u64 = 512;
const SPAN: u64 = 2 << 20;

type Space<'m> = AddressSpace<'m, Fast>;

/// Maps a range, and touches a page of each page table.
fn occupy(cpu: &Cpu<'_, Fast>, space: &Space<'_>) -> VirtRange {
    let request =
        MapRequest { addr: 0, len: TABLES * SPAN, prot: Prot::READ | Prot::WRITE, flags: MapFlags::NORESERVE };
    let range = VirtRange::new(space.map(request).unwrap(), request.len).unwrap();
    cpu.enter(space).touch(range, SPAN, Access::Write).unwrap();
    range
}

/// Returns how many of the lowest page tables in `range` directly follow the one before.
fn in_a_row(sim: &Fast, space: &Space<'_>, range: VirtRange) -> usize {
    let arch = space.arch();
    let table = |va: u64| {
        (2..=arch.levels()).rev().fold(space.root().addr(), |table, level| {
            let entry = vellum::addr::PhysAddr(table.0 + 8 * arch.index(va, level) as u64);
            arch.table_addr(sim.hardware().arena().word(entry).load(Relaxed))
        })
    };
    let tables: Vec<u64> = (range.start..range.end).step_by(SPAN as usize).map(|va| table(va).0).collect();
    tables.windows(2).filter(|pair| pair[0] + 4096 == pair[1]).count()
}

#[test]
fn page_tables_stay_contiguous_after_many_rounds() {
    let sim = Config::new(128 << 20).fast().unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    for round in 0..30 {
        // With runs of one page the gather fills up often, and page tables are freed one by one;
        // with full runs they are freed together.
        for cap in [1, usize::MAX] {
            let mut space =
                AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
            space.cap_runs(cap);
            let range = occupy(&cpu, &space);
            let row = in_a_row(&sim, &space, range);
            assert!(row > TABLES as usize / 2, "round {round}: {row} of {TABLES}");
            if cap == 1 {
                for va in (range.start..range.end).step_by(SPAN as usize) {
                    space.unmap(va, SPAN).unwrap();
                }
            }
        }
    }
}
