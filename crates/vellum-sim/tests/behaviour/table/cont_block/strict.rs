//! Cont blocks (contpte blocks, Svnapot): when PTEs are folded into a block, when a block is
//! unfolded, and that neither loses accessed or dirty bits.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use vellum::addr::{FRAME_SHIFT, PhysAddr, VirtRange};
use vellum::arch::{Aarch64, Attrs, Kind, Riscv64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{Advise, Limits, MapFlags, MapRequest, RemapFlags, RemapRequest, unmap_removed};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Hostility, Program, Refusal, Silicon, Simulated, Strict, Strictness};

use crate::fixtures::root_memcg;

const RW: Prot = Prot::READ.union(Prot::WRITE);
const BASE: u64 = 8 << 30;
const ELSEWHERE: u64 = 16 << 30;

type Space<'m, A> = AddressSpace<'m, Strict<A>>;

/// A space with folios of the size of a cont block, a program in it, and the program's memory: four
/// blocks from [`BASE`] on.
struct Context<'s, 'm, A: Silicon> {
    sim: &'m Strict<A>,
    machine: &'m Machine<'m, Strict<A>>,
    space: &'s Space<'m, A>,
    program: &'s Program<'s, Strict<A>, Space<'m, A>>,
    /// The level of the PTEs.
    level: u8,
    /// Bytes of a block, and of one of its PTEs.
    block: u64,
    page: u64,
}

/// Runs a test with cont blocks of PTEs of this level.
fn scene<A: Silicon>(arch: A, level: u8, hostility: Hostility, run: impl FnOnce(&Context<'_, '_, A>)) {
    let memory = if level == 1 { 96 << 20 } else { 320 << 20 };
    scene_on(Config::with_arch(arch, memory), arch, level, hostility, run);
}

fn scene_on<A: Silicon>(
    config: Config<A>,
    arch: A,
    level: u8,
    hostility: Hostility,
    run: impl FnOnce(&Context<'_, '_, A>),
) {
    let sim = config.cpus(2).strict(Strictness::new(1).hostility(hostility)).unwrap();
    let boot = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let page = 1 << arch.level_shift(level);
    let block: u64 = page << arch.cont_bits(level);
    machine.policy().set((block >> FRAME_SHIFT).ilog2() as u8, Knob::Always);
    if level > 1 {
        // The size of copies.
        machine.policy().set((page >> FRAME_SHIFT).ilog2() as u8, Knob::Always);
    }
    sim.baseline();
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
    {
        let other = sim.cpu(1);
        let program = other.enter(&space);
        let _boot = sim.cpu(0);
        let scene = Context { sim: &sim, machine: &machine, space: &space, program: &program, level, block, page };
        let flags = MapFlags::FIXED | MapFlags::NORESERVE;
        assert_eq!(space.map(MapRequest { addr: BASE, len: 4 * block, prot: RW, flags }), Ok(BASE));
        (0..4).for_each(|i| program.store_u64(BASE + i * block, i).unwrap());
        run(&scene);
    }
    drop(space);
    drop(boot);
    sim.finish();
}

/// Defines tests in formats whose blocks have 16, 128 and 32 entries, and with Svnapot's; also
/// where software sets accessed and dirty. With hardware as hostile as this.
macro_rules! in_every_format {
    ($hostility:expr; $($name:ident => $check:ident,)*) => {$(
        #[test]
        fn $name() {
            scene(Aarch64::granule_4k(), 1, $hostility, $check);
            scene(Aarch64::granule_4k().with_bbm2(), 1, $hostility, $check);
            scene(Aarch64::granule_16k(), 1, $hostility, $check);
            scene(Aarch64::granule_64k().wide(), 1, $hostility, $check);
            scene(Riscv64::sv39().with_napot(), 1, $hostility, $check);
            for arch in [Aarch64::granule_4k(), Aarch64::granule_16k().with_bbm2()] {
                scene_on(Config::with_arch(arch, 96 << 20).software_ad_bits(), arch, 1, $hostility, $check);
            }
            let arch = Riscv64::sv57().with_napot().with_vvptc();
            scene_on(Config::with_arch(arch, 96 << 20).software_ad_bits(), arch, 1, $hostility, $check);
        }
    )*};
}

