//! Ground: the state of an address space, and the operations that every other folder of
//! [`space`](super) builds on. This folder imports none of the others.
//!
//! | file | contents |
//! |---|---|
//! | `address_space` | [`AddressSpace`]: its parts, its creation and its end |
//! | `vmas` | the VMA tree: split, merge, count; both sides of its lock |
//! | `limits` | resource limits, and which of them a request exceeds |
//! | `claims` | claims: a change locks its range, in the order of arrival (INV-18) |
//! | `families` | the fork families of a space, by which the rmap finds anonymous folios |
//! | `ptes` | access rights, soft-dirty, uffd-wp and swap slots of PTEs |
//! | `walk` | visits of the runs of PTEs in a range |
//! | `pieces` | visits of a range that can be interrupted and resumed |
//! | `zap` | clears a range of page tables and frees what it mapped |
//! | `rss` | the frames of a space's per-CPU counters, and the peak of the resident set |

mod address_space;
mod claims;
mod families;
mod limits;
mod pieces;
mod ptes;
mod rss;
mod vmas;
mod walk;
mod zap;

pub use address_space::AddressSpace;
pub(super) use claims::{Change, ClaimTicket};
pub use families::Families;
pub(super) use limits::Excess;
pub use limits::Limits;
pub(super) use pieces::{More, Rest};
pub(super) use ptes::LeafShape;
pub(super) use rss::{PeakRss, SlotFrames};
pub(super) use vmas::{Amounts, Vmas, mapped_part};
pub(super) use zap::Keep;

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::table::PageTables;

/// Defines a handle: a type that wraps a reference to an [`AddressSpace`]. A folder of
/// [`space`](super) implements its operations on its handle, so that only what the handle declares
/// visible can be called from other folders. A handle is one pointer, is passed by value, and costs
/// what the reference does.
macro_rules! handle {
    ($(#[$doc:meta])* $vis:vis struct $Handle:ident) => {
        $(#[$doc])*
        $vis struct $Handle<'s, 'm, P: Platform> {
            space: &'s AddressSpace<'m, P>,
        }

        impl<P: Platform> Clone for $Handle<'_, '_, P> {
            #[inline]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<P: Platform> Copy for $Handle<'_, '_, P> {}

        #[allow(dead_code, reason = "not every handle uses every part of its space")]
        impl<'s, 'm, P: Platform> $Handle<'s, 'm, P> {
            /// Returns the handle of `space`.
            #[inline]
            $vis fn of(space: &'s AddressSpace<'m, P>) -> Self {
                $Handle { space }
            }

            /// Returns the page tables of the space.
            #[inline]
            fn tables(self) -> &'s PageTables<'m, P> {
                &self.space.tables
            }

            /// Returns the page-table format of the space.
            #[inline]
            fn arch(self) -> &'s P::Arch {
                &self.space.tables.arch
            }

            /// Returns the base-2 logarithm of the page size in bytes.
            #[inline]
            fn page_shift(self) -> u32 {
                self.arch().page_shift()
            }

            /// Returns the machine that the space lives on.
            #[inline]
            fn machine(self) -> &'m Machine<'m, P> {
                self.space.machine()
            }

            /// Returns the part of `range` that lies below the end of user addresses. The rmap
            /// computes ranges from rmap indices ([`RmapKey`](crate::frame::RmapKey)). For private
            /// copies of an object's pages these are offsets in the object, which may be larger
            /// than any address.
            #[inline]
            fn user_part(self, range: VirtRange) -> UserRange {
                UserRange::all(self.arch()).intersect(&range)
            }

            /// Returns the host.
            #[inline]
            fn platform(self) -> &'m P {
                self.space.machine().platform()
            }
        }
    };
}
pub(super) use handle;

handle! {
    /// A reference to a space, with the methods that read and change attributes of its PTEs, and
    /// that visit its runs of PTEs.
    pub(crate) struct Ptes
}

handle! {
    /// A reference to a space, with methods that visit a range piece by piece, and hold no lock and
    /// no claim between two pieces.
    pub(super) struct Pieces
}

handle! {
    /// A reference to a space, with the methods that clear the PTEs of a range.
    pub(super) struct Zap
}
