//! Memory that fails because a program says so: `MADV_HWPOISON`, to test how programs bear it.

use super::Answer;
use super::pieces::{by_pieces, may_go_on};
use crate::mem::thread::{failed, fault_failed};
use crate::mem::{UserSpace, machine};
use crate::task::{Thread, deliver};
use alloc::sync::Arc;
use linux_raw_sys::general as abi;
use vellum::addr::{FRAME_SIZE, VirtRange, align_up};
use vellum::arch::{Attrs, Kind};
use vellum::frame::flag;
use vellum::memcg::MayBeRefused;
use vellum::space::{Access, Advise};
use vellum_kernel::errno::Errno;
use vellum_kernel::siginfo::Info;

/// A page that is to fail.
enum Page {
    /// Nothing is mapped: the page was reclaimed since the fault.
    Gone,
    /// A page of zeros, which other programs map too.
    Zeros,
    /// A page with the program's contents, or of a file.
    Mapped {
        /// True if the program has written to it.
        dirty: bool,
    },
}

/// Implements `MADV_HWPOISON`, and, without `fails`, `MADV_SOFT_OFFLINE`, which has nothing to do
/// but to fault the pages in: no frame of this machine is known to fail soon. A page that fails is
/// lost to this process alone; if the process had written to it, the thread gets a signal at once.
pub async fn inject(thread: &Arc<Thread>, memory: &Arc<UserSpace>, [addr, len]: [u64; 2], fails: bool) -> Answer {
    if !thread.credentials().has(abi::CAP_SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    let end = align_up(len, FRAME_SIZE.ilog2()).and_then(|len| addr.checked_add(len)).ok_or(Errno::EINVAL)?;
    if !addr.is_multiple_of(FRAME_SIZE) {
        return Err(Errno::EINVAL);
    }
    let mut at = addr;
    let piece = || {
        while at < end {
            memory.engine.fault(at, Access::Read).map_err(|error| match fault_failed(error, memory) {
                Errno::ENOMEM => Errno::ENOMEM,
                _ => Errno::EFAULT,
            })?;
            match page_at(memory, at) {
                Page::Gone if may_go_on(thread) => continue,
                Page::Gone => break,
                Page::Zeros if fails => return Err(Errno::EBUSY),
                Page::Mapped { dirty } if fails => {
                    let advised = memory.engine.advise(at, FRAME_SIZE, Advise::Poison);
                    advised.map_err(|error| failed(error.refused(), error.errno()))?;
                    if dirty {
                        let mut info = Info::fault(abi::SIGBUS, abi::BUS_MCEERR_AR, at);
                        info.fields[1] = FRAME_SIZE.ilog2().into();
                        deliver::force(thread, info);
                    }
                }
                _ => {}
            }
            at += FRAME_SIZE;
            if !may_go_on(thread) {
                break;
            }
        }
        Ok(at >= end)
    };
    by_pieces(thread, piece).await.map(|()| 0)
}

/// Returns the page at an address.
fn page_at(memory: &UserSpace, at: u64) -> Page {
    let arch = memory.engine.arch();
    let mut page = Page::Gone;
    memory.engine.runs(VirtRange { start: at, end: at + FRAME_SIZE }, |run| {
        if run.kind == Kind::Leaf {
            let (_, frame) = machine().frames().head(run.pfn(arch));
            page = match frame.has(flag::ZERO_FOLIO) {
                true => Page::Zeros,
                false => Page::Mapped { dirty: run.attrs(arch).contains(Attrs::DIRTY) },
            };
        }
    });
    page
}
