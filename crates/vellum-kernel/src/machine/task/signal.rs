//! Signals: sending, pending signals, and actions.
//!
//! A signal that would be ignored is not sent at all unless it is blocked. So a thread with an
//! unblocked pending signal has something to do, and the sender can alert the thread
//! ([`Thread::alert`]).

use crate::task::life::Life;
use crate::task::process::TasklistLock;
use crate::task::{Process, Thread};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::id_index;
use vellum_kernel::errno::Errno;
pub use vellum_kernel::siginfo::Info;

/// A set of signals: bit 0 is signal 1.
pub type Set = u64;

/// The number of signals.
pub const COUNT: u32 = 64;
/// The signals that can't be blocked, handled or ignored.
pub const UNSTOPPABLE: Set = bit(abi::SIGKILL) | bit(abi::SIGSTOP);
/// The signals that an instruction of the thread itself raises.
pub const SYNCHRONOUS: Set =
    bit(abi::SIGSEGV) | bit(abi::SIGBUS) | bit(abi::SIGILL) | bit(abi::SIGTRAP) | bit(abi::SIGFPE) | bit(abi::SIGSYS);
/// The signals that dump core by default (signal(7)).
pub const DUMPING: Set = SYNCHRONOUS | bit(abi::SIGQUIT) | bit(abi::SIGABRT) | bit(abi::SIGXCPU) | bit(abi::SIGXFSZ);
/// The first real-time signal: each one sent is queued, not only the first of its number.
const REAL_TIME: u32 = 32;
/// The largest number of pending signals, regardless of `RLIMIT_SIGPENDING`.
const MOST_PENDING: usize = 4096;

/// Returns the set that contains one signal.
pub const fn bit(signal: u32) -> Set {
    1 << (signal - 1)
}

/// Returns the information of a signal that a thread sends (`kill` and the like).
pub fn info_from(signal: u32, code: i32, sender: &Thread) -> Info {
    let user = sender.credentials().uids[id_index::REAL];
    Info { signal, errno: 0, code, fields: [u64::from(sender.process.pid) | u64::from(user) << 32, 0, 0, 0] }
}

/// A signal's action (Linux: `struct sigaction`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Action {
    /// The handler's address, or `SIG_DFL` (0), or `SIG_IGN` (1).
    pub handler: u64,
    /// `SA_` flags.
    pub flags: u64,
    /// The address that a handler returns to.
    pub restorer: u64,
    /// The signals that are blocked while the handler runs.
    pub mask: Set,
}

/// The default action of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// Ignored.
    Ignore,
    /// Ends the process.
    End,
    /// Stops the process.
    Stop,
    /// Continues the process, which happens when the signal is sent.
    Continue,
}

/// Returns a signal's default action (signal(7)).
pub fn default_of(signal: u32) -> Default {
    match signal {
        abi::SIGCHLD | abi::SIGURG | abi::SIGWINCH => Default::Ignore,
        abi::SIGSTOP | abi::SIGTSTP | abi::SIGTTIN | abi::SIGTTOU => Default::Stop,
        abi::SIGCONT => Default::Continue,
        _ => Default::End,
    }
}

impl Action {
    /// Returns whether this action ignores the signal.
    pub fn ignores(&self, signal: u32) -> bool {
        match self.handler {
            0 => matches!(default_of(signal), Default::Ignore | Default::Continue),
            1 => true,
            _ => false,
        }
    }
}

/// Pending signals.
#[derive(Default)]
pub struct Pending {
    queue: VecDeque<Info>,
}

impl Pending {
    /// Returns the set of pending signals.
    pub fn set(&self) -> Set {
        self.queue.iter().fold(0, |set, info| set | bit(info.signal))
    }

    /// Returns whether a pending signal satisfies `is`.
    pub fn any(&self, is: impl Fn(&Info) -> bool) -> bool {
        self.queue.iter().any(is)
    }

    /// Queues a signal. Of a standard signal only the first is kept.
    pub fn push(&mut self, info: Info) {
        let counts = info.signal >= REAL_TIME;
        let wanted = (counts && self.queue.len() < MOST_PENDING) || self.set() & bit(info.signal) == 0;
        // Standard signals are few; their memory comes from the kernel's reserve if need be.
        if wanted && self.queue.try_reserve(1).is_ok() {
            self.queue.push_back(info);
        }
    }

    /// Removes and returns the next pending signal of `wanted`: synchronous signals first, then by
    /// lowest number.
    pub fn take(&mut self, wanted: Set) -> Option<Info> {
        let there = self.set() & wanted;
        let first = if there & SYNCHRONOUS != 0 { there & SYNCHRONOUS } else { there };
        let signal = first.trailing_zeros() + 1;
        let at = self.queue.iter().position(|info| first != 0 && info.signal == signal)?;
        self.queue.remove(at)
    }

    /// Removes the pending signals of `set`.
    pub fn drop(&mut self, set: Set) {
        self.queue.retain(|info| bit(info.signal) & set == 0);
    }
}

/// The signal state that all threads of a process share.
pub struct Signals {
    /// The actions.
    pub actions: [Action; COUNT as usize],
    /// The signals sent to the process as a whole.
    pub pending: Pending,
}

impl Signals {
    /// Returns the default actions and no pending signals.
    pub fn new() -> Self {
        Self { actions: [Action::default(); COUNT as usize], pending: Pending::default() }
    }

    /// Returns a signal's action.
    pub fn action(&mut self, signal: u32) -> &mut Action {
        &mut self.actions[signal as usize - 1]
    }

