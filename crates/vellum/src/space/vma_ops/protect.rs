//! `mprotect`. Also changes the protection and flags of the VMAs of a range for other operations,
//! such as `mlock` and `mseal`.

use crate::addr::VirtRange;
use crate::arch::{BadRange, Kind, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, MAX_RUNS_PER_HOLD};
use crate::tlb::Gather;
use crate::vma::{Prot, Sharing, Vma, VmaFlags};

use super::VmaOps;
use crate::space::ground::{Amounts, Change, Ptes};

/// The reason why a change of VMAs failed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The range ends beyond the last address.
    Overflow,
    /// Not all of the range is mapped.
    NotMapped,
    /// This VMA may never be written (Linux: the file was not opened for writing, or is sealed).
    Denied(VirtRange),
    /// This VMA is sealed.
    Sealed(VirtRange),
    /// This VMA would become executable, or both writable and executable, which the space forbids
    /// (`Limits::exec_gain`).
    ExecGain(VirtRange),
    /// The limit on private writable memory ([`Limits::data`](crate::space::Limits::data)) would be
    /// exceeded.
    DataLimit,
    /// The change splits VMAs, and the limit on their number would be exceeded.
    TooManyVmas,
    /// There is no memory to split VMAs or huge PTEs.
    NoMemory(Refused),
}

impl ProtectError {
    /// Returns the errno that Linux's `mprotect` reports.
    pub const fn errno(&self) -> Errno {
        match self {
            ProtectError::Unaligned(_) => Errno::EINVAL,
            ProtectError::Denied(_) | ProtectError::ExecGain(_) => Errno::EACCES,
            ProtectError::Sealed(_) => Errno::EPERM,
            _ => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for ProtectError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ProtectError::Unaligned(addr) => {
                write!(f, "address {addr:#x} is not a multiple of the page size: align it")
            }
            ProtectError::Overflow => f.write_str("the range ends beyond the last address: shorten it"),
            ProtectError::NotMapped => f.write_str("not all of the range is mapped: pass a mapped range"),
            ProtectError::Denied(range) => {
                write!(f, "the VMA {range:?} may never be written: open its object for writing")
            }
            ProtectError::Sealed(range) => write!(f, "the VMA {range:?} is sealed: its protection can't be changed"),
            ProtectError::ExecGain(range) => {
                write!(f, "the VMA {range:?} may not become executable, or writable and executable, in this space")
            }
            ProtectError::DataLimit => f.write_str("the change exceeds the limit on data: raise it"),
            ProtectError::TooManyVmas => f.write_str("too many VMAs: raise the limit, or unmap some"),
            ProtectError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for ProtectError {}

may_be_refused!(ProtectError);

/// The protection that VMAs are to get ([`AddressSpace::protect`](crate::space::AddressSpace)).
pub trait NewProt {
    /// Returns the protection that `vma` is to get. Called more than once for a VMA, with a lock
    /// held; returns the same each time.
    fn of(&self, vma: &Vma) -> Prot;
}

/// The same protection for all VMAs, of which each keeps its protection key.
impl NewProt for Prot {
    fn of(&self, vma: &Vma) -> Prot {
        self.with_key(vma.prot.key())
    }
}

/// The protection and the protection key that a function chooses.
impl<F: Fn(&Vma) -> Prot> NewProt for F {
    fn of(&self, vma: &Vma) -> Prot {
        self(vma)
    }
}

/// The treatment of unmapped addresses in the range of [`VmaOps::set_vmas_checked`].
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Holes {
    /// An unmapped address makes the call fail with [`ProtectError::NotMapped`].
    Fail,
    /// Unmapped addresses are skipped.
    Skip,
}

/// The result of [`VmaOps::set_vmas_checked`].
pub(super) struct SetResult {
    /// True if a VMA was changed; false if all VMAs had the new attributes already.
    pub(in crate::space) changed: bool,
    /// True if VMAs cover all of the range.
    pub(in crate::space) covered: bool,
}

impl<'m, P: Platform> VmaOps<'_, 'm, P> {
    /// Implements [`AddressSpace::protect`](crate::space::AddressSpace::protect).
    pub(super) fn protect(self, addr: u64, len: u64, new: impl NewProt) -> Result<(), ProtectError> {
        let range = UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => ProtectError::Unaligned(addr),
            BadRange::Overflow => ProtectError::Overflow,
            BadRange::Beyond(_) => ProtectError::NotMapped,
        })?;
        if range.is_empty() {
            return Ok(());
        }
        let mut change = Change::begin(self.space, range);
        let exec_gain = change.vmas().limits.exec_gain;
        let check = |vma: &Vma| {
            let prot = new.of(vma);
            let (writes, executes) = (prot.contains(Prot::WRITE), prot.contains(Prot::EXEC));
            if writes && vma.backing.sharing == Sharing::ReadOnly {
                Err(ProtectError::Denied(*vma.range))
            } else if !exec_gain && executes && (writes || !vma.prot.contains(Prot::EXEC)) {
                Err(ProtectError::ExecGain(*vma.range))
            } else if vma.flags.contains(VmaFlags::SEALED) {
                Err(ProtectError::Sealed(*vma.range))
            } else {
                Ok(())
            }
        };
        let set = |v: &mut Vma| v.protect(new.of(v));
        if self.set_vmas_checked(&mut change, range, Holes::Fail, check, set)?.changed {
            change.unlock();
            let mut rest = range;
            // VMAs of one protection are one piece. None changes, as this has claimed the range.
            while let Some((part, prot)) = self.next_protection(rest) {
                self.reprotect(part, prot);
                rest = rest.tail(part.end);
            }
        }
        Ok(())
    }

