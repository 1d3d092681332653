//! A request of the engine, as transfers of a block device: one for each piece of a folio that is
//! in one piece on the device too.
//!
//! If one fails, all are carried out once more, one after the other, to find the first page that
//! can't be transferred.

use crate::arch::kernel_map::phys_to_virt;
use crate::mem::block::{Begun, BlockDevice, Direction, Ticket, Transfer, transfer_pages};
use crate::mem::storage::ended;
use crate::mem::store::Store;
use crate::mem::{machine, payer, throttle, vmalloc};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicU8;
use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::page_cache::{finish_read, finish_write};
use vellum::platform::bytes as page_bytes;
use vellum::platform::{ReadRequest, WriteRequest};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::ext4::contents::Place;
use vellum_kernel::fs::ext4::{LARGEST_BLOCK, SECTOR};

/// A request of the engine.
#[expect(clippy::large_enum_variant, reason = "a box could fail for want of memory")]
pub enum Request {
    Read(ReadRequest),
    Write(WriteRequest),
}

impl Request {
    /// Returns the object's number, the first page, and the one after the last.
    pub fn pages(&self) -> (u64, u64, u64) {
        let (serial, pages) = match self {
            Request::Read(request) => (request.object(), request.pages()),
            Request::Write(request) => (request.object(), request.pages()),
        };
        (serial, pages.start, pages.end)
    }

    /// Returns the bytes to transfer, by their offsets in the file.
    fn bytes(&self) -> Range<u64> {
        match self {
            Request::Read(request) => {
                let pages = request.pages();
                pages.start * FRAME_SIZE..pages.end * FRAME_SIZE
            }
            Request::Write(request) => request.bytes(),
        }
    }

    /// Returns whether the request is to read or to write.
    pub fn direction(&self) -> Direction {
        match self {
            Request::Read(_) => Direction::Read,
            Request::Write(_) => Direction::Write,
        }
    }

    /// Ends the request, whose first `count` pages were transferred, and tells the tasks that wait
    /// for its pages.
    ///
    /// # Safety
    ///
    /// Of a read, the first `count` pages have their contents. No device accesses the pages.
    #[inline]
    pub unsafe fn end(self, count: u64) {
        let (serial, first, end) = self.pages();
        let failed_from = match self {
            Request::Read(request) => {
                // SAFETY: the request came from this machine; this function's contract.
                unsafe { finish_read(machine(), request, count) };
                first + count
            }
            Request::Write(request) => {
                // SAFETY: as above.
                unsafe { finish_write(machine(), request, count) };
                throttle::wake();
                // `fsync` learns of failed writes in another way, and goes on.
                end
            }
        };
        ended((serial, first, end), failed_from);
    }

    /// Returns the bytes of a folio, or of the part of it that the request has, from an offset in
    /// the file on. The request has the file's bytes from `start` on.
    #[inline]
    fn memory(&self, start: u64, at: u64) -> &[AtomicU8] {
        match self {
            // SAFETY: the request keeps the frames as long as it is borrowed.
            Request::Read(request) => unsafe { memory(start, request.frames(), at) },
            // SAFETY: as above.
            Request::Write(request) => unsafe { memory(start, request.frames(), at) },
        }
    }
}

/// Implements [`Request::memory`] for frames that have the file's bytes from `start` on.
///
/// # Safety
///
/// A request keeps the frames as long as the result is used.
unsafe fn memory<'a>(mut start: u64, frames: impl Iterator<Item = (Pfn, u32)>, at: u64) -> &'a [AtomicU8] {
    for (pfn, count) in frames {
        let end = start + u64::from(count) * FRAME_SIZE;
        if at < end {
            // SAFETY: this function's contract.
            return unsafe { &bytes(pfn, count)[(at - start) as usize..] };
        }
        start = end;
    }
    &[]
}

/// Returns the bytes of the pages that a request reads, a slice for each folio.
pub fn to_read(request: &ReadRequest) -> impl Iterator<Item = &[AtomicU8]> {
    // SAFETY: the request keeps the frames as long as it is borrowed.
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

/// Consecutive bytes of a file, in one piece in memory and on the device.
struct Piece<'a> {
    place: Place,
    memory: &'a [AtomicU8],
    /// The number of bytes: more than there are in memory if the piece is a file's tail, behind
    /// whose end the device gets zeros.
    len: usize,
}

