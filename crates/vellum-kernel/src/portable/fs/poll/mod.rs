//! Waits for events of several files: `poll`, `ppoll` and `select`, whose timeout the caller adds.

pub mod epoll;
pub mod signalfd;

use super::open::Open;
use crate::errno::Errno;
use crate::wait::Waiter;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::Poll;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLNVAL};

/// The events that `poll` reports whether or not the program asks for them.
pub const ALWAYS: u32 = POLLERR | POLLHUP | POLLNVAL;

/// A file, and all events that end the wait (`POLLIN` and others; [`ALWAYS`] is not implied). An
/// entry without a file is ignored.
pub type Interest = (Option<Arc<Open>>, u32);

/// Returns the ready events of one file.
pub fn now((open, wanted): &Interest) -> u32 {
    open.as_ref().map_or(0, |open| open.ready() & wanted)
}

/// Waits until an event in `set` is ready. If `set` names no event, waits until the caller drops
/// the future. Returns the ready events of each file as they were when the wait ended: a second
/// check would miss an event that another thread consumes in between.
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
    use super::*;
    use crate::fs::device;
    use crate::fs::pipe::{AnonymousPipe, NewPipe};
    use crate::testing::{Count, block_on};
    use core::future::Future;
    use core::pin::pin;
    use core::task::Context;
    use linux_raw_sys::general::{POLLIN, POLLOUT, POLLPRI};

    #[test]
    fn a_ready_file_ends_the_wait_at_once() {
        let null = (Some(device::open(Arc::new(device::Null), 0)), POLLIN);
        let set = [(None, POLLIN), null];
        assert_eq!(block_on(any(&set)).unwrap(), [0, POLLIN]);
    }

    #[test]
    fn only_an_event_of_interest_ends_the_wait() {
        let ends: std::vec::Vec<_> = (0..2)
            .map(|inode| {
                let NewPipe { inode, reader, writer } =
                    AnonymousPipe::create(inode, (0, 0), Default::default()).unwrap();
                (Arc::new(Open::new(inode, Some(reader), 0, None)), writer)
            })
            .collect();
        let set = [(Some(ends[0].0.clone()), POLLIN), (Some(ends[1].0.clone()), POLLOUT)];
        let (woken, waker) = Count::new();
        let mut wait = pin!(any(&set));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // The set does not ask for input of this pipe.
        ends[1].1.write(0, &mut &b"x"[..]).unwrap();
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let before = woken.woken();
        ends[0].1.write(0, &mut &b"x"[..]).unwrap();
        assert!(woken.woken() > before);
        let found = wait.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(found, Poll::Ready(Ok(std::vec![POLLIN, 0])));
    }

    #[test]
    fn an_event_that_another_thread_consumes_afterwards_is_still_reported() {
        let NewPipe { inode, reader: from, writer: to } = AnonymousPipe::create(1, (0, 0), Default::default()).unwrap();
        let set = [(Some(Arc::new(Open::new(inode, Some(from.clone()), 0, None))), POLLIN)];
        to.write(0, &mut &b"x"[..]).unwrap();
        let found = block_on(any(&set)).unwrap();
        from.read(0, &mut &mut [0][..]).unwrap();
        assert_eq!(found, [POLLIN]);
    }

    /// `select` for exceptions alone: a hangup is in none of its sets.
    #[test]
    fn an_event_of_no_interest_does_not_end_the_wait() {
        let NewPipe { inode, reader: from, writer: to } = AnonymousPipe::create(1, (0, 0), Default::default()).unwrap();
        drop(to);
        assert_ne!(from.ready(), 0);
        let set = [(Some(Arc::new(Open::new(inode, Some(from), 0, None))), POLLPRI)];
        let (_, waker) = Count::new();
        assert!(pin!(any(&set)).poll(&mut Context::from_waker(&waker)).is_pending());
    }
}
