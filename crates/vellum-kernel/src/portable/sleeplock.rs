//! SleepLock: what takes several steps, between which other tasks run, is done by one task at a time.
//!
//! First come, first owner: a turn that ends goes to the first in state and is never free in
//! between, so that no task that comes later overtakes. A task that stops waiters leaves the state,
//! or hands on the turn that it was given and never saw.

use alloc::collections::VecDeque;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use spin::Mutex;

/// See the module's text.
#[derive(Default)]
pub struct SleepLock(Mutex<State>);

#[derive(Default)]
struct State {
    /// What the next to come gets.
    next: u64,
    /// The ticket that has the turn.
    owner: Option<u64>,
    waiters: VecDeque<(u64, Waker)>,
}

impl SleepLock {
    /// Waits for a turn, which ends when the result is dropped.
    pub fn lock(&self) -> Locking<'_> {
        Locking { lock: self, ticket: None }
    }

    /// Serves the next in state, if `ticket` is owner now; otherwise takes `ticket` out of the
    /// state.
    fn release(&self, ticket: u64) {
        let mut state = self.0.lock();
        let (next, left) = if state.owner == Some(ticket) {
            let next = state.waiters.pop_front();
            state.owner = next.as_ref().map(|(ticket, _)| *ticket);
            (next, None)
        } else {
            let at = state.waiters.iter().position(|(queued, _)| *queued == ticket);
            (None, at.and_then(|at| state.waiters.remove(at)))
        };
        // A waker runs code of its own, when it is dropped too: not under the lock.
        drop(state);
        drop(left);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

/// A turn.
#[must_use = "the turn ends when this is dropped"]
pub struct SleepLockGuard<'t> {
    lock: &'t SleepLock,
    ticket: u64,
}

impl Drop for SleepLockGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(self.ticket);
    }
}

/// The future of [`SleepLock::take`].
#[must_use = "to wait is to await"]
pub struct Locking<'t> {
    lock: &'t SleepLock,
    ticket: Option<u64>,
}

impl<'t> Future for Locking<'t> {
    type Output = SleepLockGuard<'t>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SleepLockGuard<'t>> {
        let lock = self.lock;
        let mut state = lock.0.lock();
        let ticket = match self.ticket {
            Some(ticket) => ticket,
            None if state.owner.is_some() && state.waiters.try_reserve(1).is_err() => {
                // No memory for a entry in state: ask again instead of sleeping for ever.
                drop(state);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => {
                let ticket = state.next;
                state.next += 1;
                self.ticket = Some(ticket);
                match state.owner {
                    None => state.owner = Some(ticket),
                    Some(_) => state.waiters.push_back((ticket, context.waker().clone())),
                }
                ticket
            }
        };
        if state.owner == Some(ticket) {
            self.ticket = None;
            return Poll::Ready(SleepLockGuard { lock, ticket });
        }
        let entry = state.waiters.iter_mut().find(|(queued, _)| *queued == ticket);
        let stale = entry.map(|(_, waker)| core::mem::replace(waker, context.waker().clone()));
        drop(state);
        drop(stale);
        Poll::Pending
    }
}

impl Drop for Locking<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.lock.release(ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Count;
    use core::pin::pin;

    fn poll<'t>(locking: Pin<&mut Locking<'t>>, waker: &Waker) -> Option<SleepLockGuard<'t>> {
        match locking.poll(&mut Context::from_waker(waker)) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn first_come_first_served_and_none_overtakes() {
        let lock = SleepLock::default();
        let [(_, first_waker), (second_count, second_waker), (_, third_waker)] = [(); 3].map(|()| Count::new());
        let first = poll(pin!(lock.lock()), &first_waker).expect("the first to come waits for nothing");
        let mut second = pin!(lock.lock());
        assert!(poll(second.as_mut(), &second_waker).is_none());
        drop(first);
        assert_eq!(second_count.woken(), 1);
        let mut third = pin!(lock.lock());
        assert!(poll(third.as_mut(), &third_waker).is_none(), "the turn is the second's, which has not seen it yet");
        let turn = poll(second.as_mut(), &second_waker);
        assert!(turn.is_some());
        drop(turn);
        assert!(poll(third, &third_waker).is_some());
    }

    #[test]
    fn what_stops_waiting_keeps_no_turn() {
        let lock = SleepLock::default();
        let [(_, waker), (last_count, last_waker)] = [(); 2].map(|()| Count::new());
        let first = poll(pin!(lock.lock()), &waker).unwrap();
        let mut waits = lock.lock();
        let mut owner = lock.lock();
        assert!(poll(Pin::new(&mut waits), &waker).is_none());
        assert!(poll(Pin::new(&mut owner), &waker).is_none());
        let mut last = pin!(lock.lock());
        assert!(poll(last.as_mut(), &last_waker).is_none());
        drop(waits);
        drop(first);
        assert_eq!(last_count.woken(), 0, "it is the other's turn");
        drop(owner);
        assert_eq!(last_count.woken(), 1, "its turn came though the one before never saw its own");
        assert!(poll(last, &last_waker).is_some());
    }
}
