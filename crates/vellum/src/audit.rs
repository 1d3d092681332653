//! The audit: compares what the engine counts with what it finds, on a machine at rest.
//!
//! | what is counted | with what it is compared |
//! |---|---|
//! | the mappings of a folio | the PTEs that map it, in all spaces |
//! | resident and swapped pages of a space | its PTEs inside its VMAs, which are all of its PTEs |
//! | page tables of all spaces | the frames that are page tables |
//! | pages on LRU lists, partially mapped folios | the lists, and the folios in use |
//! | free frames | the descriptors |
//! | the swap cache | the folios that it names |
//!
//! An audit changes nothing and allocates nothing. It takes each lock that it needs for a moment,
//! as any reader does: on a machine that is not at rest it is safe, and finds differences that are
//! none. It costs a look at every descriptor and PTE.

use core::fmt;

use crate::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::{Frame, FrameKind, flag};
use crate::group::{GroupId, LruList};
use crate::machine::Machine;
use crate::platform::{Platform, SpaceId};
use crate::space::AddressSpace;
use crate::table::Run;

/// A difference that an audit found. Numbers of pages are of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsound {
    /// A PTE allows what its VMA does not.
    Allows {
        /// The space.
        space: SpaceId,
        /// The first address that the PTE translates.
        at: u64,
        /// What the PTE allows.
        found: Attrs,
        /// What the VMA allows.
        allowed: Attrs,
    },
    /// A PTE maps a frame that is no folio's.
    NoFolio {
        /// The space.
        space: SpaceId,
        /// The address.
        at: u64,
        /// The frame.
        pfn: Pfn,
    },
    /// A PTE is left in transition.
    Busy {
        /// The space.
        space: SpaceId,
        /// The address.
        at: u64,
    },
    /// Two numbers differ.
    Differs {
        /// What is counted.
        what: What,
        /// What the engine says of it.
        counted: u64,
        /// What the audit found.
        found: u64,
    },
    /// A folio in use has fewer references than mappings, or none (INV-2).
    References {
        /// Its head.
        pfn: Pfn,
        /// Its references.
        refs: u32,
        /// Its mappings.
        maps: u32,
    },
    /// A folio is on a list that is not the one its descriptor names (INV-9).
    Misplaced {
        /// Its head, or what stands in its place.
        pfn: Pfn,
        /// The list.
        list: LruList,
    },
    /// A frame that begins no block stands where one should begin.
    Stray {
        /// The frame.
        pfn: Pfn,
        /// What it is.
        kind: FrameKind,
    },
    /// The swap cache names a frame that is no cached folio's.
    NotCached {
        /// The frame.
        pfn: Pfn,
    },
}

/// What two numbers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Resident pages of a space.
    Resident(SpaceId),
    /// Of those, anonymous ones.
    Anonymous(SpaceId),
    /// Swapped pages of a space.
    Swapped(SpaceId),
    /// PTEs of a space inside its VMAs, and all of them.
    InVmas(SpaceId),
    /// Mappings of a folio, by its head.
    Mappings(Pfn),
    /// Frames of page tables.
    Tables,
    /// Pages of folios in use, and on LRU lists.
    Listed,
    /// Folios on a shard's list.
    List(GroupId, LruList),
    /// Partially mapped folios.
    Partial,
    /// Free frames.
    Free,
    /// Pages in the swap cache.
    Cached,
}

impl fmt::Display for Unsound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsound::Allows { space, at, found, allowed } => {
                write!(f, "{space:?}: the PTE at {at:#x} allows {found:?}, and its VMA {allowed:?}")
            }
            Unsound::NoFolio { space, at, pfn } => write!(f, "{space:?}: {at:#x} maps {pfn:?}, which is no folio"),
            Unsound::Busy { space, at } => write!(f, "{space:?}: the PTE at {at:#x} is in transition"),
            Unsound::Differs { what, counted, found } => write!(f, "{what:?}: {counted} counted, {found} found"),
            Unsound::References { pfn, refs, maps } => write!(f, "{pfn:?}: {refs} references, {maps} mappings"),
            Unsound::Misplaced { pfn, list } => write!(f, "{pfn:?} is on the list {list:?}, where it does not belong"),
            Unsound::Stray { pfn, kind } => write!(f, "{pfn:?} is {kind:?}, and no block before it ends later"),
            Unsound::NotCached { pfn } => write!(f, "{pfn:?} is in the swap cache, and no cached folio"),
        }
    }
}

/// Sums of a machine, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Address spaces.
    pub spaces: u64,
    /// Frames of their page tables.
    pub tables: u64,
    /// Pages of folios in use.
    pub folios: u64,
    /// Pages that PTEs map.
    pub mapped: u64,
    /// Charged to the root group for anything but folios, page tables, spaces and groups: the heads
    /// and index nodes of objects.
    pub charged_else: u64,
}

