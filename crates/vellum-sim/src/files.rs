//! The files of a simulated machine. Their contents are a function of place until they are written;
//! they are read and written in any order, with failures that a test chooses.

mod stored;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vellum::Machine;
use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::memcg::MemcgId;
use vellum::page_cache;
use vellum::platform::{Memory, PendingPage, Platform, ReadRequest, WriteRequest};

use crate::inject::{Injector, Refusal};
use crate::rng::Rng;
use stored::{Contents, Stored, WORDS};

/// The files of a machine, by tag. The engine's requests to read them stay under way until the test
/// ends them.
#[derive(Debug)]
pub struct Files {
    requests: Mutex<Vec<ReadRequest>>,
    writes_under_way: Mutex<Vec<Write>>,
    stored: Mutex<Stored>,
    /// The tags of the objects that are gone, in the order of their ends.
    forgotten: Mutex<Vec<u64>>,
    /// The pages of 4 KiB that became dirty, by memcg.
    dirtied: Mutex<BTreeMap<u16, u64>>,
    reads: Injector,
    writes: Injector,
    order: Mutex<Rng>,
}

/// A write under way.
#[derive(Debug)]
struct Write {
    request: WriteRequest,
    /// The pages that the device has read already, by number in the file. It reads the others when
    /// the write ends.
    early: BTreeMap<u64, Contents>,
}

/// Returns the number in the file and the frame of each page of 4 KiB of a request.
fn frames_of(request: &WriteRequest) -> impl Iterator<Item = (u64, Pfn)> + '_ {
    let first = (request.pages().start << request.page_shift()) / FRAME_SIZE;
    let frames = request.frames().flat_map(|(first, count)| (0..count).map(move |i| first.add(i)));
    (first..).zip(frames)
}

/// Reads a frame as a device does, while programs may write to it.
fn load(direct_map: *mut u8, pfn: Pfn) -> Contents {
    // SAFETY: the frame is one of a request under way, which keeps it, and all memory is in the
    // direct map. Programs write to it by atomic operations too.
    let words = unsafe { &*direct_map.add(pfn.addr().0 as usize).cast::<[AtomicU64; WORDS]>() };
    Contents::of(words.iter().map(|word| word.load(Ordering::Relaxed)))
}

