//! Processes: the state that the threads of a program share, and the process tree.
//!
//! Lock order, outermost first: the tasklist lock; the tables of processes and of threads; a
//! process's children; its threads; its signals; its life and the pending signals of its threads.
//! No lock is held across an await. A lock of one process is held while a lock of another process
//! is taken only under the tasklist lock (`SIGCONT` locks the process's signals and then notifies
//! the parent), and by `clone`, which copies its own signal actions to the child before the child
//! runs.

use crate::mem::payer::Shared;
use crate::mem::space::SpaceUser;
use crate::mem::{UserSpace, now_ns};
use crate::task::Thread;
use crate::task::executor::Owned;
use crate::task::life::Life;
use crate::task::limits::count::Counted;
use crate::task::signal::{self, Info, Signals};
use crate::task::timer::Timers;
use crate::task::trace;
use crate::task::usage::Usage;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Add;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicUsize, Ordering};
use linux_raw_sys::general as abi;
use spin::{Mutex, MutexGuard, Once};
use vellum::memcg::MemcgId;
use vellum::space::peak_rss;
use vellum_kernel::credentials::{Credentials, id_index};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Files;
use vellum_kernel::fs::poll::signalfd::SignalFds;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::tty::terminal::Terminal;
use vellum_kernel::wait::Queue;

/// The number of the root process, the ancestor of all others: the kernel's own, without memory or
/// threads.
pub const FIRST: u32 = 1;
/// The last number given out. Numbers are not reused.
static NUMBERS: AtomicU32 = AtomicU32::new(FIRST);
/// The processes by number.
static TABLE: Shared<BTreeMap<u32, Arc<Process>>> = Shared::new(BTreeMap::new());
/// The threads by number, without each process's first thread, which has the process's number.
static THREADS: Shared<BTreeMap<u32, Weak<Thread>>> = Shared::new(BTreeMap::new());

/// The number of stopped processes.
static STOPPED: AtomicUsize = AtomicUsize::new(0);

/// Returns whether any process is stopped.
pub fn is_any_stopped() -> bool {
    STOPPED.load(Ordering::Relaxed) > 0
}

