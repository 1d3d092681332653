//! What hardware has recorded of pages, accessed and dirty, told and forgotten (Linux: the idle page tracking of reclaim, and
//! `/proc/PID/clear_refs`).
//!
//! Hardware may record what happens to any page of a block in any of its entries: so it is the block that was accessed or
//! written, and is told as a whole. Who wants to know exactly which pages were written asks [`super::track`].

use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::flag;
use crate::platform::Platform;
use crate::table::Run;

use super::AddressSpace;
use crate::space::ground::{Change, Ptes};

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Forget what hardware has recorded in `range` of `what`, some of [`Attrs::HARDWARE`], and hear what that was: by
    /// pieces in ascending order, in which all pages were recorded alike. Huge mappings that don't lie in the range entirely are
    /// left out. When this returns, whatever happens anew is recorded anew; what happens while it runs is told now, or stays for the
    /// next to ask.
    ///
    /// A table is locked while its pieces are told: `told` must be quick, and must not call back into the space.
    pub fn forget_recorded(&self, range: VirtRange, what: Attrs, mut told: impl FnMut(VirtRange, Attrs)) {
        let range = UserRange::all(&self.tables.arch).intersect(&range);
        let what = what & Attrs::HARDWARE;
        let mut change = Change::begin(self, range);
        change.unlock();
        let mut last: Option<(VirtRange, Attrs)> = None;
        Ptes::of(self).each_run(range, |table, run| {
            if run.kind != Kind::Leaf || !run.attrs(&self.tables.arch).intersects(what) {
                return false;
            }
            table.forget_recorded(run, what, |range, attrs| {
                if attrs.contains(Attrs::DIRTY) {
                    self.keep(run, range);
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

    /// What a part of a run maps was written to, and its entries don't say so any more: it may not go.
    fn keep(&self, run: &Run, part: VirtRange) {
        let frames = self.tables.machine.frames();
        let first = run.pfn(&self.tables.arch).add(((part.start - run.va) >> FRAME_SHIFT) as u32);
        for (_, frame, _) in frames.folios(first, (part.len() >> FRAME_SHIFT) as u32) {
            if frame.has(flag::LAZY) {
                frame.clear_flag(flag::LAZY);
            }
        }
    }
}
