//! Memory in pieces smaller than a frame.
//!
//! Pieces of one size share a *span*: a frame, or, where a frame's rest would be too much to waste, four in a row. Which pieces
//! of a span are free is a word in the descriptor of its first frame, and the descriptors thread a list of spans that have a
//! free one; so a span has no header, and its pieces take all of it. A span without a piece in use goes back at once.
//!
//! Sizes are such that pages of all lengths take about a tenth more than they are long. Four frames in a row may not be had when memory is
//! short; a piece of the next size that needs only one does then.

use core::array;

use crate::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, PhysAddr};
use crate::frame::{FrameList, Frames, OutOfMemory, Use};
use crate::platform::Platform;
use crate::sync::SpinLock;

/// log2 of the frames of a span that is more than one.
const SPAN_ORDER: u8 = 2;

/// Pieces in four frames, for each size, the smallest first. Where four divides it, single frames are as good.
const OBJECTS: [u16; 28] =
    [256, 192, 128, 96, 80, 64, 56, 48, 40, 36, 32, 28, 24, 22, 20, 18, 16, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4];

/// Sizes of pieces, in the order of [`PIECES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SizeClass(u8);

impl SizeClass {
    const COUNT: usize = OBJECTS.len();

    /// The smallest one that `len` bytes fit in.
    fn of(len: usize) -> SizeClass {
        SizeClass(OBJECTS.partition_point(|objects| (FRAME_SIZE as usize) << SPAN_ORDER < len * *objects as usize) as u8)
    }

    const fn in_four_frames(self) -> u32 {
        OBJECTS[self.0 as usize] as u32
    }

    /// log2 of a span's frames.
    const fn order(self) -> u8 {
        if self.in_four_frames().is_multiple_of(1 << SPAN_ORDER) { 0 } else { SPAN_ORDER }
    }

    /// Pieces in a span.
    const fn objects(self) -> u32 {
        self.in_four_frames() >> (SPAN_ORDER - self.order())
    }

    /// Bytes of a piece.
    const fn size(self) -> u32 {
        ((FRAME_SIZE as u32) << SPAN_ORDER) / self.in_four_frames()
    }

    /// A bit for each piece of a span.
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

/// A piece and how much of it is used, in a word that is never zero.
///
/// | bits | what |
/// |---|---|
/// | 0–31 | the first frame of its span, which is never frame 0 |
/// | 32–37 | which piece of the span |
/// | 38–42 | its size |
/// | 43–55 | bytes in it |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle(pub(super) u64);

impl Handle {
    fn new(span: Pfn, index: u32, class: SizeClass, len: usize) -> Handle {
        Handle(span.0 as u64 | (index as u64) << 32 | (class.0 as u64) << 38 | (len as u64) << 43)
    }

    fn span(self) -> Pfn {
        Pfn(self.0 as u32)
    }

    fn index(self) -> u32 {
        (self.0 >> 32) as u32 & 63
    }

    fn class(self) -> SizeClass {
        SizeClass((self.0 >> 38) as u8 & 31)
    }

    /// Bytes in it.
    pub(super) fn len(self) -> usize {
        (self.0 >> 43) as usize
    }

    /// Where it begins.
    pub(super) fn addr(self) -> PhysAddr {
        PhysAddr(self.span().addr().0 + u64::from(self.index() * self.class().size()))
    }
}

/// An allocated object.
pub(super) struct Allocated {
    /// The object's handle.
    pub(super) handle: Handle,
    /// The number of frames that the pool took from the frame allocator for it.
    pub(super) frames: u32,
}

/// Spans of each size that have a free piece.
pub(super) struct Pool([SpinLock<FrameList>; SizeClass::COUNT]);

impl Pool {
    pub(super) fn new() -> Self {
        Pool(array::from_fn(|_| SpinLock::new(FrameList::new())))
    }

    /// The largest number of bytes that are better kept in a piece than in a frame.
    pub(super) const MAX_USEFUL_LEN: usize = SizeClass(SizeClass::COUNT as u8 - 2).size() as usize;

    /// A piece for `len` bytes, at most a frame's, the caller's alone; and how many frames it took to have one.
    pub(super) fn allocate<P: Platform>(&self, frames: &Frames<'_, P>, len: usize) -> Result<Allocated, OutOfMemory> {
        let wanted = SizeClass::of(len);
        self.allocate_in(frames, wanted, len).or_else(|error| {
            let mut others = (wanted.0 + 1..SizeClass::COUNT as u8).map(SizeClass);
            match others.find(|other| wanted.order() > 0 && other.order() == 0) {
                Some(other) => self.allocate_in(frames, other, len),
                None => Err(error),
            }
        })
    }

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
        // Where all memory is in use, none comes free before some of it is written here.
        let span = frames.alloc_kept(class.order(), Use::Kernel)?;
        let left = class.all() & !1;
        let frame = frames.frame(span);
        frame.set_data(left);
        if left != 0 {
            self.0[class.0 as usize].lock(platform).push(frames, span, frame);
        }
        Ok(Allocated { handle: Handle::new(span, 0, class, len), frames: 1 << class.order() })
    }

    /// Give a piece back; how many frames that gave back.
    ///
    /// # Safety
    /// It was allocated here, and nobody uses it any more.
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
        // SAFETY: no piece of it is in use, and it is on no list; so nobody else can find it.
        unsafe { frames.free_kept(span, class.order(), Use::Kernel) };
        1 << class.order()
    }
}

const _: () = assert!(FRAME_SHIFT < 13, "13 bits hold the length of a frame");
