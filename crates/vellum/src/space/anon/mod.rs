//! Anonymous folios: allocate, map, replace.
//!
//! A new folio goes through three steps, in this order:
//!
//! 1. [`Anon::alloc`] allocates its frames ([`Anon::alloc_or_smaller`] falls back to smaller
//!    orders).
//! 2. [`Anon::init`] makes them a folio: descriptor, refcount and mapcount, rmap key, charge to the
//!    memcg, LRU list. [`Anon::alloc`] includes this step, so that its callers never get frames
//!    that are no folio yet. Only the migration of a folio allocates frames itself and calls
//!    [`Anon::init`], because the copy keeps the old folio's rmap key and memcg.
//! 3. [`Anon::map`] maps the folio in a hole; [`Anon::replace_part`] and [`Anon::replace_table`]
//!    copy other memory into it and map it in the place of that memory.
//!
//! | file | contents |
//! |---|---|
//! | `alloc` | steps 1 and 2 |
//! | `map` | step 3, into a hole |
//! | `replace` | step 3, in the place of other memory: copy-on-write and collapse |

mod alloc;
mod map;
mod replace;

pub(super) use alloc::NewFrames;

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::space::ground::handle;
use crate::table::PageTables;

use super::AddressSpace;

handle! {
    /// A reference to a space, with the methods that allocate, map and replace its anonymous
    /// folios.
    pub(super) struct Anon
}
