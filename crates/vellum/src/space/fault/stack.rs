//! Stacks: VMAs that grow down to where they are touched.

use crate::addr::align_down;
use crate::arch::{Arch, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::vma::{STACK_GUARD, Vma, VmaFlags};

use super::Fault;
use crate::space::ground::Turn;

/// What became of an address that is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// It is mapped now: the stack grew, or another CPU was quicker.
    There,
    /// It stays unmapped.
    Nothing,
    /// These addresses are being changed: look again when it is this fault's turn there.
    Wait(UserRange),
}

impl<P: Platform, A: Arch> Fault<'_, '_, P, A> {
    /// Lets a stack grow down to the page at `addr`, which was touched and is not mapped. `turn`:
    /// that of the fault, if it had to wait.
    #[cold]
    pub(super) fn grow_stack(self, addr: u64, turn: Option<Turn>) -> Result<Growth, Refused> {
        let start = align_down(addr, self.page_shift());
        let mut vmas = self.space.write();
        if vmas.find(addr).is_some() {
            return Ok(Growth::There);
        }
        let Some(stack) = vmas.tree.find_from(addr).copied() else { return Ok(Growth::Nothing) };
        let whole = UserRange::all(self.arch()).tail(start).head(stack.range.end);
        if vmas.claims.is_ahead(&whole, turn) {
            return Ok(Growth::Wait(whole));
        }
        if !stack.flags.contains(VmaFlags::GROWSDOWN) || start < vmas.limits.lowest {
            return Ok(Growth::Nothing);
        }
        let grown = whole.head(stack.range.start);
        let below = vmas.tree.prev(stack.range.start).copied();
        let crowded = below.is_some_and(|v| {
            let guard = if v.flags.contains(VmaFlags::GROWSDOWN) || v.prot.is_empty() { 0 } else { STACK_GUARD };
            v.range.end.saturating_add(guard) > start
        });
        if crowded || stack.range.end - start > vmas.limits.stack || vmas.allow(&stack, grown.len(), 0).is_err() {
            return Ok(Growth::Nothing);
        }
        vmas.tree.update(stack.range.start, |v| v.range = whole);
        vmas.account(&Vma { range: grown, ..stack }, grown, 1);
        vmas.merge(self.machine(), grown);
        Ok(Growth::There)
    }
}
