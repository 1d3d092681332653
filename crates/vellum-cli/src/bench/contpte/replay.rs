//! A trace on one machine: page tables made by the engine under one policy, translations cached as
//! one model says.

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

/// The machine's memory. The host provides what is touched of it.
const MEMORY: u64 = 2 << 30;
/// log2 of the frames of a folio of 64 KiB: what anonymous memory comes in, where it comes in large
/// folios.
const ORDER: u8 = 4;

/// A format of page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// AArch64, with pages of so many KiB.
    Aarch64(u32),
    /// x86-64.
    X86,
    /// RISC-V.
    Riscv,
}

/// How memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What it is called.
    pub name: &'static str,
    /// The tables.
    pub format: Format,
    /// Anonymous memory comes in folios of 64 KiB where they fit in.
    pub folios: bool,
    /// Entries of one folio are marked as contiguous.
    pub joins: bool,
    /// Text comes in folios of 64 KiB.
    pub text: bool,
}

/// What a replay counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accesses that the first tier of the caches did not answer.
    pub refills: u64,
    /// Of those, the ones that fetched instructions.
    pub fetches: u64,
    /// Accesses that no tier answered: each is a walk of the page tables.
    pub walks: u64,
    /// Entries that those read.
    pub reads: u64,
    /// Page faults.
    pub faults: u64,
    /// What the program did.
    pub totals: Totals,
}

/// Replays a trace that `open` opens.
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

/// Replays a trace on a machine with so many bytes of memory.
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
    knobs.set_cont_blocks(policy.joins);
    knobs.set_prealloc_orders(u32::from(policy.text) << ORDER);
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default())
        .map_err(|error| Skip::system("new", error))?;
    let mut world = World::new(&machine, &space, arch, policy.text);
    let mut mirror = Mirror::new(trace.header().filter, ways(model))
        .ok_or_else(|| Skip::system("replay", "the trace leaves out more than a cache of so few ways could spare"))?;
    let program = cpu.enter(&space);
    let totals = loop {
        match trace.next().map_err(|error| Skip::system("trace", error))? {
            Record::Access { slot, page, access } => {
                mirror.enter(slot, page, access, |page, access| make(&mut world, &program, page, access))?;
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
                    mirror.forget(at >> PAGE_SHIFT..at.saturating_add(len).div_ceil(1 << PAGE_SHIFT));
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
    program: &Program<'_, Fast<A>, AddressSpace<'_, Fast<A>, A>>,
    page: u64,
    access: Access,
) -> Result<(), Skip> {
    let at = world.place(page << PAGE_SHIFT)?;
    let done = match access {
        Access::Read => program.load(at).map(drop),
        Access::Write => program.store(at, 1),
        Access::Execute => program.execute(at).map(drop),
    };
    done.map_err(|error| Skip::system("replay", format!("{access:?} of {:#x}: {error:?}", page << PAGE_SHIFT)))
}

/// The entries of the smallest set of the first tier, for each side.
fn ways(model: &TlbModel) -> usize {
    let ways = model.banks.iter().filter(|bank| bank.tier == 1).map(|bank| bank.ways as usize);
    ways.min().unwrap_or(0)
}
