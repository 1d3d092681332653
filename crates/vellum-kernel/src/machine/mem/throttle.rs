//! Threads that made many pages of files dirty wait here for their turns
//! ([`Throttle::turn`](vellum::memcg::Throttle::turn)), and the flusher waits for work.

use crate::mem::machine;
use crate::mem::payer::Shared;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use core::task::{Context, Poll, Waker};
use vellum::memcg::{MemcgId, Turns};
use vellum_kernel::wait::Queue;

/// The pages that a thread made dirty since its last turn.
#[derive(Debug, Default)]
pub struct Dirtied {
    pages: AtomicU64,
    /// The memcg that the last of them are charged to.
    memcg: AtomicU16,
}

impl Dirtied {
    /// Adds pages that are charged to a memcg.
    pub fn add(&self, memcg: MemcgId, pages: u64) {
        self.pages.fetch_add(pages, Relaxed);
        self.memcg.store(memcg.number(), Relaxed);
    }

    /// Returns whether there are any.
    #[inline]
    pub fn is_some(&self) -> bool {
        self.pages.load(Relaxed) > 0
    }

    /// Takes a turn for them, for which the thread is to wait, if there are many dirty pages. Wakes
    /// the flusher if it has work.
    pub fn take_turn(&self) -> Option<Wait> {
        let (memcg, pages) = (MemcgId::numbered(self.memcg.load(Relaxed)), self.pages.swap(0, Relaxed));
        if machine().memcgs().throttle().wants_writeback(memcg) {
            FLUSHER.wake_all();
        }
        machine().memcgs().throttle().turn(memcg, pages).map(|turns| Wait { turns, number: None })
    }
}

/// The flusher, while it has no work.
pub static FLUSHER: Queue = Queue::new();

/// A thread that waits for its turn.
struct Waiting {
    number: u64,
    turns: Turns,
    waker: Waker,
}

/// The threads that wait, in the order of their turns.
struct Threads {
    waiting: Vec<Waiting>,
    next_number: u64,
}

static THREADS: Shared<Threads> = Shared::new(Threads { waiting: Vec::new(), next_number: 0 });

/// Wakes the threads whose turns are over, in order. Called when writes have ended, and by the
/// flusher from time to time.
pub fn wake() {
    let threads = THREADS.lock();
    let over = threads.waiting.iter().filter(|waiting| machine().memcgs().throttle().is_over(&waiting.turns));
    over.for_each(|waiting| waiting.waker.wake_by_ref());
}

/// Returns whether no thread waits.
pub fn is_empty() -> bool {
    THREADS.lock().waiting.is_empty()
}

/// A thread's wait for its turn. Dropping it ends the wait.
pub struct Wait {
    turns: Turns,
    number: Option<u64>,
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut threads = THREADS.lock();
        if machine().memcgs().throttle().is_over(&self.turns) {
            return Poll::Ready(());
        }
        let found = threads.waiting.iter_mut().find(|waiting| Some(waiting.number) == self.number);
        if let Some(waiting) = found {
            waiting.waker.clone_from(context.waker());
        } else if threads.waiting.try_reserve(1).is_ok() {
            let number = threads.next_number;
            threads.next_number += 1;
            threads.waiting.push(Waiting { number, turns: self.turns.clone(), waker: context.waker().clone() });
            drop(threads);
            self.number = Some(number);
        } else {
            // Without memory for the wait the thread goes on.
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            THREADS.lock().waiting.retain(|waiting| waiting.number != number);
        }
    }
}
