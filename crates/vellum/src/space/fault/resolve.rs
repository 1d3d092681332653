//! The fault path: reads the PTE, dispatches to the step that fits, and tries again.

use crate::addr::{Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, Marker, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::stats::{Counter, SizeCounter};
use crate::sync::Retries;
use crate::table::{Found, NotMapped, Probe};
use crate::vma::{Prot, State, Vma, VmaFlags};

use super::stack::Growth;
use super::{Access, Fault, FaultError, Resolved, Retry, SwapIn};
use crate::space::anon::Anon;
use crate::space::ground::{Change, Ptes};

/// An access to an address in a VMA.
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
    /// These addresses are mapped now, by PTEs that were not present before.
    Mapped(VirtRange),
    /// These addresses are mapped now, and their contents were read from a swap device.
    SwappedIn(VirtRange),
    /// The PTE that maps these addresses was present before, and allows the access now.
    Allowed(VirtRange),
    /// The PTEs have changed since they were read, by this fault or another CPU: the caller tries
    /// the fault again.
    Again,
    /// No VMA has the address, but a stack above may be able to grow down to it.
    NoVma,
    /// There is no block of this order, and the fault's first try asks the host to compact memory.
    Fragmented(u8),
    /// A change of VMAs has locked the VMA ([`State::Locked`]): the caller waits for that change.
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

    /// Faults in the page at `addr`. Returns the addresses that are mapped now, and whether a swap
    /// device was read ([`Resolved`]).
    pub(in crate::space) fn fault_in(self, addr: u64, access: Access) -> Result<(VirtRange, Resolved), FaultError> {
        match self.try_fault(addr, access, None) {
            // The common case.
            Ok(Outcome::Mapped(range)) => Ok(self.finish_mapped(range, Resolved::Minor)),
            Ok(outcome) => self.retry_fault_in(addr, access, outcome, &mut Retry::new(self.space)),
            Err(error) => Err(error),
        }
    }

    /// Resolves a fault of which the first try returned `outcome`. If a change of VMAs is in the
    /// way, the fault waits in the queue of changes ([`Retry::wait`]), so that a stream of changes
    /// can't starve it. After some tries the fault closes the gate, at which new operations wait,
    /// so that a stream of other faults, reclaim or `madvise` can't starve it either (INV-21).
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
                Outcome::Fragmented(order) => self.platform().compact(order),
                Outcome::NoVma => {
                    // Open the gate first: growing a stack locks the VMAs for writing, which waits
                    // at a closed gate, and waits for changes, which may be waiting at the gate.
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

    /// Calls [`Fault::try_fault`] out of line, for all tries except the first, which is inlined.
    #[cold]
    pub(in crate::space) fn try_again(
        self,
        addr: u64,
        access: Access,
        retries: &Retries<'_>,
    ) -> Result<Outcome, FaultError> {
        self.try_fault(addr, access, Some(retries))
    }

    /// Tries once to resolve a fault: reads the PTE, and calls the step that fits its kind. Locks
    /// the VMAs for reading. `retries`, which only the first try lacks, records whether this fault
    /// has closed the gate.
    #[inline(always)]
    fn try_fault(self, addr: u64, access: Access, retries: Option<&Retries<'_>>) -> Result<Outcome, FaultError> {
        let vmas = self.space.read_with(retries);
        let Some(vma) = vmas.find(addr) else { return Ok(Outcome::NoVma) };
        if vma.state == State::Locked {
            return Ok(Outcome::Locked);
        }
        let allowed = match access {
            Access::Read => !vma.prot.is_none(),
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
            false => 0,
        };
        let Probe { raw, level, order } = self.tables().probe(addr, vma.range, wanted);
        match self.arch().kind(raw, level) {
            Kind::None if !vma.backing.is_anonymous() => self.map_object(Touch { vma, addr, access }),
            Kind::None if vma.flags.contains(VmaFlags::UFFD_MISSING) => self.missing_event(Touch { vma, addr, access }),
            Kind::None if access == Access::Write && orders == 0 => self.map_next(vma, addr, retries.is_none()),
            Kind::None if access == Access::Write => self.map_anon(vma, addr, order, orders, retries.is_none()),
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

    /// Maps a new zeroed folio where the settings permit no large ones: a single page, or, at the
    /// end of a stretch of mapped pages, a folio that continues it
    /// ([`FolioPolicy::growth_orders`](crate::frame::policy::FolioPolicy::growth_orders)).
    #[inline(always)]
    fn map_next(self, vma: &Vma, addr: u64, is_first: bool) -> Result<Outcome, FaultError> {
        let orders = Anon::of(self.space).growth_orders(vma);
        let order = match orders {
            0 => self.arch().page_order(),
            _ => self.tables().continuing(addr, vma.range, orders),
        };
        self.map_anon(vma, addr, order, orders, is_first)
    }

    /// Maps a new zeroed folio: of `order`, or of a smaller one of `orders` if there is no memory
    /// for that. The first try of a fault may ask for compaction instead.
    #[inline(always)]
    fn map_anon(self, vma: &Vma, addr: u64, order: u8, orders: u32, is_first: bool) -> Result<Outcome, FaultError> {
        let may_ask = is_first
            && order > self.arch().page_order()
            && self.machine().policy().compacts(Anon::of(self.space).advice(vma));
        let (pfn, order) = if may_ask {
            let Some(folio) = self.alloc_or_ask(vma, addr, order, orders)? else {
                return Ok(Outcome::Fragmented(order));
            };
            folio
        } else {
            Anon::of(self.space).alloc_or_smaller(vma, addr, order, orders, true)?
        };
        Outcome::of_mapping(Anon::of(self.space).map(vma, addr, pfn, order))
    }

    /// Allocates a zeroed folio of `order`, or of a smaller one of `orders`, and returns it with
    /// its order. Returns `None` if there is no block of `order` and the fault asks for compaction.
    #[inline(never)]
    fn alloc_or_ask(self, vma: &Vma, addr: u64, order: u8, orders: u32) -> Result<Option<(Pfn, u8)>, Refused> {
        let machine = self.machine();
        match Anon::of(self.space).alloc(vma, addr, order, true) {
            Ok(pfn) => {
                machine.count_size(SizeCounter::Faults, order);
                Ok(Some((pfn, order)))
            }
            Err(Refused::OutOfMemory) if machine.compaction().may_ask() => {
                machine.count(Counter::CompactStalls, 1);
                Ok(None)
            }
            Err(_) => Anon::of(self.space).alloc_or_smaller(vma, addr, order, orders, true).map(Some),
        }
    }

    /// Resolves a fault on a PTE that maps memory. Either the PTE allows the access already; or the
    /// access is a write to the zero folio, to a shared page, or to a page that is write-protected
    /// for a userfaultfd or for soft-dirty; or the VMA allows more than the PTE does.
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
            // A page in a shared VMA that is not exclusive is a clean page of a file.
            return if vma.backing.is_shared() {
                self.write_to_store(vma, addr)
            } else {
                self.copy_on_write(vma, addr)
            };
        }
        if access == Access::Write && !Ptes::of(self.space).rights(attrs, vma.prot).contains(Attrs::WRITE) {
            return Ok(self.first_write(vma, addr));
        }
        // The PTE has older rights than the VMA, because a change of the VMA's protection is under
        // way and has not reached the PTE yet. Give the PTE's run the new rights here.
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
            // The new rights lack a right that the PTEs had. The change of the VMA's protection
            // will find that these PTEs need no rewrite, and will not flush them: flush here. The
            // change can't end before this flush, because this fault holds the VMAs locked for
            // reading.
            self.tables().tlb.invalidate(&[range], shift, false);
        }
        Ok(Outcome::Again)
    }
}