/// Returns a mask of those bytes of the word at a byte offset that lie below `end`.
fn bytes_below(end: u64, at: u64) -> u64 {
    !u64::MAX.checked_shl(8 * end.saturating_sub(at).min(8) as u32).unwrap_or(0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The tag of the file.
    pub tag: u64,
    /// The number in the file of the first page.
    pub first: u64,
    /// The number of pages that were to be read or written.
    pub wanted: u64,
    /// The number of pages that were. The page after these could not be.
    pub done: u64,
    /// The number of folios into which they were to be read, or of parts to be written.
    pub folios: usize,
}

impl Finished {
    /// Returns the numbers of pages that were to be read or written, and that were.
    pub fn pages(self) -> (u64, u64) {
        (self.wanted, self.done)
    }
}

impl Files {
    pub(crate) fn new(seed: u64) -> Self {
        Files {
            requests: Mutex::default(),
            writes_under_way: Mutex::default(),
            stored: Mutex::default(),
            forgotten: Mutex::default(),
            dirtied: Mutex::default(),
            reads: Injector::new(seed),
            writes: Injector::new(!seed),
            order: Mutex::new(Rng::new(!seed)),
        }
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

    /// Sets which writes fail from now on, counted by page. The pages of a request that come before
    /// the first that fails are written.
    pub fn refuse_writes(&self, refusal: Refusal) {
        self.writes.set(refusal);
    }

    /// Learns that an object is gone.
    pub(crate) fn forget(&self, tag: u64) {
        lock(&self.forgotten).push(tag);
    }

    /// Returns the tags of the objects that are gone, in the order of their ends.
    pub fn forgotten(&self) -> Vec<u64> {
        lock(&self.forgotten).clone()
    }

    /// Learns that pages became dirty.
    pub(crate) fn note_dirtied(&self, memcg: MemcgId, pages: u64) {
        *lock(&self.dirtied).entry(memcg.number()).or_default() += pages;
    }

    /// Returns the pages of 4 KiB that became dirty since the last call, by memcg.
    pub fn take_dirtied(&self) -> BTreeMap<u16, u64> {
        core::mem::take(&mut lock(&self.dirtied))
    }

    /// Returns the number of reads under way.
    pub fn under_way(&self) -> usize {
        self.requests().len()
    }

    /// Returns the number of writes under way.
    pub fn writes_under_way(&self) -> usize {
        lock(&self.writes_under_way).len()
    }

    /// Returns the pages of each write under way of the file with this tag.
    pub fn writes_of(&self, tag: u64) -> Vec<Range<u64>> {
        let writes = lock(&self.writes_under_way);
        writes.iter().filter(|write| write.request.tag() == tag).map(|write| write.request.pages()).collect()
    }

    /// Writes zeros to these bytes of the file with this tag, as a host's file system does before
    /// it lets the file grow, and where it punches a hole.
    pub fn zero(&self, tag: u64, bytes: Range<u64>) {
        let mut stored = lock(&self.stored);
        for page in bytes.start / FRAME_SIZE..bytes.end.div_ceil(FRAME_SIZE) {
            let file = stored.file(tag);
            let words = (page * FRAME_SIZE..).step_by(8).take(WORDS);
            let contents = Contents::of(words.map(|at| {
                let zeroed = bytes_below(bytes.end, at) & !bytes_below(bytes.start, at);
                file.word(at) & !zeroed
            }));
            stored.write(tag, page, contents);
        }
    }

    /// Returns the word that the file with this tag has at a byte offset, a multiple of 8.
    pub fn word(&self, tag: u64, at: u64) -> u64 {
        lock(&self.stored).file(tag).word(at)
    }

    /// Takes a request to write from the engine, whose pages the device reads when the write ends.
    pub(crate) fn take_write(&self, request: WriteRequest) {
        lock(&self.writes_under_way).push(Write { request, early: BTreeMap::new() });
    }

    /// Takes a request to write from the engine. The device reads each page of it either now or
    /// when the write ends, by chance.
    pub(crate) fn take_write_early(&self, request: WriteRequest, memory: &impl Memory) {
        let early = frames_of(&request).filter(|_| lock(&self.order).percent(50));
        let early = early.map(|(page, pfn)| (page, load(memory.direct_map(), pfn))).collect();
        lock(&self.writes_under_way).push(Write { request, early });
    }

    /// Ends one of the writes under way, drawn by chance. Returns `None` if there is none.
    pub fn finish_any_write<'m, P: Platform>(&self, machine: &'m Machine<'m, P>) -> Option<Finished> {
        let write = {
            let mut writes = lock(&self.writes_under_way);
            let nth = lock(&self.order).below(writes.len());
            (nth < writes.len()).then(|| writes.remove(nth))?
        };
        Some(self.finish_write(machine, write))
    }

    /// Ends the request that writes `page`. Returns `None` if no request under way writes it.
    pub fn finish_write_with<'m, P: Platform>(
        &self,
        machine: &'m Machine<'m, P>,
        page: PendingPage,
    ) -> Option<Finished> {
        let write = {
            let mut writes = lock(&self.writes_under_way);
            let at = writes.iter().position(|write| write.request.has(page))?;
            writes.remove(at)
        };
        Some(self.finish_write(machine, write))
    }

    fn finish_write<'m, P: Platform>(&self, machine: &'m Machine<'m, P>, write: Write) -> Finished {
        let Write { request, mut early } = write;
        let (pages, bytes) = (request.pages(), request.bytes());
        let wanted = pages.end - pages.start;
        let done = self.writes.allow_first(wanted);
        let end = bytes.end.min((pages.start + done) << request.page_shift());
        let mut stored = lock(&self.stored);
        for (page, pfn) in frames_of(&request).take_while(|(page, _)| page * FRAME_SIZE < end) {
            let new = early.remove(&page).unwrap_or_else(|| load(machine.platform().direct_map(), pfn));
            let at = page * FRAME_SIZE;
            let contents = if end - at >= FRAME_SIZE {
                new
            } else {
                // Of the words beyond the end of the file, and of the part of the last one, the
                // device keeps its own.
                Contents::of((0..WORDS).map(|nth| {
                    let word = at + 8 * nth as u64;
                    let written = bytes_below(end, word);
                    new.word(nth) & written | stored.file(request.tag()).word(word) & !written
                }))
            };
            stored.write(request.tag(), page, contents);
        }
        drop(stored);
        let (tag, first, folios) = (request.tag(), pages.start, request.frames().count());
        let finished = Finished { tag, first, wanted, done, folios };
        // SAFETY: the request came from the machine that runs on this hardware, and this device
        // reads its frames no more.
        unsafe { page_cache::finish_write(machine, request, done) };
        finished
    }

    /// Takes a request from the engine.
    pub(crate) fn take(&self, request: ReadRequest) {
        self.requests().push(request);
    }

    /// Ends one of the requests under way, drawn by chance. Returns `None` if there is none.
    pub fn finish_any<'m, P: Platform>(&self, machine: &'m Machine<'m, P>) -> Option<Finished> {
        let nth = lock(&self.order).below(self.under_way());
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
        let read = self.reads.allow_first(wanted);
        let end = (pages.start + read) << request.page_shift();
        let mut at = pages.start << request.page_shift();
        let frames = request.frames().flat_map(|(first, count)| (0..count).map(move |i| first.add(i)));
        let stored = lock(&self.stored);
        let file = stored.file(request.tag());
        for pfn in frames {
            // SAFETY: the request's frames are the host's alone until the request ends, and words
            // of any value are initialised.
            let to = unsafe { &mut *machine.frames().at(pfn.addr()).cast::<[u64; WORDS]>().as_ptr() };
            if at < end {
                file.read(at / FRAME_SIZE, to);
            } else {
                // A read that fails leaves garbage.
                to.fill(!0);
            }
            at += FRAME_SIZE;
        }
        drop(stored);
        let (tag, first, folios) = (request.tag(), pages.start, request.frames().count());
        let finished = Finished { tag, first, wanted, done: read, folios };
        // SAFETY: the request came from the machine that runs on this hardware, and the pages that
        // were read have their contents.
        unsafe { page_cache::finish_read(machine, request, read) };
        finished
    }

    fn requests(&self) -> MutexGuard<'_, Vec<ReadRequest>> {
        lock(&self.requests)
    }
}
