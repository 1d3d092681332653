//! Swap slots with hundreds and thousands of references: fork, swap-in, swapoff and exit work for
//! every sharer.

use vellum::arch::{Kind, X86_64};
use vellum::errno::Errno;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::platform::FailPoint;
use vellum::space::{Advise, ForkError, Limits, MapFlags, MapRequest};
use vellum::swap::{Compressed, Slots, SwapRun};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Hostility, Refusal, Silicon};

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, map, range};

/// More children than 8 bits count.
const CHILDREN: u64 = 300;
/// Pages that all of them share.
const PAGES: u64 = 8;

fn on<A: Silicon>(arch: A, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(
        arch,
        Setup { bytes: 256 << 20, slots: 4096, hostility: Hostility::NONE, ..USUAL },
        test,
    );
}

/// Returns the highest reference count of a space's slots, and their number.
fn references<A: Silicon>(on: &Bench<'_, A>, space: &Space<'_, A>, len: u64) -> (u32, u32) {
    let (mut most, mut slots) = (0, 0);
    space.runs(range(BASE, len), |run| {
        assert_eq!(run.kind, Kind::Swap, "it is swapped out");
        let swapped = on.arch.swap_entry(run.raw);
        let first = (swapped.slot as u32) << on.arch.page_order();
        let run =
            SwapRun { device: swapped.device, slots: Slots { first, count: (run.range(&on.arch).len() >> 12) as u32 } };
        // SAFETY: the swap entries have references, and nothing else runs.
        most = most.max(unsafe { on.machine.swaps().max_references(on.sim, run) });
        slots += run.slots.count;
    });
    (most, slots)
}

/// Returns a space with this many bytes, all swapped out, and children that share it. Each page
/// holds its number plus 7.
fn family<'m, A: Silicon>(on: &Bench<'m, A>, len: u64, children: u64) -> Vec<Space<'m, A>> {
    let parent = on.space();
    map(&parent, BASE, len);
    (0..len / on.page).for_each(|page| on.store(&parent, BASE + page * on.page, page + 7));
    parent.advise(BASE, len, Advise::PageOut).unwrap();
    let mut family = vec![parent];
    for child in 1..=children {
        // Some are children of children.
        let parent = &family[if child % 7 == 0 { child as usize / 2 } else { 0 }];
        family.push(parent.fork().unwrap_or_else(|error| panic!("child {child}: {error}")));
    }
    for space in &family {
        assert_eq!(space.stats().swap, len);
        assert_eq!(references(on, space, len), (children as u32 + 1, (len >> 12) as u32));
    }
    family
}

in_every_format! {
    a_swapped_page_is_shared_by_300_children => shared,
    the_last_of_300_sharers_frees_the_slots => exits,
    swapoff_brings_a_page_back_to_300_sharers => swap_off,
    fork_fails_at_a_saturated_slot => saturated,
    swap_in_needs_no_lasting_reference => swap_in,
    swap_in_of_an_object_needs_no_lasting_reference => object_swap_in,
}

fn shared<A: Silicon>(arch: A) {
    on(arch, |on| {
        let family = family(on, PAGES * on.page, CHILDREN);
        for (n, space) in (0..).zip(&family) {
            for page in 0..PAGES {
                let at = BASE + page * on.page;
                if (page + n) % 3 == 0 {
                    on.store(space, at + 8, n);
                }
                assert_eq!(on.load(space, at), page + 7, "page {page} of sharer {n}");
            }
        }
        // Swapped out again, with the writes of each.
        on.reclaim_all(&family.iter().collect::<Vec<_>>());
        for (n, space) in (0..).zip(&family) {
            for page in 0..PAGES {
                let expected = if (page + n) % 3 == 0 { n } else { 0 };
                let at = BASE + page * on.page;
                assert_eq!((on.load(space, at), on.load(space, at + 8)), (page + 7, expected), "sharer {n}");
            }
        }
    });
}

fn exits<A: Silicon>(arch: A) {
    on(arch, |on| {
        let mut family = family(on, PAGES * on.page, CHILDREN);
        let slots = on.used();
        while family.len() > 1 {
            drop(family.swap_remove(family.len() / 2));
            assert_eq!(on.used(), slots);
        }
        assert_eq!(references(on, &family[0], PAGES * on.page).0, 1);
        (0..PAGES).for_each(|page| assert_eq!(on.load(&family[0], BASE + page * on.page), page + 7));
    });
}

fn swap_off<A: Silicon>(arch: A) {
    on(arch, |on| {
        let family = family(on, PAGES * on.page, CHILDREN);
        on.machine.swaps().close(on.sim, 0).unwrap();
        family.iter().for_each(|space| space.swap_off(0).unwrap());
        for space in &family {
            assert_eq!(space.stats().swap, 0);
            (0..PAGES).for_each(|page| assert_eq!(on.load(space, BASE + page * on.page), page + 7));
        }
        drop(family);
        on.machine.swaps().open(on.sim, 0).unwrap();
    });
}

