//! Tests that each comparison of the audit reports a discrepancy that the test plants, and that the
//! audit reports nothing before the test plants it and after the test removes it.

use std::vec::Vec;

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::arch::X86_64;
use crate::frame::{BootOptions, Counts};
use crate::memcg::{LruList, LruvecId, MemcgId};
use crate::page_cache::{Object, PageLocation};
use crate::platform::SpaceId;
use crate::space::{Access, Advise, Limits, MapFlags, MapRequest};
use crate::swap::{Compressed, Slots, SwapRun};
use crate::testing::Host;
use crate::vma::{Backing, Prot, Sharing};

const PAGE: u64 = 4096;
const SLOTS: u32 = 1024;

type Space<'m> = AddressSpace<'m, Host>;

/// A machine with a memcg, and with a space and an object of that memcg. The object has a page in
/// memory and one in swap.
struct Scene<'m> {
    machine: &'m Machine<'m, Host>,
    memcg: MemcgId,
    space: Space<'m>,
    object: Object<'m, Host>,
}

/// Boots a machine, audits it, and runs a test on it.
fn on(test: impl FnOnce(&Scene<'_>)) {
    let host = Host::with_frames(6_000, 1);
    let machine = Machine::boot(&host, BootOptions::default()).unwrap();
    let frames = machine.frames();
    let store = Compressed::new(frames, SLOTS).unwrap();
    // SAFETY: nothing else uses the store, and it outlives the machine's use.
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
    // A page so far away that the index has nodes of all levels.
    drop(object.page_or_new(1 << 27, memcg).unwrap());
    let on = Scene { machine: &machine, memcg, space, object };
    let counts = on.object.page_counts();
    assert!(counts.resident > 0 && counts.swapped > 0, "{counts:?}");
    assert_eq!(on.audit(), []);
    test(&on);
}

impl Scene<'_> {
    fn audit(&self) -> Vec<Discrepancy> {
        let mut counts = std::vec![0; counts_len(self.machine)];
        let mut found = Vec::new();
        audit(self.machine, [&self.space].into_iter(), &mut counts, &mut |discrepancy| found.push(discrepancy));
        found
    }

    /// Checks that after `plant` the audit reports only `planted`, with a count that is too high by
    /// one, and that after `undo` it reports nothing.
    #[track_caller]
    fn counted_once_too_often(&self, planted: Quantity, plant: impl FnOnce(), undo: impl FnOnce()) {
        plant();
        let found = self.audit();
        let [Discrepancy::Differs { what, counted, found }] = found[..] else {
            panic!("not one difference: {found:?}")
        };
        assert_eq!((what, counted), (planted, found + 1));
        undo();
        assert_eq!(self.audit(), []);
    }

    /// Returns the frame of the object's first page in memory, and the slot of its first page in
    /// swap.
    fn pages(&self) -> (Pfn, u32) {
        let (mut in_memory, mut in_swap) = (None, None);
        self.object.survey().walk(&mut |_| (), &mut |page| match page {
            PageLocation::Memory { pfn, .. } => in_memory = in_memory.or(Some(pfn)),
            PageLocation::Swap { slot, .. } => in_swap = in_swap.or(Some(slot)),
        });
        (in_memory.unwrap(), in_swap.unwrap())
    }
}

#[test]
fn a_surplus_reference_of_a_slot_is_found() {
    on(|on| {
        let (_, slot) = on.pages();
        let run = SwapRun { device: 0, slots: Slots { first: slot, count: 1 } };
        let swaps = on.machine.swaps();
        on.counted_once_too_often(
            Quantity::Slot(0, slot),
            // SAFETY: the object has a reference to the slot.
            || unsafe { swaps.get_transient(on.machine.platform(), run) },
            // SAFETY: gives up the reference taken above.
            || unsafe { swaps.release(on.machine.frames(), run) },
        );
    });
}

#[test]
fn a_surplus_entry_in_the_count_of_an_index_node_is_found() {
    on(|on| {
        let mut nodes = Vec::new();
        on.object.survey().walk(&mut |node| nodes.push(node.at), &mut |_| ());
        assert!(nodes.len() > 4, "too few nodes for all levels: {nodes:?}");
        for node in nodes {
            let live = on.machine.frames().frame(node).link(1);
            let count = live.load(Relaxed);
            on.counted_once_too_often(
                Quantity::NodeEntries(node),
                || live.store(count + 1, Relaxed),
                || live.store(count, Relaxed),
            );
        }
    });
}

