//! Claims: which ranges of a space are being changed, and which changes wait for which.
//!
//! A change of a range (`munmap`, `mprotect`, `mremap`, `fork`, ...) claims it, and is alone there
//! until it ends, also while it has let go of the lock of the VMAs. Changes are served in the order
//! in which they arrive: a claim is granted once no granted claim overlaps it and none that arrived
//! before it does (INV-18). So a change waits for those that came before it and for no others,
//! however many follow; and one that needs all of the space gets it though threads change parts of
//! it all the time. A thread that changes PTEs either claimed their range or reads the lock of VMAs
//! that no change has claimed, so no other thread moves them (INV-13).
//!
//! There is room for a number of claims; changes beyond that wait to be let in, in the same order.
//! A change that waits sleeps on a count of what has ended, and looks at the VMAs again only when
//! that has changed.

use core::convert::Infallible;
use core::sync::atomic::Ordering::{Acquire, Release};

use arrayvec::ArrayVec;

use super::vmas::{Vmas, WriteVmas};
use crate::space::AddressSpace;

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;

/// Changes of one space that can be under way, or next in line. A space is moved when it is made,
/// so this is no more than serves.
const ROOM: usize = 16;

/// When a change arrived: the lower, the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::space) struct Turn(u64);

#[derive(Clone, Copy)]
struct Claim {
    /// The second may be empty.
    ranges: [UserRange; 2],
    turn: Turn,
    granted: bool,
    /// Whether the change counts on the boundaries between VMAs that it finds or makes in its
    /// ranges.
    keeps_boundaries: bool,
}

impl Claim {
    fn overlaps(&self, range: &VirtRange) -> bool {
        self.ranges.iter().any(|claimed| claimed.overlaps(range))
    }
}

/// See the module's text. What the lock of the VMAs protects.
#[derive(Default)]
pub(in crate::space) struct Claims {
    claims: ArrayVec<Claim, ROOM>,
    /// How many changes have arrived, and how many of them were let in.
    arrived: u64,
    admitted: u64,
}

impl Claims {
    /// Returns whether a change is at work on a part of `range`.
    pub(in crate::space) fn is_changing(&self, range: &VirtRange) -> bool {
        self.claims.iter().any(|claim| claim.granted && claim.overlaps(range))
    }

    /// Returns whether a change is at work that counts on a boundary of VMAs at an address: it
    /// claims what begins or ends there, or both sides.
    pub(super) fn keeps_boundary(&self, addr: u64) -> bool {
        let touches = |range: &UserRange| !range.is_empty() && range.start <= addr && addr <= range.end;
        let keeps = |claim: &Claim| claim.granted && claim.keeps_boundaries && claim.ranges.iter().any(touches);
        self.claims.iter().any(keeps)
    }

    /// Lets others join VMAs inside the ranges of a claim and at their ends: whatever has claimed
    /// them looks at the VMAs anew each time.
    fn leave_boundaries(&mut self, turn: Turn) {
        if let Some(claim) = self.claims.iter_mut().find(|claim| claim.turn == turn) {
            claim.keeps_boundaries = false;
        }
    }

    /// Returns whether a change is at work on a part of `range`, or will be before the one that
    /// arrived at `turn`; without one, before a change that arrives now.
    pub(in crate::space) fn is_ahead(&self, range: &VirtRange, turn: Option<Turn>) -> bool {
        let earlier = |claim: &Claim| match turn {
            Some(turn) => claim.turn != turn && (claim.granted || claim.turn < turn),
            None => true,
        };
        // Of those that are not let in yet it is not known what they will claim.
        let outside = turn.is_none() && self.admitted < self.arrived;
        outside || self.claims.iter().any(|claim| earlier(claim) && claim.overlaps(range))
    }

    fn arrive(&mut self) -> Turn {
        let turn = Turn(self.arrived);
        self.arrived += 1;
        turn
    }

    fn is_admitted(&self, turn: Turn) -> bool {
        turn.0 < self.admitted
    }

    /// Claims `ranges` for the change that arrived at `turn`, instead of what it waited for before;
    /// returns whether the claim is granted.
    #[inline]
    fn claim(&mut self, turn: Turn, ranges: [UserRange; 2]) -> bool {
        if self.claims.is_empty() && turn.0 == self.admitted {
            self.admitted += 1;
            self.claims.push(Claim { ranges, turn, granted: true, keeps_boundaries: true });
            return true;
        }
        self.claim_in_line(turn, ranges)
    }

    #[cold]
    fn claim_in_line(&mut self, turn: Turn, ranges: [UserRange; 2]) -> bool {
        if !self.is_admitted(turn) {
            if turn.0 > self.admitted || self.claims.is_full() {
                return false;
            }
            self.admitted += 1;
            self.claims.push(Claim { ranges, turn, granted: false, keeps_boundaries: true });
        }
        let granted = !ranges.iter().any(|range| self.is_ahead(range, Some(turn)));
        if let Some(claim) = self.claims.iter_mut().find(|claim| claim.turn == turn) {
            (claim.ranges, claim.granted) = (ranges, granted);
        }
        granted
    }

