//! Signals: who they are for, what is to be done about them, and when.
//!
//! A signal that would be ignored is not sent at all, unless it is blocked; so a thread that finds one pending and not
//! blocked has something to do, and whoever sends one can tell the thread so ([`Thread::alert`]).

use crate::task::life::Life;
use crate::task::process::Families;
use crate::task::{Process, Thread};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::place;
use vellum_kernel::errno::Errno;

/// A set of signals: bit 0 is signal 1.
pub type Set = u64;

/// How many signals there are.
pub const COUNT: u32 = 64;
/// Neither blocked, nor handled, nor ignored.
pub const UNSTOPPABLE: Set = bit(abi::SIGKILL) | bit(abi::SIGSTOP);
/// Those that the thread's own instruction raises.
pub const SYNCHRONOUS: Set =
    bit(abi::SIGSEGV) | bit(abi::SIGBUS) | bit(abi::SIGILL) | bit(abi::SIGTRAP) | bit(abi::SIGFPE) | bit(abi::SIGSYS);
/// Those that leave a core file where there are such (signal(7)).
pub const DUMPING: Set = SYNCHRONOUS | bit(abi::SIGQUIT) | bit(abi::SIGABRT) | bit(abi::SIGXCPU) | bit(abi::SIGXFSZ);
/// From here on each signal sent is delivered, and not only the first of its number.
const REAL_TIME: u32 = 32;
/// So many may wait to be delivered, whatever `RLIMIT_SIGPENDING` says.
const MOST_PENDING: usize = 4096;

/// The set of one signal.
pub const fn bit(signal: u32) -> Set {
    1 << (signal - 1)
}

/// What there is to say about a signal besides its number: the first 48 bytes of Linux's `siginfo_t`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Info {
    /// The number.
    pub signal: u32,
    /// Why (`si_code`).
    pub code: i32,
    /// What else, by the kind of signal: the bytes after the first 16.
    pub fields: [u64; 4],
}

impl Info {
    /// Sent by a thread: `kill` and the like.
    pub fn from(signal: u32, code: i32, sender: &Thread) -> Self {
        let user = sender.credentials().uids[place::REAL];
        Self { signal, code, fields: [u64::from(sender.process.pid) | u64::from(user) << 32, 0, 0, 0] }
    }

    /// Raised at an address.
    pub fn fault(signal: u32, code: u32, address: u64) -> Self {
        Self { signal, code: code as i32, fields: [address, 0, 0, 0] }
    }

    /// Whether it says what only the kernel knows: who sent it, or what happened.
    pub fn is_kernels(&self) -> bool {
        self.code >= 0 || self.code == abi::SI_TKILL
    }

    /// As a program sees it.
    pub fn bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[0..4].copy_from_slice(&self.signal.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.code.to_le_bytes());
        for (place, field) in bytes[16..48].chunks_exact_mut(8).zip(self.fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}

/// What a program wants done about a signal (Linux's `struct sigaction`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Action {
    /// The handler's address, or `SIG_DFL` (0), or `SIG_IGN` (1).
    pub handler: u64,
    /// `SA_` flags.
    pub flags: u64,
    /// Where a handler returns to.
    pub restorer: u64,
    /// What is blocked meanwhile.
    pub mask: Set,
}

/// What happens when a program says nothing about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// Nothing.
    Ignore,
    /// The program ends.
    End,
    /// It stops.
    Stop,
    /// It goes on, which it did as the signal was sent.
    Continue,
}

/// What happens to a program that says nothing about a signal (signal(7)).
pub fn default_of(signal: u32) -> Default {
    match signal {
        abi::SIGCHLD | abi::SIGURG | abi::SIGWINCH => Default::Ignore,
        abi::SIGSTOP | abi::SIGTSTP | abi::SIGTTIN | abi::SIGTTOU => Default::Stop,
        abi::SIGCONT => Default::Continue,
        _ => Default::End,
    }
}

impl Action {
    /// Whether nothing is to be done.
    pub fn ignores(&self, signal: u32) -> bool {
        match self.handler {
            0 => matches!(default_of(signal), Default::Ignore | Default::Continue),
            1 => true,
            _ => false,
        }
    }
}

/// Signals that wait to be delivered.
#[derive(Default)]
pub struct Pending {
    queue: VecDeque<Info>,
}

impl Pending {
    /// Which there are.
    pub fn set(&self) -> Set {
        self.queue.iter().fold(0, |set, info| set | bit(info.signal))
    }

    /// Whether there is such a one.
    pub fn any(&self, is: impl Fn(&Info) -> bool) -> bool {
        self.queue.iter().any(is)
    }

    /// One more. Of those that do not count, the first is kept.
    pub fn push(&mut self, info: Info) {
        let counts = info.signal >= REAL_TIME;
        let wanted = (counts && self.queue.len() < MOST_PENDING) || self.set() & bit(info.signal) == 0;
        // Those that don't count are few, and their memory is not refused.
        if wanted && self.queue.try_reserve(1).is_ok() {
            self.queue.push_back(info);
        }
    }

