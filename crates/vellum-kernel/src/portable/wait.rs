//! Wait queues: tasks wait until a condition becomes true.
//!
//! # Guarantee
//! No wake is lost. A task that makes a condition true and then wakes the queue reaches every task
//! that found the condition false, because a task enters the queue before it checks. A wake of one
//! task is not lost either: if the woken task stops waiting before it has checked (a signal
//! arrived, a timeout passed), the wake passes to the next task in the queue.
//!
//! A condition checks a state that lasts until the waiting task has seen it. If other tasks can
//! undo an event before that, a count that never falls records the event. For example, the other
//! end of a FIFO may be opened and closed again at once. So the FIFO counts the opens of each end,
//! under the lock of its state. A task that opens one end notes the count of the other end under
//! the same hold of that lock, and its condition is that the count has grown. An exited child needs
//! no count, because it stays a zombie until a task reaps it, and no other task then has to see it.
//! The task goes on with the value that its condition returned, and does not check a second time.
//!
//! # Mechanism
//! A spin lock around a list of wakers in order of arrival. Wakers are woken and dropped outside
//! the lock, as either may run code that waits or wakes here. Dropping a waiting future removes it
//! from the list.
//!
//! Beside the tasks, which a wake removes, a queue has watchers, which hear of each wake until they
//! leave. They are woken under the lock.

use crate::errno::Errno;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use spin::Mutex;

/// The number of tasks for which a queue keeps memory while none waits.
const FEW: usize = 4;

/// A wait queue: tasks in order of arrival.
#[derive(Default)]
pub struct Queue {
    waiters: Mutex<Waiters>,
}

#[derive(Default)]
struct Waiters {
    next: u64,
    list: VecDeque<(u64, Waker)>,
    /// In ascending order of numbers.
    watchers: Vec<(u64, Waker)>,
}

impl Queue {
    /// Creates an empty queue.
    pub const fn new() -> Self {
        Queue { waiters: Mutex::new(Waiters { next: 0, list: VecDeque::new(), watchers: Vec::new() }) }
    }

    /// Waits until `condition` returns a value, and returns the value. `condition` is called at
    /// once, and again after each wake; it must not wait on this queue, nor wake it unless it
    /// returns a value. Dropping the future ends the wait.
    pub fn wait_until<T, F: FnMut() -> Option<T>>(&self, condition: F) -> WaitUntil<'_, F> {
        WaitUntil { waiter: self.waiter(), condition }
    }

    /// Returns a waiter that is not in the queue yet, for a task that waits on several queues at
    /// once.
    pub const fn waiter(&self) -> Waiter<'_> {
        Waiter { queue: self, number: None }
    }

    /// Adds a waker that stays until a wake of the queue, or [`Queue::remove`] with the number that
    /// this returns. If there is no memory for it, wakes it at once and returns `None`.
    pub fn add(&self, waker: Waker) -> Option<u64> {
        let mut waiters = self.waiters.lock();
        if waiters.list.try_reserve(1).is_err() {
            drop(waiters);
            waker.wake();
            return None;
        }
        let number = waiters.next;
        waiters.next += 1;
        waiters.list.push_back((number, waker));
        Some(number)
    }

    /// Removes a waker that [`Queue::add`] added. Returns false if a wake has removed it already.
    pub fn remove(&self, number: u64) -> bool {
        let mut waiters = self.waiters.lock();
        let waker = waiters.position(number).and_then(|at| waiters.list.remove(at));
        drop(waiters);
        waker.is_some()
    }

    /// Adds a waker that hears of each wake, until [`Queue::unwatch`] with the number that this
    /// returns. It is woken under this queue's lock, by reference: it may wake other queues, but
    /// not this one.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn watch(&self, watcher: Waker) -> Result<u64, Errno> {
        let mut waiters = self.waiters.lock();
        waiters.watchers.try_reserve(1)?;
        let number = waiters.next;
        waiters.next += 1;
        waiters.watchers.push((number, watcher));
        Ok(number)
    }

    /// Removes a waker that [`Queue::watch`] added.
    pub fn unwatch(&self, number: u64) {
        let mut waiters = self.waiters.lock();
        let at = waiters.watchers.binary_search_by_key(&number, |&(number, _)| number);
        let watcher = at.map(|at| waiters.watchers.remove(at));
        drop(waiters);
        drop(watcher);
    }

    /// Wakes the first task in the queue, and all watchers. Returns whether there was a task.
    /// Sufficient where all waiting tasks wait for the same condition, and one of them can use all
    /// that is available.
    pub fn wake_one(&self) -> bool {
        let mut waiters = self.waiters.lock();
        waiters.tell_watchers();
        let first = waiters.list.pop_front();
        drop(waiters);
        first.map(|(_, waker)| waker.wake()).is_some()
    }

    /// Wakes all tasks that wait now, and all watchers.
    pub fn wake_all(&self) {
        let mut waiters = self.waiters.lock();
        waiters.tell_watchers();
        if waiters.list.is_empty() {
            return;
        }
        if waiters.list.len() > FEW {
            let all = mem::take(&mut waiters.list);
            drop(waiters);
            return all.into_iter().for_each(|(_, waker)| waker.wake());
        }
        // The list keeps its memory for the next wait.
        let few: ArrayVec<_, FEW> = waiters.list.drain(..).collect();
        drop(waiters);
        few.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Returns the number of waiting tasks and of watchers.
    pub fn waiting(&self) -> usize {
        let waiters = self.waiters.lock();
        waiters.list.len() + waiters.watchers.len()
    }
}