in_every_format! {
    Hostility::WORST;
    soft_dirty_is_exact_for_pages_of_a_block => tracks,
    program_text_is_mapped_by_blocks => executes,
    faults_fold_uniform_blocks => joins,
    partly_protected_blocks_unfold_and_fold_again => protects,
    zaps_unfold_only_boundary_blocks => zaps,
    fork_keeps_blocks_folded => forks,
    fork_folds_blocks_that_it_makes_uniform => forks_parts,
    failed_forks_keep_blocks_folded => forks_in_vain,
    blocks_move_folded => moves,
    no_bit_is_lost_where_one_pte_of_a_block_has_all => ages,
}

// On machines where only the program sets accessed and dirty.
in_every_format! {
    Hostility::NONE;
    unfolding_keeps_dirty => keeps_dirty,
    accessed_and_dirty_of_a_block_are_reported_once => tells,
}

/// Defines tests with blocks of 32 MiB, which only folios above the size of a huge PTE fill.
macro_rules! with_huge_leaves {
    ($hostility:expr; $($name:ident => $check:ident,)*) => {$(
        #[test]
        fn $name() {
            scene(Aarch64::granule_4k(), 2, $hostility, $check);
            scene(Aarch64::granule_4k().wide().with_bbm2(), 2, $hostility, $check);
        }
    )*};
}

with_huge_leaves! {
    Hostility::WORST;
    soft_dirty_is_exact_for_huge_ptes_of_a_block => tracks,
    faults_fold_uniform_huge_blocks => joins,
    partly_protected_huge_blocks_unfold_and_fold_again => protects,
    zaps_unfold_only_boundary_huge_blocks => zaps,
    changing_one_page_splits_its_huge_block => cuts,
    fork_keeps_huge_blocks_folded => forks,
    failed_forks_keep_huge_blocks_folded => forks_in_vain,
    huge_blocks_move_folded => moves,
}

with_huge_leaves! {
    Hostility::NONE;
    unfolding_huge_blocks_keeps_dirty => keeps_dirty,
    accessed_and_dirty_of_a_huge_block_are_reported_once => tells,
}

impl<A: Silicon> Context<'_, '_, A> {
    /// Returns the entry for an address.
    fn entry(&self, va: u64) -> &AtomicU64 {
        let arch = self.space.arch();
        let (mut table, mut level) = (self.space.root(), arch.levels());
        loop {
            let at = PhysAddr(table.addr().0 + 8 * arch.index(va, level) as u64);
            let entry = self.sim.hardware().arena().word(at);
            let raw = entry.load(Ordering::Acquire);
            if arch.kind(raw, level) != Kind::Table {
                return entry;
            }
            (table, level) = (arch.table_addr(raw).pfn(), level - 1);
        }
    }

    /// Takes the accessed and dirty bits of some pages.
    fn recorded(&self, page: u64, pages: u64) -> Vec<(Range<u64>, Attrs)> {
        let start = BASE + page * self.page;
        let mut told = Vec::new();
        let of = |va: u64| (va - BASE) / self.page;
        let range = VirtRange { start, end: start + pages * self.page };
        self.space.clear_accessed_dirty(range, Attrs::HARDWARE, |range, attrs| {
            told.push((of(range.start)..of(range.end), attrs));
        });
        told
    }