impl Piece<'_> {
    fn is_tail(&self) -> bool {
        self.memory.len() < self.len
    }

    /// Fills a hole's memory with zeros. Returns the number of bytes.
    fn clear(&self) -> usize {
        page_bytes::clear(self.memory);
        self.len
    }

    /// Copies the tail's bytes.
    fn copy_tail(&self, to: &mut [u8]) {
        page_bytes::load(self.memory, to);
    }

    /// Writes the tail at once. Returns the number of bytes written: all or none.
    #[inline(never)]
    fn write_tail(&self, device: &dyn BlockDevice, at: u64) -> usize {
        let (mut tail, len) = ([0; LARGEST_BLOCK], self.len);
        let Some(tail) = tail.get_mut(..len) else { return 0 };
        self.copy_tail(tail);
        let transfer = Transfer { direction: Direction::Write, at, memory: tail.as_mut_ptr(), len };
        // SAFETY: the copy on the stack lives until the transfer has ended.
        if unsafe { device.transfer(transfer) } { len } else { 0 }
    }
}

/// How far a request has come.
struct Cursor {
    /// The bytes to transfer, by their offsets in the file.
    bytes: Range<u64>,
    /// The offset up to which pieces were taken.
    at: u64,
    /// The part of the file that was last found on the device.
    part: Option<(Place, Range<u64>)>,
}

impl Cursor {
    fn start(request: &Request) -> Self {
        let bytes = request.bytes();
        Cursor { at: bytes.start, bytes, part: None }
    }

    /// Returns the next piece. There is one.
    #[inline]
    fn next<'a>(&mut self, store: &dyn Store, request: &'a Request) -> Result<Piece<'a>, Errno> {
        let at = self.at;
        let (place, part) = match &self.part {
            Some((place, part)) if part.contains(&at) => (*place, part.clone()),
            _ => self.find(store, request)?,
        };
        let place = match place {
            Place::At(first) => Place::At(first + (at - part.start)),
            Place::Hole => Place::Hole,
        };
        let memory = request.memory(self.bytes.start, at);
        if part.end <= self.bytes.end {
            let memory = &memory[..memory.len().min((part.end - at) as usize)];
            return Ok(Piece { place, memory, len: memory.len() });
        }
        // A page's bytes behind the end of the file may be what a program has written there through
        // a mapping: the last sector, and those behind it, are a piece of their own.
        let whole = (self.bytes.end / SECTOR * SECTOR).saturating_sub(at) as usize;
        let inside = self.bytes.end.saturating_sub(at) as usize;
        let memory = &memory[..memory.len().min(if whole > 0 { whole } else { inside })];
        Ok(Piece { place, memory, len: if whole > 0 { memory.len() } else { (part.end - at) as usize } })
    }

    /// Finds the next part of the file on the device.
    fn find(&mut self, store: &dyn Store, request: &Request) -> Result<(Place, Range<u64>), Errno> {
        let rest = self.at..self.bytes.end;
        let found = match request {
            Request::Read(_) => store.place(rest)?,
            Request::Write(_) => store.room_for(rest).map(|(at, part)| (Place::At(at), part))?,
        };
        if found.1.contains(&self.at) { Ok(self.part.insert(found).clone()) } else { Err(Errno::EIO) }
    }

    /// Returns true once there is no next piece.
    fn is_at_end(&self) -> bool {
        self.at >= self.bytes.end && self.part.as_ref().is_none_or(|(_, part)| self.at >= part.end)
    }

    /// Carries out all transfers, one after the other, until one fails.
    fn transfer_all(&mut self, store: &dyn Store, request: &Request) {
        let Some(device) = store.device() else { return };
        while !self.is_at_end()
            && let Ok(piece) = self.next(store, request)
        {
            let moved = match piece.place {
                Place::Hole => piece.clear(),
                Place::At(at) if piece.is_tail() => piece.write_tail(&**device, at),
                Place::At(at) => transfer_pages(&**device, request.direction(), at, piece.memory),
            };
            self.at += moved as u64;
            if moved < piece.len {
                break;
            }
        }
    }

    /// Returns the number of pages that were transferred, if all transfers up to the cursor
    /// succeeded.
    fn count(&self, store: &dyn Store, request: &Request) -> u64 {
        let pages = |bytes: &Range<u64>| (bytes.end - bytes.start) / FRAME_SIZE;
        let part = pages(&(self.bytes.start..self.at));
        match request {
            Request::Read(request) => {
                let zeros = store.end();
                if zeros < self.bytes.end {
                    clear_behind(request, zeros);
                }
                if self.at < self.bytes.end.min(zeros) { part } else { pages(&self.bytes) }
            }
            Request::Write(request) => match store.written(self.bytes.clone(), self.at) {
                Ok(()) if self.at < self.bytes.end => part,
                Ok(()) => request.pages().end - request.pages().start,
                Err(_) => 0,
            },
        }
    }
}

