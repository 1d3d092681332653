//! A user thread: a future that enters user mode again and again.

use crate::arch::cpu::after_store;
use crate::arch::irq;
use crate::mem::thread::{BlockedOn, ThreadMem};
use crate::mem::{UserSpace, now_ns};
use crate::task::context::{Context, Traits};
use crate::task::count::Counted;
use crate::task::deliver;
use crate::task::executor::Rank;
use crate::task::percpu;
use crate::task::signal::{self, Pending, Set};
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
use vellum_kernel::fs::folder::Folder;
use vellum_kernel::wait::Queue;

pub(super) const NOWHERE: usize = usize::MAX;

/// What a thread is called; the last byte is zero.
pub type Name = [u8; 16];

/// A thread.
pub struct Thread {
    /// Its number.
    pub tid: u32,
    /// The program that it is a thread of.
    pub process: Arc<Process>,
    /// Whether it is to end.
    pub ending: AtomicBool,
    /// With what status, if it ends by itself.
    pub exit_status: AtomicU32,
    /// The signals that it blocks.
    pub mask: AtomicU64,
    /// The signals that it waits for in `sigtimedwait`.
    pub awaited: AtomicU64,
    /// What it is called: up to 15 bytes, the others zero.
    pub name: Mutex<Name>,
    /// The memory layer's part.
    pub mem: ThreadMem,
    /// What those it makes have from it.
    pub traits: Mutex<Traits>,
    /// It counts until it ends.
    pub counted: Mutex<Option<Counted>>,
    /// Its place among those who want a processor.
    pub(super) rank: Arc<Rank>,
    /// How long processors have worked for it, until it gave way last, in nanoseconds.
    pub(super) worked: AtomicU64,
    /// Since when one does; 0: none does.
    pub(super) working: AtomicU64,
    /// Its directory in `/proc`, once somebody has looked.
    pub folder: Once<Arc<Folder>>,
    /// Signals sent to it alone.
    pub pending: Mutex<Pending>,
    /// Whether there is something to do before it enters user mode.
    pub(super) alerted: AtomicBool,
    /// Its own waits that an alert is to end stand here.
    alerts: Queue,
    /// Whether the thread that made it waits until it no longer uses the memory that both have
    /// (`vfork`).
    pub holds_maker: AtomicBool,
    /// Whether it has done the last thing that concerns its process.
    left: AtomicBool,
    /// The processor that runs it in user mode, or [`NOWHERE`].
    pub(super) place: AtomicUsize,
    context: UnsafeCell<Context>,
}

// SAFETY: the context is touched by the thread's own future only, which one processor polls at a time.
unsafe impl Sync for Thread {}

impl Thread {
    /// A thread of `process`, not started yet, with the mask, name and traits of its maker.
    pub fn new(
        tid: u32,
        process: &Arc<Process>,
        context: Context,
        counted: Counted,
        maker: Option<&Thread>,
    ) -> Arc<Self> {
        let thread = Arc::new(Self {
            tid,
            process: process.clone(),
            ending: AtomicBool::new(false),
            exit_status: AtomicU32::new(0),
            mask: AtomicU64::new(maker.map_or(0, |maker| maker.mask.load(Ordering::Relaxed))),
            awaited: AtomicU64::new(0),
            mem: ThreadMem::default(),
            name: Mutex::new(maker.map_or_else(Name::default, |maker| *maker.name.lock())),
            traits: Mutex::new(maker.map_or_else(Traits::first, |maker| maker.traits.lock().passed_on())),
            counted: Mutex::new(Some(counted)),
            rank: Arc::default(),
            worked: AtomicU64::new(0),
            working: AtomicU64::new(0),
            folder: Once::new(),
            pending: Mutex::new(Pending::default()),
            alerted: AtomicBool::new(true),
            alerts: Queue::new(),
            holds_maker: AtomicBool::new(false),
            left: AtomicBool::new(false),
            place: AtomicUsize::new(NOWHERE),
            context: UnsafeCell::new(context),
        });
        process.add(&thread);
        thread
    }