    /// The next of `wanted`: those raised by the thread itself first, then the lowest number.
    pub fn take(&mut self, wanted: Set) -> Option<Info> {
        let there = self.set() & wanted;
        let first = if there & SYNCHRONOUS != 0 { there & SYNCHRONOUS } else { there };
        let signal = first.trailing_zeros() + 1;
        let at = self.queue.iter().position(|info| first != 0 && info.signal == signal)?;
        self.queue.remove(at)
    }

    /// Forgets those of `set`.
    pub fn drop(&mut self, set: Set) {
        self.queue.retain(|info| bit(info.signal) & set == 0);
    }
}

/// What all threads of a process share about signals.
pub struct Signals {
    /// What is to be done.
    pub actions: [Action; COUNT as usize],
    /// Sent to the process as a whole.
    pub pending: Pending,
}

impl Signals {
    /// Nothing was said and nothing was sent.
    pub fn new() -> Self {
        Self { actions: [Action::default(); COUNT as usize], pending: Pending::default() }
    }

    /// What is to be done about a signal.
    pub fn action(&mut self, signal: u32) -> &mut Action {
        &mut self.actions[signal as usize - 1]
    }

    /// A program that replaces another keeps what is ignored, and nothing else.
    pub fn after_exec(&mut self) {
        for action in &mut self.actions {
            if action.handler != 1 {
                *action = Action::default();
            }
        }
    }
}

/// Whether one more of a signal that counts may wait for a process (`RLIMIT_SIGPENDING`; here each process has its own).
///
/// # Errors
///
/// `EAGAIN`: too many do, or there is no memory for it.
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

/// Sends a signal to a process: to whichever of its threads can take it. `SIGKILL` ends it here and
/// now, as it depends on no thread.
pub fn send(process: &Arc<Process>, info: Info) {
    let families = (info.signal == abi::SIGCONT).then(Families::lock);
    send_to_any(process, info, families.as_ref());
}

/// The same, for a caller that has the families locked.
pub fn send_among(families: &Families, process: &Arc<Process>, info: Info) {
    send_to_any(process, info, Some(families));
}

fn send_to_any(process: &Arc<Process>, info: Info, families: Option<&Families>) {
    let threads = process.threads.lock().clone();
    let mut signals = process.signals.lock();
    effects(process, &mut signals, info.signal, &threads, families);
    let ignored = signals.action(info.signal).ignores(info.signal);
    // Under the lock: a thread that blocks the signal from now on finds it pending, and hands it
    // on.
    let open = |thread: &&Arc<Thread>| thread.mask.load(Ordering::SeqCst) & bit(info.signal) == 0;
    let taker = threads.values().find(open);
    let awaits = threads.values().find(|thread| thread.waits_for(info.signal));
    if ignored && taker.is_some() && awaits.is_none() {
        return;
    }
    signals.pending.push(info);
    drop(signals);
    if info.signal == abi::SIGKILL {
        return process.end(Life::Killed(abi::SIGKILL));
    }
    match awaits.or(taker) {
        Some(thread) => thread.alert(),
        None => threads.values().for_each(|thread| thread.alert_if_open(info.signal)),
    }
}

/// A thread takes none of these signals any more: those that the process has pending are for its
/// other threads (Linux: `retarget_shared_pending`).
pub fn hand_on(process: &Process, set: Set) {
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
    let families = (info.signal == abi::SIGCONT).then(Families::lock);
    let threads = process.threads.lock().clone();
    let mut signals = process.signals.lock();
    effects(process, &mut signals, info.signal, &threads, families.as_ref());
    let blocked = thread.mask.load(Ordering::Relaxed) & bit(info.signal) != 0;
    if signals.action(info.signal).ignores(info.signal) && !blocked {
        return;
    }
    drop(signals);
    thread.pending.lock().push(info);
    match info.signal {
        abi::SIGKILL => process.end(Life::Killed(abi::SIGKILL)),
        _ => thread.alert(),
    }
}

/// What sending alone does: a signal to go on undoes stops, and the other way round.
fn effects(
    process: &Arc<Process>,
    signals: &mut Signals,
    signal: u32,
    threads: &BTreeMap<u32, Arc<Thread>>,
    families: Option<&Families>,
) {
    let stops = bit(abi::SIGSTOP) | bit(abi::SIGTSTP) | bit(abi::SIGTTIN) | bit(abi::SIGTTOU);
    let undone = match signal {
        abi::SIGCONT => stops,
        abi::SIGKILL => 0,
        _ if stops & bit(signal) != 0 => bit(abi::SIGCONT),
        _ => return,
    };
    signals.pending.drop(undone);
    threads.values().for_each(|thread| thread.pending.lock().drop(undone));
    if stops & bit(signal) == 0 {
        process.go_on(families.filter(|_| signal == abi::SIGCONT));
        threads.values().for_each(|thread| thread.alert());
    }
}