    /// Returns the longest part at the start of `range` whose VMAs have one protection, and that
    /// protection; `None` if `range` is empty. `range` is mapped. Locks the VMAs for reading.
    fn next_protection(self, range: UserRange) -> Option<(UserRange, Prot)> {
        let vmas = self.space.read();
        let mut mapped = vmas.overlapping(self.platform(), range);
        let prot = mapped.next()?.prot;
        let end = mapped.find(|vma| vma.prot != prot).map_or(range.end, |vma| vma.range.start);
        Some((range.head(end), prot))
    }

    /// Changes the VMAs of `range`: splits the VMAs and huge PTEs that cross an end of `range`, and
    /// calls `set` for each VMA in it. Returns false, with nothing changed, if `set` would change
    /// no VMA. `set` must leave the VMA's range as it is. It is called more than once for a VMA,
    /// first with a copy of the VMA.
    ///
    /// # Errors
    /// Those of [`VmaOps::set_vmas_checked`].
    pub(in crate::space) fn set_vmas(
        self,
        change: &mut Change<'_, 'm, P>,
        range: UserRange,
        set: impl Fn(&mut Vma),
    ) -> Result<bool, ProtectError> {
        self.set_vmas_checked(change, range, Holes::Fail, |_| Ok(()), set).map(|result| result.changed)
    }

