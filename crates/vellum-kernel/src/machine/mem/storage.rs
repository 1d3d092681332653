//! The storage of files: the way of the page cache's requests to block devices, and of their ends
//! to the tasks that wait.
//!
//! The engine asks from wherever a page is missed, for example from a page fault, so a request is
//! queued, and the storage task carries it out ([`carry_out_next`]). A store in memory needs no
//! queue: its requests are carried out at once. So are all before the storage task exists
//! ([`begin_tasks`]).
//!
//! A task that needs a page which is being read or written waits ([`wait`]) until the request with
//! the page has ended. If that request failed to read the page, the wait says so: the error
//! concerns the tasks that waited for the page, and the next one reads it anew.

use crate::arch::kernel_map::phys_to_virt;
use crate::mem::machine;
use crate::mem::payer::Shared;
use crate::mem::platform::Host;
use crate::mem::throttle;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::ops::Range;
use core::pin::Pin;
use core::sync::atomic::AtomicU8;
use core::task::{Context, Poll, Waker};
use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::page_cache::{Changes, Overwrite, finish_read, finish_write};
use vellum::platform::{PendingPage, ReadRequest, WriteRequest};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::pages::Shift;
use vellum_kernel::wait::Queue;

/// Where the pages of a file come from, and where they go.
pub trait Store: Send + Sync {
    /// Reads the pages of a request. Returns the number of those before the first that can't be
    /// read.
    fn read(&self, request: &ReadRequest) -> u64;

    /// Writes the pages of a request. Returns the number of those before the first that can't be
    /// written.
    fn write(&self, request: &WriteRequest) -> u64;

    /// Has what was written survive a loss of power. Returns whether it succeeded.
    fn flush(&self) -> bool;

    /// Learns the size of a file all of whose dirty pages were written. Those that gave it this
    /// size may have been truncated before. Returns whether it succeeded.
    fn keep_size(&self, _size: u64) -> bool {
        true
    }

    /// Returns where the changes of the file go.
    fn changes(&self) -> Changes {
        Changes::ToStore
    }

    /// Returns true if transfers take no longer than copying memory does.
    fn is_memory(&self) -> bool;

    /// Returns true if the store carries out writes like reads: at once, if it is memory. Else the
    /// storage task does.
    fn writes_at_once(&self) -> bool {
        true
    }

