//! VMAs change what may be done with them: `mprotect`.

use crate::addr::VirtRange;
use crate::arch::{Arch, BadRange, Kind, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, MAX_RUNS_PER_HOLD};
use crate::tlb::Gather;
use crate::vma::{Prot, Sharing, Vma, VmaFlags};

use super::VmaOps;
use crate::space::ground::{Amounts, Change, Ptes};

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The end is beyond the last address.
    Overflow,
    /// Not all of the range is mapped.
    NotMapped,
    /// What is there may never be written (Linux: a file that was not opened for that, or is
    /// sealed).
    Denied(VirtRange),
    /// This VMA is sealed.
    Sealed(VirtRange),
    /// This VMA would become executable, or writable as well, which the space forbids
    /// (`Limits::exec_gain`).
    ExecGain(VirtRange),
    /// More private memory that may be written than the limit allows.
    DataLimit,
    /// VMAs would have to be split, and the space has as many as it may.
    TooManyVmas,
    /// VMAs or huge mappings would have to be split, and there is no memory for that.
    NoMemory(Refused),
}

impl ProtectError {
    /// What Linux's `mprotect` answers.
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
            ProtectError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            ProtectError::Overflow => f.write_str("beyond the last address"),
            ProtectError::NotMapped => f.write_str("not all of the range is mapped"),
            ProtectError::Denied(range) => write!(f, "{range:?} may never be written"),
            ProtectError::Sealed(range) => write!(f, "{range:?} is sealed"),
            ProtectError::ExecGain(range) => write!(f, "{range:?} may not become executable"),
            ProtectError::DataLimit => f.write_str("over the limit on data"),
            ProtectError::TooManyVmas => f.write_str("too many VMAs"),
            ProtectError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for ProtectError {}

may_be_refused!(ProtectError);

/// The ways of a change of VMAs with addresses of its range that are not mapped.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Holes {
    /// It changes nothing.
    Refused,
    /// It changes the VMAs beside them.
    Passed,
}

/// The result of a change of VMAs.
pub(super) struct Set {
    /// Some of them were not as they should be.
    pub(in crate::space) changed: bool,
    /// They cover all of the range.
    pub(in crate::space) covered: bool,
}

impl<'m, P: Platform, A: Arch> VmaOps<'_, 'm, P, A> {
    /// Implements [`AddressSpace::protect`].
    pub(super) fn protect(self, addr: u64, len: u64, prot: Prot) -> Result<(), ProtectError> {
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
        let (writes, executes) = (prot.contains(Prot::WRITE), prot.contains(Prot::EXEC));
        let check = |vma: &Vma| {
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
        if self.set_vmas_if(&mut change, range, Holes::Refused, check, |v| v.prot = prot)?.changed {
            change.unlock();
            self.reprotect(range, prot);
        }
        Ok(())
    }

    /// Change (`set`) the VMAs of `range`, split at its ends, with no huge mapping reaching across.
    /// `false`: all of them are as they should be already.
    pub(in crate::space) fn set_vmas(
        self,
        change: &mut Change<'_, 'm, P, A>,
        range: UserRange,
        set: impl Fn(&mut Vma),
    ) -> Result<bool, ProtectError> {
        self.set_vmas_if(change, range, Holes::Refused, |_| Ok(()), set).map(|set| set.changed)
    }

    /// The same, unless `check` refuses to have one of them changed, and with holes in the range or
    /// without.
    pub(super) fn set_vmas_if(
        self,
        change: &mut Change<'_, 'm, P, A>,
        range: UserRange,
        holes: Holes,
        check: impl Fn(&Vma) -> Result<(), ProtectError>,
        set: impl Fn(&mut Vma),
    ) -> Result<Set, ProtectError> {
        let machine = self.machine();
        let vmas = change.vmas();
        let mut same = true;
        let mut coming = Amounts::default();
        let found = vmas.survey(machine.platform(), range, |vma, connected| {
            if !connected && holes == Holes::Refused {
                return Err(ProtectError::NotMapped);
            }
            check(vma)?;
            let mut new = *vma;
            set(&mut new);
            same &= new == *vma;
            coming.add(&new, range);
            Ok(())
        })?;
        if !found.covered && holes == Holes::Refused {
            return Err(ProtectError::NotMapped);
        }
        if same {
            return Ok(Set { changed: false, covered: found.covered });
        }
        let more = coming.data.saturating_sub(found.amounts.data);
        if more > 0 && vmas.data.saturating_add(more) > vmas.limits.data {
            return Err(ProtectError::DataLimit);
        }
        if found.edge_splits > 0 {
            if vmas.tree.len() + found.edge_splits > vmas.limits.vmas {
                return Err(ProtectError::TooManyVmas);
            }
            vmas.reserve(machine, self.space.memcg(), found.edge_splits)?;
            vmas.isolate(machine, range);
        }
        // In the lock in which the limits were looked at, the VMAs count as they will be.
        vmas.count(&found.amounts, -1);
        vmas.count(&coming, 1);
        if self.tables().needs_edge_split(range) {
            // Faults go on meanwhile, but the VMAs end at the ends of the range now, so that no new
            // huge mapping reaches across.
            change.unlock();
            if let Err(error) = self.tables().split_edges(range) {
                let vmas = change.vmas();
                vmas.count(&coming, -1);
                vmas.count(&found.amounts, 1);
                return Err(error.into());
            }
        }
        change.vmas().each(machine, range, set);
        Ok(Set { changed: true, covered: found.covered })
    }

    /// Bring the entries of `range` in line with its VMAs.
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

    fn reprotect_table(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        range: UserRange,
        prot: Prot,
        gather: &mut Gather<'_, 'm, P>,
    ) -> u64 {
        let arch = self.arch();
        let end = table.hold_end(range);
        let mut at = range.start;
        for _ in 0..MAX_RUNS_PER_HOLD {
            let Some(run) = (at < end).then(|| table.run(at, end)).flatten() else { break };
            if run.kind == Kind::Leaf && Ptes::of(self.space).apply_prot(table, &run, prot) {
                gather.note(run.range(arch), table.shift());
            }
            at = run.range(arch).end;
        }
        at
    }
}
