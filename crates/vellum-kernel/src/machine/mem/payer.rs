//! Which group pays for the kernel's own memory: that of the program that has it allocate it.
//!
//! Small blocks, of up to `1 << MOST_BEYOND` frames, are not refused: few callers of the heap could
//! go back. They come from what is kept for the kernel if there is nothing else, and may take the
//! group beyond its limit. After its system call the thread waits until neither is so any more, by
//! reclaim or by a process's end. Larger blocks, and everything of which the program says how much
//! ([`reserve`], [`zeros`]), are refused; for a limit, the call is made again when there is room.

use crate::mem::thread::{self, BlockedOn};
use crate::mem::{machine, percpu};
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering::Relaxed;
use spin::{Mutex, MutexGuard};
use vellum::addr::FRAME_SIZE;
use vellum::memcg::{MemcgId, Refused};
use vellum_kernel::errno::Errno;

/// log2 of the most frames of a block that is not refused for a limit.
pub const MOST_BEYOND: u8 = 2;

/// Returns the group to charge for what this CPU allocates now.
pub fn payer() -> MemcgId {
    let cpu = percpu::current();
    let payer = cpu.payer.get();
    if cpu.shared.get() > 0 || payer.is_null() {
        return MemcgId::ROOT;
    }
    // SAFETY: it lives as long as it is set (`thread::work_for`).
    MemcgId::numbered(unsafe { &*payer }.load(Relaxed))
}

/// A table of the whole machine's, with its lock. The root group pays for it: a node of it serves
/// many programs, and would keep the group of the one that came first from being removed.
pub struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    /// One that holds `table`.
    pub const fn new(table: T) -> Self {
        Shared(Mutex::new(table))
    }

    /// Locks it.
    pub fn lock(&self) -> SharedGuard<'_, T> {
        let root_pays = RootPays::new();
        SharedGuard(self.0.lock(), root_pays)
    }
}

/// A table that is locked.
pub struct SharedGuard<'a, T>(MutexGuard<'a, T>, RootPays);

impl<T> Deref for SharedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for SharedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// As long as there is one on a CPU, which is where it was made, the root group pays.
struct RootPays(PhantomData<*const ()>);

impl RootPays {
    fn new() -> Self {
        let shared = &percpu::current().shared;
        shared.set(shared.get() + 1);
        RootPays(PhantomData)
    }
}

impl Drop for RootPays {
    fn drop(&mut self) {
        let shared = &percpu::current().shared;
        shared.set(shared.get() - 1);
    }
}

/// The payer was refused memory. `beyond`: it got it all the same.
pub fn refused(why: Refused, beyond: bool) {
    match why {
        _ if beyond => _ = thread::current(|thread| thread.try_block(BlockedOn::Overdraft(why))),
        Refused::OverLimit(_) => _ = thread::current(|thread| thread.try_block(BlockedOn::Shortage(why))),
        // Reclaim doesn't put frames side by side: the call fails.
        Refused::OutOfMemory => {}
    }
}

/// Checks that the payer may have so many bytes more.
///
/// # Errors
///
/// `ENOMEM`; the system call is made again when it may.
pub fn afford(bytes: u64) -> Result<(), Errno> {
    let pages = u32::try_from(bytes.div_ceil(FRAME_SIZE)).map_err(|_| Errno::ENOMEM)?;
    machine().memcgs().has_room(machine().frames(), payer(), pages).map_err(|over| {
        refused(over.into(), false);
        Errno::ENOMEM
    })
}

/// Reserves room for so many more elements, where a program says how many: memory may be short, or
/// in pieces, or the program's group may not have it.
///
/// # Errors
///
/// `ENOMEM`.
pub fn reserve<T>(vec: &mut Vec<T>, more: usize) -> Result<(), Errno> {
    if vec.capacity() - vec.len() < more {
        afford(more.saturating_mul(size_of::<T>()) as u64)?;
    }
    vec.try_reserve(more).map_err(Errno::from)
}

/// Returns so many bytes of zeros; as [`reserve`].
///
/// # Errors
///
/// `ENOMEM`.
pub fn zeros(len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    reserve(&mut bytes, len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}
