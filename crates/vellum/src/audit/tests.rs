//! Each comparison finds a discrepancy that is planted, and finds nothing before and after.

use std::vec::Vec;

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::arch::X86_64;
use crate::frame::{BootOptions, Counts};
use crate::memcg::{LruvecId, MemcgId};
use crate::page_cache::{Object, There};
use crate::platform::SpaceId;
use crate::space::{Access, Advise, Limits, MapFlags, MapRequest};
use crate::swap::{Compressed, Slots, SwapRun};
use crate::testing::Host;
use crate::vma::{Backing, Prot, Sharing};

const PAGE: u64 = 4096;
const SLOTS: u32 = 1024;

type Space<'m> = AddressSpace<'m, Host, X86_64>;

/// A machine with a memcg, a space and an object of that memcg, which has a page in memory and one
/// in swap.
struct Scene<'m> {
    machine: &'m Machine<'m, Host>,
    memcg: MemcgId,
    space: Space<'m>,
    object: Object<'m, Host>,
}

/// Shows a machine to a test, and has it audited before.
fn on(test: impl FnOnce(&Scene<'_>)) {
    let host = Host::with_frames(6_000, 1);
    let machine = Machine::boot(&host, BootOptions::default()).unwrap();
    let frames = machine.frames();
    let store = Compressed::new(frames, SLOTS).unwrap();
    // SAFETY: nobody else uses it, and it outlives the machine's use.
    unsafe { machine.swaps().attach(frames, &store, SLOTS, 0) }.unwrap();
    let memcg = machine.memcgs().create(frames, MemcgId::ROOT, u64::MAX).unwrap();
    let arch = X86_64::four_levels();
    let space = AddressSpace::new(&machine, arch, memcg, Limits::default()).unwrap();
    let object = Object::new(&machine, &arch, memcg, 0, 1 << 40).unwrap();
    let prot = Prot::READ | Prot::WRITE;
    let vma = |flags| MapRequest { addr: 0, len: 4 * PAGE, prot, flags };
    let own = space.map(vma(MapFlags::empty())).unwrap();
    let shared = space.map_object(vma(MapFlags::SHARED), &object, 0).unwrap();
    (0..4).for_each(|page| _ = space.fault(own + page * PAGE, Access::Write).unwrap());
    (0..2).for_each(|page| _ = space.fault(shared + page * PAGE, Access::Write).unwrap());
    space.advise(own + PAGE, PAGE, Advise::PageOut).unwrap();
    space.advise(shared, 4 * PAGE, Advise::PageOut).unwrap();
    space.fault(shared + PAGE, Access::Read).unwrap();
    // Nodes of all levels.
    drop(object.page_or_new(1 << 27, memcg).unwrap());
    let on = Scene { machine: &machine, memcg, space, object };
    assert!(on.object.extent().iter().all(|pages| *pages > 0), "{:?}", on.object.extent());
    assert_eq!(on.audit(), []);
    test(&on);
}

impl Scene<'_> {
    fn audit(&self) -> Vec<Unsound> {
        let mut counts = std::vec![0; span(self.machine).1];
        let mut found = Vec::new();
        audit(self.machine, [&self.space].into_iter(), &mut counts, &mut |unsound| found.push(unsound));
        found
    }

    /// The one number that differs is what is planted, by one: and nothing differs when that is
    /// taken back.
    #[track_caller]
    fn counted_once_more(&self, planted: What, plant: impl FnOnce(), back: impl FnOnce()) {
        plant();
        let found = self.audit();
        let [Unsound::Differs { what, counted, found: there }] = found[..] else { panic!("{found:?}") };
        assert_eq!((what, counted), (planted, there + 1));
        back();
        assert_eq!(self.audit(), []);
    }

    /// The first page of the object in memory, and the first slot of one in swap.
    fn pages(&self) -> (Pfn, u32) {
        let (mut here, mut away) = (None, None);
        self.object.survey(&mut |_| (), &mut |there| match there {
            There::Memory(pfn, _) => here = here.or(Some(pfn)),
            There::Swap(_, slot) => away = away.or(Some(slot)),
        });
        (here.unwrap(), away.unwrap())
    }
}

#[test]
fn a_reference_to_a_slot_that_nothing_names() {
    on(|on| {
        let (_, slot) = on.pages();
        let run = SwapRun { device: 0, slots: Slots { first: slot, count: 1 } };
        let swaps = on.machine.swaps();
        on.counted_once_more(
            What::Slot(0, slot),
            // SAFETY: the object has a reference.
            || unsafe { swaps.hold(on.machine.platform(), run) },
            // SAFETY: the reference taken above.
            || unsafe { swaps.release(on.machine.frames(), run) },
        );
    });
}

