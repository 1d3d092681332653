//! The storage task: carries out the queued requests, several at a time.
//!
//! A program waits for each read, so reads come before writes; but a write is overtaken by
//! [`MOST_OVERTAKING`] reads at most.

use crate::mem::storage::{REQUESTS, ROOM, STORES};
use crate::mem::store::Store;
use crate::mem::transfers::{Request, Transfers, carry_out};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::task::{Poll, Waker};

/// The number of requests that are carried out at a time.
const MOST: usize = 4;
/// The number of reads that overtake the oldest write (Linux, mq-deadline: two batches of 16).
const MOST_OVERTAKING: u32 = 32;

/// False if no device has a transfer under way.
static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// The storage task.
pub struct Task {
    /// The requests that are being carried out, the oldest first.
    under_way: Vec<Transfers>,
    /// The number of reads that have overtaken the oldest write.
    overtaking: u32,
}

impl Task {
    /// Creates the task, for which requests wait from now on. Returns `None`, with nothing changed,
    /// if no file has a store, so that none need be carried out, or memory is short.
    pub fn new() -> Option<Self> {
        let mut under_way = Vec::new();
        under_way.try_reserve_exact(MOST).ok()?;
        if STORES.lock().is_empty() {
            return None;
        }
        REQUESTS.lock().has_task = true;
        Some(Task { under_way, overtaking: 0 })
    }

    /// Carries out requests, forever.
    pub async fn run(mut self) {
        poll_fn(|context| {
            // A request or an interrupt that comes from here on wakes the task.
            REQUESTS.lock().idle = Some(context.waker().clone());
            UNDER_WAY.store(true, SeqCst);
            if self.work() {
                context.waker().wake_by_ref();
            }
            if !self.under_way.iter().any(Transfers::are_under_way) {
                UNDER_WAY.store(false, SeqCst);
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Ends what has ended, and begins what can begin. Returns whether there was such work.
    fn work(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while at < self.under_way.len() {
            any |= self.under_way[at].look();
            match self.under_way[at].are_done() {
                true => self.under_way.remove(at).finish(),
                false => at += 1,
            }
        }
        while self.under_way.len() < MOST
            && let Some(next) = self.next()
        {
            any = true;
            ROOM.wake_all();
            match next {
                // `new` has reserved the room.
                (store, request) if store.device().is_some() => self.under_way.push(Transfers::new(store, request)),
                (store, request) => {
                    let count = carry_out(&*store, &request);
                    request.end(count);
                }
            }
        }
        for reads in [true, false] {
            let those = self.under_way.iter_mut().filter(|transfers| transfers.is_read() == reads);
            those.for_each(|transfers| any |= transfers.begin());
        }
        // A device that takes none, because of transfers that are carried out at once, won't
        // interrupt.
        any || (!self.under_way.is_empty() && !self.under_way.iter().any(Transfers::are_under_way))
    }

    /// Takes the next request from the queue.
    fn next(&mut self) -> Option<(Arc<dyn Store>, Request)> {
        let mut requests = REQUESTS.lock();
        let is_read = |request: &Request| matches!(request, Request::Read(_));
        let read = requests.queued.iter().position(|(_, request)| is_read(request));
        let place = read.filter(|place| *place == 0 || self.overtaking < MOST_OVERTAKING).unwrap_or(0);
        self.overtaking = if place > 0 { self.overtaking + 1 } else { 0 };
        let next = requests.queued.remove(place)?;
        // `submit` has reserved the room.
        requests.begun.push(next.1.pages());
        Some(next)
    }
}

/// Wakes the task if a device may have ended transfers. Called after each interrupt of a device.
pub fn look() {
    if UNDER_WAY.load(SeqCst) {
        let idle = REQUESTS.lock().idle.take();
        idle.into_iter().for_each(Waker::wake);
    }
}
