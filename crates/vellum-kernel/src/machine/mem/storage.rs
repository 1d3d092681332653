//! The storage of files: the way of the page cache's requests to block devices, and of their ends
//! to the tasks that wait.
//!
//! The engine asks from wherever a page is missed, for example from a page fault, so a request is
//! queued, and the storage task carries it out ([`storage_task`](crate::mem::storage_task)). A
//! store in memory needs no queue: its requests are carried out at once. So are all before the
//! storage task exists.
//!
//! A task that needs a page which is being read or written waits ([`wait`]) until the request with
//! the page has ended. If that request failed to read the page, the wait says so: the error
//! concerns the tasks that waited for the page, and the next one reads it anew.

use crate::mem::block::Direction;
use crate::mem::payer::Shared;
use crate::mem::store::Store;
use crate::mem::transfers::{Request, carry_out};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::Future;
use core::ops::Range;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use vellum::platform::{PendingPage, ReadRequest, WriteRequest};
use vellum_kernel::errno::Errno;
use vellum_kernel::wait::Queue;

/// The requests under way, and the tasks that wait.
struct Requests {
    /// Those that the storage task has not begun, the oldest first.
    queued: VecDeque<(Arc<dyn Store>, Request)>,
    /// The pages of those that are being carried out: the object's number, the first page, and the
    /// one after the last.
    begun: Vec<(u64, u64, u64)>,
    waiting: Vec<Waiting>,
    next_number: u64,
    /// The storage task's waker, unless it was woken.
    idle: Option<Waker>,
    /// There is a storage task.
    has_task: bool,
}

/// The number of queued requests from which the flusher waits: memory for more would be held for
/// long, and a read comes after them.
const MOST_QUEUED: usize = 16;

/// The flusher, while many requests are queued.
static ROOM: Queue = Queue::new();

static REQUESTS: Shared<Requests> = Shared::new(Requests {
    queued: VecDeque::new(),
    begun: Vec::new(),
    waiting: Vec::new(),
    next_number: 0,
    idle: None,
    has_task: false,
});

/// The stores of files, by the tags of their page-cache objects.
static STORES: Shared<BTreeMap<u64, Arc<dyn Store>>> = Shared::new(BTreeMap::new());

/// Registers the store of the object with this tag, until the engine [forgets](forget) the object.
pub fn add(tag: u64, store: Arc<dyn Store>) {
    STORES.lock().insert(tag, store);
}

/// Forgets the store of an object that is gone (`vellum::platform::Storage::forget`).
pub fn forget(tag: u64) {
    let store = STORES.lock().remove(&tag);
    // Its end may wait for a device: no lock is held.
    drop(store);
}

/// Has requests wait for the storage task from now on. Returns false, with nothing changed, if no
/// file has a store, so that none need be carried out.
pub fn begin_task() -> bool {
    let is_needed = !STORES.lock().is_empty();
    REQUESTS.lock().has_task |= is_needed;
    is_needed
}

/// Sets the waker of the storage task, for the next request or [`wake_task`].
pub fn set_waker(waker: Waker) {
    REQUESTS.lock().idle = Some(waker);
}

/// Wakes the storage task, unless it was woken since it set its waker.
pub fn wake_task() {
    let idle = REQUESTS.lock().idle.take();
    idle.into_iter().for_each(Waker::wake);
}

/// Takes the oldest request to read, or to write, from the queue: it is being carried out from now
/// on. Returns also whether an older request stays there.
pub fn take(direction: Direction) -> Option<(Arc<dyn Store>, Request, bool)> {
    let mut requests = REQUESTS.lock();
    let place = requests.queued.iter().position(|(_, request)| request.direction() == direction)?;
    let (store, request) = requests.queued.remove(place)?;
    // `submit` has reserved the room.
    requests.begun.push(request.pages());
    drop(requests);
    ROOM.wake_all();
    Some((store, request, place > 0))
}

/// Takes a request from the engine.
fn submit(tag: u64, request: Request) {
    let Some(store) = STORES.lock().get(&tag).cloned() else {
        // The contents could not be created, so nothing is interested in their pages.
        // SAFETY: no device knows the request.
        return unsafe { request.end(0) };
    };
    let at_once = store.is_memory() && (store.writes_at_once() || matches!(request, Request::Read(_)));
    let requests = (!at_once).then(|| REQUESTS.lock());
    let Some(mut requests) = requests.and_then(|mut requests| requests.make_room().then_some(requests)) else {
        let count = carry_out(&*store, &request);
        // SAFETY: `carry_out` has transferred these pages, and its transfers have ended.
        return unsafe { request.end(count) };
    };
    requests.queued.push_back((store, request));
    drop(requests);
    wake_task();
}

/// Takes a request to read (`vellum::platform::Storage::read`).
pub fn read(request: ReadRequest) {
    submit(request.tag(), Request::Read(request));
}