#[test]
fn an_entry_that_a_node_does_not_count() {
    on(|on| {
        let mut nodes = Vec::new();
        on.object.survey(&mut |node| nodes.push(node.at), &mut |_| ());
        assert!(nodes.len() > 4, "of all levels: {nodes:?}");
        for node in nodes {
            let live = on.machine.frames().frame(node).link(1);
            let count = live.load(Relaxed);
            on.counted_once_more(What::Entries(node), || live.store(count + 1, Relaxed), || live.store(count, Relaxed));
        }
    });
}

#[test]
fn an_vma_that_an_object_counts_and_no_space_has() {
    on(|on| {
        let backing = Backing { object: on.object.frame(), sharing: Sharing::Private, delta: 0, tag: 0 };
        let space = on.space.id();
        crate::page_cache::hold(on.machine, &backing, space);
        let vmas = |what: What| Unsound::Differs { what, counted: 2, found: 1 };
        let at = on.object.frame();
        assert_eq!(on.audit(), [vmas(What::VmasOf(at, space)), vmas(What::Vmas(at))]);
        on.object.take_back(&backing, space);
        // Of a space that is not there.
        on.counted_once_more(
            What::Vmas(at),
            || crate::page_cache::hold(on.machine, &backing, SpaceId(1 << 40)),
            || on.object.take_back(&backing, SpaceId(1 << 40)),
        );
        on.counted_once_more(
            What::Writers(at),
            || assert!(on.object.admit_writer()),
            || {
                // A VMA that could write came, and went.
                let writer = Backing { sharing: Sharing::Shared, ..backing };
                crate::page_cache::hold(on.machine, &backing, space);
                on.object.take_back(&writer, space);
            },
        );
    });
}

#[test]
fn a_page_that_is_charged_to_no_memcg_or_to_another() {
    on(|on| {
        let (pfn, _) = on.pages();
        let (frames, memcgs) = (on.machine.frames(), on.machine.memcgs());
        let (_, frame) = frames.head(pfn);
        let lruvec = LruvecId::unpack(frame.lruvec());
        frame.set_lruvec(LruvecId { memcg: MemcgId::ROOT, ..lruvec }.pack());
        let charged = |audit: Vec<Unsound>| {
            let charged = |unsound: &Unsound| match unsound {
                Unsound::Differs { what: What::Charged(memcg), counted, found } => Some((*memcg, counted - found)),
                _ => None,
            };
            audit.iter().filter_map(charged).collect::<Vec<_>>()
        };
        assert_eq!(charged(on.audit()), [(on.memcg, 1 << frame.order())]);
        frame.set_lruvec(lruvec.pack());
        // The host's memory, of which the descriptor says nothing.
        let own = memcgs.alloc_for_host(frames, on.memcg, 0).unwrap();
        assert_eq!(on.audit(), []);
        frames.frame(own).become_kind(FrameKind::Private, 0, 0);
        assert_eq!(charged(on.audit()), [(MemcgId::ROOT, 1), (on.memcg, 1)]);
        // SAFETY: allocated above, and not used.
        unsafe { memcgs.free_for_host(frames, own, 0) };
        assert_eq!(on.audit(), []);
        // A frame of the engine's own, which nothing has.
        let lost = Cell::new(Pfn::NONE);
        on.counted_once_more(
            What::Structures,
            || lost.set(memcgs.alloc(frames, on.memcg, 0, false).unwrap().0),
            // SAFETY: allocated above, and not used.
            || unsafe { memcgs.free(frames, lost.get(), 0, false) },
        );
    });
}

#[test]
fn what_a_memcg_has_in_swap() {
    on(|on| {
        let memcgs = on.machine.memcgs();
        memcgs.count_swapped(on.memcg, 3);
        let differs = |memcg| Unsound::Differs { what: What::SwappedBy(memcg), counted: 4, found: 1 };
        assert_eq!(on.audit(), [differs(MemcgId::ROOT), differs(on.memcg)]);
        memcgs.count_swapped(on.memcg, -3);
        assert_eq!(on.audit(), []);
    });
}

#[test]
fn references_of_a_folio_and_the_object_that_it_names() {
    on(|on| {
        let (pfn, _) = on.pages();
        let (_, frame) = on.machine.frames().head(pfn);
        let own = frame.counts();
        frame.set_counts(Counts { refs: own.refs - 1, ..own });
        // Its mappings are right, and so it is the object's reference that is missing.
        assert_eq!(on.audit(), [Unsound::References { pfn, refs: own.refs - 1, maps: own.refs }]);
        frame.set_counts(own);
        let data = frame.data();
        frame.set_data(data ^ 1);
        assert_eq!(on.audit(), [Unsound::Owner { pfn }]);
        frame.set_data(data);
        assert_eq!(on.audit(), []);
    });
}
