//! The memory layer's part of a thread: what blocks its accesses to memory, and its fault counts.
//!
//! A system call or a copy that fails for want of memory notes here what it is blocked on
//! ([`BlockedOn`]) and returns an error. The task layer, which can wait, takes the note, waits
//! until the cause has passed, and makes the access again.

use crate::mem::throttle::Dirtied;
use crate::mem::{UserSpace, percpu};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use spin::Mutex;
use vellum::memcg::Refused;
use vellum::platform::PendingPage;
use vellum::space::{FaultError, Resolved, UffdEvent};
use vellum_kernel::errno::Errno;

/// The reason for which an access failed that may succeed later.
pub enum BlockedOn {
    /// Memory is short.
    Shortage(Refused),
    /// The kernel's own memory for the thread went beyond its memcg's limit, or beyond the memory
    /// that the machine has to spare. The system call did not fail; the thread waits after it.
    Overdraft(Refused),
    /// A page's fault is to be resolved by the program that holds the userfaultfd.
    Uffd(Arc<UserSpace>, UffdEvent),
    /// A page of a file is being read or written.
    Pending(PendingPage),
    /// A signal arrived while the system call waited for one of the above. The signal is delivered
    /// before the call is restarted.
    Signal,
}

impl BlockedOn {
    /// Returns the reason for which a fault in `memory` failed, if it may succeed later.
    pub fn of(error: FaultError, memory: &Arc<UserSpace>) -> Option<Self> {
        match error {
            FaultError::NoMemory(why) => Some(Self::Shortage(why)),
            FaultError::Uffd(watched) => Some(Self::Uffd(memory.clone(), watched)),
            FaultError::Pending(page) => Some(Self::Pending(page)),
            _ => None,
        }
    }
}

/// The memory layer's part of a thread.
#[derive(Default)]
pub struct ThreadMem {
    /// True if `blocked_on` must be checked after the system call.
    blocked: AtomicBool,
    blocked_on: Mutex<Option<BlockedOn>>,
    /// The thread's page faults.
    pub faults: Faults,
    /// The pages of files that the thread made dirty.
    pub dirtied: Dirtied,
}

impl ThreadMem {
    /// Notes why the running access or system call fails: it is made again once the reason has
    /// passed.
    pub fn block(&self, on: BlockedOn) {
        *self.blocked_on.lock() = Some(on);
        self.blocked.store(true, Relaxed);
    }

    /// Notes that the heap was refused memory that it allocates for this thread, unless another
    /// reason is noted. Waits for no lock, because the caller may hold any.
    pub fn try_block(&self, on: BlockedOn) {
        if let Some(mut blocked_on) = self.blocked_on.try_lock()
            && blocked_on.is_none()
        {
            *blocked_on = Some(on);
            self.blocked.store(true, Relaxed);
        }
    }

    /// Returns whether a reason is noted.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Relaxed)
    }

    /// Takes the reason, if one is noted.
    pub fn take_blocked(&self) -> Option<BlockedOn> {
        self.blocked.store(false, Relaxed);
        self.blocked_on.lock().take()
    }
}

/// The number of major faults of all threads.
static MAJOR: AtomicU64 = AtomicU64::new(0);

/// A thread's minor and major faults.
#[derive(Debug, Default)]
pub struct Faults {
    minor: AtomicU64,
    major: AtomicU64,
    /// The last fault waits for storage, and will be taken again.
    waits: AtomicBool,
}

impl Faults {
    /// Counts a fault with this outcome, or, if it has to wait for storage, the one that follows.
    #[inline]
    pub fn count(&self, end: &Result<Resolved, FaultError>) {
        if let Err(FaultError::Pending(_)) = end {
            self.waits.store(true, Relaxed);
        } else if matches!(end, Ok(Resolved::Major)) || self.waits.load(Relaxed) {
            self.waits.store(false, Relaxed);
            self.major.fetch_add(1, Relaxed);
            MAJOR.fetch_add(1, Relaxed);
        } else {
            self.minor.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of faults that did not wait for swap or storage.
    pub fn minor(&self) -> u64 {
        self.minor.load(Relaxed)
    }

    /// Returns the number of faults that waited for swap or storage.
    pub fn major(&self) -> u64 {
        self.major.load(Relaxed)
    }
}

/// Returns the number of all threads' faults that waited for swap or storage (`pgmajfault`).
pub fn major_faults() -> u64 {
    MAJOR.load(Relaxed)
}

/// Makes the running CPU work for a thread: the reason of a blocked access is noted in `thread`,
/// and allocations are charged to the memcg whose number is in `payer`.
///
/// # Safety
///
/// Both live until this CPU calls [`work_for_none`].
#[inline]
pub unsafe fn work_for(thread: &ThreadMem, payer: &AtomicU16) {
    let cpu = percpu::current();
    cpu.thread.set(thread);
    cpu.payer.set(payer);
}

/// Makes the running CPU work for no thread.
#[inline]
pub fn work_for_none() {
    let cpu = percpu::current();
    cpu.thread.set(core::ptr::null());
    cpu.payer.set(core::ptr::null());
}

/// Calls `show` with the thread that the running CPU works for, if it works for one.
#[inline]
pub fn current<R>(show: impl FnOnce(&ThreadMem) -> R) -> Option<R> {
    let thread = percpu::current().thread.get();
    // SAFETY: the thread lives as long as it is set (`work_for`), and `show` can't await.
    (!thread.is_null()).then(|| show(unsafe { &*thread }))
}

/// Converts a fault's error to the errno of the current thread's system call, which is restarted if
/// the fault may succeed later.
pub fn fault_failed(error: FaultError, memory: &Arc<UserSpace>) -> Errno {
    if let Some(on) = BlockedOn::of(error, memory) {
        current(|thread| thread.block(on));
    }
    error.errno().into()
}

/// Converts an engine error to the errno of the current thread's system call. If memory was
/// refused, the call is restarted once some was reclaimed: on the whole machine, or in the one
/// memcg whose limit was reached.
pub fn failed(refused: Option<Refused>, errno: vellum::errno::Errno) -> Errno {
    if let Some(why) = refused {
        current(|thread| thread.block(BlockedOn::Shortage(why)));
    }
    errno.into()
}