    /// Returns how many of these blocks are folded. All entries of a block must be marked, or none.
    fn joined(&self, base: u64, blocks: Range<u64>) -> usize {
        let is_joined = |block: &u64| {
            let pages = (0..self.block).step_by(self.page as usize).map(|page| base + block * self.block + page);
            let marked = pages.filter(|va| self.entry(*va).load(Ordering::Acquire) & A::CONT != 0).count() as u64;
            assert!(
                marked == 0 || marked * self.page == self.block,
                "block {block} is joined in part: {marked} entries"
            );
            marked != 0
        };
        let range = VirtRange { start: base + blocks.start * self.block, end: base + blocks.end * self.block };
        let joined = blocks.filter(is_joined).count();
        // Where a huge PTE was split, its pages form small blocks.
        let counted = self.space.usage(range).cont_blocks[usize::from(self.level) - 1];
        assert_eq!(counted, joined as u64 * self.block);
        joined
    }

    /// Returns how many blocks were folded while they were live, and unfolded, since the machine
    /// booted.
    fn turned(&self) -> (u64, u64) {
        (self.machine.counter(Counter::ContFolds), self.machine.counter(Counter::ContUnfolds))
    }

    fn protect(&self, page: u64, pages: u64, prot: Prot) {
        self.space.protect(BASE + page * self.page, pages * self.page, prot).unwrap();
    }

    fn pages(&self) -> u64 {
        self.block / self.page
    }

    fn holds(&self, base: u64, blocks: Range<u64>) {
        for i in blocks {
            assert_eq!(self.program.load_u64(base + i * self.block), Ok(i));
        }
    }
}

/// A fault folds the block that it maps if folio, addresses and VMA allow it. A change of a whole
/// block keeps it folded; PROT_NONE unfolds it.
fn joins<A: Silicon>(on: &Context<'_, '_, A>) {
    assert_eq!(on.joined(BASE, 0..4), 4);
    on.protect(0, 4 * on.pages(), Prot::READ);
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (4, (0, 0)));
    on.protect(0, 4 * on.pages(), Prot::empty());
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (0, (0, 4)));
    on.protect(0, 4 * on.pages(), RW);
    assert_eq!(on.joined(BASE, 0..4), 4);
    on.holds(BASE, 0..4);
    // An address at which the folio is not aligned.
    let at = ELSEWHERE + on.page;
    let request = RemapRequest {
        addr: BASE,
        old_len: 4 * on.block,
        new_len: 4 * on.block,
        flags: RemapFlags::MAYMOVE | RemapFlags::FIXED,
        new_addr: at,
    };
    assert_eq!(on.space.remap(request), Ok(at));
    on.holds(at, 0..4);
    assert_eq!(on.joined(ELSEWHERE, 1..4), 0);
}

/// Only blocks of which a part changes are unfolded, and they are folded again when all PTEs are
/// alike again.
fn protects<A: Silicon>(on: &Context<'_, '_, A>) {
    on.protect(on.pages() + 1, 1, Prot::READ);
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (3, (0, 1)));
    // From the middle of one block to the middle of another.
    on.protect(on.pages() / 2 + on.pages(), 2 * on.pages(), Prot::READ);
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (2, (0, 2)));
    // Page by page: only the last one makes the block whole.
    for page in 0..on.pages() {
        assert_eq!(on.joined(BASE, 1..2), 0);
        on.protect(on.pages() + page, 1, RW);
    }
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (3, (1, 2)));
    on.protect(0, 4 * on.pages(), RW);
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (4, (2, 2)));
    on.holds(BASE, 0..4);
}

/// `munmap` and `MADV_DONTNEED` unfold at most the blocks at the ends of the range.
fn zaps<A: Silicon>(on: &Context<'_, '_, A>) {
    on.space.unmap(BASE + on.page, on.block).unwrap();
    assert_eq!((on.joined(BASE, 2..4), on.turned()), (2, (0, 2)));
    on.space.advise(BASE + 2 * on.block, on.block, Advise::DontNeed).unwrap();
    assert_eq!((on.joined(BASE, 3..4), on.turned()), (1, (0, 2)));
    on.space.advise(BASE + 3 * on.block, on.page, Advise::DontNeed).unwrap();
    assert_eq!((on.joined(BASE, 3..4), on.turned()), (0, (0, 3)));
    assert_eq!(on.program.load_u64(BASE + 2 * on.block), Ok(0));
}

