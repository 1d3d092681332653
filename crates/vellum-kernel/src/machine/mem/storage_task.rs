//! The storage task: carries out the queued requests, several at a time.
//!
//! A program waits for each read, so reads come before writes: the last of the task's places is for
//! a read. But a write is overtaken by [`MOST_OVERTAKING`] reads at most, and a device's places go
//! in turn to the requests that are being carried out.

use crate::mem::block::Direction;
use crate::mem::storage;
use crate::mem::store::Store;
use crate::mem::transfers::{self, Request, Transfers, carry_out};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::task::Poll;

/// The number of requests that are carried out at a time.
const MOST: usize = 4;
/// The number of writes among them.
const MOST_WRITES: usize = MOST - 1;
/// The number of reads that overtake the oldest write (Linux, mq-deadline: two batches of 16).
const MOST_OVERTAKING: u32 = 32;

/// False if no device has a transfer under way.
static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// The storage task.
pub struct Task {
    /// The requests that are being carried out, the oldest first.
    begun: Vec<Transfers>,
    /// The number of reads that have overtaken the oldest write.
    overtaking: u32,
}

impl Task {
    /// Creates the task, for which requests wait from now on. Returns `None`, with nothing changed,
    /// if no file has a store, so that none need be carried out, or memory is short.
    pub fn new() -> Option<Self> {
        let mut begun = Vec::new();
        begun.try_reserve_exact(MOST).ok()?;
        storage::begin_task().then_some(Task { begun, overtaking: 0 })
    }

    /// Carries out requests, forever.
    pub async fn run(mut self) {
        poll_fn(|context| {
            // A request or an interrupt that comes from here on wakes the task.
            storage::set_waker(context.waker().clone());
            UNDER_WAY.store(true, SeqCst);
            let worked = self.work();
            let waits = self.begun.iter().any(|request| request.under_way() > 0);
            UNDER_WAY.store(waits, SeqCst);
            // A device that takes none, because of transfers that CPUs poll for, won't interrupt.
            if worked || !waits && !self.begun.is_empty() {
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Ends what has ended, and begins what can begin. Returns whether there was such work.
    fn work(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.begun.len() {
            any |= self.begun[at].look();
            match self.begun[at].are_done() {
                true => self.begun.remove(at).finish(),
                false => at += 1,
            }
        }
        while self.begun.len() < MOST
            && let Some((store, request)) = self.next()
        {
            any = true;
            if store.device().is_some() {
                // `new` has reserved the room.
                self.begun.push(Transfers::new(store, request));
            } else {
                let count = carry_out(&*store, &request);
                // SAFETY: `carry_out` has transferred these pages, and its transfers have ended.
                unsafe { request.end(count) };
            }
        }
        // Those with the fewest transfers under way come first, the oldest of them before others.
        for count in 0..transfers::MOST {
            let those = self.begun.iter_mut().filter(|request| request.under_way() == count);
            those.for_each(|request| any |= request.begin());
        }
        any
    }

    /// Takes the next request from the queue.
    fn next(&mut self) -> Option<(Arc<dyn Store>, Request)> {
        let writes = self.begun.iter().filter(|request| request.direction() == Direction::Write).count();
        let write = || storage::take(Direction::Write);
        let read = || storage::take(Direction::Read);
        let (store, request, overtakes) = match writes < MOST_WRITES {
            true if self.overtaking >= MOST_OVERTAKING => write().or_else(read)?,
            true => read().or_else(write)?,
            false => read()?,
        };
        let is_read = request.direction() == Direction::Read;
        self.overtaking = if is_read && overtakes { self.overtaking + 1 } else { 0 };
        Some((store, request))
    }
}

/// Wakes the task if a device may have ended transfers. Called after each interrupt of a device.
pub fn look() {
    if UNDER_WAY.load(SeqCst) {
        storage::wake_task();
    }
}