/// A fork fails at any saturated slot, and all counts are as before.
fn saturated<A: Silicon>(arch: A) {
    on(arch, |on| {
        let len = PAGES * on.page;
        let family = family(on, len, 2);
        // A second run of slots, in another page table.
        let parent = &family[0];
        map(parent, BASE + (1 << 30), len);
        on.store(parent, BASE + (1 << 30), 5);
        parent.advise(BASE + (1 << 30), len, Advise::PageOut).unwrap();
        let (before, free) = (parent.stats(), on.machine.frames().free_frames());
        let mut refused = 0;
        for nth in 1.. {
            on.sim.refuse_wanted(FailPoint::References, Refusal::Nth(nth));
            let forked = parent.fork();
            on.sim.refuse_wanted(FailPoint::References, Refusal::Never);
            let Err(error) = forked else { break };
            refused += 1;
            assert_eq!((error, error.errno()), (ForkError::TooManyReferences, Errno::EAGAIN));
            assert_eq!((parent.stats(), on.machine.frames().free_frames()), (before, free));
            assert_eq!(references(on, parent, len).0, 3);
        }
        assert!(refused >= 2, "{refused} refusals");
    });
}

/// The device is read without locks, which the strict machine checks, also where every lasting
/// reference is refused.
fn swap_in<A: Silicon>(arch: A) {
    on(arch, |on| {
        let family = family(on, PAGES * on.page, 3);
        on.sim.refuse_wanted(FailPoint::References, Refusal::From(1));
        for space in &family {
            (0..PAGES).for_each(|page| assert_eq!(on.load(space, BASE + page * on.page), page + 7));
        }
        on.sim.refuse_wanted(FailPoint::References, Refusal::Never);
    });
}

fn object_swap_in<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = Object::new(on.machine, &arch, MemcgId::ROOT, 0, PAGES * on.page).unwrap();
        for page in 0..PAGES {
            object.page_or_new(page, MemcgId::ROOT).unwrap().write(0, &(page + 7).to_ne_bytes());
        }
        on.reclaim(&[], MemcgId::ROOT, u64::MAX);
        assert_eq!(object.swapped(), PAGES);
        on.sim.refuse_wanted(FailPoint::References, Refusal::From(1));
        for page in 0..PAGES {
            let mut word = [0; 8];
            object.page(page).unwrap().unwrap().read(0, &mut word);
            assert_eq!(u64::from_ne_bytes(word), page + 7);
        }
        on.sim.refuse_wanted(FailPoint::References, Refusal::Never);
    });
}

/// A huge page that is swapped out as one entry is shared, read, split and written by 300 children.
#[test]
fn a_swapped_huge_page_is_shared_by_300_children() {
    on(X86_64::four_levels(), |on| {
        on.machine.policy().set(9, Knob::Always);
        let mut family = family(on, HUGE, CHILDREN);
        let levels = |space: &Space<'_, X86_64>| {
            let mut levels = Vec::new();
            space.runs(range(BASE, HUGE), |run| levels.push((run.kind, run.level)));
            levels
        };
        family.iter().for_each(|space| assert_eq!(levels(space), [(Kind::Swap, 2)]));
        // Half of it is unmapped in some spaces, which does not affect the others' slots.
        for space in family.iter().step_by(10) {
            space.unmap(BASE + HUGE / 2, HUGE / 2).unwrap();
        }
        let page = |n: usize| (n as u64 * 37) % 256;
        for (n, space) in family.iter().enumerate() {
            assert_eq!(on.load(space, BASE + page(n) * 4096), page(n) + 7, "sharer {n}");
        }
        for n in [5, 77, 299] {
            on.store(&family[n], BASE + page(n) * 4096, 1);
            assert_eq!(on.load(&family[n], BASE + page(n) * 4096), 1);
        }
        family.truncate(2);
        (0..512).for_each(|page| assert_eq!(on.load(&family[1], BASE + page * 4096), page + 7));
    });
}

/// 10,000 children of a swapped page are forked, read it, write it, and exit.
#[test]
fn a_swapped_page_is_shared_by_10_000_children() {
    const MANY: usize = 10_000;
    let arch = X86_64::four_levels();
    let sim = Config::new(1 << 30).cpus(1).fast().unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let store = Compressed::new(machine.frames(), 1024).unwrap();
    // SAFETY: no other code uses it, and it outlives the machine's use of it.
    unsafe { machine.swaps().attach(machine.frames(), &store, 1024, 0) }.unwrap();
    let parent = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
    let prot = Prot::READ | Prot::WRITE;
    parent.map(MapRequest { addr: BASE, len: 4096, prot, flags: MapFlags::FIXED }).unwrap();
    cpu.enter(&parent).store_u64(BASE, 7).unwrap();
    parent.advise(BASE, 4096, Advise::PageOut).unwrap();
    let fork = |n| parent.fork().unwrap_or_else(|error| panic!("child {n}: {error}"));
    let mut children: Vec<_> = (1..=MANY).map(fork).collect();
    let used = || machine.swaps().usage(&sim, 0).unwrap().used;
    assert_eq!((used(), children[MANY - 1].stats().swap), (1, 4096));
    for (n, child) in children.iter().enumerate().step_by(101) {
        assert_eq!(cpu.enter(child).load_u64(BASE), Ok(7), "child {n}");
        cpu.enter(child).store_u64(BASE, n as u64).unwrap();
    }
    children.truncate(1000);
    assert_eq!((used(), cpu.enter(&children[998]).load_u64(BASE)), (1, Ok(7)));
    drop(children);
    assert_eq!(cpu.enter(&parent).load_u64(BASE), Ok(7));
    drop(parent);
    assert_eq!(used(), 0);
}
