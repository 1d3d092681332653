//! Implements the directories of processes and threads in `/proc`.
//!
//! A directory is created at its first lookup, and lives as long as its process.

use super::{ROOT, facts, links, memory, scan};
use crate::task::process::{self as processes, find};
use crate::task::{Process, Thread};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use vellum_kernel::credentials::id_index;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::pseudo::{DynamicEntries, PseudoDirectory};
use vellum_kernel::fs::text::{Binary, Owner, PseudoFs, Show, Store, Text};
use vellum_kernel::fs::{Inode, Kind, inode::Entry};
use vellum_kernel::parse::numeric_name;

/// The process or thread that a file describes. It is referred to weakly, so files keep no process
/// alive.
#[derive(Clone)]
pub struct Subject {
    process: Weak<Process>,
    thread: Option<Weak<Thread>>,
}

impl Subject {
    /// Returns the process.
    ///
    /// # Errors
    ///
    /// `ESRCH`: the process no longer exists.
    pub fn process(&self) -> Result<Arc<Process>, Errno> {
        self.process.upgrade().ok_or(Errno::ESRCH)
    }

    /// Returns the thread, or the process's main thread; `None` if it has exited.
    pub fn thread(&self) -> Option<Arc<Thread>> {
        match &self.thread {
            Some(thread) => thread.upgrade(),
            None => self.process.upgrade()?.threads.lock().values().next().cloned(),
        }
    }

    /// Returns true if the file describes a thread.
    pub fn is_thread(&self) -> bool {
        self.thread.is_some()
    }
}

/// Produces a file's contents.
type Contents = fn(&Subject) -> Result<Vec<u8>, Errno>;
/// Handles a write to a file.
type WriteHandler = fn(&Subject, &[u8]) -> Result<(), Errno>;

/// The text files of processes and threads: name, mode, contents, write handler.
const TEXTS: &[(&str, u32, Contents, Option<WriteHandler>)] = &[
    ("auxv", 0o400, facts::aux, None),
    ("cgroup", 0o444, facts::group, None),
    ("cmdline", 0o444, facts::arguments, None),
    ("comm", 0o644, facts::name, Some(facts::rename)),
    ("coredump_filter", 0o644, facts::core_filter, Some(facts::set_core_filter)),
    ("environ", 0o400, facts::environment, None),
    ("limits", 0o444, facts::limits, None),
    ("maps", 0o444, memory::maps, None),
    ("mountinfo", 0o444, |_| super::system::mountinfo(), None),
    ("mounts", 0o444, |_| super::system::mounts(), None),
    ("oom_adj", 0o644, facts::oom_adj, Some(facts::set_oom_adj)),
    ("oom_score", 0o444, facts::score, None),
    ("oom_score_adj", 0o644, facts::score_adj, Some(facts::set_score_adj)),
    ("personality", 0o400, |_| Ok(b"00000000\n".to_vec()), None),
    ("smaps", 0o444, memory::smaps, None),
    ("smaps_rollup", 0o444, memory::rollup, None),
    ("stat", 0o444, facts::stat, None),
    ("statm", 0o444, facts::statm, None),
    ("status", 0o444, facts::status, None),
    ("timerslack_ns", 0o666, facts::slack, Some(facts::set_slack)),
];

/// Returns the inode number of a process's directory.
pub fn inode(pid: u32) -> u64 {
    1 << 32 | u64::from(pid)
}

fn thread_inode(tid: u32) -> u64 {
    2 << 32 | u64::from(tid)
}

/// Returns a process's directory, and creates it if needed.
///
/// # Errors
///
/// `ENOMEM`.
pub fn directory(process: &Arc<Process>) -> Result<Arc<PseudoDirectory>, Errno> {
    let made = process.proc_directory.try_call_once(|| {
        let subject = Subject { process: Arc::downgrade(process), thread: None };
        let system = PseudoFs { owner: Some((owner, process.pid)), ..root()?.system() };
        let directory =
            PseudoDirectory::with_inode_number(system, Some(inode(process.pid)), Some(Arc::downgrade(root()?)), None);
        fill(&directory, &subject)?;
        directory.add_directory_with("task", Some(Box::new(Threads(subject.process.clone()))))?;
        Ok(directory)
    });
    made.cloned()
}

/// Returns the owner of a process's files: the process's user.
fn owner(pid: u32) -> Owner {
    let own = find(pid).and_then(|process| process.credentials());
    own.map_or((0, 0), |own| (own.uids[id_index::EFFECTIVE], own.gids[id_index::EFFECTIVE]))
}

fn root() -> Result<&'static Arc<PseudoDirectory>, Errno> {
    ROOT.get().ok_or(Errno::ENOENT)
}

fn fill(directory: &Arc<PseudoDirectory>, subject: &Subject) -> Result<(), Errno> {
    for (name, mode, says, hears) in TEXTS {
        let (reads, writes) = (subject.clone(), subject.clone());
        let make: Show = Box::new(move || says(&reads));
        let take = hears.map(|hears| Box::new(move |value: &[u8]| hears(&writes, value)) as Store);
        directory.add(name, Text::new(directory.system(), *mode, Some(make), take))?;
    }
    let of = subject.clone();
    let clear: Store = Box::new(move |value| memory::clear(&of, value));
    directory.add("clear_refs", Text::new(directory.system(), 0o200, None, Some(clear)))?;
    let of = subject.clone();
    let asks = subject.clone();
    let pagemap = Binary::new(directory.system(), 0o400, Box::new(move |at, to| memory::pagemap(&of, at, to)), None)
        .with_ioctl(Box::new(move |request, argument| scan::request(&asks, request, argument)));
    directory.add("pagemap", Arc::new(pagemap))?;
    let (reads, writes) = (subject.clone(), subject.clone());
    let read = Box::new(move |at, to: &mut dyn vellum_kernel::fs::Sink| memory::read(&reads, at, to));
    let write = Box::new(move |at, from: &mut dyn vellum_kernel::fs::Source| memory::write(&writes, at, from));
    directory.add("mem", Arc::new(Binary::new(directory.system(), 0o600, read, Some(write))))?;
    links::fill(directory, subject)
}

/// The directory of a process's threads.
struct Threads(Weak<Process>);

impl Threads {
    /// Returns the threads with a TID of `number` or above.
    fn from(&self, number: u32) -> impl Iterator<Item = Arc<Thread>> {
        let process = self.0.upgrade();
        processes::walk(number, move |from| processes::first(&process.as_ref()?.threads.lock(), from))
    }
}

impl DynamicEntries for Threads {
    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let number = numeric_name(name)?;
        let thread = self.0.upgrade()?.threads.lock().get(&number).cloned()?;
        let above = directory(&thread.process).ok()?;
        let made = thread.proc_directory.try_call_once(|| {
            let subject = Subject { process: self.0.clone(), thread: Some(Arc::downgrade(&thread)) };
            let parent = above.subdirectory("task").as_ref().map(Arc::downgrade);
            let directory =
                PseudoDirectory::with_inode_number(above.system(), Some(thread_inode(number)), parent, None);
            fill(&directory, &subject).map(|()| directory)
        });
        made.ok().map(|directory| directory.clone() as Arc<dyn Inode>)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) {
        let from = u32::try_from(from).unwrap_or(u32::MAX);
        for number in self.from(from).map(|thread| thread.tid) {
            let (inode, next) = (thread_inode(number), u64::from(number) + 1);
            if !each(Entry { name: format!("{number}").as_bytes(), inode, kind: Kind::Directory, next }) {
                return;
            }
        }
    }
}
