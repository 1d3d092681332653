//! Pieces: visits of a range that can be interrupted after each piece and resumed later.
//!
//! A visit keeps what is left of its range in a [`Rest`]. After each piece it calls a callback of
//! its caller ([`More`]), which returns whether the visit goes on. A piece takes about as long as
//! the engine works between two calls of [`resched`](crate::platform::Cpus::resched). Between two
//! pieces the visit holds no lock and no claim of a range.

use core::convert::Infallible;

use crate::arch::{Arch, UserRange};
use crate::memcg::ListMove;
use crate::platform::Platform;
use crate::table::{Found, LockedTable, MAX_RUNS_PER_HOLD, Run, ahead};
use crate::tlb::Gather;
use crate::vma::{State, Vma};

use super::{Change, Pieces};

/// A callback that returns whether an operation goes on with the next piece now.
pub(in crate::space) type More<'a> = &'a mut dyn FnMut() -> bool;

/// The rest of a range that an operation visits piece by piece.
#[derive(Clone, Copy, Debug)]
pub(in crate::space) struct Rest {
    /// The part of the range that is still to be visited.
    pub(in crate::space) left: UserRange,
    /// True if a part of the range that was visited is in no VMA.
    pub(in crate::space) holes: bool,
}

impl Rest {
    /// Returns the rest of a visit of `range` that has not begun.
    pub(in crate::space) fn all(range: UserRange) -> Self {
        Rest { left: range, holes: false }
    }

    /// Ends the visit: nothing is left.
    pub(in crate::space) fn end(&mut self) {
        self.left = UserRange::default();
    }
}

impl<'m, P: Platform> Pieces<'_, 'm, P> {
    /// Calls `act` for each VMA in `rest`, with the VMA and with the part of `rest` in it. The VMAs
    /// are locked for reading then. `act` returns the address up to which it has dealt with the
    /// part. Waits for the end of changes that have locked a VMA ([`State::Locked`]).
    ///
    /// # Errors
    /// The first error of `act`, which ends the visit. `rest` still has the part at which `act`
    /// failed.
    pub(in crate::space) fn each_vma<E>(
        self,
        rest: &mut Rest,
        more: More<'_>,
        mut act: impl FnMut(&Vma, UserRange) -> Result<u64, E>,
    ) -> Result<(), E> {
        let mut claim = None;
        while !rest.left.is_empty() {
            let vmas = self.space.read();
            let next = vmas.overlapping(self.platform(), rest.left).find(|v| v.state != State::Dying);
            let Some(vma) = next else {
                rest.holes = true;
                rest.end();
                break;
            };
            if vma.state == State::Locked {
                drop(vmas);
                drop(claim.take());
                claim = Some(Change::claim_unlocked(self.space, rest.left));
                continue;
            }
            let part = vma.range.intersect(&rest.left);
            rest.holes |= part.start > rest.left.start;
            // Where page tables are missing, `act` returns the end of the addresses that have none.
            // This may lie beyond the VMA.
            let at = act(vma, part)?.min(part.end);
            rest.left = rest.left.tail(at);
            drop(vmas);
            if !more() {
                break;
            }
        }
        Ok(())
    }

    /// Calls `act`, with no lock held, for each part of `rest` that one page table of the lowest
    /// level, or one huge PTE, translates. If `act` returns false, the visit ends and `rest`
    /// becomes empty.
    pub(in crate::space) fn each_table(self, rest: &mut Rest, more: More<'_>, mut act: impl FnMut(UserRange) -> bool) {
        let shift = self.arch().level_shift(2);
        while !rest.left.is_empty() {
            match self.tables().find(rest.left) {
                Found::Hole(end) => rest.left = rest.left.tail(end),
                Found::Table(table) => {
                    table.release();
                    let part = rest.left.around(rest.left.start, shift);
                    rest.left = rest.left.tail(part.end);
                    if !act(part) {
                        break;
                    }
                }
            }
            self.platform().resched();
            if !more() {
                return;
            }
        }
        rest.end();
    }

    /// Calls `act` for each run of PTEs that lies entirely in `rest`, with its page table locked,
    /// with the folios to move to another end of an LRU list, and with the gather that takes what
    /// `act` unmaps. Moves the folios before the page table is unlocked. `act` may shorten the run
    /// to the part that it has dealt with, and returns the number of folios in that part. Sets
    /// `holes` of `rest` if there are holes between VMAs. Faults of the space go on meanwhile.
    pub(in crate::space) fn each_whole_run(
        self,
        rest: &mut Rest,
        more: More<'_>,
        mut moves: ListMove,
        mut act: impl FnMut(&LockedTable<'_, 'm, P>, &mut Run, &mut ListMove, &mut Gather<'_, 'm, P>) -> usize,
    ) -> ListMove {
        let arch = self.arch();
        let mut gather = self.space.gather(rest.left);
        let Ok(()) = self.each_vma(rest, more, |_, part| {
            let table = match self.tables().find(part) {
                Found::Hole(end) => return Ok(end),
                Found::Table(table) => table,
            };
            ahead::prefetch_next(&table, part);
            let end = table.hold_end(part);
            let (mut at, mut done) = (part.start, 0);
            while at < end
                && done < MAX_RUNS_PER_HOLD
                && !gather.is_full()
                && let Some(mut run) = table.run(at, end)
            {
                done += 1;
                ahead::prefetch_folios(&table, &run, end);
                if part.covers(&run.range(arch)) {
                    done += act(&table, &mut run, &mut moves, &mut gather);
                }
                at = run.range(arch).end;
            }
            moves.finish(self.machine().memcgs(), self.machine().frames());
            table.unlock(&mut gather);
            gather.release_slots();
            self.platform().resched();
            Ok::<_, Infallible>(at)
        });
        moves
    }
}
