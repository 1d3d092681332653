//! The whole machine against all models, when nothing runs. What is counted here is counted from the page tables in memory
//! and from the descriptors; what the engine says of itself must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use vellum::Machine;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, VirtRange};
use vellum::arch::{Arch, Attrs, Kind};
use vellum::audit::{audit, span};
use vellum::frame::{FrameKind, flag};
use vellum::memcg::MemcgId;
use vellum::swap::{DEVICES, Slots, SwapRun};
use vellum::vma::{Prot, VmaFlags};

use super::contents::NOTHING;
use super::host::Host;
use super::look::vmas_in;
use super::model::{Page, SLOTS, vmas_of};
use super::presence::Presence;
use super::swap::Glass;
use super::walk::{self, Leaf, Space, Supplied, Tree};

/// A space, the memcg that pays for it, and its pages by all models.
pub struct Counted<'c, 'm, H: Host> {
    pub space: &'c Space<'m, H>,
    pub memcg: MemcgId,
    pub pages: Pages<'c>,
}

/// Pages of all models, by runs.
pub struct Pages<'c>(Vec<(Range<u64>, &'c Page)>);

impl<'c> Pages<'c> {
    /// Of these, in any order.
    pub fn new(mut runs: Vec<(Range<u64>, &'c Page)>) -> Self {
        runs.sort_by_key(|(pages, _)| pages.start);
        let apart = runs.windows(2).all(|pair| pair[0].0.end <= pair[1].0.start);
        assert!(apart, "two models have the same page");
        Pages(runs)
    }

    fn runs(&self) -> impl Iterator<Item = (Range<u64>, &'c Page)> + '_ {
        self.0.iter().map(|(pages, page)| (pages.clone(), *page))
    }

    /// The run that holds a page.
    fn get(&self, at: u64) -> Option<(&Range<u64>, &'c Page)> {
        let (pages, page) = &self.0[self.0.partition_point(|(pages, _)| pages.start <= at).checked_sub(1)?];
        pages.contains(&at).then_some((pages, page))
    }

    fn count(&self, like: impl Fn(&Page) -> bool) -> u64 {
        self.runs().filter(|(_, page)| like(page)).map(|(pages, _)| pages.end - pages.start).sum()
    }
}

/// What a memcg should be charged with, in frames.
#[derive(Default)]
struct Bill {
    /// Page tables, and what else the engine has for spaces.
    kernel: u64,
    /// By the head of each folio: the frames that some entry maps.
    folios: BTreeMap<Pfn, u64>,
}

/// Compare everything. `parents` are all memcgs but the root, each with its parent.
pub fn take<H: Host>(
    host: &H,
    machine: &Machine<'_, H>,
    glass: Glass,
    spaces: &[Counted<'_, '_, H>],
    parents: &[(MemcgId, MemcgId)],
) {
    let mut bills: BTreeMap<u16, Bill> = BTreeMap::new();
    let (mut slots, mut cached) = (BTreeMap::new(), BTreeMap::new());
    let supplied = Supplied::new(host);
    for counted in spaces {
        let tree = walk::tree(host, counted.space);
        let bill = bills.entry(number(counted.memcg, parents)).or_default();
        check_space(host, machine, counted, &tree, bill, &supplied);
        check_swapped(host, machine, glass, counted, &tree);
        check_cached(host, machine, glass, counted, &tree, &mut cached);
        tree.swapped.iter().for_each(|(_, run)| each_slot(run, |slot| *slots.entry(slot).or_default() += 1));
    }
    check_memcgs(machine, &bills, parents);
    check_slots(host, machine, &slots, &cached);
    // What a kernel can ask the engine itself agrees.
    let mut counts = vec![0; span(machine).1];
    let all = spaces.iter().map(|counted| counted.space);
    audit(machine, all, &mut counts, &mut |unsound| panic!("the audit: {unsound}"));
}

fn each_slot(run: &SwapRun, f: impl FnMut((u8, u32))) {
    let Slots { first, count } = run.slots;
    (first..first + count).map(|slot| (run.device, slot)).for_each(f);
}

/// What is swapped out is what was stored.
fn check_swapped<H: Host>(host: &H, machine: &Machine<'_, H>, glass: Glass, counted: &Counted<'_, '_, H>, tree: &Tree) {
    for (at, run) in &tree.swapped {
        let Some((_, page)) = counted.pages.get(*at) else { panic!("page {at:#x} is swapped out in no VMA") };
        let found = glass.words(host, machine, *run);
        let held = found.is_ok_and(|found| page.contents.could(|words| *words == found));
        assert!(held, "page {at:#x} of {:?}, in {run:?}: {found:x?} in {SLOTS:?}, not {page:x?}", counted.space.id());
    }
}

/// What is in memory and in a slot as well is the same, and nobody writes to it in place (INV-15); a slot has one copy at most.
fn check_cached<H: Host>(
    host: &H,
    machine: &Machine<'_, H>,
    glass: Glass,
    counted: &Counted<'_, '_, H>,
    tree: &Tree,
    cached: &mut BTreeMap<(u8, u32), Pfn>,
) {
    let per_page = walk::frames_per_page(counted.space.arch()) as u32;
    let mut seen = BTreeSet::new();
    for leaf in &tree.leaves {
        let mapped = leaf.pfn.0..leaf.pfn.0 + leaf.pages as u32 * per_page;
        let mut at = leaf.pfn;
        while at.0 < mapped.end {
            let (head, frame) = machine.frames().head(at);
            let folio = head.0..head.0 + (1 << frame.order());
            at = Pfn(folio.end);
            if !frame.has(flag::SWAP_CACHED) {
                continue;
            }
            // A part that nobody maps any more may have slots too: once for each folio, all of it is looked at.
            let parts =
                if seen.insert(head) { folio } else { folio.start.max(mapped.start)..folio.end.min(mapped.end) };
            for pfn in parts.step_by(per_page as usize).map(Pfn) {
                let Some(slot) = machine.swaps().slot_of(host, pfn) else { continue };
                let own = mapped.contains(&pfn.0) && leaf.attrs.intersects(Attrs::EXCLUSIVE | Attrs::WRITE);
                assert!(!own, "INV-15: {leaf:?} may be written, and has {slot:?}");
                let slots = SwapRun { slots: Slots { count: per_page, ..slot.slots }, ..slot };
                let found = glass.words(host, machine, slots);
                assert_eq!(found, Ok(walk::words(host, pfn.addr())), "{slots:?} and its copy {pfn:?} in {leaf:?}");
                each_slot(&slots, |slot| {
                    let copy = pfn.add(slot.1 - slots.slots.first);
                    assert_eq!(*cached.entry(slot).or_insert(copy), copy, "slot {slot:?} has two copies");
                });
            }
        }
    }
}

/// Slots are referred to as often as entries name them, once more if they have copies, and no others are in use.
fn check_slots<H: Host>(
    host: &H,
    machine: &Machine<'_, H>,
    slots: &BTreeMap<(u8, u32), u32>,
    cached: &BTreeMap<(u8, u32), Pfn>,
) {
    let mut slots = slots.clone();
    cached.keys().for_each(|slot| *slots.entry(*slot).or_default() += 1);
    for (&(device, slot), &expected) in &slots {
        // SAFETY: an entry has one, or a copy.
        let references =
            unsafe { machine.swaps().references(host, SwapRun { device, slots: Slots { first: slot, count: 1 } }) };
        assert_eq!(references, expected, "references to slot {slot} of device {device}");
    }
    for device in 0..DEVICES as u8 {
        let Some(usage) = machine.swaps().usage(host, device) else { continue };
        let of = |all: usize, slot: &(u8, u32)| all + usize::from(slot.0 == device);
        let expected = (slots.keys().fold(0, of), cached.keys().fold(0, of));
        assert_eq!((usage.used as usize, usage.cached as usize), expected, "slots in use, cached, of device {device}");
    }
}

/// memcgs are told apart by their place in the list: what they are called is the engine's business.
fn number(memcg: MemcgId, parents: &[(MemcgId, MemcgId)]) -> u16 {
    parents.iter().position(|(id, _)| *id == memcg).map_or(0, |at| at as u16 + 1)
}

fn check_space<H: Host>(
    host: &H,
    machine: &Machine<'_, H>,
    counted: &Counted<'_, '_, H>,
    tree: &Tree,
    bill: &mut Bill,
    supplied: &Supplied,
) {
    let (space, arch) = (counted.space, counted.space.arch());
    let per_page = walk::frames_per_page(arch);
    let stats = space.stats();

    // VMAs are the model's, whoever made them, and neighbours that say the same are one.
    let vmas = vmas_of(counted.pages.runs());
    let user_pages = arch.user_end() >> arch.page_shift();
    assert_eq!(vmas_in(space, arch.page_shift(), &(0..user_pages)), vmas);
    let page_bytes = 1 << arch.page_shift();
    let locked = counted.pages.count(|page| page.kind.flags.contains(VmaFlags::LOCKED));
    let expected = (counted.pages.count(|_| true) * page_bytes, locked * page_bytes, vmas.len());
    assert_eq!((stats.mapped, stats.locked, stats.vmas), expected, "mapped, locked, VMAs");

    // Tables: each is one, and all are counted; nothing but the root stays when nothing is mapped.
    for table in &tree.tables {
        let frame = machine.frames().frame(*table);
        assert_eq!(frame.kind(), FrameKind::Table, "{table:?}");
        assert!(!frame.has(flag::DEAD), "{table:?} is hooked and dead");
    }
    let table_frames = tree.tables.len() as u64 * per_page;
    assert_eq!(stats.tables, table_frames * FRAME_SIZE, "bytes of page tables");
    assert!(
        [tree.leaves.len(), tree.swapped.len(), tree.markers.len()] != [0; 3] || tree.tables.len() == 1,
        "tables without pages: {:?}",
        tree.tables
    );
    bill.kernel += table_frames + stats.kernel / FRAME_SIZE;

    // A page that is not resident holds nothing.
    let leaves = tree.leaves.iter().map(|leaf| leaf.page..leaf.page + leaf.pages);
    let mut mapped: Vec<Range<u64>> = leaves.chain(tree.swapped.iter().map(|(at, _)| *at..at + 1)).collect();
    mapped.sort_by_key(|pages| pages.start);
    for (pages, page) in counted.pages.runs().filter(|(_, page)| !page.contents.could(|words| *words == NOTHING)) {
        let first = mapped.partition_point(|mapped| mapped.end <= pages.start);
        let after = |end, mapped: &Range<u64>| if mapped.start <= end { mapped.end.max(end) } else { end };
        let inside = mapped[first..].iter().take_while(|mapped| mapped.start < pages.end);
        let end = inside.fold(pages.start, after);
        assert!(end >= pages.end, "page {end:#x} is lost: {page:x?}");
    }

    let guards = counted.pages.runs().filter(|(_, page)| page.presence == Presence::Guard);
    assert!(
        guards.flat_map(|(pages, _)| pages).eq(tree.markers.iter().copied()),
        "the guards that stand in the tables: {:x?}",
        tree.markers
    );

    let mut resident = 0;
    for leaf in &tree.leaves {
        resident += check_leaf(host, machine, counted, leaf, per_page, bill, supplied);
    }
    let swapped = tree.swapped.len() as u64 * page_bytes;
    let expected = (resident * FRAME_SIZE, 0, 0, swapped);
    assert_eq!((stats.anon, stats.file, stats.shmem, stats.swap), expected, "resident and swapped bytes");
    assert!(stats.peak >= stats.anon, "{stats:?}");
    check_runs(space, tree, resident);
}

/// An entry maps only what the model has, allows no more than the model does, and what is there is what was stored. The
/// answer is how many frames it adds to what is resident.
fn check_leaf<H: Host>(
    host: &H,
    machine: &Machine<'_, H>,
    counted: &Counted<'_, '_, H>,
    leaf: &Leaf,
    per_page: u64,
    bill: &mut Bill,
    supplied: &Supplied,
) -> u64 {
    let (head, frame) = machine.frames().head(leaf.pfn);
    assert_eq!(frame.kind(), FrameKind::Folio, "{leaf:?} maps no folio");
    let zeros = frame.has(flag::ZEROS);
    let mut known = None;
    for i in 0..leaf.pages {
        let at = leaf.page + i;
        known = known.filter(|(pages, _): &(&Range<u64>, _)| pages.contains(&at)).or_else(|| counted.pages.get(at));
        let Some((_, page)) = known else { panic!("page {at:#x} is mapped ({leaf:?}) in no VMA") };
        let prot = page.kind.prot;
        assert!(!leaf.attrs.contains(Attrs::WRITE) || prot.contains(Prot::WRITE) && !zeros, "{leaf:?}, {prot:?}");
        assert!(!leaf.attrs.contains(Attrs::EXEC) || prot.contains(Prot::EXEC), "{leaf:?}, {prot:?}");
        assert!(!leaf.attrs.contains(Attrs::READ) || !prot.is_empty(), "{leaf:?}, {prot:?}");
        assert!(leaf.attrs.contains(page.recorded), "page {at:#x}: {:?} is recorded in {leaf:?}", page.recorded);
        let found = supplied.words(host, leaf.pfn.add((i * per_page) as u32));
        let held = page.contents.could(|words| *words == found);
        assert!(held, "page {at:#x} of {:?}: {found:x?} in {SLOTS:?}, not {page:x?}", counted.space.id());
    }
    if zeros {
        return 0;
    }
    *bill.folios.entry(head).or_default() += leaf.pages * per_page;
    leaf.pages * per_page
}

/// What the engine shows as runs is what stands in the tables.
fn check_runs<H: Host>(space: &Space<'_, H>, tree: &Tree, resident: u64) {
    let arch = space.arch();
    let everything = VirtRange { start: 0, end: arch.user_end() };
    // Nothing may fail while runs are shown: a table is locked then.
    let mut shown = Vec::new();
    space.runs(everything, |run| shown.push(*run));
    let (mut entries, mut swapped) = (Vec::new(), Vec::new());
    for run in shown.iter().filter(|run| !matches!(run.kind, Kind::None | Kind::Marker)) {
        let shift = arch.level_shift(run.level);
        if run.kind == Kind::Swap {
            let named = arch.swapped(run.raw);
            let pages = (run.len as u64) << (shift - arch.page_shift());
            let page = |i| ((run.va >> arch.page_shift()) + i, (named.device, (named.slot + i) as u32));
            swapped.extend((0..pages).map(page));
            continue;
        }
        assert_eq!(run.kind, Kind::Leaf, "{run:?}");
        let entry = |i: u64| (run.va + (i << shift), run.pfn(arch).add((i << (shift - FRAME_SHIFT)) as u32));
        entries.extend((0..run.len as u64).map(entry));
    }
    let leaves = tree.leaves.iter().map(|leaf| (leaf.page << arch.page_shift(), leaf.pfn));
    assert!(leaves.eq(entries.iter().copied()), "runs are not what the tables hold: {entries:x?}");
    let in_tables = tree.swapped.iter().map(|(at, run)| (*at, (run.device, run.slots.first >> arch.page_order())));
    assert!(in_tables.eq(swapped.iter().copied()), "runs are not what the tables hold: {swapped:x?}");
    let usage = space.usage(everything);
    assert_eq!((usage.resident, usage.swap), (resident * FRAME_SIZE, (swapped.len() as u64) << arch.page_shift()));
    assert!(usage.dirty <= usage.resident && usage.huge <= usage.resident, "{usage:?}");
}

/// Each folio counts as many references and mappings as entries map it (INV-2, and exact at rest); each memcg is charged
/// with its folios, in full, and its tables, and lists its folios once.
fn check_memcgs<H: Host>(machine: &Machine<'_, H>, bills: &BTreeMap<u16, Bill>, parents: &[(MemcgId, MemcgId)]) {
    let frames = machine.frames();
    // By number: charged in all, then folios, and those mapped in part.
    let mut sums = vec![(0, 0, 0); parents.len() + 1];
    for (&memcg, bill) in bills {
        for (&head, &mapped) in &bill.folios {
            let frame = frames.frame(head);
            let (counts, size) = (frame.counts(), 1u64 << frame.order());
            assert_eq!((u64::from(counts.refs), u64::from(counts.maps)), (mapped, mapped), "INV-2: {head:?}");
            sums[memcg as usize].1 += size;
            sums[memcg as usize].2 += u64::from(frame.has(flag::PARTIAL));
            // Once it is queued it stays so, though a child may have mapped the rest of it again.
            assert!(frame.has(flag::PARTIAL) || mapped >= size, "{head:?}: {mapped} of {size} mapped");
        }
        sums[memcg as usize].0 += bill.kernel + bill.folios.keys().map(|h| 1 << frames.frame(*h).order()).sum::<u64>();
    }
    // Descendants stand behind their ancestors in the list.
    for at in (1..sums.len()).rev() {
        let parent = number(parents[at - 1].1, parents) as usize;
        sums[parent].0 += sums[at].0;
    }
    check_nodes(machine, bills, parents);
    let ids = [MemcgId::ROOT].into_iter().chain(parents.iter().map(|(id, _)| *id));
    for (id, (charged, listed, partial)) in ids.zip(sums) {
        let usage = machine.memcgs().usage(frames, id).expect("the group is there");
        assert_eq!(
            usage.charged,
            charged + usage.shards,
            "pages charged to {id:?}: folios, tables, nodes, slots, groups"
        );
        let below = parents.iter().filter(|(memcg, _)| is_below(*memcg, id, parents)).count() as u64;
        assert!((below..=below * CHUNKS).contains(&usage.shards), "{below} groups below {id:?}: {usage:?}");
        assert_eq!(usage.lru.iter().sum::<u64>(), listed, "pages on the lists of {id:?}");
        assert_eq!(usage.deferred, partial, "folios of {id:?} that are mapped in part");
        assert!(usage.peak >= usage.charged, "{usage:?}");
    }
}

/// Frames that the shards of a memcg are in, at most.
const CHUNKS: u64 = 10;

fn is_below(memcg: MemcgId, above: MemcgId, parents: &[(MemcgId, MemcgId)]) -> bool {
    let parent = parents.iter().find(|(id, _)| *id == memcg).map(|(_, parent)| *parent);
    parent.is_some_and(|parent| parent == above || is_below(parent, above, parents))
}

/// The lists of a node have what is on it.
fn check_nodes<H: Host>(machine: &Machine<'_, H>, bills: &BTreeMap<u16, Bill>, parents: &[(MemcgId, MemcgId)]) {
    let frames = machine.frames();
    for (at, id) in [MemcgId::ROOT].into_iter().chain(parents.iter().map(|(id, _)| *id)).enumerate() {
        for node in 0..frames.nodes() {
            let folios = bills.get(&(at as u16)).into_iter().flat_map(|bill| bill.folios.keys());
            let here = folios.filter(|head| frames.node_of(**head) == node);
            let pages: u64 = here.map(|head| 1 << frames.frame(*head).order()).sum();
            let listed = machine.memcgs().listed_on(frames, id, node).expect("the group is there");
            assert_eq!(listed.iter().sum::<u64>(), pages, "pages on the lists of {id:?}, of node {node}");
        }
    }
}

/// All spaces are gone, and so is everything that they had. What the allocator takes for zeros is zeros.
pub fn nothing_left<H: Host>(host: &H, machine: &Machine<'_, H>, free_before: u64, parents: &[(MemcgId, MemcgId)]) {
    let frames = machine.frames();
    for (memcg, _) in parents.iter().rev() {
        machine.memcgs().remove(frames, *memcg).expect("nothing is charged to the group any more");
    }
    check_memcgs(machine, &BTreeMap::new(), &[]);
    check_slots(host, machine, &BTreeMap::new(), &BTreeMap::new());
    assert_eq!(frames.free_frames(), free_before, "free frames");
    let mut by_node = vec![0; frames.nodes()];
    let supplied = Supplied::new(host);
    for region in host.regions() {
        let mut at = region.base.pfn();
        while at.addr().0 < region.base.0 + region.len {
            let Some(frame) = frames.get(at) else { break };
            let free = matches!(frame.kind(), FrameKind::Free | FrameKind::Cached);
            let block = if free { 1 << frame.order() } else { 1 };
            by_node[region.node] += if free { u64::from(block) } else { 0 };
            let zero = free && (frame.has(flag::ZERO) || frames.zero_on_free() && region.zeroed);
            for pfn in (at.0..at.0 + block).map(Pfn).filter(|_| zero) {
                let found = supplied.words(host, pfn);
                assert_eq!(found, [0; SLOTS.len()], "{pfn:?} is free and passes for zeros: the words {SLOTS:?}");
            }
            at = at.add(block);
        }
    }
    (0..).zip(by_node).for_each(|(node, free)| assert_eq!(frames.free_on(node), free, "free frames of node {node}"));
}
