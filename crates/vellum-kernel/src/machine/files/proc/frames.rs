//! Serves `kpageflags` and `kpagecount`: the machine's memory, frame by frame, in Linux's terms.
//! Each frame is sampled without a lock, so neighbouring entries may be of different moments.

use super::numbers;
use crate::mem::machine;
use vellum::addr::{FRAME_SHIFT, Pfn};
use vellum::frame::{Frame, FrameKind, FrameState, flag};
use vellum::memcg::LruList;
use vellum::platform::Memory;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Sink;

/// Bits of `linux/kernel-page-flags.h`.
mod bit {
    pub const UPTODATE: u64 = 1 << 3;
    pub const LRU: u64 = 1 << 5;
    pub const BUDDY: u64 = 1 << 10;
    pub const MMAP: u64 = 1 << 11;
    pub const ANON: u64 = 1 << 12;
    pub const SWAP_BACKED: u64 = 1 << 14;
    pub const HEAD: u64 = 1 << 15;
    pub const TAIL: u64 = 1 << 16;
    pub const UNEVICTABLE: u64 = 1 << 18;
    pub const NO_PAGE: u64 = 1 << 20;
    pub const LARGE: u64 = 1 << 22;
    pub const ZERO_PAGE: u64 = 1 << 24;
    pub const TABLE: u64 = 1 << 26;
    pub const RESERVED: u64 = 1 << 32;
    pub const LOCKED: u64 = 1 << 33;
}

/// Serves `kpageflags`: the flags of each frame.
pub fn flags(at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
    numbers(at, to, end(), |first, numbers| each(first, numbers, |block| block.map_or(bit::NO_PAGE, flags_of)))
}

/// Serves `kpagecount`: the mapcount of each frame; for a large folio, the average over its pages.
pub fn counts(at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
    numbers(at, to, end(), |first, numbers| each(first, numbers, |block| block.map_or(0, count_of)))
}

/// Returns the PFN after the machine's last frame.
fn end() -> u64 {
    let regions = machine().platform().regions();
    regions.iter().map(|region| (region.base.0 + region.len) >> FRAME_SHIFT).max().unwrap_or(0)
}

fn each(first: u64, numbers: &mut [u64], number: impl Fn(Option<Place>) -> u64) {
    for (pfn, to) in (first..).zip(numbers) {
        *to = number(u32::try_from(pfn).ok().and_then(|pfn| place(Pfn(pfn))));
    }
}

/// The folio or free block that a frame belongs to.
struct Place {
    head: &'static Frame,
    state: FrameState,
    first: bool,
}

fn place(pfn: Pfn) -> Option<Place> {
    let (first, head, state) = machine().frames().block(pfn)?;
    Some(Place { head, state, first: first == pfn })
}

fn flags_of(place: Place) -> u64 {
    let Place { head, state, first } = place;
    let given = |flag, bits: u64| if state.has(flag) { bits } else { 0 };
    match state.kind() {
        FrameKind::Free | FrameKind::Cached => bit::BUDDY,
        FrameKind::Table => bit::TABLE,
        FrameKind::Reserved => bit::RESERVED,
        FrameKind::Private | FrameKind::Tail => 0,
        FrameKind::Folio if state.has(flag::ZERO_FOLIO) => bit::ZERO_PAGE | bit::RESERVED,
        FrameKind::Folio => {
            let list = match LruList::of(head) {
                None => 0,
                Some(LruList::Unevictable) => bit::LRU | bit::UNEVICTABLE | bit::LOCKED,
                Some(_) => bit::LRU,
            };
            let size = match (state.order(), first) {
                (0, _) => 0,
                (_, true) => bit::HEAD | bit::LARGE,
                (_, false) => bit::TAIL | bit::LARGE,
            };
            let mapped = if head.counts().maps > 0 { bit::MMAP } else { 0 };
            let owner = bit::ANON ^ given(flag::OBJECT, bit::ANON);
            bit::UPTODATE | bit::SWAP_BACKED | list | size | mapped | owner
        }
    }
}

fn count_of(place: Place) -> u64 {
    let Place { head, state, .. } = place;
    if state.kind() != FrameKind::Folio || state.has(flag::ZERO_FOLIO) {
        return 0;
    }
    let (maps, pages) = (u64::from(head.counts().maps), 1 << state.order());
    // The average is rounded, but at least 1 if any page is mapped.
    ((maps + pages / 2) / pages).max(maps.min(1))
}
