//! Rules for contiguous blocks, in both architectures that have them. For each rule, a memory
//! manager that breaks it is caught, and one that does the same thing correctly is not.

use std::collections::BTreeSet;

use crate::fixtures::tiny::{PAGE, RW, Space, Tiny};
use vellum::addr::{PhysAddr, VirtRange};
use vellum::arch::{Aarch64, Arch, Attrs, Riscv64};
use vellum::platform::Event;
use vellum_sim::{Config, Hostility, Program, Rule, Silicon, Strict, Strictness};

const BASE: u64 = 0x20_0000_0000;
const BLOCK: u64 = 16 * PAGE;
const FULL: Attrs = RW.union(Attrs::HARDWARE);

type Context<'t, 'm, A> = Space<'t, 'm, Strict<A>, A>;

fn run<A: Silicon>(arch: A, strictness: Strictness, test: impl Fn(&Strict<A>, &Context<'_, '_, A>)) -> Vec<Rule> {
    run_with(8 << 20, arch, strictness, test)
}

fn run_with<A: Silicon>(
    memory: u64,
    arch: A,
    strictness: Strictness,
    test: impl Fn(&Strict<A>, &Context<'_, '_, A>),
) -> Vec<Rule> {
    let machine = Config::with_arch(arch, memory).cpus(3).strict(strictness.collect()).unwrap();
    machine.on_cpu(0, || {
        let tiny = Tiny::new(&machine);
        let space = Space::with_arch(&tiny, arch, 1, VirtRange::new(BASE, 64 * BLOCK).unwrap());
        // An entry that no test touches keeps the page table from being empty.
        space.map(BASE + 8 * BLOCK, tiny.frame(), FULL, 1);
        test(&machine, &space);
    });
    machine.violations().iter().map(|v| v.rule).collect()
}

/// Fails unless the fault is the first violation, with hardware that does only what programs ask
/// for.
fn caught<A: Silicon>(arch: A, rule: Rule, test: impl Fn(&Strict<A>, &Context<'_, '_, A>)) {
    let rules = run(arch, Strictness::new(1).hostility(Hostility::NONE), test);
    assert_eq!(rules.first(), Some(&rule), "all: {rules:?}");
}

/// Fails unless the fault is found by hostile hardware within 20 seeds.
fn caught_by_hostility<A: Silicon>(arch: A, rule: Rule, test: impl Fn(&Strict<A>, &Context<'_, '_, A>)) {
    let found = |seed| run(arch, Strictness::new(seed).hostility(Hostility::WORST), &test).first().copied();
    assert_eq!((0..20).find_map(found), Some(rule));
}

/// Fails if any violation is found, with any hostility.
fn clean<A: Silicon>(arch: A, test: impl Fn(&Strict<A>, &Context<'_, '_, A>)) {
    for hostility in [Hostility::NONE, Hostility::USUAL, Hostility::WORST] {
        for seed in 0..10 {
            let rules = run(arch, Strictness::new(seed).hostility(hostility), &test);
            assert!(rules.is_empty(), "{hostility:?}, seed {seed}: {rules:?}");
        }
    }
}