    /// Changes the VMAs of `range` as [`VmaOps::set_vmas`] does, if `check` returns no error for
    /// any of them. `holes` decides about unmapped addresses. Counts the changed VMAs against the
    /// limits under the same hold of the VMA lock under which it checks the limits (INV-19). The
    /// caller has claimed the range. If huge PTEs must be split, the VMA lock is released for the
    /// split and then taken again.
    ///
    /// # Errors
    /// The first error of `check`. [`ProtectError::NotMapped`] with [`Holes::Fail`].
    /// [`ProtectError::DataLimit`] and [`ProtectError::TooManyVmas`]. [`ProtectError::NoMemory`]:
    /// VMAs and huge PTEs may have been split, and nothing else was changed.
    pub(super) fn set_vmas_checked(
        self,
        change: &mut Change<'_, 'm, P>,
        range: UserRange,
        holes: Holes,
        check: impl Fn(&Vma) -> Result<(), ProtectError>,
        set: impl Fn(&mut Vma),
    ) -> Result<SetResult, ProtectError> {
        let machine = self.machine();
        let vmas = change.vmas();
        let mut unchanged = true;
        let mut new_amounts = Amounts::default();
        let found = vmas.survey(machine.platform(), range, |vma, connected| {
            if !connected && holes == Holes::Fail {
                return Err(ProtectError::NotMapped);
            }
            check(vma)?;
            let mut new = *vma;
            set(&mut new);
            if new != *vma
                && let Some(at) = vma.cut_huge(range)
            {
                return Err(ProtectError::Unaligned(at));
            }
            unchanged &= new == *vma;
            new_amounts.add(&new, range);
            Ok(())
        })?;
        if !found.covered && holes == Holes::Fail {
            return Err(ProtectError::NotMapped);
        }
        if unchanged {
            return Ok(SetResult { changed: false, covered: found.covered });
        }
        let added_data = new_amounts.data.saturating_sub(found.amounts.data);
        if added_data > 0 && vmas.data.saturating_add(added_data) > vmas.limits.data {
            return Err(ProtectError::DataLimit);
        }
        if found.edge_splits > 0 {
            if vmas.tree.len() + found.edge_splits > vmas.limits.vmas {
                return Err(ProtectError::TooManyVmas);
            }
            vmas.reserve(machine, self.space.memcg(), found.edge_splits)?;
            vmas.isolate(machine, range);
        }
        // Accounts under the lock under which the limits were checked (INV-19).
        vmas.count(&found.amounts, -1);
        vmas.count(&new_amounts, 1);
        if self.tables().needs_edge_split(range) {
            // Faults go on while the VMA lock is released. No VMA crosses an end of the range any
            // more, so no fault maps a huge PTE that crosses an end.
            change.unlock();
            if let Err(error) = self.tables().split_edges(range) {
                let vmas = change.vmas();
                vmas.count(&new_amounts, -1);
                vmas.count(&found.amounts, 1);
                return Err(error.into());
            }
        }
        change.vmas().each(machine, range, set);
        Ok(SetResult { changed: true, covered: found.covered })
    }

    /// Gives the PTEs of `range` the protection `prot`, which the VMAs of `range` have already. If
    /// a PTE lost a right, flushes the TLBs before it returns. Faults go on while this runs.
    fn reprotect(self, range: UserRange, prot: Prot) {
        let mut gather = self.space.gather(range);
        let mut at = range.start;
        while at < range.end {
            match self.tables().find(range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    at = self.reprotect_table(&table, range.tail(at), prot, &mut gather);
                    table.unlock(&mut gather);
                    self.platform().resched();
                }
            }
        }
    }

    /// Gives the PTEs that `table` holds for `range` the protection `prot`. Stops early where the
    /// limit on the work under one hold of a page table's lock is reached ([`MAX_RUNS_PER_HOLD`]).
    /// Returns the address at which it stopped. Adds each run that lost a right to `gather`, which
    /// flushes it.
    fn reprotect_table(
        self,
        table: &LockedTable<'_, 'm, P>,
        range: UserRange,
        prot: Prot,
        gather: &mut Gather<'_, 'm, P>,
    ) -> u64 {
        let arch = self.arch();
        let end = table.hold_end(range);
        let mut at = range.start;
        for _ in 0..MAX_RUNS_PER_HOLD {
            if at >= end {
                break;
            }
            if let Some(stretch) = Ptes::of(self.space).apply_prot_to_stretch(table, at, end, prot) {
                if stretch.old.must_flush(stretch.new) {
                    gather.note(stretch.range, table.shift());
                }
                at = stretch.range.end;
                continue;
            }
            let Some(run) = table.run(at, end) else { break };
            if run.kind == Kind::Leaf && Ptes::of(self.space).apply_prot(table, &run, prot) {
                gather.note(run.range(arch), table.shift());
            }
            at = run.range(arch).end;
        }
        at
    }
}