/// Takes a request to write (`vellum::platform::Storage::write`).
pub fn write(request: WriteRequest) {
    submit(request.tag(), Request::Write(request));
}

/// Waits until few requests are queued.
pub async fn room() {
    ROOM.wait_until(|| (REQUESTS.lock().queued.len() < MOST_QUEUED).then_some(())).await;
}

/// Registers pages that the caller fills, or has on hold, so that tasks can wait for them until
/// they have [`ended`]: the object's number, the first page, and the one after the last, which is
/// `u64::MAX` for a hold alone.
///
/// # Errors
/// `ENOMEM`.
pub fn begin(pages: (u64, u64, u64)) -> Result<(), Errno> {
    let mut requests = REQUESTS.lock();
    requests.begun.try_reserve(1)?;
    requests.begun.push(pages);
    Ok(())
}

/// Ends the pages of a request, of which `failed_from` could not be read and those after it were
/// not: wakes the tasks that wait for them.
pub fn ended(pages: (u64, u64, u64), failed_from: u64) {
    let (serial, first, end) = pages;
    let mut requests = REQUESTS.lock();
    if let Some(at) = requests.begun.iter().position(|begun| *begun == pages) {
        requests.begun.swap_remove(at);
    }
    let has = |waiting: &&mut Waiting| {
        waiting.outcome.is_none() && waiting.page.object == serial && (first..end).contains(&waiting.page.page)
    };
    for waiting in requests.waiting.iter_mut().filter(has) {
        // The engine reads a page after this one anew, alone.
        let failed = waiting.page.page == failed_from;
        waiting.outcome = Some(if failed { Outcome::Failed } else { Outcome::Again });
        waiting.waker.wake_by_ref();
    }
}

/// Returns a page of these that a write under way has, for example from before the pages were
/// truncated, or a read that was begun: it ends soon.
pub fn being_written(object: u64, pages: Range<u64>) -> Option<PendingPage> {
    let requests = REQUESTS.lock();
    let in_both = |(serial, first, end): (u64, u64, u64)| {
        let page = first.max(pages.start);
        (serial == object && page < end.min(pages.end)).then_some(PendingPage { object, page })
    };
    let is_write = |request: &Request| matches!(request, Request::Write(_));
    let queued = requests.queued.iter().filter(|(_, request)| is_write(request)).map(|(_, request)| request.pages());
    requests.begun.iter().copied().chain(queued).find_map(in_both)
}

impl Requests {
    /// Makes room for a request, if the storage task will carry it out. Returns whether it will.
    fn make_room(&mut self) -> bool {
        self.has_task && self.queued.try_reserve(1).is_ok() && self.begun.try_reserve(1).is_ok()
    }

    /// Returns whether a request under way has the page, or, with `holds`, a hold.
    fn has(&self, page: PendingPage, holds: bool) -> bool {
        let is_in = |(serial, first, end): (u64, u64, u64)| serial == page.object && (first..end).contains(&page.page);
        // A hold alone has no end.
        let counts = |(_, _, end): &(u64, u64, u64)| holds || *end != u64::MAX;
        self.begun.iter().copied().filter(counts).any(is_in)
            || self.queued.iter().any(|(_, request)| is_in(request.pages()))
    }
}

/// The outcome of waiting for a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The operation that needs the page is to be tried again.
    Again,
    /// The page can't be read.
    Failed,
}

/// A task that waits for a page.
struct Waiting {
    number: u64,
    page: PendingPage,
    /// Set once the request with the page has ended.
    outcome: Option<Outcome>,
    waker: Waker,
}

/// Waits until the request with a page has ended, or the hold of the page. Returns at once if there
/// is none.
pub fn wait(page: PendingPage) -> Wait {
    Wait { page, holds: true, number: None }
}

/// Waits until the request with a page has ended. Returns at once if none has it. For a task that
/// may have the page on hold itself.
pub fn wait_for_request(page: PendingPage) -> Wait {
    Wait { page, holds: false, number: None }
}

/// The future that [`wait`] returns. Dropping it ends the wait.
pub struct Wait {
    page: PendingPage,
    holds: bool,
    number: Option<u64>,
}

impl Future for Wait {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut requests = REQUESTS.lock();
        let Some(number) = self.number else {
            if !requests.has(self.page, self.holds) || requests.waiting.try_reserve(1).is_err() {
                return Poll::Ready(Outcome::Again);
            }
            let number = requests.next_number;
            requests.next_number += 1;
            requests.waiting.push(Waiting { number, page: self.page, outcome: None, waker: context.waker().clone() });
            self.number = Some(number);
            return Poll::Pending;
        };
        let Some(waiting) = requests.waiting.iter_mut().find(|waiting| waiting.number == number) else {
            return Poll::Ready(Outcome::Again);
        };
        match waiting.outcome {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                waiting.waker.clone_from(context.waker());
                Poll::Pending
            }
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            REQUESTS.lock().waiting.retain(|waiting| waiting.number != number);
        }
    }
}
