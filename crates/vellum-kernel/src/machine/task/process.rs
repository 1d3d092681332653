//! Processes: what the threads of a program share, and who knows whom.
//!
//! Locks, outermost first: the families; the tables of processes and of threads; a process's
//! children; its threads; its life; its signals; a thread's pending signals. None is held across an
//! await, and none while another process's is taken, but the table's.

use crate::mem::payer::Shared;
use crate::mem::space::Tenancy;
use crate::mem::{UserSpace, now_ns};
use crate::task::Thread;
use crate::task::count::Counted;
use crate::task::life::Life;
use crate::task::signal::{self, Info, Signals};
use crate::task::timer::Timers;
use crate::task::usage::Usage;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Add;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, Ordering};
use linux_raw_sys::general as abi;
use spin::{Mutex, MutexGuard, Once};
use vellum::memcg::MemcgId;
use vellum_kernel::credentials::{Credentials, place};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Files;
use vellum_kernel::fs::folder::Folder;
use vellum_kernel::wait::Queue;

/// The process that everybody descends from: the kernel's own, without memory or threads.
pub const FIRST: u32 = 1;
/// The last number given out; they are not given out twice.
static NUMBERS: AtomicU32 = AtomicU32::new(FIRST);
static TABLE: Shared<BTreeMap<u32, Arc<Process>>> = Shared::new(BTreeMap::new());
/// The threads by their numbers, but for each process's first, which has its process's.
static THREADS: Shared<BTreeMap<u32, Weak<Thread>>> = Shared::new(BTreeMap::new());

/// Guards the tree of processes, their ends and their stops: a parent's `wait` sees each change of
/// these together with the signal that tells of it, never one without the other (Linux:
/// `tasklist_lock`). The outermost lock.
pub struct Families(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Families {
    /// Locks them.
    pub fn lock() -> Self {
        static LOCK: Mutex<()> = Mutex::new(());
        Families(LOCK.lock())
    }
}

/// A process.
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its group's number.
    pub group: AtomicU32,
    /// Its session's number.
    pub session: AtomicU32,
    /// Who waits for it.
    pub parent: Mutex<Weak<Process>>,
    /// Whom it may wait for.
    pub children: Mutex<BTreeMap<u32, Arc<Process>>>,
    /// A child has changed.
    pub child_changed: Queue,
    /// The signal for the parent when it ends; 0 for none.
    pub exit_signal: AtomicU32,
    /// Its threads by their numbers: the first one first.
    pub threads: Mutex<BTreeMap<u32, Arc<Thread>>>,
    /// Its memory, until it ends.
    pub memory: Mutex<Option<Tenancy>>,
    /// Its files, until it ends.
    pub files: Mutex<Option<Arc<Files>>>,
    /// What has become of it.
    pub life: Mutex<Life>,
    /// It was stopped, and goes on: or a thread ended, or the memory was given up.
    pub changed: Queue,
    /// When it began, in nanoseconds since the machine did.
    pub started: u64,
    /// How much sooner it is to be killed for its memory (`oom_score_adj`, from −1000 to 1000).
    pub badness: AtomicI32,
    /// The number of its control group.
    pub cgroup: AtomicU32,
    /// The number of the engine's group, which pays for what the kernel allocates for it.
    pub payer: AtomicU16,
    /// What of its memory a core file would have (`coredump_filter`).
    pub core_filter: AtomicU32,
    /// What its threads used that have ended.
    ended_usage: Mutex<Usage>,
    /// What its children used that it has waited for, and theirs.
    pub children_usage: Mutex<Usage>,
    /// The signal that it gets when its parent ends; 0: none.
    pub death_signal: AtomicU32,
    /// Whether the children of its descendants become its own when they lose their parent.
    pub adopts: AtomicBool,
    /// Whether its memory may be looked into by others of its user (`PR_SET_DUMPABLE`).
    pub dumpable: AtomicU32,
    /// What its last thread was called.
    pub last_name: Mutex<Vec<u8>>,
    /// Its directory in `/proc`, once somebody has looked.
    pub folder: Once<Arc<Folder>>,
    /// What is to be done about signals.
    pub signals: Mutex<Signals>,
    /// Resource limits: soft and hard.
    pub limits: Mutex<[[u64; 2]; 16]>,
    /// Whether somebody looks how long processors work for it ([`allowance`](crate::task::allowance)).
    pub watched: AtomicBool,
    /// Its timers.
    pub timers: Mutex<Timers>,
    /// Set when the process has reported its end to its parent, after its last thread. Changed
    /// under [`Families`].
    ended: AtomicBool,
    /// It counts until its parent has waited for it.
    counted: Mutex<Option<Counted>>,
}

