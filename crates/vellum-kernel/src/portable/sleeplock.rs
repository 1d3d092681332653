//! A lock that is held across awaits (Linux: `struct mutex`), for an operation in several steps
//! between which other tasks run.
//!
//! The lock is granted first come, first served: its release passes it to the first waiter, and it
//! is never free in between, so that no later task overtakes. A task that stops waiting leaves the
//! queue; if the lock was already granted to it, but it has not run since, it passes the lock to
//! the next waiter.

use alloc::collections::VecDeque;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use spin::Mutex;

/// A fair lock that a task may hold across an await. See the module's documentation.
#[derive(Default)]
pub struct SleepLock(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number that the next waiting task gets.
    next: u64,
    /// The ticket (a waiter's number) that holds the lock; `None` if the lock is free.
    owner: Option<u64>,
    waiters: VecDeque<(u64, Waker)>,
}

impl SleepLock {
    /// Waits for the lock, which is released when the returned guard is dropped.
    pub fn lock(&self) -> Locking<'_> {
        Locking { lock: self, ticket: None }
    }

    /// Passes the lock to the first waiter if `ticket` holds it; otherwise removes `ticket` from
    /// the queue.
    fn release(&self, ticket: u64) {
        let mut state = self.0.lock();
        let (next, removed) = if state.owner == Some(ticket) {
            let next = state.waiters.pop_front();
            state.owner = next.as_ref().map(|(ticket, _)| *ticket);
            (next, None)
        } else {
            let at = state.waiters.iter().position(|(queued, _)| *queued == ticket);
            (None, at.and_then(|at| state.waiters.remove(at)))
        };
        // Release the spin lock first: waking or dropping a waker may run other code.
        drop(state);
        drop(removed);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

/// The proof that a [`SleepLock`] is held.
#[must_use = "the lock is released when this is dropped"]
pub struct SleepLockGuard<'t> {
    lock: &'t SleepLock,
    ticket: u64,
}

impl Drop for SleepLockGuard<'_> {
    fn drop(&mut self) {
        self.lock.release(self.ticket);
    }
}

/// The future of [`SleepLock::lock`].
#[must_use = "a future does nothing unless it is awaited"]
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
                // There is no memory for an entry in the queue: poll again instead of sleeping
                // forever.
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
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_lock_is_granted_in_order_of_arrival_and_no_task_overtakes() {
        let lock = SleepLock::default();
        let [(_, first_waker), (second_count, second_waker), (_, third_waker)] = [(); 3].map(|()| Count::new());
        let first = poll(pin!(lock.lock()), &first_waker).expect("the lock is free");
        let mut second = pin!(lock.lock());
        assert!(poll(second.as_mut(), &second_waker).is_none());
        drop(first);
        assert_eq!(second_count.woken(), 1);
        let mut third = pin!(lock.lock());
        assert!(
            poll(third.as_mut(), &third_waker).is_none(),
            "the second holds the lock, though it has not seen that yet"
        );
        let guard = poll(second.as_mut(), &second_waker);
        assert!(guard.is_some());
        drop(guard);
        assert!(poll(third, &third_waker).is_some());
    }

    #[test]
    fn a_task_that_stops_waiting_passes_the_lock_on() {
        let lock = SleepLock::default();
        let [(_, waker), (last_count, last_waker)] = [(); 2].map(|()| Count::new());
        let first = poll(pin!(lock.lock()), &waker).unwrap();
        let mut waiting = lock.lock();
        let mut owner = lock.lock();
        assert!(poll(Pin::new(&mut waiting), &waker).is_none());
        assert!(poll(Pin::new(&mut owner), &waker).is_none());
        let mut last = pin!(lock.lock());
        assert!(poll(last.as_mut(), &last_waker).is_none());
        drop(waiting);
        drop(first);
        assert_eq!(last_count.woken(), 0, "the other waiter holds the lock now");
        drop(owner);
        assert_eq!(last_count.woken(), 1, "the waiter before it passed the lock on unseen");
        assert!(poll(last, &last_waker).is_some());
    }
}
