//! A pool allocator for objects smaller than a frame (Linux: zsmalloc).
//!
//! Objects of one size class share a *span* (Linux: zspage): one frame, or, for sizes that would
//! leave too much of a single frame unused, four consecutive frames. A word in the descriptor of a
//! span's first frame is the bitmap of its free objects, and the descriptors link the spans that
//! have a free one. So a span has no header, and its objects use all of it. A span without
//! allocated objects is freed at once.
//!
//! With these size classes a page takes about a tenth more memory than its compressed length, on
//! average over all lengths. When memory is short, four consecutive frames may not be available;
//! the pool then uses an object of the next larger class whose spans are single frames.

use core::array;

use crate::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, PhysAddr};
use crate::frame::{FrameList, Frames, OutOfMemory, Use};
use crate::platform::Platform;
use crate::sync::SpinLock;

/// log2 of the number of frames of the larger spans.
const SPAN_ORDER: u8 = 2;

/// The number of objects in four frames, for each size class, the smallest size first. Where the
/// number is a multiple of four, spans are single frames.
const OBJECTS: [u16; 28] =
    [256, 192, 128, 96, 80, 64, 56, 48, 40, 36, 32, 28, 24, 22, 20, 18, 16, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4];

/// A size class: an index into [`OBJECTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizeClass(u8);

impl SizeClass {
    /// The number of size classes.
    const COUNT: usize = OBJECTS.len();

    /// Returns the smallest class for objects of `len` bytes.
    fn of(len: usize) -> SizeClass {
        let four_frames = (FRAME_SIZE as usize) << SPAN_ORDER;
        SizeClass(OBJECTS.partition_point(|objects| four_frames < len * *objects as usize) as u8)
    }

    /// Returns the number of objects in four frames.
    const fn in_four_frames(self) -> u32 {
        OBJECTS[self.0 as usize] as u32
    }

    /// Returns log2 of the number of frames of a span.
    const fn order(self) -> u8 {
        if self.in_four_frames().is_multiple_of(1 << SPAN_ORDER) { 0 } else { SPAN_ORDER }
    }

    /// Returns the number of objects in a span.
    const fn objects(self) -> u32 {
        self.in_four_frames() >> (SPAN_ORDER - self.order())
    }

    /// Returns the size of an object in bytes.
    const fn size(self) -> u32 {
        ((FRAME_SIZE as u32) << SPAN_ORDER) / self.in_four_frames()
    }

    /// Returns the bitmap of a span whose objects are all free.
    const fn all(self) -> u64 {
        !0 >> (64 - self.objects())
    }
}

const _: () = {
    let mut class = 0;
    while class < SizeClass::COUNT {
        assert!(SizeClass(class as u8).objects() <= 64, "a word has a bit for each object of a span");
        class += 1;
    }
    assert!(SizeClass(SizeClass::COUNT as u8 - 1).size() as u64 == FRAME_SIZE, "the largest size class is a frame");
};

/// The handle of an object, with the number of the object's bytes that are used, in a word that is
/// never zero.
///
/// | bits | field |
/// |---|---|
/// | 0–31 | the first frame of the span, which is never frame 0 |
/// | 32–37 | the index of the object in its span |
/// | 38–42 | the size class |
/// | 43–55 | the number of bytes used |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(pub(super) u64);

impl Handle {
    /// Encodes a handle.
    fn new(span: Pfn, index: u32, class: SizeClass, len: usize) -> Handle {
        Handle(span.0 as u64 | (index as u64) << 32 | (class.0 as u64) << 38 | (len as u64) << 43)
    }

    /// Returns the first frame of the object's span.
    fn span(self) -> Pfn {
        Pfn(self.0 as u32)
    }

    /// Returns the index of the object in its span.
    fn index(self) -> u32 {
        (self.0 >> 32) as u32 & 63
    }

    /// Returns the object's size class.
    fn class(self) -> SizeClass {
        SizeClass((self.0 >> 38) as u8 & 31)
    }

    /// Returns the number of bytes used.
    pub(super) fn len(self) -> usize {
        (self.0 >> 43) as usize
    }