/// Returns the first frame of a machine, and how many frames lie from there to its last one: the
/// length of the array that [`audit`] counts in.
pub fn span<P: Platform>(machine: &Machine<'_, P>) -> (Pfn, usize) {
    let regions = || machine.platform().regions().iter();
    let first = regions().map(|region| region.base.pfn().0).min().unwrap_or(0);
    let end = regions().map(|region| ((region.base.0 + region.len) >> FRAME_SHIFT) as u32).max().unwrap_or(0);
    (Pfn(first), end.saturating_sub(first) as usize)
}

/// Audits a machine whose address spaces are `spaces`: shows each difference to `report`, and
/// returns sums.
///
/// `counts` has as many elements as [`span`] says, and is overwritten.
///
/// # Panics
/// If `counts` is shorter.
pub fn audit<'s, 'm: 's, P: Platform, A: Arch + 's>(
    machine: &Machine<'m, P>,
    spaces: impl Iterator<Item = &'s AddressSpace<'m, P, A>>,
    counts: &mut [u32],
    report: &mut dyn FnMut(Unsound),
) -> Sums {
    counts.fill(0);
    let mut audit = Audit { machine, first: span(machine).0, counts, report, sums: Sums::default() };
    let mut kernel = 0;
    for space in spaces {
        kernel += audit.space(space);
    }
    audit.frames();
    audit.lists();
    audit.swap_cache();
    let charged = machine.groups().usage(machine.frames(), GroupId::ROOT).unwrap_or_default();
    let known = audit.sums.folios + audit.sums.tables + kernel + charged.shards;
    Sums { charged_else: charged.charged.wrapping_sub(known), ..audit.sums }
}

struct Audit<'a, 'm, P: Platform> {
    machine: &'a Machine<'m, P>,
    first: Pfn,
    /// By frame: how many pages of the folio of which it is the head are mapped.
    counts: &'a mut [u32],
    report: &'a mut dyn FnMut(Unsound),
    sums: Sums,
}

/// What PTEs of a space map.
#[derive(Clone, Copy, Default)]
struct Found {
    resident: u64,
    anonymous: u64,
    swapped: u64,
    markers: u64,
}

impl<P: Platform> Audit<'_, '_, P> {
    fn compare(&mut self, what: What, counted: u64, found: u64) {
        if counted != found {
            (self.report)(Unsound::Differs { what, counted, found });
        }
    }

    /// Counts what a space maps; returns the frames that it has beside its page tables.
    fn space<A: Arch>(&mut self, space: &AddressSpace<'_, P, A>) -> u64 {
        let (arch, id) = (space.arch(), space.id());
        let (mut inside, mut all) = (Found::default(), Found::default());
        let mut next = Some(0);
        while let Some(at) = next.take() {
            // One VMA at a time: the walk below may give way to others, which no lock should be
            // held for.
            let mut vma = None;
            space.areas(at, |found| {
                vma = Some((*found.range, found.prot.attrs()));
                false
            });
            let Some((range, allowed)) = vma else { break };
            space.runs(range, |run| {
                let attrs = if run.kind == Kind::Leaf { run.attrs(arch) } else { Attrs::empty() };
                let found = attrs & Attrs::PROT;
                if !allowed.contains(found) {
                    (self.report)(Unsound::Allows { space: id, at: run.va, found, allowed });
                }
                self.run(space, run, Some(range), &mut inside);
            });
            next = Some(range.end);
        }
        space.runs(VirtRange { start: 0, end: arch.user_end() }, |run| self.run(space, run, None, &mut all));
        let sum = |found: &Found| found.resident + found.swapped + found.markers;
        self.compare(What::InVmas(id), sum(&inside), sum(&all));
        let stats = space.stats();
        let pages = |bytes: u64| bytes / FRAME_SIZE;
        self.compare(What::Resident(id), pages(stats.anon + stats.file + stats.shmem), all.resident);
        self.compare(What::Anonymous(id), pages(stats.anon), all.anonymous);
        self.compare(What::Swapped(id), pages(stats.swap), all.swapped);
        self.sums.spaces += 1;
        self.sums.tables += pages(stats.tables);
        self.sums.mapped += all.resident;
        pages(stats.kernel)
    }

    /// Adds a run to what was found; within `range` only, and then without its folios, which are
    /// counted once.
    fn run<A: Arch>(&mut self, space: &AddressSpace<'_, P, A>, run: &Run, range: Option<VirtRange>, to: &mut Found) {
        let arch = space.arch();
        let part = range.map_or(run.range(arch), |range| run.range(arch).intersect(&range));
        let pages = part.len() >> FRAME_SHIFT;
        match run.kind {
            Kind::None | Kind::Table => {}
            Kind::Marker => to.markers += pages,
            Kind::Swap => to.swapped += pages,
            Kind::Busy => (self.report)(Unsound::Busy { space: space.id(), at: run.va }),
            Kind::Leaf if self.machine.zeros_folio().contains(run.pfn(arch)) => {}
            Kind::Leaf => {
                to.resident += pages;
                if range.is_none() {
                    to.anonymous += self.folios(space.id(), run.va, run.pfn(arch), run.frames(arch));
                }
            }
        }
    }