/// Hardware may have set dirty in any entry of a block: when it is unfolded, all pages count as
/// dirty.
fn keeps_dirty<A: Silicon>(on: &Context<'_, '_, A>) {
    let arch = on.space.arch();
    on.recorded(0, on.pages());
    let dirty = || {
        let mut dirty = 0;
        on.space.runs(VirtRange { start: BASE, end: BASE + on.block }, |run| {
            dirty += if run.attrs(arch).contains(Attrs::DIRTY) { run.len as u64 } else { 0 };
        });
        dirty
    };
    assert_eq!(dirty(), 0);
    on.program.store_u64(BASE + 2 * on.page, 5).unwrap();
    assert_eq!((dirty(), on.joined(BASE, 0..1)), (on.pages(), 1));
    on.protect(1, 1, Prot::READ);
    assert_eq!((dirty(), on.joined(BASE, 0..1)), (on.pages(), 0));
}

/// Accessed and dirty are reported for a whole block, once. A query about a part unfolds the block,
/// and changes nothing of the rest.
fn tells<A: Silicon>(on: &Context<'_, '_, A>) {
    let pages = on.pages();
    assert_eq!(on.recorded(0, 4 * pages), [(0..4 * pages, Attrs::HARDWARE)]);
    assert_eq!(on.recorded(0, 4 * pages), []);
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (4, (0, 0)));
    on.program.store_u64(BASE + (pages + 1) * on.page, 4).unwrap();
    on.holds(BASE, 3..4);
    let told = [(pages..2 * pages, Attrs::HARDWARE), (3 * pages..4 * pages, Attrs::ACCESSED)];
    assert_eq!(on.recorded(0, 4 * pages), told);
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (4, (0, 0)));
    on.program.store_u64(BASE + 2 * pages * on.page, 2).unwrap();
    assert_eq!(on.recorded(2 * pages + 1, 2), [(2 * pages + 1..2 * pages + 3, Attrs::HARDWARE)]);
    assert_eq!((on.joined(BASE, 2..3), on.turned()), (0, (0, 1)));
    let told = [(2 * pages..2 * pages + 1, Attrs::HARDWARE), (2 * pages + 3..3 * pages, Attrs::HARDWARE)];
    assert_eq!(on.recorded(0, 4 * pages), told);
    on.holds(BASE, 0..4);
}

/// Hardware sets accessed and dirty in one PTE of a block. If that is the first, it tells all that
/// there is to tell; but until the others were changed, another CPU may still set them there.
fn ages<A: Silicon>(on: &Context<'_, '_, A>) {
    let pages = on.pages();
    on.recorded(0, 4 * pages);
    for block in (0..4).cycle().take(4 * pages as usize) {
        on.program.store_u64(BASE + block * on.block, block).unwrap();
        let whole = block * pages..(block + 1) * pages;
        assert_eq!(on.recorded(whole.start, pages), [(whole, Attrs::HARDWARE)]);
    }
    on.holds(BASE, 0..4);
}

/// Parent and child have folded blocks. When the child is gone, writes go on in place, and the
/// blocks stay folded.
fn forks<A: Silicon>(on: &Context<'_, '_, A>) {
    let child = on.space.fork().unwrap();
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (4, (0, 0)));
    {
        let there = Context { space: &child, ..*on };
        assert_eq!(there.joined(BASE, 0..4), 4);
    }
    drop(child);
    on.program.store_u64(BASE + on.page, 6).unwrap();
    assert_eq!((on.joined(BASE, 0..4), on.turned()), (4, (0, 0)));
    // While the child exists, a write copies one page, out of its block. A huge PTE is split first,
    // into small blocks.
    let _child = on.space.fork().unwrap();
    on.program.store_u64(BASE + on.page, 7).unwrap();
    assert_eq!((on.joined(BASE, 0..4), on.turned().1), (3, on.level.into()));
    on.holds(BASE, 0..4);
}

