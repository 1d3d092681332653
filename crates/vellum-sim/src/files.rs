//! The files of a simulated machine. Their contents are a function of place; they are read in any
//! order, with failures that a test chooses.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vellum::Machine;
use vellum::addr::FRAME_SIZE;
use vellum::page_cache::Object;
use vellum::platform::{PendingPage, Platform, ReadRequest};

use crate::inject::{Injector, Refusal};
use crate::rng::Rng;

/// The files of a machine, by tag. The engine's requests to read them stay under way until the test
/// ends them.
#[derive(Debug)]
pub struct Files {
    requests: Mutex<Vec<ReadRequest>>,
    reads: Injector,
    order: Mutex<Rng>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The tag of the file.
    pub tag: u64,
    /// The number of pages that were to be read.
    pub wanted: u64,
    /// The number of pages that were read. The page after these could not be read.
    pub read: u64,
    /// The number of folios into which they were to be read.
    pub folios: usize,
}

impl Finished {
    /// Returns the numbers of pages that were to be read and that were read.
    pub fn pages(self) -> (u64, u64) {
        (self.wanted, self.read)
    }
}

impl Files {
    pub(crate) fn new(seed: u64) -> Self {
        Files { requests: Mutex::default(), reads: Injector::new(seed), order: Mutex::new(Rng::new(!seed)) }
    }

    /// Sets which reads fail from now on, counted by page. The pages of a request that come before
    /// the first that fails are read.
    pub fn refuse_reads(&self, refusal: Refusal) {
        self.reads.set(refusal);
    }

    /// Returns how many pages were to be read, and how many of these reads failed, since
    /// [`Files::refuse_reads`].
    pub fn reads(&self) -> (u64, u64) {
        self.reads.counts()
    }

    /// Returns the number of requests under way.
    pub fn under_way(&self) -> usize {
        self.requests().len()
    }

    /// Returns the word that the file with this tag has at a byte offset, a multiple of 8.
    pub fn word(&self, tag: u64, at: u64) -> u64 {
        tag.rotate_left(32) ^ at
    }

    /// Takes a request from the engine.
    pub(crate) fn take(&self, request: ReadRequest) {
        self.requests().push(request);
    }

    /// Ends one of the requests under way, drawn by chance. Returns `None` if there is none.
    pub fn finish_any<'m, P: Platform>(&self, machine: &'m Machine<'m, P>) -> Option<Finished> {
        let nth = self.order.lock().unwrap_or_else(PoisonError::into_inner).below(self.under_way());
        self.finish_nth(machine, nth)
    }

    /// Ends a request under way by its age; number 0 is the oldest. Returns `None` if there are not
    /// as many.
    pub fn finish_nth<'m, P: Platform>(&self, machine: &'m Machine<'m, P>, nth: usize) -> Option<Finished> {
        let request = {
            let mut requests = self.requests();
            (nth < requests.len()).then(|| requests.remove(nth))?
        };
        Some(self.finish(machine, request))
    }

    /// Ends the request that reads `page`. Returns `None` if no request under way reads it.
    pub fn finish_with<'m, P: Platform>(&self, machine: &'m Machine<'m, P>, page: PendingPage) -> Option<Finished> {
        let request = {
            let mut requests = self.requests();
            let at = requests.iter().position(|request| request.has(page))?;
            requests.remove(at)
        };
        Some(self.finish(machine, request))
    }

    fn finish<'m, P: Platform>(&self, machine: &'m Machine<'m, P>, request: ReadRequest) -> Finished {
        let pages = request.pages();
        let wanted = pages.end - pages.start;
        let read = (0..wanted).find(|_| !self.reads.allow()).unwrap_or(wanted);
        let end = (pages.start + read) << request.page_shift();
        let mut at = pages.start << request.page_shift();
        let frames = request.frames().flat_map(|(first, count)| (0..count).map(move |i| first.add(i)));
        for pfn in frames {
            for word in (0..FRAME_SIZE).step_by(8) {
                // A read that fails leaves garbage.
                let value = if at < end { self.word(request.tag(), at + word) } else { !0 };
                // SAFETY: the request's frames are the host's alone until the request ends, and
                // the word is in this frame.
                unsafe { machine.frames().at(pfn.addr()).add(word as usize).cast::<u64>().write(value) };
            }
            at += FRAME_SIZE;
        }
        let finished = Finished { tag: request.tag(), wanted, read, folios: request.frames().count() };
        // SAFETY: the request came from the machine that runs on this hardware, and the pages that
        // were read have their contents.
        unsafe { Object::finish_read(machine, request, read) };
        finished
    }

    fn requests(&self) -> MutexGuard<'_, Vec<ReadRequest>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
