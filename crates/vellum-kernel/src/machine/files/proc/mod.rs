//! Implements `/proc` with the text formats of the portable half's `proc`.
//!
//! | file | subject |
//! |---|---|
//! | [`process`] | directories of processes and threads |
//! | [`facts`] | `status`, `stat`, `limits`, `oom_score` and the like |
//! | [`memory`] | `maps`, `smaps`, `pagemap`, `mem`, `clear_refs` |
//! | [`scan`] | `PAGEMAP_SCAN` |
//! | [`query`] | `PROCMAP_QUERY` |
//! | [`links`] | `fd`, `fdinfo`, `exe`, `cwd`, `root` |
//! | [`frames`] | `kpageflags`, `kpagecount` |
//! | [`system`] | `meminfo`, `vmstat`, `stat` and the like |
//! | [`settings`] | `/proc/sys` |

mod facts;
mod frames;
mod links;
pub mod memory;
mod process;
mod query;
mod scan;
pub mod settings;
mod system;

pub use process::process_of;
pub use settings::{most_vmas, permits_userfaultfd};
pub use system::meminfo_of_node;

use crate::task::{Thread, process as processes};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use linux_raw_sys::general::PROC_SUPER_MAGIC;
use spin::Once;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::pseudo::{DynamicEntries, PseudoDirectory};
use vellum_kernel::fs::text::{Link, PseudoFs, Show};
use vellum_kernel::fs::{Inode, Kind, Sink, inode::Entry};
use vellum_kernel::parse;

/// The one root directory, shared by all mounts.
static ROOT: Once<Arc<PseudoDirectory>> = Once::new();

/// Returns the root directory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn root() -> Result<Arc<PseudoDirectory>, Errno> {
    ROOT.try_call_once(|| {
        let system =
            PseudoFs { device: Device { major: 0, minor: 21 }, magic: PROC_SUPER_MAGIC, owner: None, number: None };
        let root = PseudoDirectory::new(system, None, Some(Box::new(Processes)));
        system::fill(&root)?;
        settings::fill(&root.add_directory("sys")?)?;
        let own: Show = Box::new(|| Ok(format!("{}", reader()?.process.pid).into_bytes()));
        root.add("self", Link::new(system, own, None))?;
        let thread: Show = Box::new(|| {
            let thread = reader()?;
            Ok(format!("{}/task/{}", thread.process.pid, thread.tid).into_bytes())
        });
        root.add("thread-self", Link::new(system, thread, None))?;
        Ok(root)
    })
    .cloned()
}

/// Returns the thread that accesses the file; `ENOENT` outside of any thread.
fn reader() -> Result<Arc<Thread>, Errno> {
    Thread::current().ok_or(Errno::ENOENT)
}

/// The number of entries produced at a time.
const AT_ONCE: usize = 512;

/// Serves a file of 64-bit entries, up to entry `end`. `fill` produces the entries from an index
/// on.
fn numbers(at: u64, to: &mut dyn Sink, end: u64, fill: impl Fn(u64, &mut [u64])) -> Result<usize, Errno> {
    if !at.is_multiple_of(8) || !to.room().is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let mut done = 0;
    while to.room() > 0 {
        let first = (at + done as u64) / 8;
        let count = (to.room() / 8).min(AT_ONCE).min(end.saturating_sub(first) as usize);
        if count == 0 {
            break;
        }
        let mut numbers = [0; AT_ONCE];
        fill(first, &mut numbers[..count]);
        let mut bytes = [0; AT_ONCE * 8];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        match to.put(&bytes[..count * 8]) {
            Ok(put) => done += put,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The directories of all processes.
struct Processes;

impl DynamicEntries for Processes {
    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let number = parse::numeric_name(name)?;
        // A TID names a directory too, which is not listed, as on Linux.
        let directory = match processes::find(number) {
            Some(process) => process::directory(&process),
            None => process::thread_directory(&processes::find_thread(number)?),
        };
        directory.ok().map(|directory| directory as Arc<dyn Inode>)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) {
        for process in processes::from(u32::try_from(from).unwrap_or(u32::MAX)) {
            let (name, kind) = (format!("{}", process.pid), Kind::Directory);
            let (inode, next) = (process::inode(process.pid), u64::from(process.pid) + 1);
            if !each(Entry { name: name.as_bytes(), inode, kind, next }) {
                return;
            }
        }
    }
}
