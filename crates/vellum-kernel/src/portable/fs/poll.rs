//! To wait for one of many. `poll`, `ppoll` and `select` are this, with a timeout of the kernel's;
//! `epoll` would add a set that stays.

use super::open::Open;
use crate::errno::Errno;
use crate::wait::Waiter;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::Poll;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLNVAL};

/// Events that `poll` reports without being asked for them.
pub const ALWAYS: u32 = POLLERR | POLLHUP | POLLNVAL;

/// A file and the events that end the wait (`POLLIN` and its kin), all of them: [`ALWAYS`] is not
/// implied. No file is a descriptor that is ignored.
pub type Interest = (Option<Arc<Open>>, u32);

/// Returns the ready events of one file.
pub fn now((open, wanted): &Interest) -> u32 {
    open.as_ref().map_or(0, |open| open.ready() & wanted)
}

/// Waits until an event of interest is ready; forever, if there is nothing to wait for. Returns the
/// ready events of each file as they were when the wait ended: a second look would miss what
/// another thread takes in between.
///
/// # Errors
/// `ENOMEM`.
pub async fn any(set: &[Interest]) -> Result<Vec<u32>, Errno> {
    let queue = |open: &Arc<Open>| open.file().ok().and_then(|file| file.queue()).is_some();
    let mut waiters: Vec<Waiter<'_>> = Vec::new();
    waiters.try_reserve_exact(set.iter().filter(|(open, _)| open.as_ref().is_some_and(queue)).count())?;
    let files = set.iter().filter_map(|(open, _)| open.as_ref()?.file().ok()?.queue());
    waiters.extend(files.map(|queue| queue.waiter()));
    let mut found = Vec::new();
    found.try_reserve_exact(set.len())?;
    poll_fn(|context| {
        waiters.iter_mut().for_each(|waiter| waiter.enqueue(context.waker()));
        found.clear();
        found.extend(set.iter().map(now));
        if found.iter().any(|ready| *ready != 0) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::device;
    use super::super::pipe::Nameless;
    use super::*;
    use crate::testing::{Count, block_on};
    use core::future::Future;
    use core::pin::pin;
    use core::task::Context;
    use linux_raw_sys::general::{POLLIN, POLLOUT, POLLPRI};

    #[test]
    fn what_is_ready_at_once() {
        let null = (Some(device::open(Arc::new(device::Null), 0)), POLLIN);
        let set = [(None, POLLIN), null];
        assert_eq!(block_on(any(&set)).unwrap(), [0, POLLIN]);
    }

    #[test]
    fn one_of_two_pipes() {
        let ends: std::vec::Vec<_> = (0..2)
            .map(|inode| {
                let (inode, read, write) = Nameless::new(inode, 0, 0).unwrap();
                (Arc::new(Open::new(inode, Some(read), 0, None)), write)
            })
            .collect();
        let set = [(Some(ends[0].0.clone()), POLLIN), (Some(ends[1].0.clone()), POLLOUT)];
        let (woken, waker) = Count::new();
        let mut wait = pin!(any(&set));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // Nobody asked for input there.
        ends[1].1.write(0, &mut &b"x"[..]).unwrap();
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let before = woken.woken();
        ends[0].1.write(0, &mut &b"x"[..]).unwrap();
        assert!(woken.woken() > before);
        let found = wait.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(found, Poll::Ready(Ok(std::vec![POLLIN, 0])));
    }

    #[test]
    fn an_event_that_another_thread_takes_afterwards_is_still_reported() {
        let (inode, from, to) = Nameless::new(1, 0, 0).unwrap();
        let set = [(Some(Arc::new(Open::new(inode, Some(from.clone()), 0, None))), POLLIN)];
        to.write(0, &mut &b"x"[..]).unwrap();
        let found = block_on(any(&set)).unwrap();
        from.read(0, &mut &mut [0][..]).unwrap();
        assert_eq!(found, [POLLIN]);
    }

    /// `select` for exceptions alone: a hangup is in none of its sets.
    #[test]
    fn an_event_of_no_interest_does_not_end_the_wait() {
        let (inode, from, to) = Nameless::new(1, 0, 0).unwrap();
        drop(to);
        assert_ne!(from.ready(), 0);
        let set = [(Some(Arc::new(Open::new(inode, Some(from), 0, None))), POLLPRI)];
        let (_, waker) = Count::new();
        assert!(pin!(any(&set)).poll(&mut Context::from_waker(&waker)).is_pending());
    }
}
