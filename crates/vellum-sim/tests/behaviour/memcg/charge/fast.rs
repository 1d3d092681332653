//! Charges of a memcg: all memory that the engine allocates for its programs is charged to it, its
//! limit holds for all of that, on machines of any size, and a refusal names the memcg.

use vellum::addr::Pfn;
use vellum::arch::X86_64;
use vellum::memcg::{MayBeRefused, MemcgError, MemcgId, Refused};
use vellum::page_cache::Object;
use vellum::space::{Access, FaultError, Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Fast};

const BASE: u64 = 0x20_0000_0000;
const PAGE: u64 = 4096;
/// 1 MiB.
const LIMIT: u64 = 256;
/// log2 of the frames that the host allocates at a time.
const BLOCK: u8 = 2;

type Space<'m> = AddressSpace<'m, Fast>;

/// The memory that a test has allocated.
#[derive(Default)]
struct HeldMemory<'m> {
    spaces: Vec<Space<'m>>,
    objects: Vec<Object<'m, Fast>>,
    memcgs: Vec<MemcgId>,
    /// Memory of the host, each of 4 frames.
    blocks: Vec<Pfn>,
}

/// A way to allocate memory until it is refused. Returns the refusal.
type AllocateUntilFull = for<'m> fn(&'m Machine<'m, Fast>, MemcgId, &mut HeldMemory<'m>) -> Refused;

/// Allocates with each of `kinds` in a memcg of 1 MiB until it is refused, on machines with more
/// and fewer CPUs. The memcg takes as much memory as it is charged for, and all of that is freed.
fn may_take_no_more<const N: usize>(kinds: [AllocateUntilFull; N]) {
    for cpus in [1, 64, 65, 256] {
        let sim = Config::new(256 << 20).cpus(cpus).fast().unwrap();
        let _cpu = sim.cpu(cpus - 1);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        let before = frames.free_frames();
        let memcg = memcgs.create(frames, MemcgId::ROOT, LIMIT).unwrap();
        let (free, own) = (frames.free_frames(), memcgs.usage(frames, MemcgId::ROOT).unwrap().lruvecs);
        assert_eq!(own, 1, "a new memcg takes a frame, whatever the number of CPUs");
        let mut held = HeldMemory::default();
        for allocate in kinds {
            assert_eq!(allocate(&machine, memcg, &mut held), Refused::OverLimit(memcg), "{cpus} CPUs");
        }
        let usage = memcgs.usage(frames, memcg).unwrap();
        let taken = free - frames.free_frames();
        assert!(usage.charged <= LIMIT && usage.charged + 32 > LIMIT, "{cpus} CPUs: {usage:?}");
        // The heads of memcgs, 16 to a frame, are charged to the root.
        let heads = (held.memcgs.len() as u64 + 1) / 16;
        assert_eq!(taken, usage.charged + heads, "{cpus} CPUs");
        assert!(taken * 10 <= LIMIT * 11, "{cpus} CPUs: {taken} pages");
        drop((held.spaces, held.objects));
        // SAFETY: allocated for the host, and not used.
        held.blocks.iter().for_each(|block| unsafe { memcgs.free_for_host(frames, *block, BLOCK) });
        held.memcgs.iter().rev().for_each(|child| memcgs.remove(frames, *child).unwrap());
        memcgs.remove(frames, memcg).unwrap();
        assert_eq!(memcgs.usage(frames, MemcgId::ROOT).unwrap().charged, 0);
        assert_eq!(frames.free_frames() + heads, before, "{cpus} CPUs");
    }
}

fn space<'m>(machine: &'m Machine<'m, Fast>, memcg: MemcgId) -> Result<Space<'m>, Refused> {
    AddressSpace::new(machine, X86_64::four_levels(), memcg, Limits::default())
}

fn fixed(addr: u64, prot: Prot) -> MapRequest {
    MapRequest { addr, len: PAGE, prot, flags: MapFlags::FIXED | MapFlags::NORESERVE }
}

/// Spaces with as many VMAs as possible.
fn vmas<'m>(machine: &'m Machine<'m, Fast>, memcg: MemcgId, held: &mut HeldMemory<'m>) -> Refused {
    loop {
        let space = match space(machine, memcg) {
            Ok(space) => space,
            Err(why) => return why,
        };
        for i in 0..65_000 {
            let prot = if i % 2 == 0 { Prot::READ } else { Prot::READ | Prot::WRITE };
            if let Err(error) = space.map(fixed(BASE + i * PAGE, prot)) {
                held.spaces.push(space);
                return error.refused().expect("an error of the group");
            }
        }
        held.spaces.push(space);
    }
}

