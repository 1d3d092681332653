//! Waiting: queues of tasks that wait for something to become true.
//!
//! # Guarantee
//! No wake is lost. Who makes a condition true and then wakes reaches every task that found it
//! false: a task stands in the queue before it looks. A wake meant for one is not lost with it
//! either: if the task that was woken stops waiting before it has looked (a signal came, a timeout
//! passed), the wake goes to the next in line.
//!
//! What a condition asks is a state that lasts until the task has seen it, never a moment that may
//! have passed: an event that others undo at once (an end of a pipe opened and closed, a child that
//! has ended) is counted, under the lock under which the task's own part is. And what a condition
//! finds is what the task goes on with: it does not look a second time.
//!
//! # Mechanism
//! A spin lock around a list of wakers in the order of their coming. Nothing is woken and no waker
//! is dropped under the lock, as either may run code that waits or wakes here. Dropping a future
//! that waits takes it out of the list.

use alloc::collections::VecDeque;
use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use spin::Mutex;

/// Tasks that wait, in the order of their coming.
#[derive(Default)]
pub struct Queue {
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    list: VecDeque<(u64, Waker)>,
}

impl Queue {
    /// Nobody waits.
    pub const fn new() -> Self {
        Queue { waiters: Mutex::new(Waiters { next: 0, list: VecDeque::new() }) }
    }

    /// Wait until `condition` gives a value. It is asked at once, and again after each wake; it
    /// must not wait at this queue, nor wake it unless it gives a value. Dropping the future ends
    /// the wait.
    pub fn wait_until<T, F: FnMut() -> Option<T>>(&self, condition: F) -> WaitUntil<'_, F> {
        WaitUntil { waiter: self.waiter(), condition }
    }

    /// A waiter in line, not yet taken: what a task needs that waits at several queues at once.
    pub const fn waiter(&self) -> Waiter<'_> {
        Waiter { queue: self, number: None }
    }

    /// Wake the first in line. Right where those who wait are alike and one of them can use what
    /// there is; whether there was one.
    pub fn wake_one(&self) -> bool {
        let first = self.waiters.lock().list.pop_front();
        first.map(|(_, waker)| waker.wake()).is_some()
    }

    /// Wake all that wait now.
    pub fn wake_all(&self) {
        let all = mem::take(&mut self.waiters.lock().list);
        all.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiters.lock().list.len()
    }
}

/// A task's waiter in the line of a [`Queue`]; dropping it leaves the line.
pub struct Waiter<'q> {
    queue: &'q Queue,
    /// What it was given when it last took its waiter. It may have been woken since.
    number: Option<u64>,
}

impl Waiter<'_> {
    /// Be in line, with this waker: from now on a wake reaches it. The caller looks at its
    /// condition *after* this.
    ///
    /// If there is no memory for it, the task is woken at once, so that it asks again instead of
    /// sleeping forever.
    pub fn enqueue(&mut self, waker: &Waker) {
        let mut stale = None;
        let mut waiters = self.queue.waiters.lock();
        let at = self.number.and_then(|number| waiters.position(number));
        if let Some(at) = at {
            let kept = &mut waiters.list[at].1;
            if !kept.will_wake(waker) {
                stale = Some(mem::replace(kept, waker.clone()));
            }
        } else if waiters.list.try_reserve(1).is_ok() {
            let number = waiters.next;
            waiters.next += 1;
            waiters.list.push_back((number, waker.clone()));
            self.number = Some(number);
        } else {
            drop(waiters);
            self.number = None;
            return waker.wake_by_ref();
        }
        drop(waiters);
        drop(stale);
    }

    /// Leave the line, being content. A wake that came meanwhile is used up.
    pub fn dequeue(&mut self) {
        self.remove();
    }

    /// Leave the line; whether it was still in it, and not woken.
    fn remove(&mut self) -> bool {
        let Some(number) = self.number.take() else { return true };
        let mut waiters = self.queue.waiters.lock();
        let waker = waiters.position(number).and_then(|at| waiters.list.remove(at));
        drop(waiters);
        waker.is_some()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.remove() {
            self.queue.wake_one();
        }
    }
}

impl Waiters {
    /// Where a number stands. They are given in order, and only the back is added to.
    fn position(&self, number: u64) -> Option<usize> {
        self.list.binary_search_by_key(&number, |&(number, _)| number).ok()
    }
}

/// The future of [`Queue::wait_until`].
#[must_use = "to wait is to await"]
pub struct WaitUntil<'q, F> {
    waiter: Waiter<'q>,
    condition: F,
}

