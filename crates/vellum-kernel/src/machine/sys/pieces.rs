//! Runs long system calls piece by piece, so that other tasks run in between.

use crate::mem::thread::BlockedOn;
use crate::task::executor::{has_time_slice, is_contended, yield_now};
use crate::task::{Thread, deliver, time};
use alloc::sync::Arc;
use vellum_kernel::errno::Errno;

/// Returns whether a system call of this thread may go on: its time slice lasts, or no other task
/// waits for a CPU and no signal for the thread. A pause is not free: memory that is unmapped in
/// two pieces is sorted and freed as two.
pub fn may_go_on(thread: &Thread) -> bool {
    has_time_slice() || {
        time::expire();
        !is_contended() && !thread.is_interrupted()
    }
}

/// Runs a system call that may take long. `piece` works as long as the call [`may_go_on`], and
/// returns true when the call is complete. Between two pieces other tasks run. When a piece blocks
/// (on memory, for example), only that piece is retried after the wait; completed pieces are not.
///
/// # Errors
///
/// Those of `piece`. `EINTR`: the thread is being killed. If a signal arrives while a piece is
/// blocked, the piece's error is returned and the whole call is restarted after the signal.
pub async fn by_pieces(thread: &Arc<Thread>, mut piece: impl FnMut() -> Result<bool, Errno>) -> Result<(), Errno> {
    loop {
        match piece() {
            Ok(true) => return Ok(()),
            Ok(false) => yield_now().await,
            Err(error) => {
                if !thread.mem.is_blocked() || !thread.may_repeat(Err::<(), _>(error)).await {
                    return Err(error);
                }
                if thread.is_interrupted() && !deliver::is_dying(thread) {
                    thread.mem.block(BlockedOn::Signal);
                    return Err(error);
                }
            }
        }
        if deliver::is_dying(thread) {
            return Err(Errno::EINTR);
        }
    }
}
