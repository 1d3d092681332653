//! The part of reclaim that concerns one address space: finds the PTEs that map a folio, and pages
//! out the memory that they map.
//!
//! The engine's reclaimer ([`crate::reclaim`]) chooses folios and isolates them from their LRU
//! lists; it finds the VMAs that map them by the rmap, and has each space page them out. `madvise`
//! pages out, or marks, ranges of one space by the same code.
//!
//! | file | contents |
//! |---|---|
//! | `isolated` | batches of folios that were isolated from their LRU lists |
//! | `rmap` | finds the VMAs that map a folio, checks accessed bits, unmaps folios of objects |
//! | `pageout` | write-protects runs, flushes, and replaces PTEs once the contents are elsewhere |
//! | `swap_out` | writes write-protected runs to a swap device |
//! | `write_protect` | takes the right to write to pages of a file that the host is to write |
//! | `migrate` | copies write-protected runs to new folios |
//! | `lazyfree` | `MADV_FREE`: marks folios lazyfree, and discards clean ones |
//! | `objects` | pages out folios of objects that only this space maps |
//! | `deactivate` | `MADV_COLD`: deactivates folios |

mod deactivate;
mod isolated;
mod lazyfree;
mod migrate;
mod objects;
mod pageout;
mod rmap;
mod swap_out;
mod write_protect;

pub(crate) use isolated::{ISOLATION_BATCH, IsolationBatch};
pub(crate) use migrate::MigratedPages;

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::space::ground::handle;
use crate::table::PageTables;

use super::AddressSpace;

handle! {
    /// The reverse map inside a space: finds the VMAs that map a folio, and unmaps it.
    pub(crate) struct Rmap
}

handle! {
    /// Pages out memory of a space.
    pub(crate) struct Pageout
}