/// Children of a space, and their children.
fn children<'m>(machine: &'m Machine<'m, Fast>, memcg: MemcgId, held: &mut HeldMemory<'m>) -> Refused {
    let first = match space(machine, memcg) {
        Ok(first) => first,
        Err(why) => return why,
    };
    for i in 0..300 {
        if let Err(error) = first.map(fixed(BASE + i * PAGE, if i % 2 == 0 { Prot::READ } else { Prot::WRITE })) {
            return error.refused().expect("an error of the group");
        }
    }
    held.spaces.push(first);
    loop {
        match held.spaces[held.spaces.len() - 1].fork() {
            Ok(child) => held.spaces.push(child),
            Err(error) => return error.refused().expect("an error of the group"),
        }
    }
}

/// Page tables: one page here and there.
fn tables<'m>(machine: &'m Machine<'m, Fast>, memcg: MemcgId, held: &mut HeldMemory<'m>) -> Refused {
    let space = match space(machine, memcg) {
        Ok(space) => space,
        Err(why) => return why,
    };
    let mut why = None;
    for i in 0.. {
        let at = BASE + (i << 30);
        let mapped = space.map(fixed(at, Prot::READ | Prot::WRITE));
        why = mapped.err().and_then(|error| error.refused());
        if why.is_none() {
            // A read maps zeros, which are charged to no memcg.
            why = space.fault(at, Access::Read).err().and_then(|error| error.refused());
        }
        if why.is_some() {
            break;
        }
    }
    held.spaces.push(space);
    why.expect("it was refused")
}

/// Objects, every other one with a page at the largest index, which makes the index as high as
/// possible.
fn objects<'m>(machine: &'m Machine<'m, Fast>, memcg: MemcgId, held: &mut HeldMemory<'m>) -> Refused {
    for i in 0.. {
        let object = match Object::new(machine, &X86_64::four_levels(), memcg, 0, i64::MAX as u64) {
            Ok(object) => object,
            Err(error) => return error.refused().expect("an error of the group"),
        };
        let page = if i % 2 == 0 { None } else { object.page_or_new((1 << 50) + i, memcg).err() };
        held.objects.push(object);
        if let Some(error) = page {
            return error.refused().expect("an error of the group");
        }
    }
    unreachable!()
}