/// Guard of the tasklist lock, which protects the process tree, the ends and the stops of
/// processes. A parent's `wait` thereby sees each of these changes together with its signal, never
/// one without the other (Linux: `tasklist_lock`). The outermost lock.
pub struct TasklistLock(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl TasklistLock {
    /// Takes the tasklist lock.
    pub fn lock() -> Self {
        static LOCK: Mutex<()> = Mutex::new(());
        TasklistLock(LOCK.lock())
    }
}

/// A process.
pub struct Process {
    /// The process's number.
    pub pid: u32,
    /// The number of its process group.
    pub group: AtomicU32,
    /// The number of its session.
    pub session: AtomicU32,
    /// The controlling terminal.
    pub terminal: Mutex<Option<Arc<Terminal>>>,
    /// The group that was in the foreground when the terminal of this session's leader was hung up;
    /// 0: none.
    pub hung_up_group: AtomicU32,
    /// True once the process has executed a program since it was created.
    pub has_executed: AtomicBool,
    /// The number of `SIGCONT` sent to it. Changed under the tasklist lock.
    pub continues: AtomicU32,
    /// The parent, which waits for its end.
    pub parent: Mutex<Weak<Process>>,
    /// The children by number, including those that ended and are not reaped.
    pub children: Mutex<BTreeMap<u32, Arc<Process>>>,
    /// The threads of other processes that it traces, by number; one that has ended stays until its
    /// end was reported.
    pub tracees: Mutex<BTreeMap<u32, Arc<Thread>>>,
    /// The number of times that it was stopped.
    pub stops: AtomicU32,
    /// Notified when a child or a traced thread changes state.
    pub child_changed: Queue,
    /// The signal for the parent when the process ends; 0: none.
    pub exit_signal: AtomicU32,
    /// The threads by number, the first thread first.
    pub threads: Mutex<BTreeMap<u32, Arc<Thread>>>,
    /// The address space, until the process ends.
    pub memory: Mutex<Option<SpaceUser>>,
    /// The open files, until the process ends.
    pub files: Mutex<Option<Arc<Files>>>,
    /// The process's state.
    pub life: Mutex<Life>,
    /// Notified when the process continues or ends, when a thread ends, or when the memory is given
    /// up.
    pub changed: Queue,
    /// The time of its start, in nanoseconds since the machine's start.
    pub started: u64,
    /// The `oom_score_adj`, from −1000 to 1000.
    pub oom_score_adj: AtomicI32,
    /// The number of its memcg.
    pub cgroup: AtomicU32,
    /// The number of the engine's memcg that is charged for kernel memory of the process.
    pub payer: AtomicU16,
    /// The kinds of memory that a core file would contain (`coredump_filter`).
    pub core_filter: AtomicU32,
    /// The resources that its ended threads used.
    ended_usage: Mutex<Usage>,
    /// The resources that its reaped children and their reaped children used.
    pub children_usage: Mutex<Usage>,
    /// The signal that the process gets when its parent ends (`PR_SET_PDEATHSIG`); 0: none.
    pub death_signal: AtomicU32,
    /// True if orphaned descendants become its children (`PR_SET_CHILD_SUBREAPER`).
    pub is_subreaper: AtomicBool,
    /// Nonzero if other processes of its user may access its memory (`PR_SET_DUMPABLE`).
    pub dumpable: AtomicU32,
    /// The name of its last thread that ended.
    pub last_name: Mutex<Vec<u8>>,
    /// Its directory in `/proc`, created on first use.
    pub proc_directory: Once<Arc<PseudoDirectory>>,
    /// The signal actions, and the signals pending for the whole process.
    pub signals: Mutex<Signals>,
    /// The signalfds on which its threads have waited.
    pub signalfds: SignalFds,
    /// The resource limits: soft and hard.
    pub limits: Mutex<[[u64; 2]; 16]>,
    /// The task that enforces the CPU time limit ([`allowance`](crate::task::limits::allowance)),
    /// while it runs.
    pub allowance: Mutex<Option<Owned>>,
    /// The process's timers.
    pub timers: Mutex<Timers>,
    /// Set when the process has reported its end to its parent, after its last thread ended.
    /// Changed under the tasklist lock.
    ended: AtomicBool,
    /// The count of the process's last thread ([`Counted`]), held until the parent reaps the
    /// process.
    counted: Mutex<Option<Counted>>,
}

/// Returns Linux's default resource limits.
pub fn default_limits() -> [[u64; 2]; 16] {
    let mut limits = [[u64::MAX; 2]; 16];
    limits[abi::RLIMIT_STACK as usize] = [8 << 20, u64::MAX];
    limits[abi::RLIMIT_CORE as usize] = [0, u64::MAX];
    limits[abi::RLIMIT_NOFILE as usize] = [1024, 4096];
    limits[abi::RLIMIT_NPROC as usize] = [4096, 4096];
    limits[abi::RLIMIT_MEMLOCK as usize] = [8 << 20, 8 << 20];
    limits[abi::RLIMIT_SIGPENDING as usize] = [4096, 4096];
    limits[abi::RLIMIT_MSGQUEUE as usize] = [819_200, 819_200];
    limits[abi::RLIMIT_NICE as usize] = [0, 0];
    limits[abi::RLIMIT_RTPRIO as usize] = [0, 0];
    limits
}

/// Counts one more thread, which `thread` creates.
///
/// # Errors
///
/// `EAGAIN`: the limit of all threads or of the user's threads (`RLIMIT_NPROC`) is reached.
pub fn count_one(thread: &Thread) -> Result<Counted, Errno> {
    let own = thread.credentials();
    let user = own.uids[id_index::REAL];
    let exempt = user == 0 || own.has(abi::CAP_SYS_RESOURCE) || own.has(abi::CAP_SYS_ADMIN);
    let limit = if exempt { u64::MAX } else { thread.process.limits.lock()[abi::RLIMIT_NPROC as usize][0] };
    Counted::new(user, limit)
}

/// Returns a number for a new process or thread.
pub fn new_number() -> u32 {
    NUMBERS.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns the last number given out.
pub fn last_number() -> u32 {
    NUMBERS.load(Ordering::Relaxed)
}

/// Returns the process with this number.
pub fn find(pid: u32) -> Option<Arc<Process>> {
    TABLE.lock().get(&pid).cloned()
}

/// Returns the process with this number, or the process of the thread with this number.
pub fn find_by_thread(number: u32) -> Option<Arc<Process>> {
    find(number).or_else(|| find_thread(number).map(|thread| thread.process.clone()))
}

/// Iterates over a table by ascending number without copying it; `next` returns the first entry
/// from a number on. Entries may be added and removed meanwhile; those that stay are visited.
pub fn walk<T>(from: u32, next: impl Fn(u32) -> Option<(u32, T)>) -> impl Iterator<Item = T> {
    let mut from = Some(from);
    core::iter::from_fn(move || {
        let (number, found) = next(from?)?;
        from = number.checked_add(1);
        Some(found)
    })
}

/// Returns a table's first entry from a number on.
pub fn first<T: Clone>(table: &BTreeMap<u32, T>, from: u32) -> Option<(u32, T)> {
    table.range(from..).next().map(|(number, found)| (*number, found.clone()))
}

/// Iterates over the processes from a number on, by ascending number.
pub fn from(number: u32) -> impl Iterator<Item = Arc<Process>> {
    walk(number, |from| first(&TABLE.lock(), from))
}

/// Iterates over all processes.
pub fn all() -> impl Iterator<Item = Arc<Process>> {
    from(0)
}

/// Iterates over all threads of all processes.
pub fn threads() -> impl Iterator<Item = Arc<Thread>> {
    all().flat_map(|process| walk(0, move |from| first(&process.threads.lock(), from)))
}

/// Returns the number of processes.
pub fn count() -> usize {
    TABLE.lock().len()
}

/// Returns the thread with this number.
pub fn find_thread(tid: u32) -> Option<Arc<Thread>> {
    let Some(process) = find(tid) else { return THREADS.lock().get(&tid)?.upgrade() };
    process.threads.lock().get(&tid).cloned()
}

impl Process {
    /// Creates a child of `parent`, or the root process, and adds it to the table.
    pub fn new(
        _: &TasklistLock,
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
            terminal: Mutex::new(parent.and_then(|p| p.terminal.lock().clone())),
            hung_up_group: AtomicU32::new(0),
            has_executed: AtomicBool::new(false),
            continues: AtomicU32::new(0),
            parent: Mutex::new(parent.map(Arc::downgrade).unwrap_or_default()),
            children: Mutex::default(),
            tracees: Mutex::default(),
            stops: AtomicU32::new(0),
            child_changed: Queue::new(),
            exit_signal: AtomicU32::new(exit_signal),
            ended: AtomicBool::new(false),
            threads: Mutex::default(),
            memory: Mutex::new(memory.map(SpaceUser::new)),
            files: Mutex::new(None),
            life: Mutex::new(Life::Running),
            changed: Queue::new(),
            started: now_ns(),
            oom_score_adj: AtomicI32::new(parent.map_or(0, |p| p.oom_score_adj.load(Ordering::Relaxed))),
            cgroup: AtomicU32::new(parent.map_or(0, |p| p.cgroup.load(Ordering::Relaxed))),
            payer: AtomicU16::new(parent.map_or(MemcgId::ROOT, |p| p.payer()).number()),
            core_filter: AtomicU32::new(parent.map_or(0x33, |p| p.core_filter.load(Ordering::Relaxed))),
            ended_usage: Mutex::default(),
            children_usage: Mutex::default(),
            death_signal: AtomicU32::new(0),
            is_subreaper: AtomicBool::new(false),
            dumpable: AtomicU32::new(parent.map_or(1, |p| p.dumpable.load(Ordering::Relaxed))),
            last_name: Mutex::default(),
            proc_directory: Once::new(),
            signals: Mutex::new(Signals::new()),
            signalfds: SignalFds::default(),
            allowance: Mutex::default(),
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

    /// Returns the engine's memcg that is charged for kernel memory of the process.
    pub fn payer(&self) -> MemcgId {
        MemcgId::numbered(self.payer.load(Ordering::Relaxed))
    }

    /// Returns the address space, or `None` if the process has ended.
    pub fn memory(&self) -> Option<Arc<UserSpace>> {
        self.memory.lock().as_ref().map(|user| user.space().clone())
    }

    /// Replaces the address space. The previous one is unmapped if no other process uses it; its
    /// peak resident set stays a part of the process's usage.
    pub fn change_memory(&self, next: Option<Arc<UserSpace>>) {
        // Unmapping may take long: drop the previous space without the lock.
        let before = core::mem::replace(&mut *self.memory.lock(), next.map(SpaceUser::new));
        if let Some(before) = &before {
            let peak_rss = peak_rss(&before.space().engine);
            let mut ended = self.ended_usage.lock();
            ended.peak_rss = ended.peak_rss.max(peak_rss);
        }
        drop(before);
    }

    /// Returns the credentials of its first thread; `None` if the process has no thread.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.threads.lock().values().next().map(|thread| thread.credentials())
    }

    /// Adds a thread. If the process is ending, the thread is marked to end at once: either
    /// [`end`](Self::end) finds the new thread, or this function finds the process ending.
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

    /// Ends all threads but the caller's and waits until they are gone. If several threads call
    /// this, one of them succeeds.
    ///
    /// # Errors
    ///
    /// `EINTR`: the caller's thread is to end, too.
    pub async fn end_others(&self, own: &Arc<Thread>) -> Result<(), Errno> {
        // Each check marks all threads anew, because a thread may have created others before it was
        // marked itself.
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

    /// Returns the parent's number, or 0 without a parent.
    pub fn parent_pid(&self) -> u32 {
        self.parent.lock().upgrade().map_or(0, |parent| parent.pid)
    }

    /// Returns the resources that the process has used.
    pub fn usage(&self) -> Usage {
        let peak_rss = self.memory().map_or(0, |memory| peak_rss(&memory.engine));
        self.threads_usage() + Usage { peak_rss, ..Usage::default() }
    }

    /// Returns what the threads have used, with that of threads and address spaces that are gone.
    fn threads_usage(&self) -> Usage {
        let threads = self.threads.lock();
        threads.values().map(|thread| thread.usage()).fold(*self.ended_usage.lock(), Usage::add)
    }

    /// Returns the CPU time of the process, in nanoseconds.
    pub fn cpu_time(&self) -> u64 {
        self.threads_usage().time
    }

    /// Ends the process: marks and alerts its threads, which end at their next check. If the
    /// process is ending already, it keeps the exit status or signal that it has.
    pub fn end(&self, life: Life) {
        let mut now = self.life.lock();
        if !now.is_over() {
            self.change(&mut now, life);
        }
        drop(now);
        self.changed.wake_all();
        for thread in self.threads.lock().values() {
            thread.ending.store(true, Ordering::SeqCst);
            thread.alert();
        }
    }

    /// Changes the state, and counts the process if it is stopped.
    fn change(&self, life: &mut Life, next: Life) {
        let is_stopped = |life: Life| matches!(life, Life::Stopped(..));
        match (is_stopped(*life), is_stopped(next)) {
            (false, true) => _ = STOPPED.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = STOPPED.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        *life = next;
    }

    /// Stops the process with a signal and notifies the parent.
    pub fn stop(self: &Arc<Self>, tasklist: &TasklistLock, signal: u32) {
        let mut life = self.life.lock();
        if life.is_over() {
            return;
        }
        self.stops.fetch_add(1, Ordering::Relaxed);
        self.change(&mut life, Life::Stopped(signal, false));
        drop(life);
        self.notify_parent(tasklist, abi::CLD_STOPPED, signal);
        for thread in self.threads.lock().values() {
            thread.alert();
        }
    }

    /// Continues the process if it is stopped. With the tasklist lock, also notifies the parent.
    pub fn go_on(self: &Arc<Self>, tasklist: Option<&TasklistLock>) {
        let mut life = self.life.lock();
        if !matches!(*life, Life::Stopped(..)) {
            return;
        }
        self.change(&mut life, if tasklist.is_some() { Life::Continued } else { Life::Running });
        drop(life);
        self.changed.wake_all();
        if let Some(tasklist) = tasklist {
            self.notify_parent(tasklist, abi::CLD_CONTINUED, abi::SIGCONT);
        }
    }

    /// Returns whether the process is over, its threads are gone, and its parent was notified.
    pub fn has_ended(&self, _: &TasklistLock) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns whether its parent has reaped the process, so that its number refers to no process.
    pub fn is_reaped(&self) -> bool {
        !TABLE.lock().contains_key(&self.pid)
    }

    /// Returns whether the process is stopped.
    pub fn is_stopped(&self) -> bool {
        matches!(*self.life.lock(), Life::Stopped(..))
    }

    /// Sends `SIGCHLD` to the parent, unless it has set `SA_NOCLDSTOP`, and wakes its `wait`.
    fn notify_parent(&self, tasklist: &TasklistLock, code: u32, status: u32) {
        let Some(parent) = self.parent.lock().upgrade() else { return };
        let quiet = parent.signals.lock().action(abi::SIGCHLD).flags & u64::from(abi::SA_NOCLDSTOP) != 0;
        if !quiet {
            signal::send_locked(tasklist, &parent, self.child_info(abi::SIGCHLD, code, status));
        }
        parent.child_changed.wake_all();
    }

    /// Returns the `siginfo` of a `SIGCHLD` about this process.
    pub fn child_info(&self, signal: u32, code: u32, status: u32) -> Info {
        Info { signal, errno: 0, code: code as i32, fields: [u64::from(self.pid), u64::from(status), 0, 0] }
    }

    /// Removes an ended thread. With the last one the process is over: its children are reparented
    /// and its parent is notified.
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
        // A thread of which a tracer is to be told takes memory, and so counts until then.
        let stays = trace::thread_ended(thread) && left > 0;
        let counted = if stays { None } else { thread.counted.lock().take() };
        if left > 0 {
            return;
        }
        *self.counted.lock() = counted;
        trace::release_all(self);
        self.change_memory(None);
        let tasklist = TasklistLock::lock();
        self.reparent_children(&tasklist);
        self.ended.store(true, Ordering::Relaxed);
        self.report_end(&tasklist);
        drop(tasklist);
        self.changed.wake_all();
    }

    /// Reparents the children to the reaper (Linux: `forget_original_parent`).
    fn reparent_children(&self, tasklist: &TasklistLock) {
        let orphans = core::mem::take(&mut *self.children.lock());
        let Some(reaper) = self.reaper() else { return };
        for (number, orphan) in orphans {
            *orphan.parent.lock() = Arc::downgrade(&reaper);
            orphan.exit_signal.store(abi::SIGCHLD, Ordering::Relaxed);
            reaper.children.lock().insert(number, orphan.clone());
            let death_signal = orphan.death_signal.load(Ordering::Relaxed);
            if death_signal != 0 {
                signal::send_locked(tasklist, &orphan, Info { signal: death_signal, ..Info::default() });
            }
            if orphan.has_ended(tasklist) {
                orphan.report_end(tasklist);
            }
        }
        reaper.child_changed.wake_all();
    }

    /// Notifies the parent of the end. A parent that ignores `SIGCHLD` reaps the process at once.
    fn report_end(self: &Arc<Self>, tasklist: &TasklistLock) {
        let Some(parent) = self.parent.lock().upgrade() else { return };
        let exit_signal = self.exit_signal.load(Ordering::Relaxed);
        let action = *parent.signals.lock().action(abi::SIGCHLD);
        if exit_signal == abi::SIGCHLD && (action.handler == 1 || action.flags & u64::from(abi::SA_NOCLDWAIT) != 0) {
            // No call waits for the child, so the parent does not get its usage.
            parent.forget(tasklist, self);
        }
        if exit_signal != 0 {
            let life = *self.life.lock();
            let (code, status) = life.child_status();
            signal::send_locked(tasklist, &parent, self.child_info(exit_signal, code, status));
        }
        parent.child_changed.wake_all();
    }

    /// Returns the process that receives the children: the nearest ancestor that is a child
    /// subreaper, or the root process (Linux: `find_new_reaper`).
    pub(super) fn reaper(&self) -> Option<Arc<Process>> {
        let mut above = self.parent.lock().upgrade();
        while let Some(process) = above {
            if process.is_subreaper.load(Ordering::Relaxed) && !process.life.lock().is_over() {
                return Some(process);
            }
            above = process.parent.lock().upgrade();
        }
        find(FIRST)
    }

    /// Removes an ended child and adds its resource usage to this process's children.
    pub fn reap(&self, tasklist: &TasklistLock, child: &Process) {
        let all = child.usage() + *child.children_usage.lock();
        let mut children = self.children_usage.lock();
        *children = *children + all;
        drop(children);
        self.forget(tasklist, child);
    }

    /// Removes an ended child.
    fn forget(&self, _: &TasklistLock, child: &Process) {
        self.children.lock().remove(&child.pid);
        TABLE.lock().remove(&child.pid);
        *child.counted.lock() = None;
        child.changed.wake_all();
    }
}