    /// Ends the claim of a change; returns whether others may have waited for that.
    fn end(&mut self, turn: Turn) -> bool {
        if let Some(at) = self.claims.iter().position(|claim| claim.turn == turn) {
            self.claims.swap_remove(at);
        }
        !self.claims.is_empty() || self.admitted < self.arrived
    }
}

/// A change of a range of a space, or of two: no other change is at work on a part of them, holes
/// included, until this is dropped. The lock of the VMAs may be let go in between.
pub(in crate::space) struct Change<'s, 'm, P: Platform, A: Arch> {
    space: &'s AddressSpace<'m, P, A>,
    ranges: [UserRange; 2],
    turn: Turn,
    promised: usize,
    vmas: Option<WriteVmas<'s>>,
}

impl<'s, 'm, P: Platform, A: Arch> Change<'s, 'm, P, A> {
    /// Begins to change `range`, once no other change is at work on a part of it. The VMAs are
    /// locked for writing when this returns.
    pub(in crate::space) fn begin(space: &'s AddressSpace<'m, P, A>, range: UserRange) -> Self {
        match Change::begin_both(space, |_| Ok::<_, Infallible>([range, UserRange::default()])) {
            Ok(change) => change,
            Err(never) => match never {},
        }
    }

    /// Claims `range` once no other change is at work on a part of it, and leaves the VMAs
    /// unlocked. Keeps changes of `range` away from work that runs beside faults and has met locked
    /// VMAs. VMAs there may be merged meanwhile.
    #[cold]
    pub(in crate::space) fn wait_turn(space: &'s AddressSpace<'m, P, A>, range: UserRange) -> Self {
        let mut change = Change::begin(space, range);
        let turn = change.turn;
        change.vmas().claims.leave_boundaries(turn);
        change.unlock();
        change
    }

    /// Begins to change one or two ranges that `choose` chooses, once no other change is at work on
    /// a part of them. `choose` is called again whenever the VMAs may have changed.
    ///
    /// # Errors
    /// Those of `choose`; then nothing is claimed.
    pub(in crate::space) fn begin_both<E>(
        space: &'s AddressSpace<'m, P, A>,
        mut choose: impl FnMut(&Vmas) -> Result<[UserRange; 2], E>,
    ) -> Result<Self, E> {
        let mut vmas = space.write();
        let mut ranges = choose(&vmas)?;
        let turn = vmas.claims.arrive();
        while !vmas.claims.claim(turn, ranges) {
            let seen = space.ended.load(Acquire);
            drop(vmas);
            while space.ended.load(Acquire) == seen {
                space.machine().platform().wait();
            }
            vmas = space.write();
            if vmas.claims.is_admitted(turn) {
                match choose(&vmas) {
                    Ok(chosen) if chosen == ranges => {}
                    Ok(chosen) => {
                        ranges = chosen;
                        // Changes that waited for the old choice may go on.
                        wake_waiting(space);
                    }
                    Err(error) => {
                        if vmas.claims.end(turn) {
                            wake_waiting(space);
                        }
                        return Err(error);
                    }
                }
            }
        }
        Ok(Change { space, ranges, turn, promised: 0, vmas: Some(vmas) })
    }

    /// Returns the first of the ranges.
    pub(in crate::space) fn range(&self) -> UserRange {
        self.ranges[0]
    }

    /// Returns when it arrived.
    pub(in crate::space) fn turn(&self) -> Turn {
        self.turn
    }

    /// The VMAs, as the writer.
    pub(in crate::space) fn vmas(&mut self) -> &mut Vmas {
        self.vmas.get_or_insert_with(|| self.space.write())
    }

    /// Make sure that so many VMAs can be added now, and so many more later, when the lock was let
    /// go meanwhile.
    pub(in crate::space) fn reserve(&mut self, now: usize, later: usize) -> Result<(), Refused> {
        let (machine, memcg) = (self.space.machine(), self.space.memcg());
        let vmas = self.vmas();
        vmas.reserve(machine, memcg, now + later)?;
        vmas.promised += later;
        self.promised += later;
        Ok(())
    }

    /// Unlocks the VMAs. The range stays claimed.
    pub(in crate::space) fn unlock(&mut self) {
        self.vmas = None;
    }
}

impl<P: Platform, A: Arch> Drop for Change<'_, '_, P, A> {
    /// The VMAs are as they should be, or again as they were: join what says the same, and let
    /// others at the range.
    fn drop(&mut self) {
        let (ranges, turn, space) = (self.ranges, self.turn, self.space);
        let machine = space.machine();
        let promised = self.promised;
        let vmas = self.vmas();
        vmas.promised -= promised;
        if vmas.claims.end(turn) {
            wake_waiting(space);
        }
        vmas.merge(machine, ranges[0]);
        if !ranges[1].is_empty() {
            vmas.merge(machine, ranges[1]);
        }
        vmas.trim(machine);
        let orphans = core::mem::take(&mut vmas.orphans);
        self.unlock();
        orphans.free(machine);
    }
}

/// Has changes that wait look at the VMAs again. The caller holds the lock of the VMAs.
fn wake_waiting<P: Platform, A: Arch>(space: &AddressSpace<'_, P, A>) {
    space.ended.fetch_add(1, Release);
}
