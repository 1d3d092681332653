//! Implements `kcmp`: whether two threads share something of the kernel's.

use super::{Answer, remote};
use crate::arch::random::random;
use crate::task::{Process, Thread, process};
use alloc::sync::Arc;
use core::ptr;
use spin::Once;
use vellum_kernel::errno::Errno;

/// The kinds of things (`enum kcmp_type`).
mod kind {
    pub const FILE: u32 = 0;
    pub const MEMORY: u32 = 1;
    pub const FILES: u32 = 2;
    pub const FOLDERS: u32 = 3;
    pub const SIGNALS: u32 = 4;
    pub const IO: u32 = 5;
    pub const SEMAPHORES: u32 = 6;
}

/// Implements `kcmp`. Returns 0 if the two are the same, and otherwise 1 or 2, an order that stays.
pub fn kcmp(thread: &Thread, [first, second, kind, first_fd, second_fd]: [u64; 5]) -> Answer {
    let find = |pid: u64| process::find_by_thread(pid as u32).ok_or(Errno::ESRCH);
    let pair = [find(first)?, find(second)?];
    for process in &pair {
        remote::may_look_into(thread, process)?;
    }
    let fds = [first_fd, second_fd];
    let places = match kind as u32 {
        kind::FILE => {
            let place = |index: usize| -> Result<usize, Errno> {
                let files = pair[index].files.lock().clone().ok_or(Errno::EBADF)?;
                Ok(place_of(&files.open(u64::from(fds[index] as u32))?))
            };
            [place(0)?, place(1)?]
        }
        kind::MEMORY => pair.each_ref().map(|process| process.memory().map_or(0, |memory| place_of(&memory))),
        // Threads share their folders where they share their files.
        kind::FILES | kind::FOLDERS => pair.each_ref().map(|process| process.files.lock().as_ref().map_or(0, place_of)),
        kind::SIGNALS => pair.each_ref().map(place_of::<Process>),
        // No thread has a context of input and output, or semaphores to undo.
        kind::IO | kind::SEMAPHORES => [0; 2],
        _ => return Err(Errno::EINVAL),
    };
    let [first, second] = places.map(mixed);
    Ok(u64::from(first != second) + u64::from(first > second))
}

/// Returns the address of something shared.
fn place_of<T: ?Sized>(of: &Arc<T>) -> usize {
    ptr::from_ref(&**of).cast::<u8>().addr()
}

/// Returns a number for an address from which a program can't tell the address.
fn mixed(place: usize) -> u64 {
    static KEYS: Once<[u64; 2]> = Once::new();
    let [flips, factor] = KEYS.call_once(|| [random(), random() | 1]);
    (place as u64 ^ flips).wrapping_mul(*factor)
}
