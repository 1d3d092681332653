//! A global allocator that counts each thread's allocations and forwards them to the system's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated since [`peak`] began; negative where it freed what is
    /// older.
    static NOW: Cell<isize> = const { Cell::new(0) };
    /// The most bytes so far.
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// Returns the most bytes that this thread had allocated at a time, in `work`. A request that the
/// system refused counts.
pub fn peak(work: impl FnOnce()) -> usize {
    NOW.set(0);
    MOST.set(0);
    work();
    MOST.get().unsigned_abs()
}

/// Adds `bytes` to this thread's count.
fn count(bytes: isize) {
    // An exiting thread has no counters any more, and needs none.
    let _ = NOW.try_with(|now| {
        now.set(now.get().saturating_add(bytes));
        let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: each method passes its arguments on to the system's allocator and returns what that
// returns, so the contract is the system's. Counting writes to two cells, which have no destructor
// and are initialised without code; it allocates nothing, and does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: promised by the caller under the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: promised by the caller under the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: promised by the caller under the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: promised by the caller under the same contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
