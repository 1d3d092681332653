//! The accessed and dirty bits that hardware sets in PTEs: reading and clearing them (Linux: idle
//! page tracking, and `/proc/PID/clear_refs`).
//!
//! For any page of a cont block, hardware may set the bits in any PTE of the block. So the block
//! was accessed or written, and is reported as a whole. Soft-dirty ([`super::soft_dirty`]) is exact
//! to the page.

use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::flag;
use crate::platform::Platform;
use crate::table::Run;

use super::Observe;
use crate::space::ground::{Change, Ptes};

impl<P: Platform, A: Arch> Observe<'_, '_, P, A> {
    /// Implements [`AddressSpace::clear_accessed_dirty`].
    pub(super) fn clear_accessed_dirty(self, range: VirtRange, what: Attrs, mut told: impl FnMut(VirtRange, Attrs)) {
        let range = self.user_part(range);
        let what = what & Attrs::HARDWARE;
        let mut change = Change::begin(self.space, range);
        change.unlock();
        let mut last: Option<(VirtRange, Attrs)> = None;
        Ptes::of(self.space).each_run(range, |table, run| {
            if run.kind != Kind::Leaf || !run.attrs(self.arch()).intersects(what) {
                return false;
            }
            table.clear_accessed_dirty(run, what, |range, attrs| {
                if attrs.contains(Attrs::DIRTY) {
                    self.note(run, range);
                }
                match &mut last {
                    _ if attrs.is_empty() => {}
                    Some(last) if last.0.end == range.start && last.1 == attrs => last.0.end = range.end,
                    _ => {
                        if let Some((range, attrs)) = last.replace((range, attrs)) {
                            told(range, attrs);
                        }
                    }
                }
            });
            true
        });
        if let Some((range, attrs)) = last {
            told(range, attrs);
        }
    }

    /// What a part of a run maps was written to, and its entries don't say so any more: it may not
    /// go.
    fn note(self, run: &Run, part: VirtRange) {
        let frames = self.machine().frames();
        let first = run.pfn(self.arch()).add(((part.start - run.va) >> FRAME_SHIFT) as u32);
        for (_, frame, _) in frames.folios(first, (part.len() >> FRAME_SHIFT) as u32) {
            if frame.has(flag::LAZYFREE) {
                frame.clear_flag(flag::LAZYFREE);
            }
        }
    }
}