// Nothing in it is pinned.
impl<F> Unpin for WaitUntil<'_, F> {}

impl<T, F: FnMut() -> Option<T>> Future for WaitUntil<'_, F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        // Who need not wait does not touch the queue.
        if this.waiter.number.is_none()
            && let Some(value) = (this.condition)()
        {
            return Poll::Ready(value);
        }
        this.waiter.enqueue(context.waker());
        match (this.condition)() {
            Some(value) => {
                this.waiter.dequeue();
                Poll::Ready(value)
            }
            None => Poll::Pending,
        }
    }
}

/// Let others go first, once.
pub async fn yield_now() {
    let mut gave_way = false;
    core::future::poll_fn(|context| {
        if mem::replace(&mut gave_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Count, block_on};
    use core::cell::Cell;
    use core::pin::pin;
    use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn who_need_not_wait_does_not() {
        let queue = Queue::new();
        assert_eq!(block_on(queue.wait_until(|| Some(7))), 7);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn first_come_first_woken() {
        let queue = Queue::new();
        let (first, first_waker) = Count::new();
        let (second, second_waker) = Count::new();
        let ready = Cell::new(false);
        let mut a = pin!(queue.wait_until(|| ready.get().then_some(())));
        let mut b = pin!(queue.wait_until(|| ready.get().then_some(())));
        assert!(a.as_mut().poll(&mut Context::from_waker(&first_waker)).is_pending());
        assert!(b.as_mut().poll(&mut Context::from_waker(&second_waker)).is_pending());
        ready.set(true);
        assert!(queue.wake_one());
        assert_eq!((first.woken(), second.woken()), (1, 0));
        assert!(a.as_mut().poll(&mut Context::from_waker(&first_waker)).is_ready());
        queue.wake_all();
        assert_eq!((first.woken(), second.woken()), (1, 1));
        assert!(!queue.wake_one());
    }

    /// The second poll of a future with another waker forgets the first waker.
    #[test]
    fn the_last_waker_counts() {
        let queue = Queue::new();
        let (old, old_waker) = Count::new();
        let (new, new_waker) = Count::new();
        let mut wait = pin!(queue.wait_until(|| None::<()>));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&old_waker)).is_pending());
        assert!(wait.as_mut().poll(&mut Context::from_waker(&new_waker)).is_pending());
        assert_eq!(queue.waiting(), 1);
        queue.wake_all();
        assert_eq!((old.woken(), new.woken()), (0, 1));
    }

    #[test]
    fn who_stops_waiting_leaves_the_line_and_passes_a_wake_on() {
        let queue = Queue::new();
        let (_, waker) = Count::new();
        let (next, next_waker) = Count::new();
        let mut dropped = queue.wait_until(|| None::<()>);
        assert!(Pin::new(&mut dropped).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(dropped);
        assert_eq!(queue.waiting(), 0);

        let mut woken = queue.wait_until(|| None::<()>);
        let mut other = queue.wait_until(|| None::<()>);
        assert!(Pin::new(&mut woken).poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(Pin::new(&mut other).poll(&mut Context::from_waker(&next_waker)).is_pending());
        queue.wake_one();
        assert_eq!(next.woken(), 0);
        drop(woken);
        assert_eq!(next.woken(), 1, "the wake of the one that is gone");
    }

    /// Tokens are made and taken by threads, with waits given up in between: each token wakes
    /// somebody who takes it.
    #[test]
    fn no_wake_is_lost_between_threads() {
        const TOKENS: usize = 20_000;
        const TAKERS: usize = 3;
        let shared = Arc::new((Queue::new(), AtomicUsize::new(0)));
        let takers: std::vec::Vec<_> = (0..TAKERS)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (queue, tokens) = &*shared;
                    let take = || tokens.fetch_update(SeqCst, SeqCst, |tokens| tokens.checked_sub(1)).ok();
                    for round in 0..TOKENS {
                        if round % 3 == 0 {
                            let (_, waker) = Count::new();
                            let mut given_up = queue.wait_until(|| None::<()>);
                            let _ = Pin::new(&mut given_up).poll(&mut Context::from_waker(&waker));
                        }
                        block_on(queue.wait_until(take));
                    }
                })
            })
            .collect();
        let (queue, tokens) = &*shared;
        for _ in 0..TOKENS * TAKERS {
            tokens.fetch_add(1, SeqCst);
            queue.wake_one();
        }
        takers.into_iter().for_each(|taker| taker.join().unwrap());
        assert_eq!((tokens.load(SeqCst), queue.waiting()), (0, 0));
    }
}