    /// Sets the file's size. No request for pages behind it is under way.
    ///
    /// # Errors
    /// `EINVAL`: the size is fixed. `ENOSPC`, `EFBIG`, `EROFS`, `EIO`.
    fn set_size(&self, _size: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Reserves room for the holes of a range of bytes. The size stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; those of [`Store::set_size`].
    fn allocate(&self, _bytes: Range<u64>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the first of `bytes` that the storage has; with `hole` the first that it does not
    /// have, and that reads as zero. Bytes that the page cache has yet to write count as missing.
    fn next_place(&self, bytes: Range<u64>, hole: bool) -> Option<u64> {
        (!hole).then_some(bytes.start)
    }

    /// Returns whether there is room on the storage for bytes that a program writes now, and the
    /// page cache later, beside the dirty pages that are written before them, which are at most
    /// `later` bytes. If not, all dirty pages are written first ([`Store::all_written`]).
    fn has_room(&self, _bytes: Range<u64>, _later: u64) -> bool {
        true
    }

    /// Learns that all pages were written that were dirty before.
    fn all_written(&self) {}

    /// Sees to it that the storage has room for bytes that a program is about to write, beside the
    /// dirty pages that are written before them, which are at most `later` bytes.
    ///
    /// # Errors
    /// Those of [`Store::set_size`].
    fn reserve(&self, _bytes: Range<u64>, _later: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// Has whole pages read as zeros. No write of them is under way.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; those of [`Store::set_size`].
    fn punch(&self, _bytes: Range<u64>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the alignment in bytes of direct transfers; `None` if the file has none.
    fn direct_alignment(&self) -> Option<u64> {
        None
    }

    /// Reads bytes past the page cache: those behind the end of the file are zeros. Returns the
    /// number of bytes before the first that can't be read.
    fn read_direct(&self, _at: u64, _to: &mut [u8]) -> usize {
        0
    }

    /// Writes the first of these bytes, and as many as one transfer takes, past the page cache,
    /// which has none of their pages, and makes the file so large that it has them. Returns the
    /// number of bytes written; 0 if the first can't be written.
    ///
    /// # Errors
    /// Those of [`Store::set_size`].
    fn write_direct(&self, _at: u64, _from: &[u8]) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Returns the unit in bytes of [`Store::shift`]; `None`: the file can't do it.
    fn shift_unit(&self) -> Option<u64> {
        None
    }

    /// Moves the bytes behind the start of a range by its length. While nothing can be read from
    /// the file, asks `is_unused` before the move whether the page cache has none of the bytes that
    /// move, and calls `moved` after it. Returns false, with nothing changed, if `is_unused` does.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; those of [`Store::set_size`].
    fn shift(
        &self,
        _bytes: Range<u64>,
        _shift: Shift,
        _is_unused: &mut dyn FnMut() -> bool,
        _moved: &mut dyn FnMut(),
    ) -> Result<bool, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the bytes of storage that the file uses.
    fn used(&self) -> u64 {
        0
    }
}

/// A request of the engine.
#[expect(clippy::large_enum_variant, reason = "a box could fail for want of memory")]
enum Request {
    Read(ReadRequest),
    Write(WriteRequest),
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

/// The requests under way, and the tasks that wait.
struct Requests {
    /// Those that the storage task has not begun, the oldest first.
    queued: VecDeque<(Arc<dyn Store>, Request)>,
    /// The pages of those that are being carried out: the object's number, the first page, and the
    /// one after the last.
    begun: Vec<(u64, u64, u64)>,
    waiting: Vec<Waiting>,
    next_number: u64,
    /// The storage task's waker, while it waits for a request.
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

/// Has requests wait for the storage task from now on. Returns false, with nothing changed, if no
/// file has a store, so that none need be carried out.
pub fn begin_tasks() -> bool {
    let is_needed = !STORES.lock().is_empty();
    REQUESTS.lock().has_task |= is_needed;
    is_needed
}

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

impl Request {
    fn pages(&self) -> (u64, u64, u64) {
        let (serial, pages) = match self {
            Request::Read(request) => (request.object(), request.pages()),
            Request::Write(request) => (request.object(), request.pages()),
        };
        (serial, pages.start, pages.end)
    }

    /// Carries the request out, ends it, and tells the tasks that wait for its pages.
    fn carry_out(self, store: &dyn Store) {
        let (serial, first, end) = self.pages();
        let failed_from = match self {
            Request::Read(request) => {
                let read = store.read(&request);
                // SAFETY: the request came from this machine, its first `read` pages have their
                // contents, and the store's device is done with it.
                unsafe { finish_read(machine(), request, read) };
                first + read
            }
            Request::Write(request) => {
                let written = store.write(&request);
                // SAFETY: the request came from this machine, and the store's device is done with
                // it.
                unsafe { finish_write(machine(), request, written) };
                throttle::wake();
                // `fsync` learns of failed writes in another way, and goes on.
                end
            }
        };
        ended((serial, first, end), failed_from);
    }
}

/// Takes a request from the engine.
fn submit(tag: u64, request: Request) {
    let Some(store) = STORES.lock().get(&tag).cloned() else {
        // The contents could not be created, so nothing is interested in their pages.
        return request.carry_out(&Nowhere);
    };
    let may_be_done_here = store.writes_at_once() || matches!(request, Request::Read(_));
    if store.is_memory() && may_be_done_here {
        return request.carry_out(&*store);
    }
    let mut requests = REQUESTS.lock();
    if !requests.has_task || requests.queued.try_reserve(1).is_err() || requests.begun.try_reserve(1).is_err() {
        drop(requests);
        return request.carry_out(&*store);
    }
    requests.queued.push_back((store, request));
    let idle = requests.idle.take();
    drop(requests);
    idle.into_iter().for_each(Waker::wake);
}

/// Takes a request to read (`vellum::platform::Storage::read`).
pub fn read(request: ReadRequest) {
    submit(request.tag(), Request::Read(request));
}

/// Takes a request to write (`vellum::platform::Storage::write`).
pub fn write(request: WriteRequest) {
    submit(request.tag(), Request::Write(request));
}

/// The store of contents that have none.
struct Nowhere;

impl Store for Nowhere {
    fn read(&self, _: &ReadRequest) -> u64 {
        0
    }

    fn write(&self, _: &WriteRequest) -> u64 {
        0
    }

    fn flush(&self) -> bool {
        false
    }

    fn is_memory(&self) -> bool {
        true
    }
}

/// Waits for the oldest queued request and carries it out: the storage task's work.
pub async fn carry_out_next() {
    let (store, request) = poll_fn(|context| {
        let mut requests = REQUESTS.lock();
        match requests.queued.pop_front() {
            Some(next) => {
                // `submit` has reserved the room.
                requests.begun.push(next.1.pages());
                Poll::Ready(next)
            }
            None => {
                requests.idle = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await;
    ROOM.wake_all();
    request.carry_out(&*store);
}

/// Waits until few requests are queued.
pub async fn room() {
    ROOM.wait_until(|| (REQUESTS.lock().queued.len() < MOST_QUEUED).then_some(())).await;
}

/// Ends the pages of a request, of which those from `failed_from` on could not be read: wakes the
/// tasks that wait for them.
fn ended(pages: (u64, u64, u64), failed_from: u64) {
    let (serial, first, end) = pages;
    let mut requests = REQUESTS.lock();
    if let Some(at) = requests.begun.iter().position(|begun| *begun == pages) {
        requests.begun.swap_remove(at);
    }
    let has = |waiting: &&mut Waiting| {
        waiting.outcome.is_none() && waiting.page.object == serial && (first..end).contains(&waiting.page.page)
    };
    for waiting in requests.waiting.iter_mut().filter(has) {
        let failed = waiting.page.page >= failed_from;
        waiting.outcome = Some(if failed { Outcome::Failed } else { Outcome::Again });
        waiting.waker.wake_by_ref();
    }
}

/// Returns a page of these that a write under way has, for example from before the pages were
/// truncated.
pub fn being_written(object: u64, pages: Range<u64>) -> Option<PendingPage> {
    let requests = REQUESTS.lock();
    let in_both = |(serial, first, end): (u64, u64, u64)| {
        let page = first.max(pages.start);
        (serial == object && page < end.min(pages.end)).then_some(PendingPage { object, page })
    };
    let is_write = |request: &Request| matches!(request, Request::Write(_));
    let queued = requests.queued.iter().filter(|(_, request)| is_write(request)).map(|(_, request)| request.pages());
    // Of the requests that were begun, reads may be among them: they end soon.
    requests.begun.iter().copied().chain(queued).find_map(in_both)
}

impl Requests {
    /// Returns whether a request under way has the page.
    fn has(&self, page: PendingPage) -> bool {
        let is_in = |(serial, first, end): (u64, u64, u64)| serial == page.object && (first..end).contains(&page.page);
        self.begun.iter().copied().any(is_in) || self.queued.iter().any(|(_, request)| is_in(request.pages()))
    }
}

/// Pages that the kernel fills itself, for a write of whole pages. Tasks that need one of them wait
/// until this is dropped.
pub struct Filling(Option<(Overwrite<'static, Host>, (u64, u64, u64))>);

impl Filling {
    /// Registers the pages, so that tasks can wait for them.
    ///
    /// # Errors
    /// `ENOMEM`; the pages are missing again then.
    pub fn new(over: Overwrite<'static, Host>, object: u64) -> Result<Self, Errno> {
        let pages = (object, over.pages().start, over.pages().end);
        let mut requests = REQUESTS.lock();
        requests.begun.try_reserve(1)?;
        requests.begun.push(pages);
        drop(requests);
        Ok(Filling(Some((over, pages))))
    }

    /// Returns the bytes to fill, a slice for each folio.
    pub fn folios(&self) -> impl Iterator<Item = &[AtomicU8]> {
        self.0.iter().flat_map(|(over, _)| over.folios())
    }

    /// Returns the pages, by their numbers.
    pub fn pages(&self) -> Range<u64> {
        self.0.as_ref().map_or(0..0, |(over, _)| over.pages())
    }

    /// Leaves the pages missing, whose bytes the storage has, and makes the file's size at least
    /// `size` bytes.
    pub fn leave(mut self, size: u64) {
        if let Some((over, pages)) = self.0.take() {
            over.leave(size);
            ended(pages, u64::MAX);
        }
    }

    /// Puts the first `filled` pages into the file, whose size is then at least `size` bytes.
    pub fn finish(mut self, filled: u64, size: u64) {
        if let Some((over, pages)) = self.0.take() {
            over.finish(filled, size);
            ended(pages, u64::MAX);
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some((over, pages)) = self.0.take() {
            drop(over);
            ended(pages, u64::MAX);
        }
    }
}

/// Waits until the request with a page has ended. Returns at once if none has it.
pub fn wait(page: PendingPage) -> Wait {
    Wait { page, number: None }
}

/// The future that [`wait`] returns. Dropping it ends the wait.
pub struct Wait {
    page: PendingPage,
    number: Option<u64>,
}

impl Future for Wait {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut requests = REQUESTS.lock();
        let Some(number) = self.number else {
            if !requests.has(self.page) || requests.waiting.try_reserve(1).is_err() {
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

/// Returns the bytes of the pages that a request reads, a slice for each folio.
pub fn to_read(request: &ReadRequest) -> impl Iterator<Item = &[AtomicU8]> {
    // SAFETY: the request keeps the frames as long as it is borrowed.
    request.frames().map(|(first, count)| unsafe { bytes(first, count) })
}

/// Returns the bytes of the pages that a request writes, a slice for each folio or part of one.
pub fn to_write(request: &WriteRequest) -> impl Iterator<Item = &[AtomicU8]> {
    // SAFETY: as in `to_read`.
    request.frames().map(|(first, count)| unsafe { bytes(first, count) })
}

/// Returns the bytes of contiguous frames of a request.
///
/// # Safety
///
/// A request keeps the frames as long as the result is used.
unsafe fn bytes<'a>(first: Pfn, count: u32) -> &'a [AtomicU8] {
    let at = phys_to_virt::<AtomicU8>(first.addr().0);
    // SAFETY: the direct map contains the frames, which the request keeps (this contract), and they
    // are accessed as atomics.
    unsafe { core::slice::from_raw_parts(at, count as usize * FRAME_SIZE as usize) }
}