/// Carries a request out, piece by piece, with all its transfers ended in the end. Returns the
/// number of pages that were transferred. The caller ends the request.
pub fn carry_out(store: &dyn Store, request: &Request) -> u64 {
    let mut cursor = Cursor::start(request);
    match request {
        Request::Read(request) if store.device().is_none() => {
            let has_bytes = store.end() > cursor.bytes.start;
            cursor.at += if has_bytes { store.read(request) * FRAME_SIZE } else { 0 };
        }
        _ => cursor.transfer_all(store, request),
    }
    cursor.count(store, request)
}

/// The number of transfers of a request that are under way at a time.
pub const MOST: usize = 4;

/// A request that is being carried out by the store's device. It is dropped by
/// [`Transfers::finish`] alone, as the device accesses its memory until then.
pub struct Transfers {
    store: Arc<dyn Store>,
    request: Request,
    /// Behind the pieces whose transfers were begun.
    cursor: Cursor,
    under_way: [Option<Ticket>; MOST],
    /// The last part of a block of the file, with zeros behind the end of the file.
    tail: Vec<u8>,
    failed: bool,
}

impl Transfers {
    /// Returns a request of which nothing was transferred.
    pub fn new(store: Arc<dyn Store>, request: Request) -> Self {
        let cursor = Cursor::start(&request);
        Transfers { store, request, cursor, under_way: [const { None }; MOST], tail: Vec::new(), failed: false }
    }

    /// Begins the next transfer, and those before it that end at once. Returns whether there was
    /// one that the device took.
    pub fn begin(&mut self) -> bool {
        let mut began = false;
        while !self.failed
            && let Some(free) = self.under_way.iter().position(Option::is_none)
        {
            match self.begin_next() {
                Ok(Some(Begun::UnderWay(ticket))) => {
                    self.under_way[free] = Some(ticket);
                    return true;
                }
                Ok(Some(Begun::Ended(succeeded))) => self.failed |= !succeeded,
                Ok(None) => break,
                Err(_) => self.failed = true,
            }
            began = true;
        }
        began
    }

    /// Begins the next transfer. Returns `None` if there is none, or the device takes no more.
    fn begin_next(&mut self) -> Result<Option<Begun>, Errno> {
        if self.cursor.is_at_end() {
            return Ok(None);
        }
        let piece = self.cursor.next(&*self.store, &self.request)?;
        let len = piece.len;
        let begun = match piece.place {
            Place::Hole => Some(Begun::Ended(piece.clear() == len)),
            Place::At(at) => {
                let transfer = if piece.is_tail() {
                    self.tail = payer::zeros(len)?;
                    if vmalloc::contiguous(self.tail.as_ptr()) < len {
                        return Err(Errno::ENOMEM);
                    }
                    piece.copy_tail(&mut self.tail);
                    Transfer { direction: Direction::Write, at, memory: self.tail.as_mut_ptr(), len }
                } else {
                    Transfer::of_pages(self.request.direction(), at, piece.memory)
                };
                // SAFETY: the request keeps its frames, which are accessed as atomics, and `tail`
                // is not touched again, until `finish`, which comes after all have ended.
                unsafe { self.store.device().ok_or(Errno::EIO)?.begin(transfer) }
            }
        };
        if begun.is_some() {
            self.cursor.at += len as u64;
        }
        Ok(begun)
    }

    /// Takes the transfers that have ended. Returns whether there was one.
    pub fn look(&mut self) -> bool {
        let Some(device) = self.store.device().filter(|_| self.under_way() > 0) else { return false };
        device.look();
        let mut any = false;
        for place in &mut self.under_way {
            if let Some(succeeded) = place.as_ref().and_then(|ticket| device.ended(ticket)) {
                *place = None;
                self.failed |= !succeeded;
                any = true;
            }
        }
        any
    }

    /// Returns whether the request is to read or to write.
    pub fn direction(&self) -> Direction {
        self.request.direction()
    }

    /// Returns the number of transfers that the device has under way.
    pub fn under_way(&self) -> usize {
        self.under_way.iter().flatten().count()
    }

    /// Returns true once all transfers have ended.
    pub fn are_done(&self) -> bool {
        (self.failed || self.cursor.is_at_end()) && self.under_way() == 0
    }

    /// Ends a request all of whose transfers have ended.
    pub fn finish(self) {
        let (store, request) = (&*self.store, &self.request);
        let count = if self.failed { carry_out(store, request) } else { self.cursor.count(store, request) };
        // SAFETY: all pieces up to the cursor were transferred, or filled with zeros, and all
        // transfers have ended (this function's callers).
        unsafe { self.request.end(count) };
    }
}

/// Fills what a request reads with zeros, from an offset in the file on.
fn clear_behind(request: &ReadRequest, from: u64) {
    let mut at = request.pages().start * FRAME_SIZE;
    for bytes in to_read(request) {
        page_bytes::clear(&bytes[from.saturating_sub(at).min(bytes.len() as u64) as usize..]);
        at += bytes.len() as u64;
    }
}
