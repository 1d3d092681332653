//! The accessed and dirty bits that hardware sets in PTEs: reading and clearing them (Linux: idle
//! page tracking, and `/proc/PID/clear_refs`).
//!
//! For an access to any page of a cont block (PTEs that a TLB may cache as one translation),
//! hardware may set the bits in any PTE of the block. So the bits belong to the whole block, and
//! the block is reported as a whole. Soft-dirty ([`super::soft_dirty`]) is exact to the page.

use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Attrs, Kind};
use crate::frame::flag;
use crate::platform::Platform;
use crate::table::Run;

use super::Observe;
use crate::space::ground::{Change, Ptes};

impl<P: Platform> Observe<'_, '_, P> {
    /// Implements
    /// [`AddressSpace::clear_accessed_dirty`](crate::space::AddressSpace::clear_accessed_dirty).
    pub(super) fn clear_accessed_dirty(self, range: VirtRange, bits: Attrs, mut report: impl FnMut(VirtRange, Attrs)) {
        let range = self.user_part(range);
        let bits = bits & Attrs::HARDWARE;
        let mut change = Change::begin(self.space, range);
        change.unlock();
        let mut last: Option<(VirtRange, Attrs)> = None;
        Ptes::of(self.space).each_run(range, |table, run| {
            if run.kind != Kind::Leaf || !run.attrs(self.arch()).intersects(bits) {
                return false;
            }
            table.clear_accessed_dirty(run, bits, |range, attrs| {
                if attrs.contains(Attrs::DIRTY) {
                    self.clear_lazyfree(run, range);
                }
                match &mut last {
                    _ if attrs.is_empty() => {}
                    Some(last) if last.0.end == range.start && last.1 == attrs => last.0.end = range.end,
                    _ => {
                        if let Some((range, attrs)) = last.replace((range, attrs)) {
                            report(range, attrs);
                        }
                    }
                }
            });
            true
        });
        if let Some((range, attrs)) = last {
            report(range, attrs);
        }
    }

    /// Clears the lazyfree flag (`MADV_FREE`) of the folios that `part`, a range inside the run,
    /// maps. The caller clears the dirty bits of their PTEs. If the flag stayed, reclaim would take
    /// the folios for unwritten and discard their contents.
    fn clear_lazyfree(self, run: &Run, part: VirtRange) {
        let frames = self.machine().frames();
        let first = run.pfn(self.arch()).add(((part.start - run.va) >> FRAME_SHIFT) as u32);
        for (_, frame, _) in frames.folios(first, (part.len() >> FRAME_SHIFT) as u32) {
            if frame.has(flag::LAZYFREE) {
                frame.clear_flag(flag::LAZYFREE);
            }
        }
    }
}
