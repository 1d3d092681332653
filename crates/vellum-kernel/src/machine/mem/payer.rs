//! Chooses the memcg that is charged for kernel memory: the memcg of the program on whose behalf
//! the kernel allocates.
//!
//! An allocation of up to `1 << MOST_BEYOND` frames is never refused, because few users of the heap
//! could undo their work; nor is a larger one, up to `1 << MOST_UNREFUSED`, where none could
//! ([`enter_unrefused`]). If memory is short it is served from the kernel's reserve, and it may
//! take the memcg beyond its limit. The thread then waits after its system call until reclaim or
//! the end of a process has made up for it. If memory is short or the limit is reached, larger
//! allocations, and all those whose size the program chooses ([`reserve`], [`zeros`]), are refused.
//! If the limit was the reason, the system call is restarted once there is room.

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

/// log2 of the largest block, in frames, that is allocated beyond a limit.
pub const MOST_BEYOND: u8 = 2;
/// The same for code that can't undo its work at all.
pub const MOST_UNREFUSED: u8 = 6;

/// Returns the memcg to charge for what this CPU allocates now.
pub fn payer() -> MemcgId {
    let cpu = percpu::current();
    let payer = cpu.payer.get();
    if cpu.shared.get() > 0 || payer.is_null() {
        return MemcgId::ROOT;
    }
    // SAFETY: the counter lives as long as it is set (`thread::work_for`).
    MemcgId::numbered(unsafe { &*payer }.load(Relaxed))
}

/// Returns log2 of the largest block, in frames, that this CPU may now allocate beyond a limit.
pub fn most_beyond() -> u8 {
    if percpu::current().unrefused.get() > 0 { MOST_UNREFUSED } else { MOST_BEYOND }
}

/// Begins, on this CPU, work for the whole machine that can't be undone: until
/// [`leave_unrefused`], the root memcg pays, and the reserve serves blocks of up to
/// `1 << MOST_UNREFUSED` frames. The size of its caches bounds what it allocates: no memcg's limit
/// does.
pub fn enter_unrefused() {
    let cpu = percpu::current();
    cpu.shared.set(cpu.shared.get() + 1);
    cpu.unrefused.set(cpu.unrefused.get() + 1);
}

/// Ends such work. The CPU is the one on which it began.
pub fn leave_unrefused() {
    let cpu = percpu::current();
    cpu.shared.set(cpu.shared.get() - 1);
    cpu.unrefused.set(cpu.unrefused.get() - 1);
}

/// A machine-wide table with its lock. Allocations under the lock are charged to the root memcg: a
/// node of the table serves many programs, and its charge would otherwise keep the memcg of the
/// first one from being removed.
pub struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    /// Returns an unlocked table.
    pub const fn new(table: T) -> Self {
        Shared(Mutex::new(table))
    }

    /// Locks the table.
    pub fn lock(&self) -> SharedGuard<'_, T> {
        let root_pays = RootPays::new();
        SharedGuard(self.0.lock(), root_pays)
    }
}

/// A locked table.
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

/// Guard. While one exists on a CPU, this CPU's allocations are charged to the root memcg. It must
/// be dropped on the CPU that created it.
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

/// Notes that the payer was refused memory, so that the current thread waits. `beyond`: the
/// allocation was made all the same.
pub fn refused(why: Refused, beyond: bool) {
    match why {
        _ if beyond => _ = thread::current(|thread| thread.try_block(BlockedOn::Overdraft(why))),
        Refused::OverLimit(_) => _ = thread::current(|thread| thread.try_block(BlockedOn::Shortage(why))),
        // The call fails: a program that asks for that much can do without.
        Refused::OutOfMemory => {}
    }
}

/// Checks that the payer's memcg may be charged for `bytes` more.
///
/// # Errors
///
/// `ENOMEM`; the system call is restarted once the memcg has room.
pub fn afford(bytes: u64) -> Result<(), Errno> {
    let pages = u32::try_from(bytes.div_ceil(FRAME_SIZE)).map_err(|_| Errno::ENOMEM)?;
    machine().memcgs().has_room(machine().frames(), payer(), pages).map_err(|over| {
        refused(over.into(), false);
        Errno::ENOMEM
    })
}

/// Reserves room for `more` elements where a program determines the number. Memory may be short or
/// fragmented, or the program's memcg may be at its limit.
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

/// Returns `len` bytes of zeros, allocated as by [`reserve`].
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
