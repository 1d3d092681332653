//! The discrepancies that an audit reports.

use core::fmt;

use crate::addr::Pfn;
use crate::arch::Attrs;
use crate::frame::FrameKind;
use crate::memcg::{LruList, MemcgId};
use crate::platform::SpaceId;

/// A discrepancy that an audit found. Pages are of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discrepancy {
    /// A PTE allows accesses that its VMA does not.
    ExcessPermissions {
        /// The space.
        space: SpaceId,
        /// The first address that the PTE translates.
        at: u64,
        /// The permissions of the PTE.
        found: Attrs,
        /// The permissions of the VMA.
        allowed: Attrs,
    },
    /// A PTE maps a frame that belongs to no folio.
    NotAFolio {
        /// The space.
        space: SpaceId,
        /// The first address that the PTE translates.
        at: u64,
        /// The frame that the PTE maps.
        pfn: Pfn,
    },
    /// A PTE is busy, although no operation runs: it is the marker that makes faults wait while a
    /// CPU changes the PTE (INV-4).
    Busy {
        /// The space.
        space: SpaceId,
        /// The first address that the PTE covers.
        at: u64,
    },
    /// A count that the engine keeps differs from the number that the audit found.
    Differs {
        /// The quantity that is counted.
        what: Quantity,
        /// The engine's count.
        counted: u64,
        /// The number that the audit found.
        found: u64,
    },
    /// A folio in use has no reference, or fewer than its mappings plus the entries of page-cache
    /// objects' indexes that name its pages (INV-2).
    TooFewReferences {
        /// The folio's head.
        pfn: Pfn,
        /// The folio's references.
        refs: u32,
        /// The folio's mappings, plus the index entries that name its pages.
        maps: u32,
    },
    /// The index of a page-cache object has a page of a folio whose descriptor names another object
    /// or another position; or a folio's descriptor names an object whose index does not have the
    /// folio (INV-16).
    WrongObject {
        /// The folio's head.
        pfn: Pfn,
    },
    /// A frame on an LRU list belongs to no folio, or to a folio whose descriptor names another
    /// list, or the list has more folios than it counts (INV-9).
    WrongList {
        /// The folio's head, or the frame on the list that is not a folio's head.
        pfn: Pfn,
        /// The list that the frame is on.
        list: LruList,
    },
    /// The frame after the end of a block has a kind with which no block begins (a tail), although
    /// another block must begin there.
    StrayFrame {
        /// The frame.
        pfn: Pfn,
        /// The frame's kind.
        kind: FrameKind,
    },
    /// The swap cache names a frame that is not in a folio with swap-cache pages.
    NotSwapCached {
        /// The frame.
        pfn: Pfn,
    },
}