    /// Returns the physical address of the object.
    pub(super) fn addr(self) -> PhysAddr {
        PhysAddr(self.span().addr().0 + u64::from(self.index() * self.class().size()))
    }
}

/// An allocated object.
pub(super) struct Allocated {
    /// The object's handle.
    pub(super) handle: Handle,
    /// The number of frames that the pool took from the frame allocator for this allocation.
    pub(super) frames: u32,
}

/// The pool: for each size class, the list of the spans that have a free object.
pub(super) struct Pool([SpinLock<FrameList>; SizeClass::COUNT]);

impl Pool {
    /// Returns an empty pool.
    pub(super) fn new() -> Self {
        Pool(array::from_fn(|_| SpinLock::new(FrameList::new())))
    }

    /// The largest size in bytes of an object that is smaller than a frame. Longer data takes a
    /// whole frame.
    pub(super) const MAX_USEFUL_LEN: usize = SizeClass(SizeClass::COUNT as u8 - 2).size() as usize;

    /// Allocates an object for `len` bytes; `len` is at most the size of a frame. The caller has
    /// exclusive access to the object.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is no span with a free object, and no memory for a new one.
    pub(super) fn allocate<P: Platform>(&self, frames: &Frames<'_, P>, len: usize) -> Result<Allocated, OutOfMemory> {
        let wanted = SizeClass::of(len);
        self.allocate_in(frames, wanted, len).or_else(|error| {
            // Tries the next class whose spans are single frames.
            let mut larger = (wanted.0 + 1..SizeClass::COUNT as u8).map(SizeClass);
            match larger.find(|other| wanted.order() > 0 && other.order() == 0) {
                Some(other) => self.allocate_in(frames, other, len),
                None => Err(error),
            }
        })
    }

    /// Allocates an object of one size class.
    ///
    /// # Errors
    /// As for [`Pool::allocate`].
    fn allocate_in<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        class: SizeClass,
        len: usize,
    ) -> Result<Allocated, OutOfMemory> {
        let platform = frames.platform();
        let mut spans = self.0[class.0 as usize].lock(platform);
        if let Some(span) = spans.first() {
            let frame = frames.frame(span);
            let free = frame.data();
            frame.set_data(free & (free - 1));
            if free & (free - 1) == 0 {
                spans.remove(frames, span);
            }
            let handle = Handle::new(span, free.trailing_zeros(), class, len);
            return Ok(Allocated { handle, frames: 0 });
        }
        drop(spans);
        // The span may come from the emergency reserve: when all memory is in use, no frame becomes
        // free before pageout has stored a page here.
        let span = frames.alloc_reserve(class.order(), Use::Kernel)?;
        let left = class.all() & !1;
        let frame = frames.frame(span);
        frame.set_data(left);
        if left != 0 {
            self.0[class.0 as usize].lock(platform).push(frames, span, frame);
        }
        Ok(Allocated { handle: Handle::new(span, 0, class, len), frames: 1 << class.order() })
    }

    /// Frees an object. Returns the number of frames that the pool thereby freed.
    ///
    /// # Safety
    /// [`Pool::allocate`] of this pool returned the handle, and the caller frees it once. Nothing
    /// uses the object any more.
    pub(super) unsafe fn free<P: Platform>(&self, frames: &Frames<'_, P>, handle: Handle) -> u32 {
        let (class, span) = (handle.class(), handle.span());
        let frame = frames.frame(span);
        let mut spans = self.0[class.0 as usize].lock(frames.platform());
        let before = frame.data();
        let after = before | 1 << handle.index();
        debug_assert!(before != after, "double free of a pool object");
        frame.set_data(after);
        match (before == 0, after == class.all()) {
            (true, false) => spans.push(frames, span, frame),
            (false, true) => spans.remove(frames, span),
            _ => {}
        }
        drop(spans);
        if after != class.all() {
            return 0;
        }
        // SAFETY: no object of the span is allocated, and it is on no list, so no other CPU can
        // find it.
        unsafe { frames.free_reserve(span, class.order(), Use::Kernel) };
        1 << class.order()
    }
}

const _: () = assert!(FRAME_SHIFT < 13, "13 bits hold the length of a frame");
