//! `mremap` in the page tables, on hostile hardware, with a program at work in the space.

use vellum::addr::VirtRange;
use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{FaultError, Limits, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Fault, Hostility, Program, Silicon, Strict, Strictness};

const RW: Prot = Prot::READ.union(Prot::WRITE);
/// Addresses at which page tables of the two last levels begin in every format.
const FROM: u64 = 8 << 30;
const TO: u64 = 16 << 30;

type Space<'m, A> = AddressSpace<'m, Strict<A>>;

/// Runs a test with a space in which a program runs on another CPU, which caches as many
/// translations as it can.
fn with_a_program<A: Silicon>(
    arch: A,
    seed: u64,
    knob: Knob,
    run: impl FnOnce(&Machine<'_, Strict<A>>, &Space<'_, A>, &Program<'_, Strict<A>, Space<'_, A>>),
) {
    let memory = (48 << 20) << arch.page_order();
    let strictness = Strictness::new(seed).hostility(Hostility::WORST);
    let sim = Config::with_arch(arch, memory).cpus(2).strict(strictness).unwrap();
    let boot = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    machine.policy().set_global(knob);
    sim.baseline();
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
    {
        let other = sim.cpu(1);
        let program = other.enter(&space);
        let _boot = sim.cpu(0);
        run(&machine, &space, &program);
    }
    drop(space);
    drop(boot);
    sim.finish();
}

fn map<A: Silicon>(space: &Space<'_, A>, addr: u64, len: u64, flags: MapFlags) {
    let flags = flags | MapFlags::FIXED | MapFlags::NORESERVE;
    assert_eq!(space.map(MapRequest { addr, len, prot: RW, flags }), Ok(addr));
}

fn moves<A: Silicon>(space: &Space<'_, A>, addr: u64, len: u64, new_addr: u64) {
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    assert_eq!(space.remap(RemapRequest { addr, old_len: len, new_len: len, flags, new_addr }), Ok(new_addr));
}

/// Pages far apart, each the only one of its page table: the page tables move, and no new ones are
/// made but those above them. The program finds its stores at the new addresses, and at the old
/// ones only what is mapped there afterwards.
fn tables_move<A: Silicon>(arch: A) {
    with_a_program(arch, 1, Knob::Never, |machine, space, program| {
        let span = 1u64 << arch.level_shift(2);
        let len = 8 * span;
        map(space, FROM, len, MapFlags::empty());
        // The page tables above stay, and only pointers to the moved ones are invalidated.
        map(space, FROM + len, span, MapFlags::empty());
        program.store_u64(FROM + len, 1).unwrap();
        for table in 0..8 {
            program.store_u64(FROM + table * span + 8 * table, table + 1).unwrap();
        }
        let born = machine.counter(Counter::TablesAllocated);
        moves(space, FROM, len, TO);
        let more = machine.counter(Counter::TablesAllocated) - born;
        assert!(more <= u64::from(arch.levels()) - 2, "{more} tables were born to move 8");
        let old = FROM + span;
        assert_eq!(program.load_u64(old), Err(Fault::Handler(FaultError::Unmapped(old))));
        map(space, FROM, len, MapFlags::empty());
        for table in 0..8 {
            let offset = table * span + 8 * table;
            assert_eq!(program.load_u64(FROM + offset), Ok(0));
            program.store_u64(FROM + offset, 99).unwrap();
            assert_eq!(program.load_u64(TO + offset), Ok(table + 1));
        }
    });
}

#[test]
fn page_tables_move_as_they_are() {
    tables_move(X86_64::four_levels());
    tables_move(X86_64::five_levels());
    tables_move(Aarch64::granule_4k());
    tables_move(Riscv64::sv39());
}

/// A page table of the third level moves with all below it, so a gibibyte is moved by one entry.
#[test]
fn a_gibibyte_moves_as_one_entry() {
    with_a_program(X86_64::four_levels(), 2, Knob::Never, |machine, space, program| {
        // The page table above stays.
        map(space, FROM - 4096, 4096, MapFlags::POPULATE);
        map(space, FROM, 1 << 30, MapFlags::empty());
        for table in (0..512).step_by(64) {
            program.store_u64(FROM + (table << 21), table).unwrap();
        }
        let born = machine.counter(Counter::TablesAllocated);
        let freed = machine.counter(Counter::TablesFreed);
        moves(space, FROM, 1 << 30, TO);
        assert_eq!(machine.counter(Counter::TablesAllocated), born);
        assert_eq!(machine.counter(Counter::TablesFreed), freed);
        for table in (0..512).step_by(64) {
            assert_eq!(program.load_u64(TO + (table << 21)), Ok(table));
        }
    });
}

