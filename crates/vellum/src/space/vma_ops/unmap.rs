//! Unmapping: `munmap`, and the end of a space.

use crate::addr::VirtRange;
use crate::arch::{BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::page_cache;
use crate::platform::Platform;
use crate::vma::{State, Vma, VmaFlags};

use super::VmaOps;
use crate::space::ground::{Change, Vmas, Zap};

/// The reason why an unmap failed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmapError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The length is zero.
    ZeroLength,
    /// The range reaches beyond the user half.
    OutOfRange,
    /// This end of the range is in the middle of a huge page of the pool.
    CutsHuge(u64),
    /// This VMA is sealed.
    Sealed(VirtRange),
    /// The change splits VMAs, and the limit on their number would be exceeded.
    TooManyVmas,
    /// There is no memory to split VMAs or huge PTEs.
    NoMemory(Refused),
}

impl UnmapError {
    /// Returns the errno that Linux's `munmap` reports.
    pub const fn errno(&self) -> Errno {
        match self {
            UnmapError::Sealed(_) => Errno::EPERM,
            UnmapError::TooManyVmas | UnmapError::NoMemory(_) => Errno::ENOMEM,
            _ => Errno::EINVAL,
        }
    }
}

impl core::fmt::Display for UnmapError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            UnmapError::Unaligned(addr) => write!(f, "address {addr:#x} is not a multiple of the page size: align it"),
            UnmapError::ZeroLength => f.write_str("the length is zero: pass at least one byte"),
            UnmapError::OutOfRange => f.write_str("the range reaches beyond the user half: shorten it"),
            UnmapError::CutsHuge(at) => write!(f, "{at:#x} is in the middle of a huge page: unmap whole ones"),
            UnmapError::Sealed(range) => write!(f, "the VMA {range:?} is sealed: it can't be unmapped"),
            UnmapError::TooManyVmas => f.write_str("too many VMAs: raise the limit, or unmap some"),
            UnmapError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for UnmapError {}

may_be_refused!(UnmapError);

impl<'m, P: Platform> VmaOps<'_, 'm, P> {
    /// Implements [`AddressSpace::unmap`](crate::space::AddressSpace::unmap).
    pub(super) fn unmap(self, addr: u64, len: u64) -> Result<(), UnmapError> {
        let range = UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => UnmapError::Unaligned(addr),
            BadRange::Overflow | BadRange::Beyond(_) => UnmapError::OutOfRange,
        })?;
        if range.is_empty() {
            return Err(UnmapError::ZeroLength);
        }
        let mut change = Change::begin(self.space, range);
        if self.begin_unmap(&mut change, range, State::Dying, None)? {
            Zap::of(self.space).all(range);
            let vmas = change.vmas();
            self.unreserve_huge(vmas, range);
            vmas.remove(self.machine(), range);
        }
        Ok(())
    }

    /// Gives up what the VMAs of `range`, which are about to be removed, have reserved of the pool
    /// of huge pages.
    pub(super) fn unreserve_huge(self, vmas: &Vmas, range: UserRange) {
        for vma in vmas.overlapping(self.platform(), range) {
            page_cache::unreserve_huge(self.machine(), vma, range, self.space.id());
        }
    }

    /// Implements [`AddressSpace::unmap_all`](crate::space::AddressSpace::unmap_all).
    pub(super) fn unmap_all(self) {
        let machine = self.machine();
        let range = UserRange::all(self.arch());
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        if vmas.first(range).is_none() {
            return;
        }
        vmas.each(machine, range, |v| v.state = State::Dying);
        vmas.account_all(machine, range, -1);
        change.unlock();
        Zap::of(self.space).all_vmas(range);
        change.vmas().remove(machine, range);
    }

    /// Begins to unmap `range`: splits the VMAs and huge PTEs that cross its ends, sets the VMAs in
    /// it to `state` ([`State::Dying`], or [`State::Locked`] if a new mapping replaces them), and
    /// releases the VMA lock. Subtracts these VMAs from the counts that are compared with the
    /// limits, and adds `replacement`, the VMA of the new mapping, before the memory is zapped:
    /// under the hold of the VMA lock under which the limits were checked (INV-19). Returns false
    /// if there is no VMA in the range; then nothing has changed, and the VMA lock is still held.
    ///
    /// # Errors
    /// See [`UnmapError`]. VMAs and huge PTEs may have been split, and nothing else has changed.
    pub(super) fn begin_unmap(
        self,
        change: &mut Change<'_, 'm, P>,
        range: UserRange,
        state: State,
        replacement: Option<&Vma>,
    ) -> Result<bool, UnmapError> {
        let machine = self.machine();
        let vmas = change.vmas();
        let found = vmas.survey(machine.platform(), range, |vma, _| match vma.cut_huge(range) {
            _ if vma.flags.contains(VmaFlags::SEALED) => Err(UnmapError::Sealed(*vma.range)),
            Some(at) => Err(UnmapError::CutsHuge(at)),
            None => Ok(()),
        })?;
        if found.amounts.mapped == 0 {
            return Ok(false);
        }
        // The number of VMAs increases only if the range lies inside one VMA, and leaves a part of
        // it on both sides.
        if found.inside_one_vma && vmas.tree.len() >= vmas.limits.vmas {
            return Err(UnmapError::TooManyVmas);
        }
        if found.edge_splits > 0 {
            vmas.reserve(machine, self.space.memcg(), found.edge_splits)?;
            vmas.isolate(machine, range);
        }
        vmas.each(machine, range, |v| v.state = state);
        vmas.count(&found.amounts, -1);
        replacement.inspect(|vma| vmas.account(vma, range, 1));
        let needs_split = self.tables().needs_edge_split(range);
        change.unlock();
        if needs_split && let Err(error) = self.tables().split_edges(range) {
            let vmas = change.vmas();
            vmas.each(machine, range, |v| v.state = State::Live);
            replacement.inspect(|vma| vmas.account(vma, range, -1));
            vmas.count(&found.amounts, 1);
            return Err(error.into());
        }
        Ok(true)
    }
}
