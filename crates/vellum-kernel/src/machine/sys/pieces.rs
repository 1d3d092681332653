//! Long calls, a piece after the other.

use crate::mem::thread::BlockedOn;
use crate::task::executor::give_way;
use crate::task::{Thread, deliver};
use alloc::sync::Arc;
use vellum_kernel::errno::Errno;

/// Carries out a call that may take long. `piece` does some of it, as long as the thread's turn
/// lasts ([`turn_lasts`](crate::task::executor::turn_lasts)), and returns whether that was the
/// last. Between two pieces other tasks run, and a thread that is to end gives up. A piece that
/// something hinders is made again when that has passed; the pieces before it are not.
///
/// # Errors
///
/// Those of a piece; `EINTR`: the thread is to end. If a signal came while something hindered
/// a piece, the whole call is made again after the signal.
pub async fn by_pieces(thread: &Arc<Thread>, mut piece: impl FnMut() -> Result<bool, Errno>) -> Result<(), Errno> {
    loop {
        match piece() {
            Ok(true) => return Ok(()),
            Ok(false) => give_way().await,
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
