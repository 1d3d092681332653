//! A page is touched that is not mapped, or not for that.

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, Kind, Marker, UserRange};
use crate::errno::Errno;
use crate::frame::TooManyReferences;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::stats::Counter;
use crate::sync::Patience;
use crate::table::{Found, NotMapped};
use crate::vma::{Prot, State, Vma, VmaFlags};

use super::AddressSpace;
use crate::space::anon::Anon;
use crate::space::ground::{Change, Ptes};
use crate::space::stack::Growth;
use crate::space::watch::Watched;

/// What user mode tried to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Execute.
    Exec,
}

/// What it took to resolve a fault, as Linux counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// Nothing that takes long (`pgfault`, but not `pgmajfault`).
    Minor,
    /// Contents came back from a swap device (`pgmajfault`).
    Major,
}

/// Why a fault can't be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// Nothing is mapped there (Linux: SIGSEGV, `SEGV_MAPERR`).
    Unmapped(u64),
    /// That may not be done there (SIGSEGV, `SEGV_ACCERR`).
    Denied(u64),
    /// What stands behind the VMA ends before that page (SIGBUS, `BUS_ADRERR`).
    BeyondEnd(u64),
    /// The contents were lost (SIGBUS).
    Poisoned(u64),
    /// What is mapped there has as many references and mappings as it may (SIGBUS).
    TooManyReferences(u64),
    /// The machine has no memory left.
    NoMemory(Refused),
    /// Somebody watches for this: when he has dealt with it, the access may be tried again.
    Watched(Watched),
}

impl FaultError {
    /// What a system call answers whose argument points there.
    pub const fn errno(&self) -> Errno {
        match self {
            FaultError::NoMemory(_) | FaultError::TooManyReferences(_) => Errno::ENOMEM,
            _ => Errno::EFAULT,
        }
    }
}

impl core::fmt::Display for FaultError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FaultError::Unmapped(addr) => write!(f, "nothing is mapped at {addr:#x}"),
            FaultError::Denied(addr) => write!(f, "access to {addr:#x} is not allowed"),
            FaultError::BeyondEnd(addr) => write!(f, "what is mapped at {addr:#x} ends before that"),
            FaultError::Poisoned(addr) => write!(f, "the contents of {addr:#x} were lost"),
            FaultError::TooManyReferences(addr) => write!(f, "{addr:#x}: {TooManyReferences}"),
            FaultError::NoMemory(why) => why.fmt(f),
            FaultError::Watched(watched) => write!(f, "{:#x} is watched", watched.page),
        }
    }
}

impl core::error::Error for FaultError {}

may_be_refused!(FaultError);

/// What an operation that has to look again has done so that it need not for ever: its turn among
/// the changes, and its patience.
pub(super) struct Stand<'s, 'm, P: Platform, A: Arch> {
    pub(super) turn: Option<Change<'s, 'm, P, A>>,
    pub(super) patience: Patience<'s>,
}

impl<'s, 'm, P: Platform, A: Arch> Stand<'s, 'm, P, A> {
    /// Nothing yet.
    pub(super) fn new(space: &'s AddressSpace<'m, P, A>) -> Self {
        Stand { turn: None, patience: Patience::new(&space.tables.gate) }
    }

    /// Waits for a turn at these addresses.
    pub(super) fn wait(&mut self, space: &'s AddressSpace<'m, P, A>, range: UserRange) {
        // A change that is ahead may wait at the gate.
        self.patience.open();
        drop(self.turn.take());
        self.turn = Some(Change::wait_turn(space, range));
    }

    /// Counts a try that was in vain. When the tries are used up, claims these addresses, so that
    /// no change of the VMAs is at work on them, and closes the gate.
    pub(super) fn again(&mut self, space: &'s AddressSpace<'m, P, A>, range: UserRange) {
        if self.patience.again() && !self.patience.has_closed() {
            if self.turn.is_none() {
                self.turn = Some(Change::wait_turn(space, range));
            }
            self.patience.close();
        }
    }
}

impl<P: Platform, A: Arch> Drop for Stand<'_, '_, P, A> {
    /// The end of a turn is a write to the VMAs, which passes the gate.
    fn drop(&mut self) {
        self.patience.open();
    }
}