/// Runs `act` while a program runs in the space on CPU 1.
fn beside<A: Silicon>(
    m: &Strict<A>,
    s: &Context<'_, '_, A>,
    act: impl FnOnce(&Program<'_, Strict<A>, Context<'_, '_, A>>),
) {
    let other = m.cpu(1);
    let program = other.enter(s);
    m.on_cpu(0, || act(&program));
}

fn block() -> VirtRange {
    VirtRange::new(BASE, BLOCK).unwrap()
}

/// Runs every test below in a format of each architecture.
macro_rules! in_each_format {
    ($($test:ident),* $(,)?) => {
        mod aarch64 {
            $(#[test] fn $test() { super::$test(super::Aarch64::granule_4k()) })*
        }
        mod riscv64 {
            $(#[test] fn $test() { super::$test(super::Riscv64::sv48().with_napot()) })*
        }
    };
}

in_each_format!(
    resizes_without_an_invalidation_are_caught,
    resizes_without_a_break_are_caught,
    moves_without_a_break_are_caught,
    blocks_across_folios_are_caught,
    blocks_with_a_hole_are_caught,
    blocks_of_separate_frames_are_caught,
    partly_protected_blocks_are_caught,
    dirty_lost_by_unfolding_is_caught,
    dirty_lost_by_folding_is_caught,
    replacing_a_block_without_an_invalidation_is_caught,
    hardware_sets_dirty_in_any_pte_of_a_block,
    invalidations_with_too_wide_a_stride_are_caught,
    partial_blocks_in_a_hooked_page_table_are_caught,
    partial_blocks_of_a_single_user_are_caught,
);

/// The way in which single pages become a block, or the reverse.
#[derive(Clone, Copy)]
struct Resize {
    join: bool,
    flush: bool,
    keep: Keep,
    stride_shift: u32,
}

/// The treatment of accessed and dirty.
#[derive(Clone, Copy, PartialEq)]
enum Keep {
    /// All entries get the union of the bits.
    All,
    /// Each entry keeps its own bits.
    Own,
    /// All entries get the bits of the first.
    First,
}

const JOIN: Resize = Resize { join: true, flush: true, keep: Keep::All, stride_shift: 12 };
const PART: Resize = Resize { join: false, ..JOIN };

fn resize<A: Silicon>(m: &Strict<A>, s: &Context<'_, '_, A>, how: Resize) {
    let (t, arch) = (s.t, s.arch);
    let head = t.folio(4);
    let clean = RW | Attrs::ACCESSED;
    match how.join {
        true => s.write(BASE, s.singles(head, clean)),
        false => s.write(BASE, s.joined(head, clean)),
    }
    beside(m, s, |program| {
        program.store(BASE + 5 * PAGE, 7).unwrap();
        let (table, entries) = s.block(BASE);
        t.lock(table);
        let old: Vec<u64> = entries.clone().map(|i| t.exchange(table, i, arch.busy_pte())).collect();
        let own = |raw: &u64| arch.attrs(*raw, 1) & Attrs::HARDWARE;
        let (all, first) = (old.iter().fold(Attrs::empty(), |all, raw| all | own(raw)), own(&old[0]));
        if how.flush {
            s.invalidate(&[block()], how.stride_shift, false);
        }
        for (index, (i, old)) in entries.zip(old.iter().enumerate()) {
            let said = match how.keep {
                Keep::All => all,
                Keep::Own => own(old),
                Keep::First => first,
            };
            let leaf = arch.leaf(head.add(i as u32).addr(), RW | said, 1);
            t.exchange(table, index, if how.join { arch.with_cont(leaf) } else { leaf });
        }
        t.unlock(table);
        assert_eq!(program.load(BASE + 5 * PAGE), Ok(7));
        program.store(BASE + 9 * PAGE, 8).unwrap();
    });
}

fn resizes_without_an_invalidation_are_caught<A: Silicon>(arch: A) {
    for how in [JOIN, PART] {
        clean(arch, |m, s| resize(m, s, how));
        caught(arch, Rule::TwoSizes, |m, s| resize(m, s, Resize { flush: false, ..how }));
    }
}

fn invalidations_with_too_wide_a_stride_are_caught<A: Silicon>(arch: A) {
    // The invalidation steps over pages that were cached one by one, and the pages of a block may
    // be.
    let wide = |how| Resize { stride_shift: 16, ..how };
    caught(arch, Rule::TwoSizes, |m, s| resize(m, s, wide(JOIN)));
    caught_by_hostility(arch, Rule::TwoSizes, |m, s| resize(m, s, wide(PART)));
}

fn resizes_without_a_break_are_caught<A: Silicon>(arch: A) {
    for join in [true, false] {
        caught(arch, Rule::BreakBeforeMake, |_, s| {
            let head = s.t.folio(4);
            let (singles, joined) = (s.singles(head, FULL).collect::<Vec<_>>(), s.joined(head, FULL).collect());
            let (before, after) = if join { (singles, joined) } else { (joined, singles) };
            s.write(BASE, before.into_iter());
            s.write(BASE, after.into_iter());
        });
    }
}

/// If TLBs support both sizes at once (BBM level 2), neither a break nor an invalidation is
/// needed.
#[test]
fn bbm_level_2_resizes_in_place() {
    let arch = Aarch64::granule_4k().with_bbm2();
    for how in [JOIN, PART] {
        clean(arch, |m, s| resize(m, s, Resize { flush: false, ..how }));
        caught(arch, Rule::LostBit, |m, s| resize(m, s, Resize { flush: false, keep: Keep::First, ..how }));
    }
    clean(arch, |_, s| {
        let head = s.t.folio(4);
        s.write(BASE, s.singles(head, FULL));
        s.write(BASE, s.joined(head, FULL));
        s.write(BASE, s.singles(head, FULL));
    });
    caught(arch, Rule::BreakBeforeMake, |_, s| {
        s.write(BASE, s.joined(s.t.folio(4), FULL));
        s.write(BASE, s.singles(s.t.folio(4), FULL));
    });
}

fn moves_without_a_break_are_caught<A: Silicon>(arch: A) {
    caught(arch, Rule::BreakBeforeMake, |_, s| {
        s.write(BASE, s.joined(s.t.folio(4), FULL));
        s.write(BASE, s.joined(s.t.folio(4), FULL));
    });
}

fn blocks_across_folios_are_caught<A: Silicon>(arch: A) {
    let with = |folios: &'static [u32], split: bool| {
        move |_: &Strict<A>, s: &Context<'_, '_, A>| {
            let head = s.t.reserve(5);
            let mut at = head;
            for frames in folios {
                s.t.event(Event::Allocated(at, *frames));
                at = at.add(*frames);
            }
            if split {
                s.t.event(Event::Counts(head.add(8), (0, 0), (1, 1)));
            }
            s.write(BASE, s.joined(head, FULL));
        }
    };
    clean(arch, with(&[32], false));
    clean(arch, with(&[16, 16], false));
    caught(arch, Rule::Block, with(&[8, 8, 16], false));
    caught(arch, Rule::Block, with(&[8, 24], false));
    caught(arch, Rule::Block, with(&[32], true));
}

/// Changes some entries of a block only.
fn in_part<A: Silicon>(
    m: &Strict<A>,
    s: &Context<'_, '_, A>,
    which: std::ops::Range<u16>,
    change: impl Fn(usize, u64) -> u64,
) {
    s.write(BASE, s.joined(s.t.folio(4), FULL));
    beside(m, s, |program| {
        program.load(BASE).unwrap();
        let (table, entries) = s.block(BASE);
        s.t.lock(table);
        for index in entries.skip(which.start as usize).take(which.len()) {
            s.t.exchange(table, index, change(index as usize, s.t.entry(table, index)));
        }
        s.invalidate(&[block()], 12, false);
        s.t.unlock(table);
    });
}

fn blocks_with_a_hole_are_caught<A: Silicon>(arch: A) {
    clean(arch, |m, s| in_part(m, s, 0..16, |_, _| 0));
    for hole in [0..1, 7..8, 3..16] {
        caught(arch, Rule::Block, |m, s| in_part(m, s, hole.clone(), |_, _| 0));
        caught(arch, Rule::Block, |m, s| in_part(m, s, hole.clone(), |_, _| arch.busy_pte()));
    }
    // One entry was never written.
    caught(arch, Rule::Block, |_, s| s.write(BASE, s.joined(s.t.folio(4), FULL).take(15)));
}

fn blocks_of_separate_frames_are_caught<A: Silicon>(arch: A) {
    caught(arch, Rule::Block, |_, s| {
        let (one, other) = (s.t.folio(5), s.t.folio(5));
        s.write(BASE, s.joined(one, FULL).take(8).chain(s.joined(other, FULL).skip(8)));
    });
}

/// Blocks of huge pages, which AArch64 has, keep the same rules.
#[test]
fn huge_blocks_keep_the_same_rules() {
    let arch = Aarch64::granule_4k();
    const HUGE: u64 = 2 << 20;
    let rules = |folios: &[u32], joined: u64| {
        run_with(96 << 20, arch, Strictness::new(1).hostility(Hostility::WORST), |m, s| {
            let head = s.t.reserve(13);
            let mut at = head;
            for frames in folios {
                s.t.event(Event::Allocated(at, *frames));
                at = at.add(*frames);
            }
            let base = BASE + (1 << 30);
            let (table, _) = s.slot(base, 2);
            s.t.lock(table);
            for i in 0..joined {
                let leaf = arch.leaf(PhysAddr(head.addr().0 + i * HUGE), FULL, 2);
                s.t.store(table, i as u16, arch.with_cont(leaf));
            }
            s.t.unlock(table);
            beside(m, s, |program| (0..joined).for_each(|i| program.store(base + i * HUGE + 5 * PAGE, 1).unwrap()));
        })
    };
    assert_eq!(rules(&[8192], 16), []);
    assert_eq!(rules(&[4096, 4096], 16), [Rule::Block]);
    assert_eq!(rules(&[8192], 15), [Rule::Block]);
}

/// RISC-V's encoding can't express this.
#[test]
fn unaligned_blocks_are_caught() {
    caught(Aarch64::granule_4k(), Rule::Block, |_, s| s.write(BASE, s.joined(s.t.folio(5).add(8), FULL)));
}

fn partly_protected_blocks_are_caught<A: Silicon>(arch: A) {
    let protect = |index: usize, raw: u64| {
        let single = arch.without_cont(raw, index);
        arch.with_cont(arch.leaf(arch.leaf_addr(single, 1), arch.attrs(raw, 1) - Attrs::WRITE, 1))
    };
    clean(arch, |m, s| in_part(m, s, 0..16, protect));
    for part in [0..4, 15..16] {
        caught(arch, Rule::Block, |m, s| in_part(m, s, part.clone(), protect));
    }
}

fn dirty_lost_by_unfolding_is_caught<A: Silicon>(arch: A) {
    let keeping = |keep| move |m: &Strict<A>, s: &Context<'_, '_, A>| resize(m, s, Resize { keep, ..PART });
    caught(arch, Rule::LostBit, keeping(Keep::First));
    // The bits may stand in another entry than the page's own.
    caught(arch, Rule::LostBit, keeping(Keep::Own));
    clean(arch, keeping(Keep::All));
}

fn dirty_lost_by_folding_is_caught<A: Silicon>(arch: A) {
    let keeping = |keep| move |m: &Strict<A>, s: &Context<'_, '_, A>| resize(m, s, Resize { keep, ..JOIN });
    caught(arch, Rule::LostBit, keeping(Keep::First));
    clean(arch, keeping(Keep::Own));
    clean(arch, keeping(Keep::All));
}

/// A block is unmapped, and a page of other memory is mapped in its place.
fn replacing_a_block_without_an_invalidation_is_caught<A: Silicon>(arch: A) {
    let with = |flush: bool| {
        move |m: &Strict<A>, s: &Context<'_, '_, A>| {
            s.write(BASE, s.joined(s.t.folio(4), RW));
            beside(m, s, |program| {
                program.load(BASE).unwrap();
                let (table, entries) = s.block(BASE);
                s.t.lock(table);
                entries.for_each(|index| assert_ne!(s.t.discard(table, index), 0));
                if flush {
                    s.invalidate(&[block()], 12, false);
                }
                s.t.unlock(table);
                s.map(BASE + 9 * PAGE, s.t.frame(), RW, 1);
                program.store(BASE + 9 * PAGE, 1).unwrap();
            });
        }
    };
    caught(arch, Rule::Conflict, with(false));
    clean(arch, with(true));
}

fn partial_blocks_in_a_hooked_page_table_are_caught<A: Silicon>(arch: A) {
    let with = |n: usize| {
        move |_: &Strict<A>, s: &Context<'_, '_, A>| {
            let table = s.t.table(1, s.id);
            for (index, raw) in s.joined(s.t.folio(4), FULL).take(n).enumerate() {
                s.t.store(table, index as u16, raw);
            }
            let (above, index) = s.slot(BASE + (2 << 20), 2);
            s.t.lock(above);
            s.t.store(above, index, arch.table_pte(table.addr()));
            s.t.unlock(above);
        }
    };
    caught(arch, Rule::Block, with(15));
    clean(arch, with(16));
}

fn partial_blocks_of_a_single_user_are_caught<A: Silicon>(arch: A) {
    let with = |n: usize| {
        move |m: &Strict<A>, s: &Context<'_, '_, A>| {
            let (table, entries) = s.block(BASE);
            for (index, raw) in entries.zip(s.joined(s.t.folio(4), FULL)).take(n) {
                s.t.store(table, index, raw);
            }
            // Violations are found when a second CPU comes.
            assert!(m.violations().is_empty());
            beside(m, s, |_| assert_eq!(m.violations().len(), usize::from(n < 16)));
        }
    };
    caught(arch, Rule::Block, with(15));
    clean(arch, with(16));
}

/// Hostile hardware sets the dirty bit of a page in another entry of its block, or in the page's
/// own.
fn hardware_sets_dirty_in_any_pte_of_a_block<A: Silicon>(arch: A) {
    let told_by = |hostility, seed| {
        let machine = Config::with_arch(arch, 8 << 20).strict(Strictness::new(seed).hostility(hostility)).unwrap();
        let cpu = machine.cpu(0);
        let tiny = Tiny::new(&machine);
        let space = Space::with_arch(&tiny, arch, 1, block());
        space.write(BASE, space.joined(tiny.folio(4), RW));
        let program = cpu.enter(&space);
        program.store(BASE + 5 * PAGE, 1).unwrap();
        let (table, entries) = space.block(BASE);
        let dirty = |index: &u16| arch.attrs(tiny.entry(table, *index), 1).contains(Attrs::DIRTY);
        entries.filter(dirty).collect::<Vec<_>>()
    };
    assert_eq!(told_by(Hostility::NONE, 1), [5]);
    let told: BTreeSet<u16> = (0..100).flat_map(|seed| told_by(Hostility::USUAL, seed)).collect();
    assert!(told.len() > 10 && told.contains(&5), "{told:?}");
}