#[test]
fn a_vma_that_an_object_counts_and_no_space_has_is_found() {
    on(|on| {
        let backing = Backing { object: on.object.survey().frame(), sharing: Sharing::Private, delta: 0, tag: 0 };
        let space = on.space.id();
        crate::page_cache::get_backing(on.machine, &backing, space);
        let vmas = |what: Quantity| Discrepancy::Differs { what, counted: 2, found: 1 };
        let at = on.object.survey().frame();
        assert_eq!(on.audit(), [vmas(Quantity::VmasOfSpace(at, space)), vmas(Quantity::Vmas(at))]);
        on.object.cancel_backing(&backing, space);
        // The VMA belongs to a space that does not exist.
        on.counted_once_too_often(
            Quantity::Vmas(at),
            || crate::page_cache::get_backing(on.machine, &backing, SpaceId(1 << 40)),
            || on.object.cancel_backing(&backing, SpaceId(1 << 40)),
        );
        on.counted_once_too_often(
            Quantity::Writers(at),
            || assert!(on.object.map_writable()),
            || {
                // Ends the write access that `map_writable` began: adds a VMA, and removes it as
                // one that may write.
                let writer = Backing { sharing: Sharing::Shared, ..backing };
                crate::page_cache::get_backing(on.machine, &backing, space);
                on.object.cancel_backing(&writer, space);
            },
        );
    });
}

#[test]
fn a_page_charged_to_no_memcg_or_to_the_wrong_one_is_found() {
    on(|on| {
        let (pfn, _) = on.pages();
        let (frames, memcgs) = (on.machine.frames(), on.machine.memcgs());
        let (_, frame) = frames.head(pfn);
        let packed = frame.lruvec();
        let wrong = LruvecId { memcg: MemcgId::ROOT, ..LruvecId::unpack(packed) };
        frame.set_lruvec(wrong.pack(LruList::of(frame)));
        let charged = |audit: Vec<Discrepancy>| {
            let charged = |discrepancy: &Discrepancy| match discrepancy {
                Discrepancy::Differs { what: Quantity::MemcgCharged(memcg), counted, found } => {
                    Some((*memcg, counted - found))
                }
                _ => None,
            };
            audit.iter().filter_map(charged).collect::<Vec<_>>()
        };
        assert_eq!(charged(on.audit()), [(on.memcg, 1 << frame.order())]);
        frame.set_lruvec(packed);
        // A frame of the host's structures, whose descriptor loses its flags.
        let own = memcgs.alloc_for_host(frames, on.memcg, 0).unwrap();
        assert_eq!(on.audit(), []);
        frames.frame(own).set_kind(FrameKind::Private, 0, 0);
        assert_eq!(charged(on.audit()), [(MemcgId::ROOT, 1), (on.memcg, 1)]);
        // SAFETY: the frame was allocated above, and is not used.
        unsafe { memcgs.free_for_host(frames, own, 0) };
        assert_eq!(on.audit(), []);
        // A frame for the engine's structures that belongs to no space and no object.
        let lost = Cell::new(Pfn::NONE);
        on.counted_once_too_often(
            Quantity::Structures,
            || lost.set(memcgs.alloc(frames, on.memcg, 0, false).unwrap().0),
            // SAFETY: the frame was allocated above, and is not used.
            || unsafe { memcgs.free(frames, lost.get(), 0, false) },
        );
    });
}

#[test]
fn a_wrong_count_of_a_memcgs_pages_in_swap_is_found() {
    on(|on| {
        let memcgs = on.machine.memcgs();
        memcgs.count_swapped(on.memcg, 3);
        let differs = |memcg| Discrepancy::Differs { what: Quantity::MemcgSwapped(memcg), counted: 4, found: 1 };
        assert_eq!(on.audit(), [differs(MemcgId::ROOT), differs(on.memcg)]);
        memcgs.count_swapped(on.memcg, -3);
        assert_eq!(on.audit(), []);
    });
}

#[test]
fn a_missing_reference_of_a_folio_and_a_wrong_object_are_found() {
    on(|on| {
        let (pfn, _) = on.pages();
        let (_, frame) = on.machine.frames().head(pfn);
        let own = frame.counts();
        frame.set_counts(Counts { refs: own.refs - 1, ..own });
        // The number of mappings is right, so the object's reference is the one that is missing.
        assert_eq!(on.audit(), [Discrepancy::TooFewReferences { pfn, refs: own.refs - 1, maps: own.refs }]);
        frame.set_counts(own);
        let data = frame.data();
        frame.set_data(data ^ 1);
        assert_eq!(on.audit(), [Discrepancy::WrongObject { pfn }]);
        frame.set_data(data);
        assert_eq!(on.audit(), []);
    });
}