    /// The context.
    ///
    /// # Safety
    ///
    /// Called by the thread's own future; the reference ends before the next is asked for.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn context(&self) -> &mut Context {
        // SAFETY: by contract, and by the `Sync` above.
        unsafe { &mut *self.context.get() }
    }

    /// When a system call's wait is over: then, or when it was to be over as the same call waited before. For the thread's own
    /// future.
    pub fn wait_until(&self, deadline: u64) -> u64 {
        // SAFETY: system calls are made by the thread's own future.
        *unsafe { self.context() }.waits_until.get_or_insert(deadline)
    }

    /// The memory it runs in. For the thread's own future.
    pub fn memory(&self) -> Arc<UserSpace> {
        // SAFETY: system calls are made by the thread's own future.
        unsafe { self.context() }.memory.clone()
    }

    /// The thread that the caller works for, if for one: files that are made when they are read depend on who reads them.
    pub fn current() -> Option<Arc<Thread>> {
        let polled = percpu::current().polled.get();
        // SAFETY: set for as long as this processor polls the thread's future, which has a reference; and it comes from
        // `Arc::as_ptr`.
        (!polled.is_null()).then(|| unsafe {
            Arc::increment_strong_count(polled);
            Arc::from_raw(polled)
        })
    }

    /// Returns whether an access or a system call failed for the reason noted in [`Self::mem`] alone, once the reason has
    /// passed.
    #[cold]
    pub async fn may_repeat<T>(self: &Arc<Self>, result: Result<T, Errno>) -> bool {
        match self.mem.take_blocked() {
            Some(on @ BlockedOn::Overdraft(_)) => on.passes(self, true).await,
            // `madvise` and `mlock` answer `EAGAIN` where memory is short.
            Some(on) if matches!(result, Err(Errno::EFAULT | Errno::ENOMEM | Errno::EAGAIN)) => {
                on.passes(self, true).await
            }
            _ => false,
        }
    }

    /// What it was alerted to is seen to, or will be before it enters user mode.
    pub fn has_heard(&self) {
        self.alerted.store(false, Ordering::SeqCst);
    }

    /// Whose it is.
    pub fn credentials(&self) -> Arc<Credentials> {
        self.traits.lock().credentials.clone()
    }

    /// Whether it waits for something.
    pub fn sleeps(&self) -> bool {
        self.rank.sleeps()
    }

    /// How long processors have worked for it, in nanoseconds.
    pub fn processor_time(&self) -> u64 {
        let since = match self.working.load(Ordering::Relaxed) {
            0 => 0,
            began => now_ns().saturating_sub(began),
        };
        self.worked.load(Ordering::Relaxed) + since
    }

    /// What it has used.
    pub fn usage(&self) -> Usage {
        Usage { time: self.processor_time(), minor: self.mem.faults.minor(), major: self.mem.faults.major() }
    }

    /// What it is called, without what fills it up.
    pub fn name(&self) -> Vec<u8> {
        let name = *self.name.lock();
        name.iter().copied().take_while(|byte| *byte != 0).collect()
    }

    /// Calls it so, as far as there is room.
    pub fn set_name(&self, name: &[u8]) {
        let mut own = Name::default();
        let len = name.len().min(own.len() - 1);
        own[..len].copy_from_slice(&name[..len]);
        *self.name.lock() = own;
    }

    /// Blocks these signals, and no others. A signal of the process's that this thread was to take,
    /// and now blocks, is another thread's to take.
    pub fn set_mask(&self, mask: Set) {
        let mask = mask & !signal::UNSTOPPABLE;
        let before = self.mask.swap(mask, Ordering::SeqCst);
        self.alerted.store(true, Ordering::SeqCst);
        if mask & !before != 0 {
            signal::hand_on(&self.process, mask & !before);
        }
    }

    /// From now on it also waits for these signals, blocked or not; none: no longer. One that is
    /// pending already ends the wait that follows.
    pub fn set_awaited(&self, set: Set) {
        self.awaited.store(set, Ordering::SeqCst);
        self.alerted.store(true, Ordering::SeqCst);
    }

    /// It is about to end, and takes no more signals. Returns whether all threads of its process
    /// have come to this: exactly one is the last.
    pub fn leaves(&self) -> bool {
        self.mask.store(Set::MAX, Ordering::SeqCst);
        signal::hand_on(&self.process, Set::MAX);
        let threads = self.process.threads.lock();
        self.left.store(true, Ordering::Relaxed);
        threads.values().all(|thread| thread.left.load(Ordering::Relaxed))
    }

    /// The thread that made it may go on, if it waits for that.
    pub fn let_go_of_maker(&self) {
        if self.holds_maker.swap(false, Ordering::SeqCst) {
            self.process.changed.wake_all();
        }
    }

    /// Its files. For the thread's own future.
    pub fn files(&self) -> Arc<Files> {
        // SAFETY: system calls are made by the thread's own future.
        unsafe { self.context() }.files.clone()
    }

    /// Has the thread look for something to do before it enters user mode again, and ends its wait if it waits. If it is in
    /// user mode, it comes back: either it is seen there, or it sees that it was alerted before it goes.
    pub fn alert(&self) {
        self.alerted.store(true, Ordering::SeqCst);
        after_store();
        let place = self.place.load(Ordering::SeqCst);
        if place != NOWHERE {
            irq::send(place, irq::KICK);
        }
        self.alerts.wake_all();
    }

    /// The same, if it does not block this signal.
    pub fn alert_if_open(&self, signal: u32) {
        if self.mask.load(Ordering::SeqCst) & signal::bit(signal) == 0 {
            self.alert();
        }
    }

    /// Whether it waits for this very signal.
    pub fn waits_for(&self, signal: u32) -> bool {
        self.awaited.load(Ordering::SeqCst) & signal::bit(signal) != 0
    }

    /// Whether a signal that it does not block is pending, or it is to end or to stop.
    pub fn is_interrupted(&self) -> bool {
        if !self.alerted.load(Ordering::SeqCst) {
            return false;
        }
        let open = !self.mask.load(Ordering::Relaxed) | self.awaited.load(Ordering::Relaxed);
        self.ending.load(Ordering::Relaxed)
            || self.process.is_stopped()
            || self.pending.lock().set() & open != 0
            || self.process.signals.lock().pending.set() & open != 0
    }

    /// Waits for `what`, until a signal comes or the clock says `deadline`.
    ///
    /// # Errors
    ///
    /// `EINTR`: a signal came, or the thread is to end. `ETIMEDOUT`: the deadline passed.
    pub async fn interruptible<T>(&self, what: impl Future<Output = T>, deadline: Option<u64>) -> Result<T, Errno> {
        self.unless(|| self.is_interrupted(), what, deadline).await
    }

    /// Waits for `what`, whatever signals come, until the thread is to end (Linux:
    /// `TASK_KILLABLE`).
    ///
    /// # Errors
    ///
    /// `EINTR`: the thread is to end, or a signal came that ends it.
    pub async fn killable<T>(&self, what: impl Future<Output = T>) -> Result<T, Errno> {
        self.unless(|| deliver::is_dying(self), what, None).await
    }

    /// Waits for `what`, until the thread was alerted and `ends` is true, or until the clock says
    /// `deadline`.
    async fn unless<T>(
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
