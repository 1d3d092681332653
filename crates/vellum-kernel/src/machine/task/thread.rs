//! A user thread: a future that enters user mode again and again.

use crate::arch::cpu::store_load_barrier;
use crate::arch::{cause, irq};
use crate::mem::thread::{BlockedOn, ThreadMem};
use crate::mem::{UserSpace, now_ns};
use crate::task::context::{Context, Traits};
use crate::task::deliver;
use crate::task::executor::SchedEntity;
use crate::task::limits::count::Counted;
use crate::task::percpu;
use crate::task::signal::{self, Pending, Set};
use crate::task::trace::Trace;
use crate::task::usage::Usage;
use crate::task::{Process, time};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::task::Poll;
use spin::{Mutex, Once};
use vellum_kernel::credentials::Credentials;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Files;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::seccomp::action::MODE_DISABLED;
use vellum_kernel::seccomp::filter::Seccomp;
use vellum_kernel::wait::Queue;

/// The value of [`Thread::user_cpu`] while no CPU runs the thread in user mode.
pub(super) const NOT_IN_USER: usize = usize::MAX;

/// A thread's name, padded with zeros; the last byte is zero.
pub type Name = [u8; 16];

/// A user thread.
pub struct Thread {
    /// The thread's number.
    pub tid: u32,
    /// The process that it belongs to.
    pub process: Arc<Process>,
    /// True if the thread is to end.
    pub ending: AtomicBool,
    /// The exit status if the thread ends by itself.
    pub exit_status: AtomicU32,
    /// The blocked signals.
    pub mask: AtomicU64,
    /// The signals that it waits for in `sigtimedwait`.
    pub awaited: AtomicU64,
    /// The name: up to 15 bytes, padded with zeros.
    pub name: Mutex<Name>,
    /// The memory layer's part.
    pub mem: ThreadMem,
    /// The attributes that threads it creates inherit.
    pub traits: Mutex<Traits>,
    /// True if each of its system calls is checked before it is made: it may not make all of them
    /// (`seccomp` of [`Self::traits`]), or is traced.
    pub is_restricted: AtomicBool,
    /// True if another process traces it (`ptrace`).
    is_traced: AtomicBool,
    /// The state of its tracing.
    pub trace: Mutex<Trace>,
    /// Its count as a thread of its user, until it ends.
    pub counted: Mutex<Option<Counted>>,
    /// The scheduler's record.
    pub(super) entity: Arc<SchedEntity>,
    /// The CPU time up to the last yield, in nanoseconds.
    pub(super) cpu_time: AtomicU64,
    /// The start of the present run on a CPU; 0 if it does not run.
    pub(super) running_since: AtomicU64,
    /// Its directory in `/proc`, created on first use.
    pub proc_directory: Once<Arc<PseudoDirectory>>,
    /// The signals sent to this thread alone.
    pub pending: Mutex<Pending>,
    /// True if signals or state changes must be checked before it enters user mode.
    pub(super) alerted: AtomicBool,
    /// The queue that [`Self::alert`] wakes. Each wait of the thread that an alert may interrupt
    /// waits on it too.
    alerts: Queue,
    /// True if its creator waits until this thread no longer uses the memory that they share
    /// (`vfork`).
    pub blocks_creator: AtomicBool,
    /// True if the thread has called [`Self::begin_exit`].
    left: AtomicBool,
    /// True while only a fatal signal ends the thread's wait.
    pub is_uninterruptible: AtomicBool,
    /// The CPU that runs the thread in user mode, or [`NOT_IN_USER`].
    pub(super) user_cpu: AtomicUsize,
    /// The cause of the kernel's work for this thread.
    pub(super) cause: cause::Last,
    context: UnsafeCell<Context>,
}

// SAFETY: only the thread's own future accesses the context, and one CPU at a time polls it.
unsafe impl Sync for Thread {}

