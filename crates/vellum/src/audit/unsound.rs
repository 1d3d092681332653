//! What an audit may find.

use core::fmt;

use crate::addr::Pfn;
use crate::arch::Attrs;
use crate::frame::FrameKind;
use crate::memcg::{LruList, MemcgId};
use crate::platform::SpaceId;

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
    /// A folio in use has fewer references than mappings and pages of objects, or none (INV-2).
    References {
        /// Its head.
        pfn: Pfn,
        /// Its references.
        refs: u32,
        /// Its mappings, and the pages of objects that it has.
        maps: u32,
    },
    /// A folio is a page of an object, and names another object or another page; or it names an
    /// object, and is no page of it.
    Owner {
        /// Its head.
        pfn: Pfn,
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
    List(MemcgId, LruList),
    /// Partially mapped folios.
    Partial,
    /// Free frames.
    Free,
    /// Pages in the swap cache.
    Cached,
    /// References of a slot of a device.
    Slot(u8, u32),
    /// Slots of a device in use.
    SlotsUsed(u8),
    /// Slots of a device that may be given out.
    SlotsFree(u8),
    /// Entries of a node of an object's index, by the node's frame.
    Entries(Pfn),
    /// Pages of an object in memory, by the frame that the object begins in. Of the object's size.
    InMemory(Pfn),
    /// Pages of an object on swap devices, likewise.
    InSwap(Pfn),
    /// VMAs of a space that map an object.
    VmasOf(Pfn, SpaceId),
    /// VMAs that map an object.
    Vmas(Pfn),
    /// VMAs that are shared and may write to an object.
    Writers(Pfn),
    /// References of an object: at least its VMAs'.
    Handles(Pfn),
    /// Memory of all objects ([`Counter::ShmemPages`](crate::stats::Counter::ShmemPages)).
    Objects,
    /// Frames of spaces and objects beside folios and page tables, charged and found.
    Structures,
    /// Pages charged to a memcg and its descendants.
    Charged(MemcgId),
    /// Pages of the objects of a memcg and its descendants on swap devices.
    SwappedBy(MemcgId),
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
            Unsound::References { pfn, refs, maps } => {
                write!(f, "{pfn:?}: {refs} references, {maps} mappings and pages of objects")
            }
            Unsound::Owner { pfn } => write!(f, "{pfn:?} names another object or page than has it"),
            Unsound::Misplaced { pfn, list } => write!(f, "{pfn:?} is on the list {list:?}, where it does not belong"),
            Unsound::Stray { pfn, kind } => write!(f, "{pfn:?} is {kind:?}, and no block before it ends later"),
            Unsound::NotCached { pfn } => write!(f, "{pfn:?} is in the swap cache, and no cached folio"),
        }
    }
}