/// A block with a read-only part is unfolded. A fork write-protects the rest, and so folds the
/// block in parent and child.
fn forks_parts<A: Silicon>(on: &Context<'_, '_, A>) {
    on.protect(4 * on.pages() - on.pages() / 2, on.pages() / 2, Prot::READ);
    assert_eq!(on.joined(BASE, 0..4), 3);
    let child = on.space.fork().unwrap();
    assert_eq!(on.joined(BASE, 0..4), 4);
    assert_eq!(Context { space: &child, ..*on }.joined(BASE, 0..4), 4);
    on.holds(BASE, 0..4);
}

/// Whichever allocation of a fork fails, no block is unfolded, and the parent writes in place.
fn forks_in_vain<A: Silicon>(on: &Context<'_, '_, A>) {
    let free = || on.machine.frames().free_frames();
    let (stats, before) = (on.space.stats(), free());
    let mut refused = 0;
    loop {
        on.sim.refuse(Refusal::From(refused + 1));
        let child = on.space.fork();
        on.sim.refuse(Refusal::Never);
        if child.is_ok() {
            break;
        }
        drop(child);
        refused += 1;
        assert_eq!((on.space.stats(), free()), (stats, before), "refusal {refused}");
        (0..4).for_each(|i| on.program.store_u64(BASE + i * on.block, i).unwrap());
        assert_eq!((on.joined(BASE, 0..4), on.turned(), free()), (4, (0, 0), before));
    }
    assert!(refused > u64::from(on.space.arch().levels()), "{refused} allocations");
    on.holds(BASE, 0..4);
}

/// A change of a page in a huge PTE unfolds the block, splits the huge PTE, and unfolds the small
/// block of the page; no other block changes.
fn cuts<A: Silicon>(on: &Context<'_, '_, A>) {
    let small = 1 << on.space.arch().page_shift();
    on.space.protect(BASE + on.page + small, small, Prot::READ).unwrap();
    assert_eq!((on.joined(BASE, 1..4), on.turned()), (3, (0, 2)));
    on.space.unmap(BASE + 2 * on.block - small, 2 * small).unwrap();
    assert_eq!((on.joined(BASE, 3..4), on.turned()), (1, (0, 6)));
    on.space.advise(BASE + 3 * on.block + small, small, Advise::DontNeed).unwrap();
    assert_eq!(on.turned(), (0, 8));
    on.program.store_u64(BASE + 3 * on.block, 3).unwrap();
    on.holds(BASE, 0..2);
    on.holds(BASE, 3..4);
}

/// Memory that moves to an address of the same alignment is folded there, and is not unfolded
/// before.
fn moves<A: Silicon>(on: &Context<'_, '_, A>) {
    let request = RemapRequest {
        addr: BASE,
        old_len: 2 * on.block,
        new_len: 2 * on.block,
        flags: RemapFlags::MAYMOVE | RemapFlags::FIXED,
        new_addr: ELSEWHERE + on.block,
    };
    assert_eq!(on.space.remap(request), Ok(ELSEWHERE + on.block));
    on.holds(ELSEWHERE + on.block, 0..2);
    assert_eq!((on.joined(ELSEWHERE, 1..3), on.joined(BASE, 2..4), on.turned()), (2, 2, (0, 0)));
}