    /// Counts the frames of a run in their folios; returns how many are anonymous memory.
    fn folios(&mut self, space: SpaceId, va: u64, first: Pfn, count: u32) -> u64 {
        let (mut at, end, mut anonymous) = (first, first.add(count), 0);
        while at < end {
            let (head, frame) = self.machine.frames().head(at);
            let next = match frame.kind() {
                FrameKind::Folio => head.add(1 << frame.order()).min(end),
                _ => Pfn(at.0 + 1),
            };
            let mapped = next.0 - at.0;
            if frame.kind() != FrameKind::Folio {
                let at = va + (u64::from(at.0 - first.0) << FRAME_SHIFT);
                (self.report)(Unsound::NoFolio { space, at, pfn: head });
            } else if let Some(count) = self.counts.get_mut((head.0.wrapping_sub(self.first.0)) as usize) {
                *count += mapped;
                anonymous += if frame.has(flag::OBJECT) { 0 } else { u64::from(mapped) };
            }
            at = next;
        }
        anonymous
    }

    /// Compares each frame's descriptor with what was found, and all of them with what is counted.
    fn frames(&mut self) {
        let (frames, mut free, mut tables, mut partial) = (self.machine.frames(), 0, 0, 0);
        for region in self.machine.platform().regions() {
            let (mut at, end) = (region.base.pfn(), ((region.base.0 + region.len) >> FRAME_SHIFT) as u32);
            while at.0 < end
                && let Some(frame) = frames.get(at)
            {
                let state = frame.state();
                match state.kind() {
                    FrameKind::Free | FrameKind::Cached => free += 1 << state.order(),
                    FrameKind::Table => tables += 1 << state.order(),
                    FrameKind::Folio if !state.has(flag::ZEROS) => {
                        self.folio(at, frame);
                        partial += u64::from(state.has(flag::PARTIAL));
                    }
                    FrameKind::Tail => (self.report)(Unsound::Stray { pfn: at, kind: state.kind() }),
                    FrameKind::Folio | FrameKind::Private | FrameKind::Reserved => {}
                }
                at = if state.kind() == FrameKind::Tail { at.add(1) } else { at.add(1 << state.order()) };
            }
        }
        self.compare(What::Free, frames.free_frames(), free);
        self.compare(What::Tables, self.sums.tables, tables);
        let deferred = |id| self.machine.groups().usage(frames, id).map_or(0, |usage| usage.deferred);
        let deferred = self.machine.groups().all().map(deferred).sum();
        self.compare(What::Partial, deferred, partial);
    }

    fn folio(&mut self, head: Pfn, frame: &Frame) {
        let counts = frame.counts();
        let found = self.counts.get((head.0 - self.first.0) as usize).copied().unwrap_or(0);
        self.compare(What::Mappings(head), counts.maps.into(), found.into());
        if counts.refs == 0 || counts.refs < counts.maps {
            (self.report)(Unsound::References { pfn: head, refs: counts.refs, maps: counts.maps });
        }
        self.sums.folios += 1 << frame.order();
    }

    /// Follows each LRU list, and compares what is on them with the folios in use.
    fn lists(&mut self) {
        let (frames, groups, mut sum) = (self.machine.frames(), self.machine.groups(), 0);
        for id in groups.all() {
            groups.each_listed(frames, id, |list, counted, listed| {
                let (mut pages, mut folios) = (0, 0);
                for (pfn, frame) in listed {
                    let belongs = frame.kind() == FrameKind::Folio && LruList::of(frame) == Some(list);
                    if !belongs || folios > counted.folios {
                        (self.report)(Unsound::Misplaced { pfn, list });
                        break;
                    }
                    (pages, folios) = (pages + (1 << frame.order()), folios + 1);
                }
                for (counted, found) in [(counted.pages, pages), (counted.folios, folios)] {
                    if counted != found {
                        (self.report)(Unsound::Differs { what: What::List(id, list), counted, found });
                    }
                }
                sum += pages;
            });
        }
        self.compare(What::Listed, self.sums.folios, sum);
    }

    fn swap_cache(&mut self) {
        let (frames, swaps) = (self.machine.frames(), self.machine.swaps());
        let mut found = 0;
        swaps.each_copy(frames, |copy| {
            found += 1;
            let (_, frame) = frames.head(copy);
            if frame.kind() != FrameKind::Folio || !frame.has(flag::SWAP_CACHED) || frame.counts().refs == 0 {
                (self.report)(Unsound::NotCached { pfn: copy });
            }
        });
        let cached = (0..crate::swap::DEVICES as u8).filter_map(|id| swaps.usage(frames.platform(), id));
        self.compare(What::Cached, cached.map(|usage| u64::from(usage.cached)).sum(), found);
    }
}
