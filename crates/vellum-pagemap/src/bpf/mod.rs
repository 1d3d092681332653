//! Page tables themselves, read from the kernel's memory: for root.
//!
//! All else in this crate tells tables by what Linux says of them. Whoever may load BPF programs
//! that read the kernel's memory, and may know where pages are in memory (`CAP_SYS_ADMIN` is both),
//! can read them: `/proc/PID/pagemap`, once opened, is a file of ours that Linux knows to be of an
//! address space, which has a highest table, which leads to the others. No lock is taken, and
//! nothing of the process is touched, so it doesn't notice.
//!
//! | module | story |
//! |---|---|
//! | `program` | the program |
//! | `layout` | where members of structures are |
//! | `direct` | where all memory is mapped |
//! | `walk` | tables, from the highest to the lowest |
//! | `walker` | from an open `pagemap` to the tables |

mod direct;
mod layout;
mod program;
mod walk;
mod walker;

use std::io;

pub use walk::{Table, Walked};
pub use walker::Walker;

/// Reads where members of structures are from BTF, as [`Walker::open`] does.
#[cfg(any(test, fuzzing))]
pub(crate) fn layout_of(bytes: &[u8]) -> Result<[u64; 6], Refused> {
    let layout::Layout { files, table, array, private, root, counted } = layout::Layout::of(bytes.to_vec())?;
    Ok([files, table, array, private, root, counted])
}

/// Why tables can't be read themselves.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// What tables look like elsewhere is not known here.
    #[error("that is known for x86-64 only")]
    Architecture,
    /// It is not permitted to load the program, or to know where pages are in memory.
    #[error("that needs root (CAP_SYS_ADMIN)")]
    Denied,
    /// This kernel has no programs that do it, or lets nobody have them.
    #[error("this kernel lets no BPF program read its memory: {0}")]
    NoProgram(#[source] io::Error),
    /// It says nothing of its structures, or not where what is needed is.
    #[error("this kernel doesn't say how it is built (/sys/kernel/btf/vmlinux): {0}")]
    NoTypes(String),
    /// It does not say what pages of memory are used for.
    #[error("this kernel doesn't say what its memory is used for (/proc/kpageflags): {0}")]
    NoFlags(#[source] io::Error),
    /// It is built in a way that is not known here: memory is not mapped where it could be, or is
    /// not what it should be.
    #[error("this kernel keeps its memory in a way that is not known here")]
    Unknown,
}

impl From<io::Error> for Refused {
    /// What should have been there is not.
    fn from(_: io::Error) -> Self {
        Refused::Unknown
    }
}
