//! The fault path: reads the PTE, dispatches to the step that fits, and tries again.

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, Kind, Marker, UserRange};
use crate::platform::Platform;
use crate::stats::Counter;
use crate::sync::Retries;
use crate::table::{Found, NotMapped, Probe};
use crate::vma::{Prot, State, Vma, VmaFlags};

use super::stack::Growth;
use super::{Access, Fault, FaultError, Resolved, Retry, SwapIn};
use crate::space::anon::Anon;
use crate::space::ground::{Change, Ptes};

/// An access to a mapped VMA.
#[derive(Clone, Copy)]
pub(in crate::space) struct Touch<'v> {
    /// The VMA, which is locked for reading.
    pub(in crate::space) vma: &'v Vma,
    /// The address, in the VMA.
    pub(in crate::space) addr: u64,
    /// The access, which the VMA allows.
    pub(in crate::space) access: Access,
}

/// The outcome of an attempt to resolve a fault.
pub(in crate::space) enum Outcome {
    /// These addresses are mapped now, by PTEs that were not present.
    Mapped(VirtRange),
    /// These addresses are mapped now, and their contents were read from a swap device.
    SwappedIn(VirtRange),
    /// The PTE that maps these addresses was present, and allows the access now.
    Allowed(VirtRange),
    /// Another CPU changed something meanwhile: try again.
    Again,
    /// There is no VMA at the address, but perhaps a stack above that may grow.
    NoVma,
    /// A change has locked the VMA ([`State::Locked`]): wait for it.
    Locked,
}

impl Outcome {
    /// Returns the outcome of an attempt to map memory in a hole.
    #[inline(always)]
    pub(super) fn of_mapping(mapped: Result<VirtRange, NotMapped>) -> Result<Outcome, FaultError> {
        match mapped {
            Ok(block) => Ok(Outcome::Mapped(block)),
            Err(NotMapped::Occupied) => Ok(Outcome::Again),
            Err(NotMapped::NoMemory(why)) => Err(why.into()),
        }
    }
}

impl<'s, 'm, P: Platform> Fault<'s, 'm, P> {
    /// Implements [`AddressSpace::fault`](crate::space::AddressSpace::fault).
    #[inline]
    pub(super) fn fault(self, addr: u64, access: Access) -> Result<Resolved, FaultError> {
        self.machine().count(Counter::Faults, 1);
        self.fault_in(addr, access).map(|(_, resolved)| resolved)
    }

    /// Faults in the page at `addr`. Returns the addresses that are mapped now, and the cost.
    pub(in crate::space) fn fault_in(self, addr: u64, access: Access) -> Result<(VirtRange, Resolved), FaultError> {
        match self.try_fault(addr, access, None) {
            // The common case.
            Ok(Outcome::Mapped(range)) => Ok(self.finish_mapped(range, Resolved::Minor)),
            Ok(outcome) => self.retry_fault_in(addr, access, outcome, &mut Retry::new(self.space)),
            Err(error) => Err(error),
        }
    }

    /// Resolves a fault that its first try did not resolve. Where changes of VMAs are under way it
    /// waits with a claim, so that no stream of changes starves it; and it closes the gate after
    /// some tries, so that no stream of other faults, reclaim or advice does (INV-21).
    #[cold]
    pub(super) fn retry_fault_in(
        self,
        addr: u64,
        access: Access,
        mut outcome: Outcome,
        retry: &mut Retry<'s, 'm, P>,
    ) -> Result<(VirtRange, Resolved), FaultError> {
        let page = UserRange::all(self.arch()).around(addr, self.page_shift());
        loop {
            match outcome {
                Outcome::Mapped(range) => return Ok(self.finish_mapped(range, Resolved::Minor)),
                Outcome::SwappedIn(range) => return Ok(self.finish_mapped(range, Resolved::Major)),
                Outcome::Allowed(range) => {
                    self.finish_allowed(addr);
                    return Ok((range, Resolved::Minor));
                }
                Outcome::Locked => retry.wait(self.space, page),
                Outcome::NoVma => {
                    // Growing a stack locks the VMAs for writing, which passes the gate, and waits
                    // for changes, which may be waiting at the gate.
                    retry.retries.open();
                    match self.grow_stack(addr, retry.claim.as_ref().map(Change::ticket))? {
                        Growth::Mapped => {}
                        Growth::Wait(range) => retry.wait(self.space, range),
                        Growth::Unmapped => return Err(FaultError::Unmapped(addr)),
                    }
                }
                Outcome::Again => {
                    self.platform().relax();
                    self.platform().resched();
                    retry.again(self.space, page);
                }
            }
            outcome = self.try_again(addr, access, &retry.retries)?;
        }
    }

