//! Stack growth: VMAs with `VM_GROWSDOWN` grow down to an address that is accessed.

use crate::addr::align_down;
use crate::arch::UserRange;
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::vma::{STACK_GUARD, Vma, VmaFlags};

use super::Fault;
use crate::space::ground::ClaimTicket;

/// The result of an attempt to grow a stack to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// A VMA has the address now: this call or another CPU has grown the stack.
    Mapped,
    /// No VMA has the address, and no stack may grow there.
    Unmapped,
    /// Other changes of this range are under way, or arrived before this fault. The caller claims
    /// the range, which waits for these changes, and tries again.
    Wait(UserRange),
}

impl<P: Platform> Fault<'_, '_, P> {
    /// Grows the stack above `addr` down to the page with `addr`, which was accessed and is in no
    /// VMA. `ticket` is the fault's place in the queue of changes, if the fault has claimed the
    /// range already.
    ///
    /// # Errors
    /// There is no memory.
    #[cold]
    pub(super) fn grow_stack(self, addr: u64, ticket: Option<ClaimTicket>) -> Result<Growth, Refused> {
        let start = align_down(addr, self.page_shift());
        let mut vmas = self.space.write();
        if vmas.find(addr).is_some() {
            return Ok(Growth::Mapped);
        }
        let Some(stack) = vmas.tree.find_from(addr).copied() else { return Ok(Growth::Unmapped) };
        let whole = UserRange::all(self.arch()).tail(start).head(stack.range.end);
        if vmas.claims.must_wait(&whole, ticket) {
            return Ok(Growth::Wait(whole));
        }
        if !stack.flags.contains(VmaFlags::GROWSDOWN) || start < vmas.limits.lowest {
            return Ok(Growth::Unmapped);
        }
        let grown = whole.head(stack.range.start);
        let below = vmas.tree.prev(stack.range.start).copied();
        let crowded = below.is_some_and(|v| {
            let guard = if v.flags.contains(VmaFlags::GROWSDOWN) || v.prot.is_none() { 0 } else { STACK_GUARD };
            v.range.end.saturating_add(guard) > start
        });
        if crowded || stack.range.end - start > vmas.limits.stack || vmas.allow(&stack, grown.len(), 0).is_err() {
            return Ok(Growth::Unmapped);
        }
        vmas.tree.update(stack.range.start, |v| v.range = whole);
        vmas.account(&Vma { range: grown, ..stack }, grown, 1);
        vmas.merge(self.machine(), grown);
        Ok(Growth::Mapped)
    }
}
