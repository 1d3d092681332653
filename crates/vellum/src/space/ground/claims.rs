//! Claims: which ranges of a space are being changed, and which changes wait for which.
//!
//! A change of a range (`munmap`, `mprotect`, `mremap`, `fork`, ...) first claims the range. Until
//! the change ends, no other change is at work in the range, even while the change does not hold
//! the VMA lock. Changes are served in the order in which they arrive: a claim is granted once no
//! granted claim and no claim that arrived earlier overlaps it (INV-18). So a change waits for
//! earlier changes and for no later ones, however many there are; and a change that needs the whole
//! space gets it even if threads change parts of the space all the time. A thread that changes PTEs
//! either has claimed their range, or holds the VMA lock for reading and has found the VMA not
//! locked by a change ([`State::Locked`](crate::vma::State::Locked)); so no other thread moves the
//! PTEs (INV-13).
//!
//! The number of claims is limited ([`MAX_CLAIMS`]). When there are as many, further changes wait,
//! in the order of arrival, until they are admitted, that is, until they may add a claim. A waiting
//! change polls a counter of ended claims, and looks at the VMAs again only when the counter has
//! changed.

use core::convert::Infallible;
use core::sync::atomic::Ordering::{Acquire, Release};

use arrayvec::ArrayVec;

use super::vmas::{Vmas, WriteVmas};
use crate::space::AddressSpace;

use crate::addr::VirtRange;
use crate::arch::UserRange;
use crate::memcg::Refused;
use crate::platform::Platform;

/// The largest number of claims of one space, granted or waiting. The claims are stored in the
/// address space itself, which is moved in memory when it is created, so the number is small.
const MAX_CLAIMS: usize = 16;

/// The position of a change in the order of arrival: the lower, the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::space) struct ClaimTicket(u64);

/// A claim of one or two ranges, granted or waiting.
#[derive(Clone, Copy)]
struct Claim {
    /// The claimed ranges. The second may be empty.
    ranges: [UserRange; 2],
    ticket: ClaimTicket,
    granted: bool,
    /// True if the change relies on the boundaries between VMAs that it finds or makes in its
    /// ranges, so that no other change may merge VMAs there.
    relies_on_boundaries: bool,
}

impl Claim {
    fn overlaps(&self, range: &VirtRange) -> bool {
        self.ranges.iter().any(|claimed| claimed.overlaps(range))
    }
}

/// The claims of a space. The VMA lock protects them.
#[derive(Default)]
pub(in crate::space) struct Claims {
    claims: ArrayVec<Claim, MAX_CLAIMS>,
    /// The number of changes that have arrived. It is also the ticket of the next one.
    arrived: u64,
    /// The number of changes that were admitted: those with a ticket below this number have had an
    /// entry in `claims`.
    admitted: u64,
}

impl Claims {
    /// Returns whether a change is at work on a part of `range`.
    pub(in crate::space) fn is_changing(&self, range: &VirtRange) -> bool {
        self.claims.iter().any(|claim| claim.granted && claim.overlaps(range))
    }

    /// Returns whether a change is at work that relies on a boundary between VMAs at `addr`: one
    /// whose claimed range contains `addr`, or ends there.
    pub(super) fn relies_on_boundary(&self, addr: u64) -> bool {
        let touches = |range: &UserRange| !range.is_empty() && range.start <= addr && addr <= range.end;
        let relies = |claim: &Claim| claim.granted && claim.relies_on_boundaries && claim.ranges.iter().any(touches);
        self.claims.iter().any(relies)
    }

    /// Allows other changes to merge VMAs inside and at the ends of the ranges of the claim with
    /// `ticket`. The caller looks the VMAs up again each time it locks them, so that it does not
    /// rely on the boundaries that it has seen.
    fn allow_merges(&mut self, ticket: ClaimTicket) {
        if let Some(claim) = self.claims.iter_mut().find(|claim| claim.ticket == ticket) {
            claim.relies_on_boundaries = false;
        }
    }

    /// Returns whether a change of `range` with `ticket` must wait for another change: one that is
    /// at work on a part of `range`, or that claims a part and arrived earlier. With `None`,
    /// returns whether a change of `range` that arrives now must wait.
    pub(in crate::space) fn must_wait(&self, range: &VirtRange, ticket: Option<ClaimTicket>) -> bool {
        let earlier = |claim: &Claim| match ticket {
            Some(ticket) => claim.ticket != ticket && (claim.granted || claim.ticket < ticket),
            None => true,
        };
        // Changes that are not admitted yet have no claim that shows their ranges: assume that they
        // overlap.
        let unknown = ticket.is_none() && self.admitted < self.arrived;
        unknown || self.claims.iter().any(|claim| earlier(claim) && claim.overlaps(range))
    }

    /// Returns the ticket of a change that arrives now.
    fn arrive(&mut self) -> ClaimTicket {
        let ticket = ClaimTicket(self.arrived);
        self.arrived += 1;
        ticket
    }

    /// Returns whether the change with `ticket` was admitted, so that it has an entry in `claims`
    /// until it ends.
    fn is_admitted(&self, ticket: ClaimTicket) -> bool {
        ticket.0 < self.admitted
    }

    /// Claims `ranges` for the change with `ticket`. They replace the ranges of an earlier call for
    /// this change. Returns whether the claim is granted; if not, the caller waits and calls this
    /// again.
    #[inline]
    fn claim(&mut self, ticket: ClaimTicket, ranges: [UserRange; 2]) -> bool {
        if self.claims.is_empty() && ticket.0 == self.admitted {
            self.admitted += 1;
            self.claims.push(Claim { ranges, ticket, granted: true, relies_on_boundaries: true });
            return true;
        }
        self.claim_slow(ticket, ranges)
    }