/// A quantity that the engine counts and that the audit finds for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Resident pages of a space.
    Resident(SpaceId),
    /// Resident anonymous pages of a space.
    Anonymous(SpaceId),
    /// Swapped pages of a space.
    Swapped(SpaceId),
    /// Pages for which a space has PTEs inside its VMAs; the number found is that of all pages for
    /// which the space has PTEs.
    PtesInVmas(SpaceId),
    /// Mappings of a folio, by its head.
    Mappings(Pfn),
    /// Frames of page tables.
    PageTables,
    /// Pages of folios in use; the number found is that of the pages on LRU lists.
    LruPages,
    /// Folios on one LRU list of a lruvec, or these folios' pages.
    LruList(MemcgId, LruList),
    /// Folios on deferred-split queues; the number found is that of the folios marked as partially
    /// mapped.
    PartiallyMapped,
    /// Free frames.
    FreeFrames,
    /// Huge pages of the pool that are in use.
    HugePagesInUse,
    /// Swap-cache pages.
    SwapCache,
    /// References of a swap slot, by the number of its device and the number of the slot.
    Slot(u8, u32),
    /// Slots of a swap device that are in use.
    SlotsUsed(u8),
    /// Slots of a swap device that are free.
    SlotsFree(u8),
    /// Entries of a node of an object's index, by the node's frame.
    NodeEntries(Pfn),
    /// Pages of an object in memory, by the frame that the object begins in. These are pages of the
    /// object's size.
    ObjectResident(Pfn),
    /// Pages of an object on swap devices, by the frame that the object begins in. These are pages
    /// of the object's size.
    ObjectSwapped(Pfn),
    /// VMAs of a space that map an object.
    VmasOfSpace(Pfn, SpaceId),
    /// VMAs that map an object.
    Vmas(Pfn),
    /// Shared VMAs that map an object and may write to it.
    Writers(Pfn),
    /// References of an object; the number found is that of its VMAs, each of which holds one
    /// reference.
    ObjectReferences(Pfn),
    /// Pages of all objects ([`Counter::ShmemPages`](crate::stats::Counter::ShmemPages),
    /// [`Counter::FilePages`](crate::stats::Counter::FilePages) and
    /// [`Counter::HugetlbPages`](crate::stats::Counter::HugetlbPages)).
    ObjectPages,
    /// Frames charged for the own structures of spaces and objects, without folios and page tables.
    Structures,
    /// Pages charged to a memcg and its descendants.
    MemcgCharged(MemcgId),
    /// Pages of the objects of a memcg and its descendants on swap devices.
    MemcgSwapped(MemcgId),
    /// Dirty pages charged to a memcg and its descendants.
    MemcgDirty(MemcgId),
    /// Pages that are being written to the host's storage, charged to a memcg and its descendants.
    MemcgWriting(MemcgId),
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantity::Resident(space) => write!(f, "resident pages of {space:?}"),
            Quantity::Anonymous(space) => write!(f, "anonymous pages of {space:?}"),
            Quantity::Swapped(space) => write!(f, "swapped pages of {space:?}"),
            Quantity::PtesInVmas(space) => write!(f, "PTEs of {space:?} inside its VMAs, and in all"),
            Quantity::Mappings(pfn) => write!(f, "mappings of the folio at {pfn:?}"),
            Quantity::PageTables => f.write_str("frames of page tables"),
            Quantity::LruPages => f.write_str("pages of folios, and pages on LRU lists"),
            Quantity::LruList(memcg, list) => write!(f, "an LRU list {list:?} of memcg {}", memcg.number()),
            Quantity::PartiallyMapped => f.write_str("deferred folios, and partially mapped ones"),
            Quantity::HugePagesInUse => f.write_str("huge pages in use"),
            Quantity::FreeFrames => f.write_str("free frames"),
            Quantity::SwapCache => f.write_str("swap-cache pages"),
            Quantity::Slot(device, slot) => write!(f, "references of slot {slot} of swap device {device}"),
            Quantity::SlotsUsed(device) => write!(f, "used slots of swap device {device}"),
            Quantity::SlotsFree(device) => write!(f, "free slots of swap device {device}"),
            Quantity::NodeEntries(pfn) => write!(f, "entries of the index node at {pfn:?}"),
            Quantity::ObjectResident(pfn) => write!(f, "pages in memory of the object at {pfn:?}"),
            Quantity::ObjectSwapped(pfn) => write!(f, "pages in swap of the object at {pfn:?}"),
            Quantity::VmasOfSpace(pfn, space) => write!(f, "VMAs of {space:?} that map the object at {pfn:?}"),
            Quantity::Vmas(pfn) => write!(f, "VMAs that map the object at {pfn:?}"),
            Quantity::Writers(pfn) => write!(f, "writable shared VMAs of the object at {pfn:?}"),
            Quantity::ObjectReferences(pfn) => write!(f, "references of the object at {pfn:?}, and its VMAs"),
            Quantity::ObjectPages => f.write_str("pages of all objects"),
            Quantity::Structures => f.write_str("charged frames of spaces and objects"),
            Quantity::MemcgCharged(memcg) => write!(f, "pages charged to memcg {}", memcg.number()),
            Quantity::MemcgDirty(memcg) => write!(f, "dirty pages of memcg {}", memcg.number()),
            Quantity::MemcgWriting(memcg) => write!(f, "pages of memcg {} that are being written", memcg.number()),
            Quantity::MemcgSwapped(memcg) => write!(f, "pages in swap of memcg {}'s objects", memcg.number()),
        }
    }
}

impl fmt::Display for Discrepancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Discrepancy::ExcessPermissions { space, at, found, allowed } => {
                write!(f, "{space:?}: the PTE at {at:#x} allows {found:?}, and its VMA only {allowed:?}")
            }
            Discrepancy::NotAFolio { space, at, pfn } => {
                write!(f, "{space:?}: the PTE at {at:#x} maps {pfn:?}, which is in no folio")
            }
            Discrepancy::Busy { space, at } => write!(f, "{space:?}: the PTE at {at:#x} is busy"),
            Discrepancy::Differs { what, counted, found } => write!(f, "{what}: {counted} counted, {found} found"),
            Discrepancy::TooFewReferences { pfn, refs, maps } => {
                write!(f, "the folio at {pfn:?} has {refs} references, and {maps} mappings and pages of objects")
            }
            Discrepancy::WrongObject { pfn } => {
                write!(f, "the folio at {pfn:?} names an object or a page of one that does not have it")
            }
            Discrepancy::WrongList { pfn, list } => {
                write!(f, "{pfn:?} is on an LRU list {list:?}, which its descriptor does not name")
            }
            Discrepancy::StrayFrame { pfn, kind } => write!(f, "{pfn:?} follows a block, and is {kind:?}"),
            Discrepancy::NotSwapCached { pfn } => {
                write!(f, "the swap cache names {pfn:?}, which is no swap-cache page")
            }
        }
    }
}