/// How a try at a fault ended.
pub(super) enum Outcome {
    /// These addresses are mapped now, by entries that were not present.
    Mapped(VirtRange),
    /// The same, and their contents came back from a swap device.
    Back(VirtRange),
    /// The entry that maps these addresses was there, and allows the access.
    Allowed(VirtRange),
    /// Something changed meanwhile: look again.
    Again,
    /// There is no VMA, but there may be a stack above.
    Nothing,
    /// The VMA is not to be touched for a while.
    Held,
}

impl Outcome {
    /// Returns how a fault ends that tried to map memory where nothing was mapped.
    #[inline(always)]
    pub(super) fn of_mapping(mapped: Result<VirtRange, NotMapped>) -> Result<Outcome, FaultError> {
        match mapped {
            Ok(block) => Ok(Outcome::Mapped(block)),
            Err(NotMapped::Occupied) => Ok(Outcome::Again),
            Err(NotMapped::NoMemory(why)) => Err(why.into()),
        }
    }
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Resolve a page fault: when it returns, the access may be tried again. The answer is what that took.
    ///
    /// # Errors
    /// See [`FaultError`]; nothing was changed.
    #[inline]
    pub fn fault(&self, addr: u64, access: Access) -> Result<Resolved, FaultError> {
        self.tables.machine.count(Counter::Faults, 1);
        self.fault_in(addr, access).map(|(_, resolved)| resolved)
    }

    /// What is mapped now, and what that took.
    pub(super) fn fault_in(&self, addr: u64, access: Access) -> Result<(VirtRange, Resolved), FaultError> {
        match self.try_fault(addr, access, None) {
            // By far the most.
            Ok(Outcome::Mapped(range)) => Ok(self.mapped(range, Resolved::Minor)),
            Ok(outcome) => self.fault_in_turn(addr, access, outcome, &mut Stand::new(self)),
            Err(error) => Err(error),
        }
    }

