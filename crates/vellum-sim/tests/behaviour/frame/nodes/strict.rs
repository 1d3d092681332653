//! NUMA: the node of memory that a program touches, and reclaim of one node.

use vellum::addr::{PhysAddr, VirtRange};
use vellum::arch::{Kind, X86_64};
use vellum::frame::BootOptions;
use vellum::frame::policy::Knob;
use vellum::memcg::{LruList, MemcgId};
use vellum::platform::Region;
use vellum::reclaim::{ReclaimScope, reclaim};
use vellum::space::{Advise, Limits, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::swap::Compressed;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Hostility, Strict, Strictness};

const BASE: u64 = 0x20_0000_0000;
const PAGE: u64 = 4096;

type Space<'m> = AddressSpace<'m, Strict>;

struct Bench<'m> {
    sim: &'m Strict,
    machine: &'m Machine<'m, Strict>,
}

/// Runs a test that must free all its memory, on a machine of two adjacent nodes, with a CPU each
/// and swap; node 1 is smaller.
fn on(test: impl FnOnce(&Bench<'_>)) {
    let region = |base: u64, len: u64, node| Region { base: PhysAddr(base << 20), len: len << 20, zeroed: true, node };
    let config = Config::new(0).regions([region(2, 24, 0), region(26, 8, 1)]).cpus(2).cpu_nodes([0, 1]);
    let sim = config.strict(Strictness::new(3).hostility(Hostility::NONE)).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, BootOptions { watermarks: 800, ..Default::default() }).unwrap();
    let store = Compressed::new(machine.frames(), 8192).unwrap();
    // SAFETY: no other code uses it, and it outlives the machine.
    unsafe { machine.swaps().attach(machine.frames(), &store, 8192, 0) }.unwrap();
    sim.baseline();
    drop(cpu);
    let free = sim.on_cpu(0, || [0, 1].map(|node| machine.frames().free_on(node)));
    sim.on_cpu(0, || assert_eq!(machine.frames().free_frames(), free[0] + free[1]));
    test(&Bench { sim: &sim, machine: &machine });
    sim.on_cpu(0, || assert_eq!([0, 1].map(|node| machine.frames().free_on(node)), free));
    let _cpu = sim.cpu(0);
    sim.finish();
}

impl<'m> Bench<'m> {
    fn space(&self) -> Space<'m> {
        let space = AddressSpace::new(self.machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
        let prot = Prot::READ | Prot::WRITE;
        space
            .map(MapRequest { addr: BASE, len: 64 << 20, prot, flags: MapFlags::FIXED | MapFlags::NORESERVE })
            .unwrap();
        space
    }

    /// Writes to pages, on a CPU.
    fn touch(&self, cpu: usize, space: &Space<'_>, pages: core::ops::Range<u64>) {
        let cpu = self.sim.cpu(cpu);
        let program = cpu.enter(space);
        pages.for_each(|page| program.store_u64(BASE + page * PAGE, page).unwrap());
    }

    /// Returns how many of these pages are on each node.
    fn nodes(&self, space: &Space<'_>, pages: core::ops::Range<u64>) -> [u64; 2] {
        let _cpu = self.sim.cpu(0);
        let mut found = [0; 2];
        space.runs(VirtRange { start: BASE + pages.start * PAGE, end: BASE + pages.end * PAGE }, |run| {
            if run.kind == Kind::Leaf {
                let frames = run.range(space.arch()).len() / PAGE;
                let pfn = run.pfn(space.arch());
                (0..frames).for_each(|at| found[self.machine.frames().node_of(pfn.add(at as u32))] += 1);
            }
        });
        found
    }

    /// Returns the pages on the LRU lists of each node.
    fn listed(&self) -> [u64; 2] {
        let _cpu = self.sim.cpu(0);
        let on = |node| self.machine.memcgs().listed_on(self.machine.frames(), MemcgId::ROOT, node).unwrap();
        [0, 1].map(|node| on(node).iter().sum())
    }

    fn end(&self, space: Space<'_>) {
        self.sim.on_cpu(0, || drop(space));
    }
}

