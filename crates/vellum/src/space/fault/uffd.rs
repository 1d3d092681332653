//! Faults in VMAs that are registered with a userfaultfd.

use crate::addr::align_down;
use crate::arch::{Arch, Attrs, Kind, Marker, UserRange};
use crate::page_cache::{Hints, Lookup, Object};
use crate::platform::Platform;
use crate::table::{Found, Run};
use crate::vma::{Vma, VmaFlags};

use super::object::ToMap;
use super::{Access, Fault, FaultError, Outcome, Touch, UffdEvent, UffdMode};
use crate::space::anon::Anon;
use crate::space::ground::Ptes;

/// Returns whether a write to a write-protected page of a VMA is an event for its userfaultfd. In
/// asynchronous mode it is not: the write removes the protection.
pub(super) fn reports_wp(vma: &Vma) -> bool {
    vma.flags & (VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC) == VmaFlags::UFFD_WP
}

impl<'m, P: Platform> Fault<'_, 'm, P> {
    /// Returns the event for the VMA's userfaultfd, as [`FaultError::Uffd`], or [`Outcome::Again`]
    /// if the VMA has no userfaultfd.
    fn event(self, touch: Touch<'_>, mode: UffdMode) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, access } = touch;
        match vma.uffd {
            Some(uffd) => {
                let page = align_down(addr, self.page_shift());
                Err(FaultError::Uffd(UffdEvent { uffd, page, addr, access, mode }))
            }
            None => Ok(Outcome::Again),
        }
    }

    /// Returns the event of a fault on a missing page, as [`FaultError::Uffd`], in a VMA that is
    /// registered for missing pages. Returns [`Outcome::Again`] if another CPU has mapped something
    /// at the address.
    #[cold]
    pub(super) fn missing_event(self, touch: Touch<'_>) -> Result<Outcome, FaultError> {
        self.unmapped_event(touch, UffdMode::Missing)
    }

    /// Returns the event of a fault on a page that no PTE maps, as [`FaultError::Uffd`], or
    /// [`Outcome::Again`] if another CPU has mapped something at the address.
    fn unmapped_event(self, touch: Touch<'_>, mode: UffdMode) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, .. } = touch;
        let arch = self.arch();
        if let Found::Table(table) = self.tables().find(vma.range.tail(addr)) {
            let raw = table.get(addr);
            let kind = arch.kind(raw, table.level);
            table.release();
            if kind != Kind::None && !(kind == Kind::Marker && arch.marker_of(raw) == Some(Marker::UffdWp)) {
                return Ok(Outcome::Again);
            }
        }
        self.event(touch, mode)
    }

    /// Looks up the page of an object for a fault in a VMA that is registered for missing pages or
    /// for minor faults, where no PTE maps the page. Returns the event as [`FaultError::Uffd`]: the
    /// page is missing in the object, or the object has it and the VMA is registered for minor
    /// faults. Returns `None` if the fault may map the page.
    ///
    /// # Errors
    /// The event; [`FaultError::BeyondEnd`]; those of the object ([`FaultError::of_object`]).
    #[cold]
    pub(super) fn object_event(self, touch: Touch<'_>, object: &Object<'m, P>) -> Result<Option<Outcome>, FaultError> {
        let Touch { vma, addr, .. } = touch;
        let page = vma.backing.offset(addr) >> self.page_shift();
        let looked = object.lookup(page, Hints::of(vma), self.tables().memcg());
        let mode = match looked.map_err(|error| FaultError::of_object(error, addr))? {
            Lookup::Page(_) if vma.flags.contains(VmaFlags::UFFD_MINOR) => UffdMode::Minor,
            Lookup::Hole if vma.flags.contains(VmaFlags::UFFD_MISSING) => UffdMode::Missing,
            Lookup::Page(_) | Lookup::Hole => return Ok(None),
            Lookup::BeyondEnd => return Err(FaultError::BeyondEnd(addr)),
        };
        self.unmapped_event(touch, mode).map(Some)
    }

    /// Resolves a fault on an uffd-wp marker in a VMA of an object: returns the event of a missing
    /// page or of a minor fault; otherwise a read maps the page write-protected, and a write is an
    /// event, or in asynchronous mode erases the marker.
    fn fault_on_object_wp_marker(self, touch: Touch<'_>) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, access } = touch;
        // SAFETY: `vma` is a VMA of the space and the VMAs are locked, so that its reference to the
        // object stays.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        if let Some(outcome) = self.object_event(touch, &object)? {
            return Ok(outcome);
        }
        if access == Access::Write {
            return self.write_to_wp_marker(touch);
        }
        let empty = vma.range.around(addr, self.page_shift());
        let inserts = !vma.flags.contains(VmaFlags::UFFD_MISSING);
        self.map_pages(touch, &object, ToMap { empty, inserts, marker: Some(Marker::UffdWp), attrs: Attrs::UFFD_WP })
    }

    /// Resolves a fault on an uffd-wp marker, where no page is mapped. In a VMA that is registered
    /// for missing pages, returns the event for the userfaultfd. In other VMAs a read maps the zero
    /// folio; for a write, returns the event, or in asynchronous mode erases the marker.
    #[cold]
    pub(super) fn fault_on_wp_marker(self, touch: Touch<'_>) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, access } = touch;
        if !vma.backing.is_anonymous() {
            return self.fault_on_object_wp_marker(touch);
        }
        if vma.flags.contains(VmaFlags::UFFD_MISSING) {
            return self.missing_event(touch);
        }
        if access != Access::Write {
            return self.map_wp_zeros(vma, addr);
        }
        self.write_to_wp_marker(touch)
    }

    /// Resolves a write to a page that no PTE maps, and that an uffd-wp marker protects: returns
    /// the event, or in asynchronous mode erases the marker.
    fn write_to_wp_marker(self, touch: Touch<'_>) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, .. } = touch;
        if reports_wp(vma) {
            return self.event(touch, UffdMode::Write);
        }
        let page = align_down(addr, self.page_shift());
        Ptes::of(self.space).each_run(vma.range.around(page, self.page_shift()), |table, run| {
            if run.kind == Kind::Marker && self.arch().marker_of(run.raw) == Some(Marker::UffdWp) {
                table.erase(run);
            }
            false
        });
        Ok(Outcome::Again)
    }

    /// Resolves a write to a present page that is write-protected for a userfaultfd: returns the
    /// event for the userfaultfd, or in asynchronous mode removes the protection. `mapping` is the
    /// range that the page's PTE maps. In asynchronous mode a huge PTE is split first.
    #[cold]
    pub(super) fn fault_on_wp_leaf(self, vma: &Vma, addr: u64, mapping: UserRange) -> Result<Outcome, FaultError> {
        if reports_wp(vma) {
            return self.event(Touch { vma, addr, access: Access::Write }, UffdMode::Write);
        }
        if mapping.len() > 1 << self.page_shift() {
            return self.split_huge(addr, mapping);
        }
        Ok(self.first_write(vma, addr))
    }

    /// Returns the largest block in which every PTE holds the marker `marker`, and its order. The
    /// block is naturally aligned, has one of `orders`, contains `addr` and lies in `window`. If
    /// there is no such block, returns the page at `addr`.
    pub(in crate::space) fn marked_block(
        self,
        window: UserRange,
        addr: u64,
        orders: u32,
        marker: Option<Marker>,
    ) -> (UserRange, u8) {
        let arch = self.arch();
        let mut found = (window.around(addr, arch.page_shift()), arch.page_order());
        if let Found::Table(table) = self.tables().find(window.tail(addr)) {
            let marked = |(block, _): &(UserRange, u8)| {
                block.start >= table.base
                    && block.end <= table.end()
                    && table.run(block.start, block.end).is_some_and(|run| self.is_marker(&run, *block, marker))
            };
            if table.level == 1
                && let Some(block) = self.tables().aligned_blocks(addr, window, orders).find(marked)
            {
                found = block;
            }
            table.release();
        }
        found
    }

    /// Returns whether `run` covers exactly `range`, and its PTEs hold the marker `marker`.
    fn is_marker(self, run: &Run, range: UserRange, marker: Option<Marker>) -> bool {
        let arch = self.arch();
        run.kind == Kind::Marker && arch.marker_of(run.raw) == marker && range == run.range(arch)
    }

    /// Replaces the PTEs of `range` by `run`, if each of them holds the marker `marker`. Otherwise
    /// returns false, and changes nothing.
    pub(in crate::space) fn map_over_markers(self, range: UserRange, run: &Run, marker: Option<Marker>) -> bool {
        let arch = self.arch();
        let Found::Table(table) = self.tables().find(range) else { return false };
        let old = table
            .run(range.start, range.end)
            .filter(|old| self.is_marker(old, range, marker) && old.level == run.level);
        if let Some(old) = &old {
            self.tables().tlb.flush_pending_reclaim(*range, arch.page_shift());
            table.replace(old, run);
        }
        table.release();
        old.is_some()
    }

    /// Maps the zero folio, write-protected, for a read of an address with an uffd-wp marker.
    fn map_wp_zeros(self, vma: &Vma, addr: u64) -> Result<Outcome, FaultError> {
        let orders = self.zero_orders(Anon::of(self.space).orders(vma));
        let (block, _) = self.marked_block(vma.range, addr, orders, Some(Marker::UffdWp));
        let zeros = self.zero_ptes(vma, block, Attrs::UFFD_WP);
        match self.map_over_markers(block, &zeros, Some(Marker::UffdWp)) {
            true => Ok(Outcome::Mapped(*block)),
            false => Ok(Outcome::Again),
        }
    }
}