    /// Goes on with a fault that has not mapped anything yet: if it can't be resolved at once, in
    /// its turn among the changes of what is there, so that no stream of them keeps it out; and
    /// after some tries with the gate closed, so that no stream of other faults, reclaim or advice
    /// does.
    #[cold]
    pub(super) fn fault_in_turn<'s>(
        &'s self,
        addr: u64,
        access: Access,
        mut outcome: Outcome,
        stand: &mut Stand<'s, 'm, P, A>,
    ) -> Result<(VirtRange, Resolved), FaultError> {
        let page = UserRange::all(&self.tables.arch).around(addr, self.page_shift());
        loop {
            match outcome {
                Outcome::Mapped(range) => return Ok(self.mapped(range, Resolved::Minor)),
                Outcome::Back(range) => return Ok(self.mapped(range, Resolved::Major)),
                Outcome::Allowed(range) => {
                    self.see_allowed(addr);
                    return Ok((range, Resolved::Minor));
                }
                Outcome::Held => stand.wait(self, page),
                Outcome::Nothing => {
                    // What the VMAs' writer waits for may wait at the gate.
                    stand.patience.open();
                    match self.grow_stack(addr, stand.turn.as_ref().map(Change::turn))? {
                        Growth::There => {}
                        Growth::Wait(range) => stand.wait(self, range),
                        Growth::Nothing => return Err(FaultError::Unmapped(addr)),
                    }
                }
                Outcome::Again => {
                    self.tables.platform().relax();
                    self.tables.platform().resched();
                    stand.again(self, page);
                }
            }
            outcome = self.try_again(addr, access, &stand.patience)?;
        }
    }

    /// Tries again to resolve a fault.
    #[cold]
    pub(super) fn try_again(&self, addr: u64, access: Access, patience: &Patience<'_>) -> Result<Outcome, FaultError> {
        self.try_fault(addr, access, Some(patience))
    }

    #[inline(always)]
    fn try_fault(&self, addr: u64, access: Access, patience: Option<&Patience<'_>>) -> Result<Outcome, FaultError> {
        let vmas = self.read_with(patience);
        let Some(vma) = vmas.find(addr) else { return Ok(Outcome::Nothing) };
        if vma.state == State::Held {
            return Ok(Outcome::Held);
        }
        let allowed = match access {
            Access::Read => !vma.prot.is_empty(),
            Access::Write => vma.prot.contains(Prot::WRITE),
            Access::Exec => vma.prot.contains(Prot::EXEC),
        };
        if !allowed {
            return Err(FaultError::Denied(addr));
        }
        let orders = Anon::of(self).orders(vma);
        let wanted = match vma.backing.is_anonymous() {
            true if access == Access::Write => orders,
            true => self.zeros_orders(orders),
            false => self.orders_around(vma, access),
        };
        let (raw, level, order) = self.tables.room(addr, vma.range, wanted);
        match self.tables.arch.kind(raw, level) {
            Kind::None if vma.flags.contains(VmaFlags::MISSING) => self.tell_missing(vma, addr, access),
            Kind::None if !vma.backing.is_anonymous() => self.map_object_page(vma, addr, access, order),
            Kind::None if access == Access::Write => self.map_new(vma, addr, order, orders),
            Kind::None => self.map_zeros(vma, addr, order),
            Kind::Leaf => self.touch_mapped(vma, addr, access, raw, level),
            Kind::Marker => match self.tables.arch.marked(raw) {
                Some(Marker::Guard) => Err(FaultError::Denied(addr)),
                Some(Marker::Watched) => self.touch_marker(vma, addr, access),
                _ => Err(FaultError::Poisoned(addr)),
            },
            Kind::Swap => self.swap_in(vma, addr, access, orders),
            Kind::Table => Ok(Outcome::Again),
            Kind::Busy => {
                self.tables.platform().wait();
                Ok(Outcome::Again)
            }
        }
    }

    /// A new folio, of `order` if there is memory for it, smaller if not.
    #[inline(always)]
    fn map_new(&self, vma: &Vma, addr: u64, order: u8, orders: u32) -> Result<Outcome, FaultError> {
        let (pfn, order) = Anon::of(self).alloc_or_smaller(vma, addr, order, orders, true)?;
        Outcome::of_mapping(Anon::of(self).map(vma, addr, pfn, order))
    }

    /// Something is mapped: perhaps another CPU was quicker, perhaps it is zeros that are to be written, perhaps the VMA
    /// allows more than the entry says.
    #[inline(never)]
    fn touch_mapped(&self, vma: &Vma, addr: u64, access: Access, raw: u64, level: u8) -> Result<Outcome, FaultError> {
        let arch = &self.tables.arch;
        let attrs = arch.attrs(raw, level);
        let needed = match access {
            Access::Read => Attrs::READ,
            Access::Write => Attrs::WRITE,
            Access::Exec => Attrs::EXEC,
        };
        let page = vma.range.around(addr, arch.level_shift(level));
        if attrs.contains(needed) {
            return Ok(self.spurious(addr, page, access, attrs));
        }
        if access == Access::Write && attrs.contains(Attrs::WATCHED) {
            return self.touch_watched(vma, addr, page);
        }
        if access == Access::Write && self.tables.machine.zeros_folio().contains(arch.leaf_pfn(raw, level)) {
            if vma.flags.contains(VmaFlags::MISSING) {
                return self.replace_zeros(vma, addr, page);
            }
            self.unmap_zeros(vma, page);
            return Ok(Outcome::Again);
        }
        if access == Access::Write && !attrs.contains(Attrs::EXCLUSIVE) {
            return self.unshare(vma, addr);
        }
        if access == Access::Write && !Ptes::of(self).rights(attrs, vma.prot).contains(Attrs::WRITE) {
            return Ok(self.first_write(vma, addr));
        }
        // Only a change of the VMA that is under way leaves entries behind it: a run at a time follows here.
        let Found::Table(table) = self.tables.find(vma.range.tail(addr)) else { return Ok(Outcome::Again) };
        let mut stale = None;
        if let Some(run) = table.run(addr, vma.range.end)
            && run.kind == Kind::Leaf
            && Ptes::of(self).apply_prot(&table, &run, vma.prot)
        {
            stale = Some((run.range(arch), table.shift()));
        }
        table.release();
        if let Some((range, shift)) = stale {
            // The change took a right away too, and finds these entries as they should be. It ends when faults have left the
            // VMAs, so not before this.
            self.tables.tlb.invalidate(&[range], shift, false);
        }
        Ok(Outcome::Again)
    }
}