    /// Resets the handled signals to their default action for `execve`; ignored ones stay ignored.
    pub fn reset_for_exec(&mut self) {
        for action in &mut self.actions {
            if action.handler != 1 {
                *action = Action::default();
            }
        }
    }
}

/// Checks that one more signal may be queued for a process (`RLIMIT_SIGPENDING`, which is applied
/// to each process on its own). Standard signals always may.
///
/// # Errors
///
/// `EAGAIN`: too many are pending, or memory is short.
pub fn may_queue(process: &Arc<Process>, signal: u32) -> Result<(), Errno> {
    if signal < REAL_TIME {
        return Ok(());
    }
    let most = process.limits.lock()[abi::RLIMIT_SIGPENDING as usize][0];
    let threads = process.threads.lock().clone();
    let own: usize = threads.values().map(|thread| thread.pending.lock().queue.len()).sum();
    let mut signals = process.signals.lock();
    let waiting = own + signals.pending.queue.len();
    let has_room = signals.pending.queue.try_reserve(1).is_ok();
    if has_room && (waiting as u64) < most.min(MOST_PENDING as u64) { Ok(()) } else { Err(Errno::EAGAIN) }
}

/// Sends a signal to a process, for any of its threads to take. `SIGKILL` ends the process here,
/// because it depends on no thread.
pub fn send(process: &Arc<Process>, info: Info) {
    let tasklist = (info.signal == abi::SIGCONT).then(TasklistLock::lock);
    send_to_any(process, info, tasklist.as_ref());
}

/// Sends a signal as [`send`], for a caller that holds the tasklist lock.
pub fn send_locked(tasklist: &TasklistLock, process: &Arc<Process>, info: Info) {
    send_to_any(process, info, Some(tasklist));
}

/// Sends a signal to a process. `tasklist` is required for `SIGCONT`, which notifies the parent.
/// Takes the locks of the threads and of the signals.
fn send_to_any(process: &Arc<Process>, info: Info, tasklist: Option<&TasklistLock>) {
    let threads = process.threads.lock().clone();
    let mut signals = process.signals.lock();
    effects(process, &mut signals, info.signal, &threads, tasklist);
    let ignored = signals.action(info.signal).ignores(info.signal);
    // The signals lock is held: a thread that blocks the signal from now on finds it pending and
    // alerts the others.
    let open = |thread: &&Arc<Thread>| thread.mask.load(Ordering::SeqCst) & bit(info.signal) == 0;
    let taker = threads.values().find(open);
    let awaits = threads.values().find(|thread| thread.waits_for(info.signal));
    // A tracer is told of ignored signals, too.
    let is_traced = || info.signal != abi::SIGKILL && threads.values().any(|thread| thread.is_traced());
    if ignored && taker.is_some() && awaits.is_none() && !is_traced() {
        return;
    }
    signals.pending.push(info);
    drop(signals);
    process.signalfds.wake(info.signal);
    if info.signal == abi::SIGKILL {
        return process.end(Life::Killed(abi::SIGKILL));
    }
    match awaits.or(taker) {
        Some(thread) => thread.alert(),
        None => threads.values().for_each(|thread| thread.alert_unless_blocked(info.signal)),
    }
}

/// Alerts the other threads of the process that can take its pending signals of `set`, because a
/// thread no longer takes these (Linux: `retarget_shared_pending`).
pub fn retarget_pending(process: &Process, set: Set) {
    let pending = process.signals.lock().pending.set() & set;
    if pending != 0 {
        let threads = process.threads.lock();
        let takers = threads.values().filter(|thread| pending & !thread.mask.load(Ordering::SeqCst) != 0);
        takers.for_each(|thread| thread.alert());
    }
}

/// Sends a signal to one thread.
pub fn send_to(thread: &Arc<Thread>, info: Info) {
    let process = &thread.process;
    let tasklist = (info.signal == abi::SIGCONT).then(TasklistLock::lock);
    let threads = process.threads.lock().clone();
    let mut signals = process.signals.lock();
    effects(process, &mut signals, info.signal, &threads, tasklist.as_ref());
    let blocked = thread.mask.load(Ordering::Relaxed) & bit(info.signal) != 0;
    if signals.action(info.signal).ignores(info.signal) && !blocked && !thread.is_traced() {
        return;
    }
    drop(signals);
    thread.pending.lock().push(info);
    process.signalfds.wake(info.signal);
    match info.signal {
        abi::SIGKILL => process.end(Life::Killed(abi::SIGKILL)),
        _ => thread.alert(),
    }
}

/// Applies the effects of sending: a signal to continue removes pending stop signals, and the other
/// way round (Linux: `prepare_signal`).
fn effects(
    process: &Arc<Process>,
    signals: &mut Signals,
    signal: u32,
    threads: &BTreeMap<u32, Arc<Thread>>,
    tasklist: Option<&TasklistLock>,
) {
    let stops = bit(abi::SIGSTOP) | bit(abi::SIGTSTP) | bit(abi::SIGTTIN) | bit(abi::SIGTTOU);
    let undone = match signal {
        abi::SIGCONT => {
            process.continues.fetch_add(1, Ordering::Relaxed);
            stops
        }
        abi::SIGKILL => 0,
        _ if stops & bit(signal) != 0 => bit(abi::SIGCONT),
        _ => return,
    };
    signals.pending.drop(undone);
    threads.values().for_each(|thread| thread.pending.lock().drop(undone));
    if stops & bit(signal) == 0 {
        process.go_on(tasklist.filter(|_| signal == abi::SIGCONT));
        threads.values().for_each(|thread| thread.alert());
    }
}