/// A huge PTE moves as it is if the alignment allows it, and else is split.
#[test]
fn huge_ptes_move_whole_where_aligned() {
    let huge = 2 << 20;
    with_a_program(X86_64::four_levels(), 3, Knob::Always, |machine, space, program| {
        map(space, FROM, 2 * huge, MapFlags::empty());
        program.store_u64(FROM, 7).unwrap();
        program.store_u64(FROM + huge, 8).unwrap();
        let whole = VirtRange { start: TO, end: TO + 4 * huge };
        moves(space, FROM, 2 * huge, TO);
        assert_eq!((machine.counter(Counter::HugeSplits), space.usage(whole).huge), (0, 2 * huge));
        assert_eq!((program.load_u64(TO), program.load_u64(TO + huge)), (Ok(7), Ok(8)));
        // One of the two, by a page.
        moves(space, TO + huge, huge, TO + 2 * huge + 4096);
        assert_eq!((machine.counter(Counter::HugeSplits), space.usage(whole).huge), (1, huge));
        assert_eq!(program.load_u64(TO + 2 * huge + 4096), Ok(8));
        assert_eq!(space.usage(whole).resident, 2 * huge);
    });
}

/// A move allocates all VMA nodes that it needs before it changes anything, however full the nodes
/// are.
#[test]
fn vmas_move_between_full_nodes() {
    let sim = Config::new(16 << 20).fast().unwrap();
    let boot = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
    let map = |addr, len, prot| {
        let flags = MapFlags::FIXED | MapFlags::NORESERVE;
        assert_eq!(space.map(MapRequest { addr, len, prot, flags }), Ok(addr));
    };
    let (more, len) = (0x10000, 0x8000);
    for others in 0..200 {
        // They are not adjacent, so they don't merge.
        map(more + others * 0x2000, 0x1000, RW);
        map(FROM, 2 * len, RW);
        (1..len >> 12).step_by(2).for_each(|page| map(FROM + len / 2 + (page << 12), 0x1000, Prot::READ));
        let request = RemapRequest {
            addr: FROM + len / 2,
            old_len: len,
            new_len: len,
            flags: RemapFlags::MAYMOVE | RemapFlags::FIXED,
            new_addr: TO,
        };
        assert_eq!(space.remap(request), Ok(request.new_addr), "{others} other VMAs");
        space.unmap(FROM, 2 * len).unwrap();
        space.unmap(TO, len).unwrap();
    }
    drop(space);
    drop(boot);
}

/// Hardware sets accessed and dirty until the PTE is cleared at its old address, and the new PTE
/// has the bits.
fn hardware_goes_on<A: Silicon>(arch: A) {
    for seed in 0..12 {
        with_a_program(arch, seed, Knob::Never, |_, space, program| {
            let page = 1 << arch.page_shift();
            let len = 32 * page;
            // A fault on an object maps its neighbours too, which are clean.
            map(space, FROM, len, MapFlags::SHARED);
            (0..32).for_each(|n| program.store_u64(FROM + n * page, n).unwrap());
            space.protect(FROM, len, Prot::READ).unwrap();
            space.advise(FROM, len, vellum::space::Advise::DontNeed).unwrap();
            space.protect(FROM, len, RW).unwrap();
            (0..32).for_each(|n| assert_eq!(program.load_u64(FROM + n * page), Ok(n)));
            moves(space, FROM, len, TO + 3 * page);
            (0..32).for_each(|n| assert_eq!(program.load_u64(TO + (n + 3) * page), Ok(n)));
        });
    }
}

#[test]
fn accessed_and_dirty_bits_survive_mremap() {
    hardware_goes_on(X86_64::four_levels());
    hardware_goes_on(Aarch64::granule_16k());
}