/// Limits as Linux has them by default.
pub fn default_limits() -> [[u64; 2]; 16] {
    let mut limits = [[u64::MAX; 2]; 16];
    limits[abi::RLIMIT_STACK as usize] = [8 << 20, u64::MAX];
    // There are no core files.
    limits[abi::RLIMIT_CORE as usize] = [0, 0];
    limits[abi::RLIMIT_NOFILE as usize] = [1024, 4096];
    limits[abi::RLIMIT_NPROC as usize] = [4096, 4096];
    limits[abi::RLIMIT_MEMLOCK as usize] = [8 << 20, 8 << 20];
    limits[abi::RLIMIT_SIGPENDING as usize] = [4096, 4096];
    limits[abi::RLIMIT_MSGQUEUE as usize] = [819_200, 819_200];
    limits[abi::RLIMIT_NICE as usize] = [0, 0];
    limits[abi::RLIMIT_RTPRIO as usize] = [0, 0];
    limits
}

/// Counts one more thread, that `thread` makes.
///
/// # Errors
///
/// `EAGAIN`: there are too many, in all or of its user (`RLIMIT_NPROC`).
pub fn count_one(thread: &Thread) -> Result<Counted, Errno> {
    let own = thread.credentials();
    let user = own.uids[place::REAL];
    let exempt = user == 0 || own.has(abi::CAP_SYS_RESOURCE) || own.has(abi::CAP_SYS_ADMIN);
    let limit = if exempt { u64::MAX } else { thread.process.limits.lock()[abi::RLIMIT_NPROC as usize][0] };
    Counted::new(user, limit)
}

/// A number for a new process or thread.
pub fn new_number() -> u32 {
    NUMBERS.fetch_add(1, Ordering::Relaxed) + 1
}

/// The last number that was given out.
pub fn last_number() -> u32 {
    NUMBERS.load(Ordering::Relaxed)
}

/// The process of this number.
pub fn find(pid: u32) -> Option<Arc<Process>> {
    TABLE.lock().get(&pid).cloned()
}

/// The process of this number, or of the thread of this number.
pub fn find_by_thread(number: u32) -> Option<Arc<Process>> {
    find(number).or_else(|| find_thread(number).map(|thread| thread.process.clone()))
}

/// Walks a table by its numbers, from one on, without a copy of it: `next` returns the first entry
/// from a number on. Entries may come and go meanwhile; those that stay are shown.
pub fn walk<T>(from: u32, next: impl Fn(u32) -> Option<(u32, T)>) -> impl Iterator<Item = T> {
    let mut from = Some(from);
    core::iter::from_fn(move || {
        let (number, found) = next(from?)?;
        from = number.checked_add(1);
        Some(found)
    })
}

/// A table's first entry from a number on.
pub fn first<T: Clone>(table: &BTreeMap<u32, T>, from: u32) -> Option<(u32, T)> {
    table.range(from..).next().map(|(number, found)| (*number, found.clone()))
}

/// All processes from a number on, in the order of their numbers.
pub fn from(number: u32) -> impl Iterator<Item = Arc<Process>> {
    walk(number, |from| first(&TABLE.lock(), from))
}

