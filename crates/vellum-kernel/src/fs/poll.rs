//! To wait for one of many. `poll`, `ppoll` and `select` are this, with a timeout of the kernel's; `epoll` would add a set that
//! stays.

use super::open::Open;
use crate::errno::Errno;
use crate::wait::Place;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::Poll;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLNVAL};

/// What is told unasked.
pub const ALWAYS: u32 = POLLERR | POLLHUP | POLLNVAL;

/// A file and what of it is of interest (`POLLIN` and its kin). No file is a descriptor that is ignored.
pub type Interest = (Option<Arc<Open>>, u32);

/// What of interest is ready now.
pub fn ready((open, wanted): &Interest) -> u32 {
    open.as_ref().map_or(0, |open| open.ready() & (wanted | ALWAYS))
}

/// Wait until something of interest is ready; forever, if there is nothing to wait for.
///
/// # Errors
/// `ENOMEM`.
pub async fn any(set: &[Interest]) -> Result<(), Errno> {
    let queue = |open: &Arc<Open>| open.file().ok().and_then(|file| file.queue()).is_some();
    let mut places: Vec<Place<'_>> = Vec::new();
    places.try_reserve_exact(set.iter().filter(|(open, _)| open.as_ref().is_some_and(queue)).count())?;
    let files = set.iter().filter_map(|(open, _)| open.as_ref()?.file().ok()?.queue());
    places.extend(files.map(|queue| queue.place()));
    poll_fn(|context| {
        places.iter_mut().for_each(|place| place.take(context.waker()));
        if set.iter().any(|interest| ready(interest) != 0) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::super::device;
    use super::super::pipe::Nameless;
    use super::*;
    use crate::testing::{Count, block_on};
    use core::pin::pin;
    use core::task::Context;
    use linux_raw_sys::general::{POLLIN, POLLOUT};

    #[test]
    fn what_is_ready_at_once() {
        let null = (Some(device::open(Arc::new(device::Null), 0)), POLLIN);
        let set = [(None, POLLIN), null];
        block_on(any(&set)).unwrap();
        assert_eq!((ready(&set[0]), ready(&set[1])), (0, POLLIN));
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
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        assert_eq!((ready(&set[0]), ready(&set[1])), (POLLIN, 0));
    }
}