impl Thread {
    /// Creates a thread of `process` with the mask, name and attributes of its creator, and does
    /// not start it.
    pub fn new(
        tid: u32,
        process: &Arc<Process>,
        context: Context,
        counted: Counted,
        creator: Option<&Thread>,
    ) -> Arc<Self> {
        let thread = Arc::new(Self {
            tid,
            process: process.clone(),
            ending: AtomicBool::new(false),
            exit_status: AtomicU32::new(0),
            mask: AtomicU64::new(creator.map_or(0, |creator| creator.mask.load(Ordering::Relaxed))),
            awaited: AtomicU64::new(0),
            mem: ThreadMem::default(),
            name: Mutex::new(creator.map_or_else(Name::default, |creator| *creator.name.lock())),
            traits: Mutex::new(creator.map_or_else(Traits::first, |creator| creator.traits.lock().inherited())),
            is_restricted: AtomicBool::new(false),
            is_traced: AtomicBool::new(false),
            trace: Mutex::default(),
            counted: Mutex::new(Some(counted)),
            entity: Arc::default(),
            cpu_time: AtomicU64::new(0),
            running_since: AtomicU64::new(0),
            proc_directory: Once::new(),
            pending: Mutex::new(Pending::default()),
            alerted: AtomicBool::new(true),
            alerts: Queue::new(),
            blocks_creator: AtomicBool::new(false),
            is_uninterruptible: AtomicBool::new(false),
            left: AtomicBool::new(false),
            user_cpu: AtomicUsize::new(NOT_IN_USER),
            cause: cause::Last::new(),
            context: UnsafeCell::new(context),
        });
        process.add(&thread);
        if let Some(creator) = creator {
            // A filter for all threads of the process is installed under this lock: it finds the
            // new thread, or the new thread finds it at its creator.
            let _threads = creator.process.threads.lock();
            let seccomp = creator.traits.lock().seccomp.clone();
            thread.set_seccomp(seccomp);
        }
        thread
    }

    /// Replaces the thread's restriction of system calls, from its next one on.
    pub fn set_seccomp(&self, seccomp: Seccomp) {
        let mut traits = self.traits.lock();
        let is_restricted = seccomp.mode != MODE_DISABLED || self.is_traced();
        let before = core::mem::replace(&mut traits.seccomp, seccomp);
        self.is_restricted.store(is_restricted, Ordering::Relaxed);
        drop(traits);
        drop(before);
    }

    /// Returns whether another process traces the thread.
    pub fn is_traced(&self) -> bool {
        self.is_traced.load(Ordering::SeqCst)
    }

    /// Sets whether another process traces the thread. The caller holds the tasklist lock.
    pub fn set_traced(&self, is_traced: bool) {
        let traits = self.traits.lock();
        self.is_traced.store(is_traced, Ordering::SeqCst);
        let is_restricted = is_traced || traits.seccomp.mode != MODE_DISABLED;
        self.is_restricted.store(is_restricted, Ordering::Relaxed);
    }

    /// Returns whether the thread is to stop because its process is stopped: a traced thread does
    /// that once a stop.
    pub fn must_stop(&self) -> bool {
        let process = &self.process;
        let was_told = || self.is_traced() && self.trace.lock().seen_stop == process.stops.load(Ordering::Relaxed);
        process.is_stopped() && !was_told()
    }