    /// Implements [`Claims::claim`] where there are other claims.
    #[cold]
    fn claim_slow(&mut self, ticket: ClaimTicket, ranges: [UserRange; 2]) -> bool {
        if !self.is_admitted(ticket) {
            if ticket.0 > self.admitted || self.claims.is_full() {
                return false;
            }
            self.admitted += 1;
            self.claims.push(Claim { ranges, ticket, granted: false, relies_on_boundaries: true });
        }
        let granted = !ranges.iter().any(|range| self.must_wait(range, Some(ticket)));
        if let Some(claim) = self.claims.iter_mut().find(|claim| claim.ticket == ticket) {
            (claim.ranges, claim.granted) = (ranges, granted);
        }
        granted
    }

    /// Removes the claim of the change with `ticket`. Returns whether other changes may be waiting
    /// for its end.
    fn end(&mut self, ticket: ClaimTicket) -> bool {
        if let Some(at) = self.claims.iter().position(|claim| claim.ticket == ticket) {
            self.claims.swap_remove(at);
        }
        !self.claims.is_empty() || self.admitted < self.arrived
    }
}

/// A granted claim of one or two ranges of a space. Until it is dropped, no other change is at work
/// on a part of the ranges, holes included. While it lasts, its owner may unlock the VMAs and lock
/// them again.
pub(in crate::space) struct Change<'s, 'm, P: Platform> {
    space: &'s AddressSpace<'m, P>,
    ranges: [UserRange; 2],
    ticket: ClaimTicket,
    /// The number of VMAs that this change may still add, with reserved nodes: see
    /// [`Vmas::promised`].
    promised: usize,
    /// The VMA lock, while this change holds it.
    vmas: Option<WriteVmas<'s>>,
}

impl<'s, 'm, P: Platform> Change<'s, 'm, P> {
    /// Waits until no other change is at work on a part of `range`, and claims `range`. The VMAs
    /// are locked for writing when this returns.
    pub(in crate::space) fn begin(space: &'s AddressSpace<'m, P>, range: UserRange) -> Self {
        match Change::begin_both(space, |_| Ok::<_, Infallible>([range, UserRange::default()])) {
            Ok(change) => change,
            Err(never) => match never {},
        }
    }

    /// Waits until no other change is at work on a part of `range`, claims `range`, and unlocks the
    /// VMAs. For an operation that does not change VMAs, such as a fault, and that has found a VMA
    /// locked by a change: it keeps further changes of `range` away by this claim. Other changes
    /// may merge VMAs in `range` meanwhile.
    #[cold]
    pub(in crate::space) fn claim_unlocked(space: &'s AddressSpace<'m, P>, range: UserRange) -> Self {
        let mut change = Change::begin(space, range);
        let ticket = change.ticket;
        change.vmas().claims.allow_merges(ticket);
        change.unlock();
        change
    }

    /// Waits until no other change is at work on a part of the one or two ranges that `choose`
    /// returns, and claims these. Calls `choose` again whenever the VMAs may have changed. The VMAs
    /// are locked for writing when this returns.
    ///
    /// # Errors
    /// The error of `choose`; then nothing is claimed.
    pub(in crate::space) fn begin_both<E>(
        space: &'s AddressSpace<'m, P>,
        mut choose: impl FnMut(&Vmas) -> Result<[UserRange; 2], E>,
    ) -> Result<Self, E> {
        let mut vmas = space.write();
        let mut ranges = choose(&vmas)?;
        let ticket = vmas.claims.arrive();
        while !vmas.claims.claim(ticket, ranges) {
            let seen = space.claims_ended.load(Acquire);
            drop(vmas);
            while space.claims_ended.load(Acquire) == seen {
                space.machine().platform().wait();
            }
            vmas = space.write();
            if vmas.claims.is_admitted(ticket) {
                match choose(&vmas) {
                    Ok(chosen) if chosen == ranges => {}
                    Ok(chosen) => {
                        ranges = chosen;
                        // Changes that waited for the old ranges may go on.
                        wake_waiting(space);
                    }
                    Err(error) => {
                        if vmas.claims.end(ticket) {
                            wake_waiting(space);
                        }
                        return Err(error);
                    }
                }
            }
        }
        Ok(Change { space, ranges, ticket, promised: 0, vmas: Some(vmas) })
    }

    /// Returns the first of the claimed ranges.
    pub(in crate::space) fn range(&self) -> UserRange {
        self.ranges[0]
    }

    /// Returns the ticket of the change.
    pub(in crate::space) fn ticket(&self) -> ClaimTicket {
        self.ticket
    }

    /// Returns the VMAs, locked for writing. Locks them if they are not.
    pub(in crate::space) fn vmas(&mut self) -> &mut Vmas {
        self.vmas.get_or_insert_with(|| self.space.write())
    }

    /// Reserves nodes of the VMA tree, so that `now` VMAs can be added before the VMAs are
    /// unlocked, and `later` more at any time until this change ends.
    ///
    /// # Errors
    /// There is no memory for the nodes.
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

impl<P: Platform> Drop for Change<'_, '_, P> {
    /// Ends the claim, and merges VMAs that can be merged in and around the ranges.
    fn drop(&mut self) {
        let (ranges, ticket, space) = (self.ranges, self.ticket, self.space);
        let machine = space.machine();
        let promised = self.promised;
        let vmas = self.vmas();
        vmas.promised -= promised;
        if vmas.claims.end(ticket) {
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

/// Makes waiting changes look at the VMAs again. The caller holds the VMA lock for writing.
fn wake_waiting<P: Platform>(space: &AddressSpace<'_, P>) {
    space.claims_ended.fetch_add(1, Release);
}
