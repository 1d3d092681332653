//! `/proc`: what there is to know about processes and the machine, in the words of the library's `proc`.
//!
//! | file | story |
//! |---|---|
//! | [`process`] | a process's directory, and a thread's |
//! | [`facts`] | who and what a process is: `status`, `stat`, `limits` and the like |
//! | [`memory`] | what of its memory is where: `maps`, `smaps`, `pagemap` |
//! | [`scan`] | requests to `pagemap` |
//! | [`links`] | what it has open, and its program |
//! | [`frames`] | the machine's memory: `kpageflags`, `kpagecount` |
//! | [`system`] | the machine: `meminfo`, `vmstat`, `stat` and the like |
//! | [`settings`] | `/proc/sys` |

mod facts;
mod frames;
mod links;
mod memory;
mod process;
mod scan;
pub mod settings;
mod system;

pub use settings::most_vmas;
pub use system::meminfo_of_node;

use crate::task::{Thread, process as processes};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use linux_raw_sys::general::PROC_SUPER_MAGIC;
use spin::Once;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::folder::{Folder, More};
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::text::{Link, Make, System};
use vellum_kernel::fs::{Inode, Kind, Sink, inode::Entry};
use vellum_kernel::written;

/// The root directory; there is one, wherever it is mounted.
static ROOT: Once<Arc<Folder>> = Once::new();

/// The root directory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn root() -> Result<Arc<Folder>, Errno> {
    ROOT.try_call_once(|| {
        let system = System { device: Device { major: 0, minor: 21 }, magic: PROC_SUPER_MAGIC, owner: None };
        let root = Folder::new(system, None, Some(Box::new(Processes)));
        system::fill(&root)?;
        settings::fill(&root.add_folder("sys")?)?;
        let own: Make = Box::new(|| Ok(format!("{}", reader()?.process.pid).into_bytes()));
        root.add("self", Link::new(system, own, None))?;
        let thread: Make = Box::new(|| {
            let thread = reader()?;
            Ok(format!("{}/task/{}", thread.process.pid, thread.tid).into_bytes())
        });
        root.add("thread-self", Link::new(system, thread, None))?;
        Ok(root)
    })
    .cloned()
}

/// Who reads.
fn reader() -> Result<Arc<Thread>, Errno> {
    Thread::current().ok_or(Errno::ENOENT)
}

/// Numbers of a file of numbers that are made at once.
const AT_ONCE: usize = 512;

/// Reads a file of numbers of eight bytes, up to the number `end`; `fill` makes those from a number on.
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

/// The processes' directories.
struct Processes;

impl More for Processes {
    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        // A thread's number stands for its process as well.
        let number = written::named(name)?;
        let process =
            processes::find(number).or_else(|| processes::find_thread(number).map(|thread| thread.process.clone()))?;
        process::folder(&process).ok().map(|folder| folder as Arc<dyn Inode>)
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