    /// Returns the context.
    ///
    /// # Safety
    ///
    /// The caller is the thread's own future; the reference must end before the next call.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn context(&self) -> &mut Context {
        // SAFETY: the caller is the thread's own future and has no earlier reference any more (this
        // function's contract); no other code accesses the context, as `Sync` explains.
        unsafe { &mut *self.context.get() }
    }

    /// Returns the deadline of a system call's wait: `deadline`, or the first one if the call was
    /// restarted. Must run in the thread's own future.
    pub fn wait_until(&self, deadline: u64) -> u64 {
        // SAFETY: the thread's own future makes its system calls.
        *unsafe { self.context() }.wait_deadline.get_or_insert(deadline)
    }

    /// Returns the thread's address space. Must run in the thread's own future.
    pub fn memory(&self) -> Arc<UserSpace> {
        // SAFETY: the thread's own future makes its system calls.
        unsafe { self.context() }.memory.clone()
    }

    /// Returns the thread that this CPU runs, if any. File systems call this to find the thread
    /// that reads or writes a file.
    pub fn current() -> Option<Arc<Thread>> {
        let polled = percpu::current().polled.get();
        // SAFETY: set while this CPU polls the thread's future, which holds a reference, and taken
        // from `Arc::as_ptr`.
        (!polled.is_null()).then(|| unsafe {
            Arc::increment_strong_count(polled);
            Arc::from_raw(polled)
        })
    }

    /// If an access or a system call failed for the reason noted in [`Self::mem`], waits until the
    /// reason has passed, and returns whether a retry is due. Returns false at once for other
    /// errors.
    #[cold]
    pub async fn may_repeat<T>(self: &Arc<Self>, result: Result<T, Errno>) -> bool {
        match self.mem.take_blocked() {
            Some(on @ BlockedOn::Overdraft(_)) => on.wait(self, true).await,
            // `madvise` and `mlock` return `EAGAIN` where memory is short.
            // A page that is being read fails a call by `EIO`.
            Some(on) if matches!(result, Err(Errno::EFAULT | Errno::ENOMEM | Errno::EAGAIN | Errno::EIO)) => {
                on.wait(self, true).await
            }
            _ => false,
        }
    }

    /// Makes the thread, whose own future calls this, check for signals and state changes before it
    /// enters user mode again.
    pub fn mark_alerted(&self) {
        self.alerted.store(true, Ordering::SeqCst);
    }

    /// Clears the alert. The caller has handled its reason, or handles it before the thread enters
    /// user mode.
    pub fn clear_alert(&self) {
        self.alerted.store(false, Ordering::SeqCst);
    }

    /// Returns the thread's credentials.
    pub fn credentials(&self) -> Arc<Credentials> {
        self.traits.lock().credentials.clone()
    }

    /// Returns whether the thread waits for an event.
    pub fn sleeps(&self) -> bool {
        self.entity.sleeps()
    }

    /// Returns the thread's CPU time, in nanoseconds.
    pub fn cpu_time(&self) -> u64 {
        let since = match self.running_since.load(Ordering::Relaxed) {
            0 => 0,
            began => now_ns().saturating_sub(began),
        };
        self.cpu_time.load(Ordering::Relaxed) + since
    }

    /// Returns the resources that the thread has used.
    pub fn usage(&self) -> Usage {
        let faults = &self.mem.faults;
        Usage { time: self.cpu_time(), minor: faults.minor(), major: faults.major(), peak_rss: 0 }
    }

    /// Returns the name without its padding.
    pub fn name(&self) -> Vec<u8> {
        let name = *self.name.lock();
        name.iter().copied().take_while(|byte| *byte != 0).collect()
    }

    /// Sets the name, cut off at 15 bytes.
    pub fn set_name(&self, name: &[u8]) {
        let mut own = Name::default();
        let len = name.len().min(own.len() - 1);
        own[..len].copy_from_slice(&name[..len]);
        *self.name.lock() = own;
    }

    /// Replaces the signal mask. Signals pending for the process that this thread now blocks are
    /// left to its other threads.
    pub fn set_mask(&self, mask: Set) {
        let mask = mask & !signal::UNSTOPPABLE;
        let before = self.mask.swap(mask, Ordering::SeqCst);
        self.alerted.store(true, Ordering::SeqCst);
        if mask & !before != 0 {
            signal::retarget_pending(&self.process, mask & !before);
        }
    }

    /// Sets the signals that the thread also waits for, blocked or not; an empty set ends that. A
    /// signal that is already pending interrupts the next wait.
    pub fn set_awaited(&self, set: Set) {
        self.awaited.store(set, Ordering::SeqCst);
        self.alerted.store(true, Ordering::SeqCst);
    }

    /// Prepares the thread's end: it takes no more signals. Returns true for the last thread of the
    /// process to call this, and only for that one.
    pub fn begin_exit(&self) -> bool {
        self.mask.store(Set::MAX, Ordering::SeqCst);
        signal::retarget_pending(&self.process, Set::MAX);
        let threads = self.process.threads.lock();
        self.left.store(true, Ordering::Relaxed);
        threads.values().all(|thread| thread.left.load(Ordering::Relaxed))
    }

    /// Lets the thread's creator continue if it waits for this one (`vfork`).
    pub fn unblock_creator(&self) {
        if self.blocks_creator.swap(false, Ordering::SeqCst) {
            self.process.changed.wake_all();
        }
    }

    /// Returns the thread's open files. Must run in the thread's own future.
    pub fn files(&self) -> Arc<Files> {
        // SAFETY: the thread's own future makes its system calls.
        unsafe { self.context() }.files.clone()
    }

    /// Makes the thread check for signals and state changes before it enters user mode again, and
    /// interrupts its wait. If the thread is in user mode, an interrupt fetches it: either this
    /// function finds it there, or the thread finds the alert before it enters.
    pub fn alert(&self) {
        self.alerted.store(true, Ordering::SeqCst);
        store_load_barrier();
        let user_cpu = self.user_cpu.load(Ordering::SeqCst);
        if user_cpu != NOT_IN_USER {
            irq::send(user_cpu, irq::KICK);
        }
        self.alerts.wake_all();
    }

    /// Alerts the thread unless it blocks this signal.
    pub fn alert_unless_blocked(&self, signal: u32) {
        if self.mask.load(Ordering::SeqCst) & signal::bit(signal) == 0 {
            self.alert();
        }
    }

    /// Returns whether the thread waits for this signal in `sigtimedwait`.
    pub fn waits_for(&self, signal: u32) -> bool {
        self.awaited.load(Ordering::SeqCst) & signal::bit(signal) != 0
    }

    /// Returns whether an unblocked signal is pending, or the thread is to end or to stop.
    pub fn is_interrupted(&self) -> bool {
        if !self.alerted.load(Ordering::SeqCst) {
            return false;
        }
        let open = !self.mask.load(Ordering::Relaxed) | self.awaited.load(Ordering::Relaxed);
        self.ending.load(Ordering::Relaxed)
            || self.must_stop()
            || self.is_traced() && self.trace.lock().interrupts
            || self.pending.lock().set() & open != 0
            || self.process.signals.lock().pending.set() & open != 0
    }

    /// Waits for `what` until a signal arrives or the clock reaches `deadline`.
    ///
    /// # Errors
    ///
    /// `EINTR`: a signal arrived, or the thread is to end. `ETIMEDOUT`: the deadline passed.
    pub async fn interruptible<T>(&self, what: impl Future<Output = T>, deadline: Option<u64>) -> Result<T, Errno> {
        self.wait_unless(|| self.is_interrupted(), what, deadline).await
    }

    /// Waits for `what`, regardless of signals, until the thread is to end (Linux:
    /// `TASK_KILLABLE`).
    ///
    /// # Errors
    ///
    /// `EINTR`: the thread is to end, or a fatal signal arrived.
    pub async fn killable<T>(&self, what: impl Future<Output = T>) -> Result<T, Errno> {
        self.is_uninterruptible.store(true, Ordering::Relaxed);
        let outcome = self.wait_unless(|| deliver::is_dying(self), what, None).await;
        self.is_uninterruptible.store(false, Ordering::Relaxed);
        outcome
    }

    /// Waits for `what`, regardless of signals, until the thread is to end.
    ///
    /// # Errors
    ///
    /// `EINTR`: the thread is to end.
    pub async fn until_ending<T>(&self, what: impl Future<Output = T>) -> Result<T, Errno> {
        self.wait_unless(|| self.ending.load(Ordering::SeqCst), what, None).await
    }

    /// Waits for `what` until the thread is alerted and `ends` returns true, or until the clock
    /// reaches `deadline`.
    async fn wait_unless<T>(
        &self,
        ends: impl Fn() -> bool,
        what: impl Future<Output = T>,
        deadline: Option<u64>,
    ) -> Result<T, Errno> {
        let mut what = pin!(what);
        let mut alerted = self.alerts.wait_until(|| ends().then_some(()));
        let mut sleep = pin!(deadline.map(time::until));
        poll_fn(|context| {
            if let Poll::Ready(found) = what.as_mut().poll(context) {
                return Poll::Ready(Ok(found));
            }
            if Pin::new(&mut alerted).poll(context).is_ready() {
                return Poll::Ready(Err(Errno::EINTR));
            }
            match sleep.as_mut().as_pin_mut().map(|sleep| sleep.poll(context)) {
                Some(Poll::Ready(())) => Poll::Ready(Err(Errno::ETIMEDOUT)),
                _ => Poll::Pending,
            }
        })
        .await
    }
}