/// Memory comes from the node of the CPU that touches it first, whatever the folio size, and is on
/// the LRU lists of that node.
#[test]
fn memory_comes_from_the_node_of_first_touch() {
    on(|on| {
        let space = on.sim.on_cpu(0, || on.space());
        on.touch(0, &space, 0..100);
        on.touch(1, &space, 100..250);
        on.sim.on_cpu(0, || on.machine.policy().set(4, Knob::Always));
        on.touch(1, &space, 1024..1025);
        on.sim.on_cpu(0, || on.machine.policy().set(4, Knob::Never));
        assert_eq!(on.nodes(&space, 0..100), [100, 0]);
        assert_eq!(on.nodes(&space, 100..250), [0, 150]);
        assert_eq!(on.nodes(&space, 1024..1040), [0, 16]);
        assert_eq!(on.listed(), [100, 166]);
        // A folio stays on its lists wherever it moves in a space; a copy comes from the node of
        // the CPU that copies.
        let request = RemapRequest {
            addr: BASE + 100 * PAGE,
            old_len: 10 * PAGE,
            new_len: 10 * PAGE,
            flags: RemapFlags::MAYMOVE,
            new_addr: 0,
        };
        let child = on.sim.on_cpu(0, || {
            let at = space.remap(request).unwrap();
            space.advise(at, 10 * PAGE, Advise::Cold).unwrap();
            space.fork().unwrap()
        });
        assert_eq!(on.listed(), [100, 166]);
        on.touch(0, &child, 110..120);
        assert_eq!(on.nodes(&child, 110..120), [10, 0]);
        assert_eq!(on.listed(), [110, 166]);
        on.end(child);
        on.end(space);
    });
}

/// A CPU whose node has no free memory gets another node's before anything is reclaimed; the folio
/// is listed on its own node.
#[test]
fn a_full_node_falls_back_to_another_node() {
    on(|on| {
        let space = on.sim.on_cpu(0, || on.space());
        let spare = on.sim.on_cpu(0, || on.machine.frames().free_on(1) - on.machine.frames().watermarks_on(1).low);
        on.touch(1, &space, 0..spare + 500);
        let [far, near] = on.nodes(&space, 0..spare + 500);
        assert!(near <= spare && far >= 500, "{near} near, {far} far of {spare} and 500");
        assert_eq!(on.listed(), [far, near]);
        assert_eq!(on.sim.on_cpu(0, || on.machine.frames().shortage()), 0);
        on.end(space);
    });
}

/// Without memory to spare each node reports its shortage; reclaim of one node leaves the
/// other as it is.
#[test]
fn reclaim_of_one_node_leaves_the_other() {
    on(|on| {
        let frames = on.machine.frames();
        let space = on.sim.on_cpu(0, || on.space());
        let mut pages = 0;
        while on.sim.on_cpu(0, || frames.shortage()) == 0 {
            on.touch((pages / 100 % 2) as usize, &space, pages..pages + 50);
            pages += 50;
        }
        for node in [1, 0] {
            let before = on.listed();
            let other = on.sim.on_cpu(0, || frames.free_on(1 - node));
            let missing = on.sim.on_cpu(0, || frames.shortage_on(node));
            assert!(missing > 0);
            let part = ReclaimScope { memcg: MemcgId::ROOT, node: Some(node) };
            let done = on.sim.on_cpu(0, || reclaim(on.machine, &[&space][..], part, missing));
            assert_eq!(done.map(|done| done.freed), Ok(missing));
            let after = on.listed();
            assert_eq!(before[1 - node], after[1 - node]);
            assert_eq!(before[node] - after[node], missing);
            // Compressed memory may have taken some of the other node, and so freed less on this
            // one.
            assert!(on.sim.on_cpu(0, || frames.free_on(1 - node)) <= other);
        }
        assert_eq!(on.nodes(&space, 0..pages), on.listed());
        // All of it is swapped in unchanged.
        let cpu = on.sim.cpu(1);
        let program = cpu.enter(&space);
        (0..pages).for_each(|page| assert_eq!(program.load_u64(BASE + page * PAGE).unwrap(), page));
        drop(program);
        drop(cpu);
        on.end(space);
    });
}

/// Lazyfree and unevictable folios are on lists of their node too.
#[test]
fn folios_are_on_the_lists_of_their_node() {
    on(|on| {
        let space = on.sim.on_cpu(0, || on.space());
        on.touch(0, &space, 0..40);
        on.touch(1, &space, 40..100);
        let _cpu = on.sim.cpu(0);
        space.advise(BASE + 10 * PAGE, 60 * PAGE, Advise::Free).unwrap();
        let lists = |node| on.machine.memcgs().listed_on(on.machine.frames(), MemcgId::ROOT, node).unwrap();
        let of = |list: LruList| [0, 1].map(|node| lists(node)[list as usize]);
        assert_eq!((of(LruList::Anon), of(LruList::Lazyfree)), ([10, 30], [30, 30]));
        let part = ReclaimScope { memcg: MemcgId::ROOT, node: Some(1) };
        assert_eq!(reclaim(on.machine, &[&space][..], part, 1000).unwrap().freed, 60);
        assert_eq!((of(LruList::Anon), of(LruList::Lazyfree)), ([10, 0], [30, 0]));
        drop(space);
    });
}
