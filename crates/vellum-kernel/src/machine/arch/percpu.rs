//! Per-CPU records: the data that only one CPU uses, found through one register.
//!
//! There is one record per CPU, and each layer adds its part to that of the layer below:
//! [`ArchCpu`] is the first field of [`MemCpu`](crate::mem::percpu::MemCpu), which is the first
//! field of [`TaskCpu`](crate::task::percpu::TaskCpu). All three are `repr(C)`, so one address is
//! that of all three, and each layer reads its own part without knowing those above. The topmost
//! layer owns the memory and hands it over by [`provide`].
//!
//! A reference to a record is not `Sync`, so it can't be sent, and so the compiler refuses a future
//! that keeps one across an await: the future may continue on another CPU.

use crate::arch::entry_state::{self, EntryState};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// The largest number of CPUs used.
pub const MAX_CPUS: usize = 16;

/// The architecture layer's part of a CPU's record.
#[repr(C)]
pub struct ArchCpu {
    /// The entry code's part. The first field: the entry code finds it at the record's address.
    pub entry: EntryState,
    /// The CPU's index, as the engine counts CPUs.
    pub index: usize,
    /// True if the timer has fired or an input device has interrupted this CPU since a task last
    /// cleared this.
    pub tick: AtomicBool,
}

impl ArchCpu {
    /// Returns the part of a CPU that has not started.
    pub const fn new() -> Self {
        Self { entry: EntryState::new(), index: 0, tick: AtomicBool::new(false) }
    }
}

/// A per-CPU record, or a layer's part of one.
///
/// # Safety
///
/// The type is [`ArchCpu`], or is `repr(C)` with a first field that implements this trait.
pub unsafe trait Record {}

// SAFETY: the type is [`ArchCpu`].
unsafe impl Record for ArchCpu {}

/// The first CPU's record.
static RECORDS: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Bytes from one record to the next.
static STRIDE: AtomicUsize = AtomicUsize::new(0);

/// Hands over the memory for all CPUs' records.
///
/// # Safety
///
/// Called once, before the first [`install`]. No other code uses the records, and they live
/// forever.
pub unsafe fn provide<R: Record>(records: *mut [R; MAX_CPUS]) {
    STRIDE.store(size_of::<R>(), Relaxed);
    RECORDS.store(records.cast(), Relaxed);
}

/// Makes the running CPU the one with this index.
///
/// # Safety
///
/// Called once by each CPU, with an index of its own below [`MAX_CPUS`], before this CPU calls
/// [`current`].
pub unsafe fn install(index: usize) {
    // SAFETY: `provide` has set `MAX_CPUS` records of this size; the caller's index is below that
    // and no other CPU's. A record begins with an `ArchCpu` (`Record`), and lives forever.
    unsafe {
        let this = RECORDS.load(Relaxed).add(index * STRIDE.load(Relaxed)).cast::<ArchCpu>();
        (*this).index = index;
        entry_state::install(this.cast());
    }
}

/// Returns the architecture layer's part of the running CPU's record.
#[inline(always)]
pub fn current() -> &'static ArchCpu {
    // SAFETY: every record begins with an `ArchCpu`.
    unsafe { current_as() }
}

/// Returns the running CPU's record as a type of a layer above.
///
/// # Safety
///
/// `R` is the type of the records that [`provide`] was given, or the first field of that type, or
/// the first field of that field, and so on.
#[inline(always)]
pub unsafe fn current_as<R: Record>() -> &'static R {
    // SAFETY: `install` was given a record that lives forever, and the caller names its type or
    // that of a field at its start.
    unsafe { &*entry_state::current().cast() }
}