    /// Tries to resolve a fault again, out of line: the common first try is inlined.
    #[cold]
    pub(in crate::space) fn try_again(
        self,
        addr: u64,
        access: Access,
        retries: &Retries<'_>,
    ) -> Result<Outcome, FaultError> {
        self.try_fault(addr, access, Some(retries))
    }

    /// Tries to resolve a fault: the dispatcher. Locks the VMAs for reading.
    #[inline(always)]
    fn try_fault(self, addr: u64, access: Access, retries: Option<&Retries<'_>>) -> Result<Outcome, FaultError> {
        let vmas = self.space.read_with(retries);
        let Some(vma) = vmas.find(addr) else { return Ok(Outcome::NoVma) };
        if vma.state == State::Locked {
            return Ok(Outcome::Locked);
        }
        let allowed = match access {
            Access::Read => !vma.prot.is_empty(),
            Access::Write => vma.prot.contains(Prot::WRITE),
            Access::Exec => vma.prot.contains(Prot::EXEC),
        };
        if !allowed {
            return Err(FaultError::Denied(addr));
        }
        let orders = Anon::of(self.space).orders(vma);
        let wanted = match vma.backing.is_anonymous() {
            true if access == Access::Write => orders,
            true => self.zero_orders(orders),
            false => self.object_orders(vma, access),
        };
        let Probe { raw, level, order } = self.tables().probe(addr, vma.range, wanted);
        match self.arch().kind(raw, level) {
            Kind::None if vma.flags.contains(VmaFlags::UFFD_MISSING) => self.missing_event(Touch { vma, addr, access }),
            Kind::None if !vma.backing.is_anonymous() => self.map_object(Touch { vma, addr, access }, order),
            Kind::None if access == Access::Write => self.map_anon(vma, addr, order, orders),
            Kind::None => self.map_zeros(vma, addr, order),
            Kind::Leaf => self.fault_on_leaf(vma, addr, access, raw, level),
            Kind::Marker => match self.arch().marker_of(raw) {
                Some(Marker::Guard) => Err(FaultError::Denied(addr)),
                Some(Marker::UffdWp) => self.fault_on_wp_marker(Touch { vma, addr, access }),
                _ => Err(FaultError::Poisoned(addr)),
            },
            Kind::Swap => SwapIn::of(self.space).swap_in(Touch { vma, addr, access }, orders),
            Kind::Table => Ok(Outcome::Again),
            Kind::Busy => {
                self.platform().wait();
                Ok(Outcome::Again)
            }
        }
    }

    /// Maps a new zeroed folio, of `order` if there is memory for it, smaller if not.
    #[inline(always)]
    fn map_anon(self, vma: &Vma, addr: u64, order: u8, orders: u32) -> Result<Outcome, FaultError> {
        let (pfn, order) = Anon::of(self.space).alloc_or_smaller(vma, addr, order, orders, true)?;
        Outcome::of_mapping(Anon::of(self.space).map(vma, addr, pfn, order))
    }

    /// Resolves a fault on a PTE that is present: another CPU was faster, or the access writes to
    /// the zero folio or a shared page, or the VMA allows more than the PTE.
    #[inline(never)]
    fn fault_on_leaf(self, vma: &Vma, addr: u64, access: Access, raw: u64, level: u8) -> Result<Outcome, FaultError> {
        let arch = self.arch();
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
        if access == Access::Write && attrs.contains(Attrs::UFFD_WP) {
            return self.fault_on_wp_leaf(vma, addr, page);
        }
        if access == Access::Write && self.machine().zero_folio().contains(arch.leaf_pfn(raw, level)) {
            if vma.flags.contains(VmaFlags::UFFD_MISSING) {
                return self.replace_zeros(vma, addr, page);
            }
            self.unmap_zeros(vma, page);
            return Ok(Outcome::Again);
        }
        if access == Access::Write && !attrs.contains(Attrs::EXCLUSIVE) {
            return self.copy_on_write(vma, addr);
        }
        if access == Access::Write && !Ptes::of(self.space).rights(attrs, vma.prot).contains(Attrs::WRITE) {
            return Ok(self.first_write(vma, addr));
        }
        // Only a change of the VMA that is under way leaves PTEs with old rights: they get the new
        // ones here, a run at a time.
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Ok(Outcome::Again) };
        let mut stale = None;
        if let Some(run) = table.run(addr, vma.range.end)
            && run.kind == Kind::Leaf
            && Ptes::of(self.space).apply_prot(&table, &run, vma.prot)
        {
            stale = Some((run.range(arch), table.shift()));
        }
        table.release();
        if let Some((range, shift)) = stale {
            // The change removes a right too, but finds that these PTEs need no rewrite and does
            // not flush them. It ends only when this fault has unlocked the VMAs.
            self.tables().tlb.invalidate(&[range], shift, false);
        }
        Ok(Outcome::Again)
    }
}