/// All processes.
pub fn all() -> impl Iterator<Item = Arc<Process>> {
    from(0)
}

/// All threads of all processes.
pub fn threads() -> impl Iterator<Item = Arc<Thread>> {
    all().flat_map(|process| walk(0, move |from| first(&process.threads.lock(), from)))
}

/// How many there are.
pub fn count() -> usize {
    TABLE.lock().len()
}

/// The thread of this number.
pub fn find_thread(tid: u32) -> Option<Arc<Thread>> {
    let Some(process) = find(tid) else { return THREADS.lock().get(&tid)?.upgrade() };
    process.threads.lock().get(&tid).cloned()
}

impl Process {
    /// A child of `parent`, or the first process of all, in the table from now on.
    pub fn new(
        _: &Families,
        pid: u32,
        parent: Option<&Arc<Process>>,
        memory: Option<Arc<UserSpace>>,
        exit_signal: u32,
    ) -> Arc<Self> {
        let of_parent = |get: fn(&Process) -> &AtomicU32| parent.map_or(pid, |p| get(p).load(Ordering::Relaxed));
        let process = Arc::new(Process {
            pid,
            group: AtomicU32::new(of_parent(|p| &p.group)),
            session: AtomicU32::new(of_parent(|p| &p.session)),
            parent: Mutex::new(parent.map(Arc::downgrade).unwrap_or_default()),
            children: Mutex::default(),
            child_changed: Queue::new(),
            exit_signal: AtomicU32::new(exit_signal),
            ended: AtomicBool::new(false),
            threads: Mutex::default(),
            memory: Mutex::new(memory.map(Tenancy::new)),
            files: Mutex::new(None),
            life: Mutex::new(Life::Running),
            changed: Queue::new(),
            started: now_ns(),
            badness: AtomicI32::new(parent.map_or(0, |p| p.badness.load(Ordering::Relaxed))),
            cgroup: AtomicU32::new(parent.map_or(0, |p| p.cgroup.load(Ordering::Relaxed))),
            payer: AtomicU16::new(parent.map_or(MemcgId::ROOT, |p| p.payer()).number()),
            core_filter: AtomicU32::new(parent.map_or(0x33, |p| p.core_filter.load(Ordering::Relaxed))),
            ended_usage: Mutex::default(),
            children_usage: Mutex::default(),
            death_signal: AtomicU32::new(0),
            adopts: AtomicBool::new(false),
            dumpable: AtomicU32::new(parent.map_or(1, |p| p.dumpable.load(Ordering::Relaxed))),
            last_name: Mutex::default(),
            folder: Once::new(),
            signals: Mutex::new(Signals::new()),
            watched: AtomicBool::new(false),
            timers: Mutex::default(),
            counted: Mutex::default(),
            limits: Mutex::new(parent.map_or_else(default_limits, |p| *p.limits.lock())),
        });
        if let Some(parent) = parent {
            parent.children.lock().insert(pid, process.clone());
        }
        TABLE.lock().insert(pid, process.clone());
        process
    }

    /// Returns the group that pays for what the kernel allocates for it.
    pub fn payer(&self) -> MemcgId {
        MemcgId::numbered(self.payer.load(Ordering::Relaxed))
    }

    /// Its memory, until it ends.
    pub fn memory(&self) -> Option<Arc<UserSpace>> {
        self.memory.lock().as_ref().map(|tenancy| tenancy.space().clone())
    }

    /// Gives it up, and may get other in its place. What nobody else has is free then.
    pub fn change_memory(&self, next: Option<Arc<UserSpace>>) {
        // Not under the lock.
        let before = core::mem::replace(&mut *self.memory.lock(), next.map(Tenancy::new));
        drop(before);
    }