/// A file that was allocated ahead is mapped by the folio, as a cont block where that is 64 KiB.
fn executes<A: Silicon>(on: &Context<'_, '_, A>) {
    on.machine.policy().set_memory_orders(1 << (on.block >> 12).ilog2());
    let size = 3 * on.block + on.page;
    let file = Object::new(on.machine, on.space.arch(), MemcgId::ROOT, 0, size).unwrap();
    file.allocate(0..size, MemcgId::ROOT).unwrap();
    file.page(on.pages() + 1).unwrap().unwrap().write(8, &7u64.to_ne_bytes());
    let request =
        MapRequest { addr: ELSEWHERE, len: 4 * on.block, prot: Prot::READ | Prot::EXEC, flags: MapFlags::FIXED };
    on.space.map_object(request, &file, 0).unwrap();
    assert_eq!(on.program.load_u64(ELSEWHERE + on.block + on.page + 8), Ok(7));
    assert_eq!(on.joined(ELSEWHERE, 1..2), 1);
    assert_eq!(on.program.load_u64(ELSEWHERE), Ok(0));
    assert_eq!(on.program.load_u64(ELSEWHERE + size - 8), Ok(0));
    assert_eq!((on.joined(ELSEWHERE, 0..4), on.turned()), (2, (0, 0)));
    // A page of the block is punched out, which unfolds the block.
    let gone = file.punch_hole(on.block..on.block + on.page).expect("memory");
    unmap_removed(&[on.space][..], &file, &gone);
    assert_eq!((on.joined(ELSEWHERE, 0..2), on.turned()), (1, (0, 1)));
    assert_eq!(on.program.load_u64(ELSEWHERE + on.block + on.page + 8), Ok(7));
    on.space.unmap(ELSEWHERE, 4 * on.block).unwrap();
}

/// Soft-dirty reports exactly the written pages, though TLBs cache blocks; and blocks are unfolded
/// only where some pages were written and others not.
fn tracks<A: Silicon>(on: &Context<'_, '_, A>) {
    let Ok(()) = on.space.clear_soft_dirty() else {
        assert!(!on.space.arch().supported().contains(Attrs::SOFT_DIRTY));
        return;
    };
    let written = || {
        let mut pages = Vec::new();
        on.space.runs(VirtRange { start: BASE, end: BASE + 4 * on.block }, |run| {
            if run.attrs(on.space.arch()).contains(Attrs::SOFT_DIRTY) {
                let first = (run.va - BASE) / on.page;
                pages.extend(first..first + run.len as u64);
            }
        });
        pages
    };
    on.holds(BASE, 0..4);
    assert_eq!((written(), on.joined(BASE, 0..4)), (vec![], 4));
    let store = |page: u64| on.program.store_u64(BASE + page * on.page + 8, page).unwrap();
    store(on.pages() + 1);
    store(3 * on.pages() - 1);
    assert_eq!((written(), on.joined(BASE, 0..4)), (vec![on.pages() + 1, 3 * on.pages() - 1], 2));
    // Protecting and allowing again reports nothing, and allows no write that would not be
    // reported.
    on.protect(0, 4 * on.pages(), Prot::READ);
    on.protect(0, 4 * on.pages(), RW);
    store(0);
    assert_eq!(written(), [0, on.pages() + 1, 3 * on.pages() - 1]);
    (0..on.pages()).for_each(|page| store(on.pages() + page));
    assert_eq!((written().len() as u64, on.joined(BASE, 1..2)), (on.pages() + 2, 1));
    // Parent and child each report their own writes.
    on.space.clear_soft_dirty().unwrap();
    let child = on.space.fork().unwrap();
    store(5);
    assert_eq!(written(), [5]);
    drop(child);
    store(6);
    assert_eq!(written(), [5, 6]);
    on.holds(BASE, 0..4);
}

/// PTEs in no cont block that continue a run of cont blocks are unmapped with it.
#[test]
fn blocks_and_the_single_ptes_behind_them_are_one_run() {
    root_memcg::on(Aarch64::granule_4k(), 16 << 20, Hostility::USUAL, |on| {
        let (pages, page) = (128, root_memcg::PAGE);
        on.machine.policy().set(7, Knob::Always);
        let space = on.space();
        root_memcg::map(&space, root_memcg::BASE, pages * page, MapFlags::empty());
        on.store(&space, root_memcg::BASE, 1);
        assert_eq!(space.stats().anon, pages * page, "one folio");
        // Unfolds the last block.
        space.advise(root_memcg::BASE + (pages - 1) * page, page, Advise::DontNeed).unwrap();
        let before = on.machine.counter(Counter::RunsCleared);
        space.unmap(root_memcg::BASE, pages * page).unwrap();
        assert_eq!(on.machine.counter(Counter::RunsCleared) - before, 1);
    });
}
