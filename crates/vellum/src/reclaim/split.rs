//! What is mapped in part only is split, and what of it is not mapped is freed: nobody needs that, and it costs nobody anything.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::Arch;
use crate::frame::{Frame, Owner};
use crate::group::GroupId;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::stats::SizeCounter;
use crate::tlb::free_unmapped;

use super::Spaces;

/// Folios that are taken from a queue together. If none of them can be split, the others have to wait: those go to the end of the queue.
const BATCH: usize = 32;

/// Free about so many pages (of 4 KiB) of folios of a group and its descendants that are mapped in part. How many that were. Who is mapped
/// by more than one table, or referred to otherwise, stays as it is, and is queued again.
pub(super) fn split_partial<'m, P: Platform, A: Arch>(
    machine: &'m Machine<'m, P>,
    spaces: &(impl Spaces<'m, P, A> + ?Sized),
    group: GroupId,
    pages: u64,
) -> u64 {
    let (groups, frames) = (machine.groups(), machine.frames());
    let mut freed = 0;
    for group in groups.descendants(group) {
        for cpu in 0..groups.cpus() {
            let mut left = groups.deferred(frames, (group, cpu)) as usize;
            while left > 0 && freed < pages {
                let mut taken = ArrayVec::<_, BATCH>::new();
                groups.take_deferred(frames, (group, cpu), left.min(BATCH), |head, frame| taken.push((head, frame)));
                left -= taken.len();
                let now = taken.iter().map(|(head, frame)| split(machine, spaces, *head, frame)).sum::<u64>();
                if now == 0 {
                    break;
                }
                freed += now;
                machine.platform().resched();
            }
        }
    }
    freed
}

/// Split a folio to which the caller has a reference, which he gives up. How many pages came free.
fn split<'m, P: Platform, A: Arch>(
    machine: &'m Machine<'m, P>,
    spaces: &(impl Spaces<'m, P, A> + ?Sized),
    head: Pfn,
    frame: &'m Frame,
) -> u64 {
    let (Owner { family, page }, order) = (Owner::unpack(frame.data()), frame.order());
    let start = page << FRAME_SHIFT;
    let places = VirtRange { start, end: start + (1 << (order as u32 + FRAME_SHIFT)) };
    let mut mapped = None;
    spaces.each(family, &mut |space| {
        mapped = mapped.or_else(|| space.split_folio(places, head));
        let mut at = 0;
        while mapped.is_none()
            && let Some(area) = space.next_displaced(at, || places)
        {
            mapped = area.with_places(places).and_then(|range| space.split_folio(range, head));
            at = area.range.end;
        }
    });
    let Some(mapped) = mapped else {
        // What is not mapped any more goes with this reference.
        if frame.counts().maps != 0 {
            machine.count_size(SizeCounter::SplitFailed, order);
        }
        machine.groups().defer_again(machine.frames(), head);
        return put_all(machine, [(head, frame)].into_iter());
    };
    machine.count_size(SizeCounter::Split, order);
    let unmapped = mapped.pieces().filter(|(.., mapped)| !mapped);
    put_all(machine, unmapped.map(|(at, ..)| (head.add(at), machine.frames().frame(head.add(at)))))
}

/// Drop a reference to each; those that had no other are freed. How many pages they were.
fn put_all<'p, P: Platform>(machine: &Machine<'p, P>, folios: impl Iterator<Item = (Pfn, &'p Frame)>) -> u64 {
    free_unmapped(machine, folios.filter(|(head, frame)| machine.frames().put(*head, frame, 1, 0).refs == 0))
}