    /// Whose it is, as its first thread says; a process without threads is nobody's.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.threads.lock().values().next().map(|thread| thread.credentials())
    }

    /// One more thread. If the process is over it is to end at once: either [`end`](Self::end)
    /// finds it, or it finds that.
    pub fn add(&self, thread: &Arc<Thread>) {
        if thread.tid != self.pid {
            THREADS.lock().insert(thread.tid, Arc::downgrade(thread));
        }
        let mut threads = self.threads.lock();
        threads.insert(thread.tid, thread.clone());
        if self.life.lock().is_over() {
            thread.ending.store(true, Ordering::SeqCst);
        }
    }

    /// Ends all threads but the caller's, and waits until they are gone. Of several callers one
    /// goes on.
    ///
    /// # Errors
    ///
    /// `EINTR`: the caller's thread is to end, too.
    pub async fn end_others(&self, own: &Arc<Thread>) -> Result<(), Errno> {
        // Each look marks those that a thread made before it was marked itself.
        let alone = || {
            let threads = self.threads.lock();
            if own.ending.load(Ordering::SeqCst) {
                return Some(Err(Errno::EINTR));
            }
            let others = threads.values().filter(|other| !Arc::ptr_eq(other, own));
            others.filter(|other| !other.ending.swap(true, Ordering::SeqCst)).for_each(|other| other.alert());
            (threads.len() == 1).then_some(Ok(()))
        };
        own.killable(self.changed.wait_until(alone)).await?
    }

    /// The number of its parent, 0 if it has none.
    pub fn parent_pid(&self) -> u32 {
        self.parent.lock().upgrade().map_or(0, |parent| parent.pid)
    }

    /// What it has used.
    pub fn usage(&self) -> Usage {
        let threads = self.threads.lock();
        threads.values().map(|thread| thread.usage()).fold(*self.ended_usage.lock(), Usage::add)
    }

    /// How long processors have worked for it, in nanoseconds.
    pub fn processor_time(&self) -> u64 {
        self.usage().time
    }

    /// Ends the process: its threads end as soon as they come to it. The first reason counts.
    pub fn end(&self, life: Life) {
        let mut now = self.life.lock();
        if !now.is_over() {
            *now = life;
        }
        drop(now);
        self.changed.wake_all();
        for thread in self.threads.lock().values() {
            thread.ending.store(true, Ordering::SeqCst);
            thread.alert();
        }
    }

    /// Stops it, by a signal.
    pub fn stop(self: &Arc<Self>, signal: u32) {
        let families = Families::lock();
        let mut life = self.life.lock();
        if life.is_over() {
            return;
        }
        *life = Life::Stopped(signal, false);
        drop(life);
        self.tell_parent(&families, abi::CLD_STOPPED, signal);
        drop(families);
        for thread in self.threads.lock().values() {
            thread.alert();
        }
    }

    /// Lets it go on, if it was stopped; with the families, its parent is told.
    pub fn go_on(self: &Arc<Self>, families: Option<&Families>) {
        let mut life = self.life.lock();
        if !matches!(*life, Life::Stopped(..)) {
            return;
        }
        *life = if families.is_some() { Life::Continued } else { Life::Running };
        drop(life);
        self.changed.wake_all();
        if let Some(families) = families {
            self.tell_parent(families, abi::CLD_CONTINUED, abi::SIGCONT);
        }
    }

    /// Returns whether it is over, all its threads are gone, and its parent was told.
    pub fn has_ended(&self, _: &Families) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether its parent has heard of its end, so that its number means nobody.
    pub fn is_reaped(&self) -> bool {
        !TABLE.lock().contains_key(&self.pid)
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        matches!(*self.life.lock(), Life::Stopped(..))
    }

    fn tell_parent(&self, families: &Families, code: u32, status: u32) {
        let Some(parent) = self.parent.lock().upgrade() else { return };
        let quiet = parent.signals.lock().action(abi::SIGCHLD).flags & u64::from(abi::SA_NOCLDSTOP) != 0;
        if !quiet {
            signal::send_among(families, &parent, self.child_info(abi::SIGCHLD, code, status));
        }
        parent.child_changed.wake_all();
    }

    /// What the parent hears about it.
    pub fn child_info(&self, signal: u32, code: u32, status: u32) -> Info {
        Info { signal, code: code as i32, fields: [u64::from(self.pid), u64::from(status), 0, 0] }
    }

    /// A thread is no more. With the last one the process is over: its children are the first process's, its parent hears.
    pub fn thread_ended(self: &Arc<Self>, thread: &Arc<Thread>) {
        *self.last_name.lock() = thread.name();
        let left = {
            let mut threads = self.threads.lock();
            let mut ended = self.ended_usage.lock();
            *ended = *ended + thread.usage();
            drop(ended);
            threads.remove(&thread.tid);
            let mut life = self.life.lock();
            if threads.is_empty() && !life.is_over() {
                *life = Life::Exited(thread.exit_status.load(Ordering::Relaxed) as u8);
            }
            threads.len()
        };
        if thread.tid != self.pid {
            THREADS.lock().remove(&thread.tid);
        }
        self.changed.wake_all();
        let counted = thread.counted.lock().take();
        if left > 0 {
            return;
        }
        *self.counted.lock() = counted;
        self.change_memory(None);
        let families = Families::lock();
        self.give_away_children(&families);
        self.ended.store(true, Ordering::Relaxed);
        self.report_end(&families);
        drop(families);
        self.changed.wake_all();
    }

    /// Its children become its guardian's.
    fn give_away_children(&self, families: &Families) {
        let orphans = core::mem::take(&mut *self.children.lock());
        let Some(guardian) = self.guardian() else { return };
        for (number, orphan) in orphans {
            *orphan.parent.lock() = Arc::downgrade(&guardian);
            orphan.exit_signal.store(abi::SIGCHLD, Ordering::Relaxed);
            guardian.children.lock().insert(number, orphan.clone());
            let death_signal = orphan.death_signal.load(Ordering::Relaxed);
            if death_signal != 0 {
                signal::send_among(families, &orphan, Info { signal: death_signal, ..Info::default() });
            }
            if orphan.has_ended(families) {
                orphan.report_end(families);
            }
        }
        guardian.child_changed.wake_all();
    }

    /// Its parent is told of its end, and forgets it if it does not want to know.
    fn report_end(self: &Arc<Self>, families: &Families) {
        let Some(parent) = self.parent.lock().upgrade() else { return };
        let exit_signal = self.exit_signal.load(Ordering::Relaxed);
        let action = *parent.signals.lock().action(abi::SIGCHLD);
        if exit_signal == abi::SIGCHLD && (action.handler == 1 || action.flags & u64::from(abi::SA_NOCLDWAIT) != 0) {
            parent.reap(families, self);
        }
        if exit_signal != 0 {
            let life = *self.life.lock();
            let (code, status) = match life {
                Life::Killed(signal) => (abi::CLD_KILLED, signal),
                other => (abi::CLD_EXITED, other.shell_status()),
            };
            signal::send_among(families, &parent, self.child_info(exit_signal, code, status));
        }
        parent.child_changed.wake_all();
    }

    /// Who takes its children when it ends: the nearest of those it descends from that adopts, or the first of all.
    fn guardian(&self) -> Option<Arc<Process>> {
        let mut above = self.parent.lock().upgrade();
        while let Some(process) = above {
            if process.adopts.load(Ordering::Relaxed) && !process.life.lock().is_over() {
                return Some(process);
            }
            above = process.parent.lock().upgrade();
        }
        find(FIRST)
    }

    /// Forgets a child that is over.
    pub fn reap(&self, _: &Families, child: &Process) {
        let all = child.usage() + *child.children_usage.lock();
        let mut children = self.children_usage.lock();
        *children = *children + all;
        drop(children);
        self.children.lock().remove(&child.pid);
        TABLE.lock().remove(&child.pid);
        *child.counted.lock() = None;
        child.changed.wake_all();
    }
}
