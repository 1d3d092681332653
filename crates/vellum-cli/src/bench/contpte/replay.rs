//! Replays a trace on one machine: page tables by the engine under one policy, TLBs by one model.

use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::frame::HUGE_ORDER;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::Limits;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Access, Config, Fast, Hardware, Program, Silicon, Simulated, TlbModel};

use super::filter::Mirror;
use super::trace::{Change, PAGE_SHIFT, Reader, Record, Totals, TraceError};
use super::world::World;
use crate::bench::contender::Skip;

/// The bytes of the machine's memory. The host allocates only pages that are touched.
const MEMORY: u64 = 2 << 30;
/// The order of a 64 KiB folio, which is the size of large anonymous folios here.
const ORDER: u8 = 4;

/// A page-table format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// AArch64, with pages of this many KiB.
    Aarch64(u32),
    /// x86-64.
    X86,
    /// RISC-V.
    Riscv,
}

/// A mapping policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The name.
    pub name: &'static str,
    /// The page-table format.
    pub format: Format,
    /// Anonymous memory is in 64 KiB folios where they fit.
    pub folios: bool,
    /// PTEs of one folio form cont blocks.
    pub cont_blocks: bool,
    /// Text is in 64 KiB folios.
    pub text: bool,
}

/// The counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that missed the first-level TLB.
    pub refills: u64,
    /// The instruction fetches among them.
    pub fetches: u64,
    /// Accesses that missed all TLB levels: each is a page walk.
    pub walks: u64,
    /// PTEs that the walks read.
    pub reads: u64,
    /// Page faults.
    pub faults: u64,
    /// The program's own accesses.
    pub totals: Totals,
}

/// Replays the trace that `open` opens.
///
/// # Errors
/// The trace can't be read, or the engine fails.
pub fn replay(
    open: impl Fn() -> Result<Reader<Box<dyn std::io::Read>>, TraceError>,
    policy: &Policy,
    model: &TlbModel,
) -> Result<Counts, Skip> {
    let trace = open().map_err(|error| Skip::system("trace", error))?;
    match policy.format {
        Format::Aarch64(16) => on(Aarch64::granule_16k(), MEMORY, trace, policy, model),
        Format::Aarch64(64) => on(Aarch64::granule_64k(), MEMORY, trace, policy, model),
        Format::Aarch64(_) => on(Aarch64::granule_4k(), MEMORY, trace, policy, model),
        Format::X86 => on(X86_64::four_levels(), MEMORY, trace, policy, model),
        Format::Riscv => on(Riscv64::sv48().with_napot(), MEMORY, trace, policy, model),
    }
}

/// Replays a trace on a machine with `memory` bytes.
///
/// # Errors
/// As for [`replay`].
pub(crate) fn on<A: Silicon, R: std::io::Read>(
    arch: A,
    memory: u64,
    mut trace: Reader<R>,
    policy: &Policy,
    model: &TlbModel,
) -> Result<Counts, Skip> {
    let sim = Config::with_arch(arch, memory).tlb(model.clone()).fast().map_err(|error| Skip::system("mmap", error))?;
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).map_err(|error| Skip::system("boot", error))?;
    let knobs = machine.policy();
    knobs.set_global(Knob::Never);
    for order in 1..=HUGE_ORDER {
        knobs.set(order, if policy.folios && order == ORDER { Knob::Always } else { Knob::Never });
    }
    knobs.set_cont_blocks(policy.cont_blocks);
    knobs.set_memory_orders(u32::from(policy.text) << ORDER);
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default())
        .map_err(|error| Skip::system("new", error))?;
    let mut world = World::new(&machine, &space, arch, policy.text);
    let mut mirror = Mirror::new(trace.header().filter, ways(model))
        .ok_or_else(|| Skip::system("replay", "the trace's filter is larger than a set of this core's TLB"))?;
    let program = cpu.enter(&space);
    let totals = loop {
        match trace.next().map_err(|error| Skip::system("trace", error))? {
            Record::Access { slot, page, access } => {
                mirror.insert(slot, page, access, |page, access| make(&mut world, &program, page, access))?;
            }
            Record::Dirty { slot } => {
                if let Some(page) = mirror.data(slot) {
                    make(&mut world, &program, page, Access::Write)?;
                }
            }
            Record::Vma(change) => {
                if let Change::Map { at, len, .. }
                | Change::Unmap { at, len }
                | Change::Remap { at, len, .. }
                | Change::Advise { at, len, .. } = change
                {
                    mirror.remove(at >> PAGE_SHIFT..at.saturating_add(len).div_ceil(1 << PAGE_SHIFT));
                }
                world.change(change)?;
            }
            Record::End(totals) => break totals,
        }
    };
    let stats = hardware(&sim).stats();
    Ok(Counts {
        refills: stats.later_hits + stats.misses,
        fetches: stats.later_fetch_hits + stats.fetch_misses,
        walks: stats.misses,
        reads: stats.walk_reads,
        faults: stats.faults,
        totals,
    })
}

fn hardware<A: Silicon>(sim: &Fast<A>) -> &Hardware<A> {
    Simulated::hardware(sim)
}

fn make<A: Silicon>(
    world: &mut World<'_, A>,
    program: &Program<'_, Fast<A>, AddressSpace<'_, Fast<A>>>,
    page: u64,
    access: Access,
) -> Result<(), Skip> {
    let at = world.translate(page << PAGE_SHIFT)?;
    let done = match access {
        Access::Read => program.load(at).map(drop),
        Access::Write => program.store(at, 1),
        Access::Execute => program.execute(at).map(drop),
    };
    done.map_err(|error| Skip::system("replay", format!("{access:?} of {:#x}: {error:?}", page << PAGE_SHIFT)))
}

/// Returns the fewest ways of any first-level bank of the model, whether for fetches or for data.
fn ways(model: &TlbModel) -> usize {
    let ways = model.banks.iter().filter(|bank| bank.tier == 1).map(|bank| bank.ways as usize);
    ways.min().unwrap_or(0)
}