/// Child memcgs.
fn memcgs<'m>(machine: &'m Machine<'m, Fast>, memcg: MemcgId, held: &mut HeldMemory<'m>) -> Refused {
    loop {
        match machine.memcgs().create(machine.frames(), memcg, u64::MAX) {
            Ok(child) => held.memcgs.push(child),
            Err(MemcgError::NoMemory(why)) => return why,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Memory of the host's own structures; every other time of the kind that can't be refused.
fn host<'m>(machine: &'m Machine<'m, Fast>, memcg: MemcgId, held: &mut HeldMemory<'m>) -> Refused {
    let (memcgs, frames) = (machine.memcgs(), machine.frames());
    loop {
        match memcgs.alloc_for_host(frames, memcg, BLOCK) {
            Ok(block) => held.blocks.push(block),
            Err(why) => return why,
        }
        if memcgs.has_room(frames, memcg, 1 << BLOCK).is_ok() {
            held.blocks.extend(memcgs.alloc_beyond_limit(frames, memcg, BLOCK));
        }
    }
}

#[test]
fn host_memory_is_charged() {
    may_take_no_more([host]);
}

#[test]
fn vma_nodes_are_charged() {
    may_take_no_more([vmas]);
}

#[test]
fn forked_spaces_are_charged() {
    may_take_no_more([children]);
}

#[test]
fn page_tables_are_charged() {
    may_take_no_more([tables]);
}

#[test]
fn objects_and_their_indices_are_charged() {
    may_take_no_more([objects]);
}

#[test]
fn memcgs_are_charged_to_their_parents() {
    may_take_no_more([memcgs]);
}

#[test]
fn a_limit_covers_all_kinds_of_memory() {
    may_take_no_more([tables, vmas, objects, children, memcgs, host]);
}

/// A charge stays with the memcg of its time when the space moves, and is returned to that memcg.
#[test]
fn charges_stay_with_the_old_memcg() {
    let sim = Config::new(64 << 20).cpus(100).fast().unwrap();
    let _cpu = sim.cpu(99);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let (memcgs, frames) = (machine.memcgs(), machine.frames());
    let [one, other] = [0, 1].map(|_| memcgs.create(frames, MemcgId::ROOT, u64::MAX).unwrap());
    let charged = || [one, other].map(|memcg| memcgs.usage(frames, memcg).unwrap().charged);
    let space = space(&machine, one).unwrap();
    let map = |from: u64, to: u64| {
        (from..to).for_each(|i| {
            space.map(fixed(BASE + i * PAGE, if i % 2 == 0 { Prot::READ } else { Prot::WRITE })).unwrap();
        });
    };
    // A root, two frames of slots, and a VMA node.
    map(0, 10);
    assert_eq!(charged(), [4, 0]);
    space.set_memcg(other).unwrap();
    assert_eq!(memcgs.remove(frames, other), Err(MemcgError::Busy(other)), "a space is in it");
    map(10, 1000);
    let [before, more] = charged();
    assert!(before == 4 && more > 10, "{before} and {more}");
    space.unmap(BASE, 1000 * PAGE).unwrap();
    let [left, most] = charged();
    assert!(left + most <= 4 && left >= 3, "{left} and {most}");
    drop(space);
    assert_eq!(charged(), [0, 0]);
    [one, other].iter().for_each(|memcg| memcgs.remove(frames, *memcg).unwrap());
}

/// A fault that needs a page table, or a page, is refused by the ancestor memcg too, and names it.
#[test]
fn refusals_name_the_full_memcg() {
    let sim = Config::new(64 << 20).cpus(2).fast().unwrap();
    let _cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let (memcgs, frames) = (machine.memcgs(), machine.frames());
    let top = memcgs.create(frames, MemcgId::ROOT, u64::MAX).unwrap();
    let child = memcgs.create(frames, top, u64::MAX).unwrap();
    let space = space(&machine, child).unwrap();
    space.map(fixed(BASE, Prot::READ | Prot::WRITE)).unwrap();
    for (full, other) in [(top, child), (child, top)] {
        memcgs.set_limit(other, u64::MAX).unwrap();
        memcgs.set_limit(full, memcgs.usage(frames, full).unwrap().charged).unwrap();
        memcgs.drain(frames, full).unwrap();
        let refused = FaultError::NoMemory(Refused::OverLimit(full));
        assert_eq!(space.fault(BASE, Access::Read), Err(refused), "no table");
        assert_eq!(space.fault(BASE, Access::Write), Err(refused), "no page");
        assert_eq!(space.fork().err().and_then(|error| error.refused()), Some(Refused::OverLimit(full)));
    }
}

/// Charges that CPUs hold in advance (stocks) are drained when a memcg is full: its usage reaches
/// the limit, and does not exceed it.
#[test]
fn stocks_are_drained_at_the_limit() {
    const CPUS: usize = 64;
    const MANY: u64 = 10_000;
    let sim = Config::new(256 << 20).cpus(CPUS).fast().unwrap();
    let machine = sim.on_cpu(0, || Machine::boot(&sim, Default::default()).unwrap());
    let (memcgs, frames) = (machine.memcgs(), machine.frames());
    let memcg = sim.on_cpu(0, || memcgs.create(frames, MemcgId::ROOT, MANY).unwrap());
    let space = sim.on_cpu(0, || space(&machine, memcg).unwrap());
    let request = MapRequest { len: 2 * MANY * PAGE, ..fixed(BASE, Prot::READ | Prot::WRITE) };
    sim.on_cpu(0, || space.map(request).unwrap());
    for cpu in 0..CPUS {
        sim.on_cpu(cpu, || space.fault(BASE + cpu as u64 * PAGE, Access::Write).unwrap());
    }
    sim.on_cpu(0, || {
        let refused = (CPUS as u64..).find_map(|i| space.fault(BASE + i * PAGE, Access::Write).err());
        assert_eq!(refused, Some(FaultError::NoMemory(Refused::OverLimit(memcg))));
        assert_eq!(memcgs.usage(frames, memcg).unwrap().charged, MANY);
        assert_eq!(memcgs.counters(memcg).unwrap().charged, MANY);
        drop(space);
        assert_eq!(memcgs.usage(frames, memcg).unwrap().charged, 0);
        memcgs.remove(frames, memcg).unwrap();
    });
}
