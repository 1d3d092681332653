//! Accesses to a process's memory whatever its protection, as debuggers make them (Linux:
//! `FOLL_FORCE`).
//!
//! A page that the process itself may not access is made accessible for the duration of the access.
//! A write to private memory makes a copy of the page, so that a breakpoint in a program's text
//! reaches no other process and no file.

use crate::arch::caches;
use crate::mem::UserSpace;
use crate::mem::thread::{self, BlockedOn};
use alloc::sync::Arc;
use vellum::addr::FRAME_SIZE;
use vellum::page_cache::ObjectPage;
use vellum::space::{Access, FaultError};
use vellum::vma::Prot;

type Page = ObjectPage<'static, crate::mem::platform::Host>;

/// Reads memory up to the first page that can't be read. Returns the number of bytes read.
pub fn read(memory: &Arc<UserSpace>, at: u64, to: &mut [u8]) -> usize {
    let mut done = 0;
    while done < to.len() {
        let address = at.wrapping_add(done as u64);
        let (inside, most) = within_page(address, to.len() - done);
        let part = &mut to[done..done + most];
        match with_page(memory, address, Access::Read, |page| page.read(inside, part)) {
            None | Some(0) => break,
            Some(read) => done += read,
        }
    }
    done
}

/// Writes memory up to the first page that can't be written. Returns the number of bytes written.
pub fn write(memory: &Arc<UserSpace>, at: u64, from: &[u8]) -> usize {
    let mut done = 0;
    while done < from.len() {
        let address = at.wrapping_add(done as u64);
        let (inside, most) = within_page(address, from.len() - done);
        let part = &from[done..done + most];
        let put = |page: &Page| {
            let written = page.write(inside, part);
            // The page may be one of code, which is mapped as such already.
            caches::sync_icache(page.as_ptr().as_ptr().wrapping_add(inside), written);
            written
        };
        match with_page(memory, address, Access::Write, put) {
            None | Some(0) => break,
            Some(written) => done += written,
        }
    }
    done
}

/// Returns the offset of an address in its page, and the number of bytes, of `len`, up to its end.
fn within_page(address: u64, len: usize) -> (usize, usize) {
    let inside = (address & (FRAME_SIZE - 1)) as usize;
    (inside, len.min(FRAME_SIZE as usize - inside))
}

/// Calls `work` with the page at an address, which it may access. Returns `None` if there is none,
/// or the page is not to be accessed that way.
fn with_page<T>(memory: &Arc<UserSpace>, address: u64, access: Access, work: impl FnOnce(&Page) -> T) -> Option<T> {
    let pin = || memory.engine.pin(address, access);
    let note = |error| {
        if let Some(on) = BlockedOn::of(error, memory) {
            thread::current(|thread| thread.block(on));
        }
    };
    match pin() {
        Ok(page) => return Some(work(&page)),
        Err(FaultError::Denied(_)) => {}
        Err(error) => {
            note(error);
            return None;
        }
    }
    let mut found = None;
    memory.engine.vmas(address, |vma| {
        found = Some(*vma);
        false
    });
    let vma = found.filter(|vma| vma.range.start <= address)?;
    let more = match access {
        Access::Write if vma.backing.is_shared() => return None,
        Access::Write => Prot::READ | Prot::WRITE,
        _ => Prot::READ,
    };
    let page = address & !(FRAME_SIZE - 1);
    memory.engine.protect(page, FRAME_SIZE, vma.prot | more).ok()?;
    let result = pin().map_err(note).ok().map(|page| work(&page));
    // The VMA has been split: to undo that takes no memory.
    let _ = memory.engine.protect(page, FRAME_SIZE, vma.prot);
    result
}
