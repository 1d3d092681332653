//! Implements the directories of processes and threads in `/proc`.
//!
//! A directory is created at its first lookup, and lives as long as its process. Its entries are
//! created whenever they are looked up: most programs look up one, their executable.

use super::{ROOT, facts, links, memory, query, scan};
use crate::task::process::{self as processes, find};
use crate::task::{Process, Thread};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
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

    /// Returns the directory of the process or thread, once it exists.
    pub fn directory(&self) -> Option<Weak<PseudoDirectory>> {
        match &self.thread {
            Some(thread) => thread.upgrade()?.proc_directory.get().map(Arc::downgrade),
            None => self.process.upgrade()?.proc_directory.get().map(Arc::downgrade),
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
    ("mountinfo", 0o444, |_| super::system::mountinfo(), None),
    ("mounts", 0o444, |_| super::system::mounts(), None),
    ("oom_adj", 0o644, facts::oom_adj, Some(facts::set_oom_adj)),
    ("oom_score", 0o444, facts::score, None),
    ("oom_score_adj", 0o644, facts::score_adj, Some(facts::set_score_adj)),
    ("personality", 0o400, facts::personality, None),
    ("smaps", 0o444, memory::smaps, None),
    ("smaps_rollup", 0o444, memory::rollup, None),
    ("stat", 0o444, facts::stat, None),
    ("statm", 0o444, facts::statm, None),
    ("status", 0o444, facts::status, None),
    ("timerslack_ns", 0o666, facts::slack, Some(facts::set_slack)),
];

/// Creates the inode of an entry.
type Create = fn(PseudoFs, &Subject) -> Arc<dyn Inode>;

/// The other entries of processes and threads: name, kind, and how it is created.
const OTHERS: &[(&str, Kind, Create)] = &[
    ("clear_refs", Kind::Regular, clear_refs),
    ("cwd", Kind::Link, links::cwd),
    ("exe", Kind::Link, links::exe),
    ("fd", Kind::Directory, links::fd),
    ("fdinfo", Kind::Directory, links::fdinfo),
    ("maps", Kind::Regular, maps),
    ("mem", Kind::Regular, mem),
    ("pagemap", Kind::Regular, pagemap),
    ("root", Kind::Link, links::root),
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
        let number = inode(process.pid);
        let system = PseudoFs { owner: Some((owner, process.pid)), number: Some(number), ..root()?.system() };
        let entries = Entries { system, first: number, subject: subject.clone() };
        let directory =
            PseudoDirectory::with_weak_parent(system, Some(Arc::downgrade(root()?)), Some(Box::new(entries)));
        directory.add_directory_with("task", Some(Box::new(Threads(subject.process))))?;
        Ok(directory)
    });
    made.cloned()
}

/// Returns a thread's directory, and creates it if needed.
///
/// # Errors
///
/// `ENOMEM`.
pub fn thread_directory(thread: &Arc<Thread>) -> Result<Arc<PseudoDirectory>, Errno> {
    let above = directory(&thread.process)?;
    let made = thread.proc_directory.call_once(|| {
        let process = Arc::downgrade(&thread.process);
        let subject = Subject { process, thread: Some(Arc::downgrade(thread)) };
        let parent = above.subdirectory("task").as_ref().map(Arc::downgrade);
        let first = thread_inode(thread.tid);
        let system = PseudoFs { number: Some(first), ..above.system() };
        let entries = Entries { system, first, subject };
        PseudoDirectory::with_weak_parent(system, parent, Some(Box::new(entries)))
    });
    Ok(made.clone())
}

/// Returns the owner of a process's files: the process's user.
fn owner(pid: u32) -> Owner {
    let own = find(pid).and_then(|process| process.credentials());
    own.map_or((0, 0), |own| (own.uids[id_index::EFFECTIVE], own.gids[id_index::EFFECTIVE]))
}

fn root() -> Result<&'static Arc<PseudoDirectory>, Errno> {
    ROOT.get().ok_or(Errno::ENOENT)
}

/// The entries of a process's or thread's directory, but for its threads.
struct Entries {
    system: PseudoFs,
    /// The directory's inode number, which those of the entries are derived from.
    first: u64,
    subject: Subject,
}

impl Entries {
    /// Returns the inode number of the entry with an index, of [`TEXTS`] and then of [`OTHERS`].
    fn number(&self, index: usize) -> u64 {
        (index as u64 + 1) << 40 | self.first
    }
}

/// Returns the process whose directory an inode is; `None` if it is no process's directory.
///
/// # Errors
///
/// `ESRCH`: the process no longer exists.
pub fn process_of(inode: &dyn Inode) -> Option<Result<Arc<Process>, Errno>> {
    let entries = inode.as_any().downcast_ref::<PseudoDirectory>()?.dynamic()?.as_any()?.downcast_ref::<Entries>()?;
    (!entries.subject.is_thread()).then(|| entries.subject.process())
}

impl DynamicEntries for Entries {
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let system = |index| PseudoFs { number: Some(self.number(index)), ..self.system };
        if let Some(index) = TEXTS.iter().position(|(own, ..)| own.as_bytes() == name) {
            let (_, mode, says, hears) = TEXTS[index];
            let (reads, writes) = (self.subject.clone(), self.subject.clone());
            let make: Show = Box::new(move || says(&reads));
            let take = hears.map(|hears| Box::new(move |value: &[u8]| hears(&writes, value)) as Store);
            return Some(Text::new(system(index), mode, Some(make), take));
        }
        let index = OTHERS.iter().position(|(own, ..)| own.as_bytes() == name)?;
        Some(OTHERS[index].2(system(TEXTS.len() + index), &self.subject))
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) {
        let texts = TEXTS.iter().map(|(name, ..)| (*name, Kind::Regular));
        let all = texts.chain(OTHERS.iter().map(|(name, kind, _)| (*name, *kind)));
        for (index, (name, kind)) in all.enumerate().skip(usize::try_from(from).unwrap_or(usize::MAX)) {
            let (inode, next) = (self.number(index), index as u64 + 1);
            if !each(Entry { name: name.as_bytes(), inode, kind, next }) {
                return;
            }
        }
    }
}

fn clear_refs(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    let of = subject.clone();
    Text::new(system, 0o200, None, Some(Box::new(move |value| memory::clear(&of, value))))
}

fn maps(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    let (of, asks) = (subject.clone(), subject.clone());
    let ioctl = Box::new(move |request, argument| query::request(&asks, request, argument));
    Text::with_ioctl(system, 0o444, Box::new(move || memory::maps(&of)), ioctl)
}

fn pagemap(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    let (of, asks) = (subject.clone(), subject.clone());
    let read = Box::new(move |at, to: &mut dyn vellum_kernel::fs::Sink| memory::pagemap(&of, at, to));
    let ioctl = Box::new(move |request, argument| scan::request(&asks, request, argument));
    Arc::new(Binary::new(system, 0o400, read, None).with_ioctl(ioctl))
}

fn mem(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    let (reads, writes) = (subject.clone(), subject.clone());
    let read = Box::new(move |at, to: &mut dyn vellum_kernel::fs::Sink| memory::read(&reads, at, to));
    let write = Box::new(move |at, from: &mut dyn vellum_kernel::fs::Source| memory::write(&writes, at, from));
    Arc::new(Binary::new(system, 0o600, read, Some(write)))
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
        thread_directory(&thread).ok().map(|directory| directory as Arc<dyn Inode>)
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
