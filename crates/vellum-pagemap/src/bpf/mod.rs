//! Reads page tables from kernel memory, for root.
//!
//! The rest of this crate infers page tables from what Linux reports. With `CAP_SYS_ADMIN`, a
//! process may load BPF programs that read kernel memory, and may read frame numbers. An open
//! `/proc/PID/pagemap` is a file of this process whose private data is the `mm_struct`. From there
//! a [`Walker`] follows the root to all other page tables. It takes no lock and touches nothing of
//! the target, which doesn't notice.
//!
//! | module | contents |
//! |---|---|
//! | `program` | the BPF program |
//! | `layout` | member offsets, from BTF |
//! | `direct` | the direct map |
//! | `walk` | the walk of the page tables, from the root to the last level |
//! | `walker` | the pointer chain from an open `pagemap` to the root |

mod direct;
mod layout;
mod program;
mod walk;
mod walker;

use std::io;

pub use walk::{Table, WalkedTables};
pub use walker::Walker;

/// Returns the member offsets that BTF describes, as [`Walker::open`] uses them.
#[cfg(any(test, fuzzing))]
pub(crate) fn layout_of(bytes: &[u8]) -> Result<[u64; 6], WalkerError> {
    let layout::StructOffsets { files, table, array, private, root, counted } =
        layout::StructOffsets::of(bytes.to_vec())?;
    Ok([files, table, array, private, root, counted])
}

/// The reason why page tables can't be read.
#[derive(Debug, thiserror::Error)]
pub enum WalkerError {
    /// This machine is not x86-64, the only architecture whose page-table format is supported.
    #[error("only the page tables of x86-64 are supported")]
    Architecture,
    /// This user may not load the program or read frame numbers.
    #[error("that needs root (CAP_SYS_ADMIN)")]
    Denied,
    /// This kernel has no BPF programs of type `BPF_PROG_TYPE_SYSCALL`, or allows them to no user.
    #[error("this kernel does not let BPF programs read its memory: {0}")]
    NoProgram(#[source] io::Error),
    /// BTF is missing, or lacks a member.
    #[error("this kernel's types can't be read from /sys/kernel/btf/vmlinux: {0}")]
    NoTypes(String),
    /// `/proc/kpageflags` can't be read.
    #[error("this kernel's page flags can't be read from /proc/kpageflags: {0}")]
    NoFlags(#[source] io::Error),
    /// The direct map was not found, or kernel memory has contents that contradict it.
    #[error("this kernel's direct map of memory was not found")]
    Unknown,
}

impl From<io::Error> for WalkerError {
    /// Converts a failed read of kernel memory to [`WalkerError::Unknown`]: the address was wrong.
    fn from(_: io::Error) -> Self {
        WalkerError::Unknown
    }
}