/// A task's entry in a [`Queue`] (Linux: `wait_queue_entry`). Dropping it leaves the queue, and
/// passes on a wake that the task has not used.
pub struct Waiter<'q> {
    queue: &'q Queue,
    /// The number of this waiter's latest entry in the queue, which a wake may have removed since.
    number: Option<u64>,
}

impl Waiter<'_> {
    /// Enters the queue, or stays in it, with this waker: from now on a wake reaches the task. The
    /// caller checks its condition *after* this.
    ///
    /// If there is no memory for the entry, wakes the task at once instead, so that it checks again
    /// and does not sleep forever.
    pub fn enqueue(&mut self, waker: &Waker) {
        let mut stale = None;
        let mut waiters = self.queue.waiters.lock();
        let at = self.number.and_then(|number| waiters.position(number));
        if let Some(at) = at {
            let kept = &mut waiters.list[at].1;
            if !kept.will_wake(waker) {
                stale = Some(mem::replace(kept, waker.clone()));
            }
        } else {
            drop(waiters);
            self.number = self.queue.add(waker.clone());
            return;
        }
        drop(waiters);
        drop(stale);
    }

    /// Leaves the queue because the condition is true. If a wake has removed this entry from the
    /// queue already, that wake is not passed to another task.
    pub fn dequeue(&mut self) {
        self.remove();
    }

    /// Leaves the queue. Returns false if a wake had removed the entry already.
    fn remove(&mut self) -> bool {
        self.number.take().is_none_or(|number| self.queue.remove(number))
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
    fn tell_watchers(&self) {
        self.watchers.iter().for_each(|(_, watcher)| watcher.wake_by_ref());
    }

    /// Returns the index of an entry. Numbers ascend, as entries are added only at the back.
    fn position(&self, number: u64) -> Option<usize> {
        self.list.binary_search_by_key(&number, |&(number, _)| number).ok()
    }
}

/// The future of [`Queue::wait_until`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct WaitUntil<'q, F> {
    waiter: Waiter<'q>,
    condition: F,
}

// No field is pinned.
impl<F> Unpin for WaitUntil<'_, F> {}

impl<T, F: FnMut() -> Option<T>> Future for WaitUntil<'_, F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        // If the condition is true at once, the task never enters the queue.
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

/// Lets other runnable tasks run first, once.
pub async fn yield_now() {
    let mut yielded = false;
    core::future::poll_fn(|context| {
        if mem::replace(&mut yielded, true) {
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
    fn a_true_condition_does_not_wait() {
        let queue = Queue::new();
        assert_eq!(block_on(queue.wait_until(|| Some(7))), 7);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn tasks_are_woken_in_order_of_arrival() {
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

    /// Polling a future again replaces its waker.
    #[test]
    fn the_latest_waker_is_woken() {
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
    fn a_dropped_waiter_leaves_the_queue_and_passes_its_wake_on() {
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
        assert_eq!(next.woken(), 1, "the dropped waiter passed its wake on");
    }

    #[test]
    fn a_watcher_hears_of_each_wake_and_takes_none_from_a_task() {
        let queue = Queue::new();
        let (watcher, watcher_waker) = Count::new();
        let (task, task_waker) = Count::new();
        let number = queue.watch(watcher_waker).unwrap();
        let mut wait = pin!(queue.wait_until(|| None::<()>));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&task_waker)).is_pending());
        assert!(queue.wake_one());
        assert_eq!((watcher.woken(), task.woken()), (1, 1));
        assert!(!queue.wake_one());
        queue.wake_all();
        assert_eq!(watcher.woken(), 3);
        queue.unwatch(number);
        queue.wake_all();
        assert_eq!((watcher.woken(), queue.waiting()), (3, 0));
    }

    /// Threads produce and consume tokens, and abandon waits in between: each token wakes a thread
    /// that consumes it.
    #[test]
    fn no_wake_is_lost_between_threads() {
        const TOKENS: usize = 20_000;
        const CONSUMERS: usize = 3;
        let shared = Arc::new((Queue::new(), AtomicUsize::new(0)));
        let consumers: std::vec::Vec<_> = (0..CONSUMERS)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (queue, tokens) = &*shared;
                    let consume = || tokens.fetch_update(SeqCst, SeqCst, |tokens| tokens.checked_sub(1)).ok();
                    for round in 0..TOKENS {
                        if round % 3 == 0 {
                            let (_, waker) = Count::new();
                            let mut abandoned = queue.wait_until(|| None::<()>);
                            let _ = Pin::new(&mut abandoned).poll(&mut Context::from_waker(&waker));
                        }
                        block_on(queue.wait_until(consume));
                    }
                })
            })
            .collect();
        let (queue, tokens) = &*shared;
        for _ in 0..TOKENS * CONSUMERS {
            tokens.fetch_add(1, SeqCst);
            queue.wake_one();
        }
        consumers.into_iter().for_each(|consumer| consumer.join().unwrap());
        assert_eq!((tokens.load(SeqCst), queue.waiting()), (0, 0));
    }
}
