//! VMAs go: `munmap`.

use crate::addr::VirtRange;
use crate::arch::{Arch, BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{State, Vma, VmaFlags};

use super::VmaOps;
use crate::space::ground::{Change, Zap};

/// Why nothing was unmapped. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmapError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The length is zero.
    ZeroLength,
    /// It reaches beyond the addresses that user mode has.
    OutOfRange,
    /// This VMA is sealed.
    Sealed(VirtRange),
    /// VMAs would have to be split, and the space has as many as it may.
    TooManyVmas,
    /// VMAs or huge mappings would have to be split, and there is no memory for that.
    NoMemory(Refused),
}

impl UnmapError {
    /// What Linux's `munmap` answers.
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
            UnmapError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            UnmapError::ZeroLength => f.write_str("the length is zero"),
            UnmapError::OutOfRange => f.write_str("beyond the addresses of user mode"),
            UnmapError::Sealed(range) => write!(f, "{range:?} is sealed"),
            UnmapError::TooManyVmas => f.write_str("too many VMAs"),
            UnmapError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for UnmapError {}

may_be_refused!(UnmapError);

impl<'m, P: Platform, A: Arch> VmaOps<'_, 'm, P, A> {
    /// Implements [`AddressSpace::unmap`].
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
            change.vmas().remove(self.machine(), range);
        }
        Ok(())
    }

    /// Implements [`AddressSpace::unmap_all`].
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
        Zap::of(self.space).all(range);
        change.vmas().remove(machine, range);
    }

    /// Mark all VMAs of `range` as going (dying or held), split at its ends, with no huge mapping
    /// reaching across, and let go of the VMAs. `coming` is what will be there afterwards, if
    /// anything: from now on it counts instead of them, in the lock in which the limits were looked
    /// at. Returns whether there is any VMA; if not, nothing has changed.
    pub(super) fn begin_unmap(
        self,
        change: &mut Change<'_, 'm, P, A>,
        range: UserRange,
        going: State,
        coming: Option<&Vma>,
    ) -> Result<bool, UnmapError> {
        let machine = self.machine();
        let vmas = change.vmas();
        let found = vmas.survey(machine.platform(), range, |vma, _| match vma.flags.contains(VmaFlags::SEALED) {
            true => Err(UnmapError::Sealed(*vma.range)),
            false => Ok(()),
        })?;
        if found.amounts.mapped == 0 {
            return Ok(false);
        }
        // Only a hole in the middle of a VMA leaves more VMAs than there were.
        if found.inside_one_vma && vmas.tree.len() >= vmas.limits.vmas {
            return Err(UnmapError::TooManyVmas);
        }
        if found.edge_splits > 0 {
            vmas.reserve(machine, self.space.memcg(), found.edge_splits)?;
            vmas.isolate(machine, range);
        }
        vmas.each(machine, range, |v| v.state = going);
        vmas.count(&found.amounts, -1);
        coming.inspect(|vma| vmas.account(vma, range, 1));
        let edges = self.tables().needs_edge_split(range);
        change.unlock();
        if edges && let Err(error) = self.tables().split_edges(range) {
            let vmas = change.vmas();
            vmas.each(machine, range, |v| v.state = State::Live);
            coming.inspect(|vma| vmas.account(vma, range, -1));
            vmas.count(&found.amounts, 1);
            return Err(error.into());
        }
        Ok(true)
    }
}
