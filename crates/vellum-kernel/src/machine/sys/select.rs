//! Implements `select` and `poll`.

use super::{Answer, clock, file};
use crate::mem::{now_ns, payer, uaccess};
use crate::task::Thread;
use crate::task::deliver::read_set;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Files;
use vellum_kernel::fs::poll::{self, Interest};

/// The events that each of the three `fd_set`s waits for and reports.
const SETS: [u32; 3] = [
    abi::POLLIN | abi::POLLRDNORM | abi::POLLRDBAND | abi::POLLHUP | abi::POLLERR,
    abi::POLLOUT | abi::POLLWRNORM | abi::POLLWRBAND | abi::POLLERR,
    abi::POLLPRI,
];

/// Waits for the events that the `fd_set`s name, and overwrites them with the ready descriptors.
pub async fn wait(thread: &Arc<Thread>, count: u64, sets: [u64; 3], deadline: Option<u64>) -> Answer {
    let files = thread.files();
    let count = count as i32;
    if count < 0 {
        return Err(Errno::EINVAL);
    }
    // No descriptor beyond the table can be open.
    let count = (count as usize).min(files.table.lock().room().next_multiple_of(64).max(64));
    let len = (count as u64).div_ceil(64) * 8;
    let memory = thread.memory();
    let mut bits = [const { Vec::new() }; 3];
    for (bits, at) in bits.iter_mut().zip(sets) {
        *bits = payer::zeros(len as usize)?;
        if at != 0 {
            uaccess::read(&memory, at, bits)?;
        }
    }
    let is_in = |bits: &[u8], fd: usize| bits[fd / 8] >> (fd % 8) & 1 != 0;
    let mut named: Vec<usize> = Vec::new();
    let mut interests: Vec<Interest> = Vec::new();
    for fd in 0..count {
        let wanted = (0..3).filter(|set| is_in(&bits[*set], fd)).fold(0, |wanted, set| wanted | SETS[set]);
        if wanted != 0 {
            named.try_reserve(1)?;
            interests.try_reserve(1)?;
            named.push(fd);
            interests.push((Some(files.open(fd as u64)?), wanted));
        }
    }
    let ready = any(thread, &interests, deadline).await?;
    let mut found = 0;
    let mut answers = [const { Vec::new() }; 3];
    for (set, events) in SETS.into_iter().enumerate() {
        answers[set] = payer::zeros(len as usize)?;
        for (fd, ready) in named.iter().zip(&ready) {
            if is_in(&bits[set], *fd) && ready & events != 0 {
                answers[set][fd / 8] |= 1 << (fd % 8);
                found += 1;
            }
        }
    }
    for (bits, at) in answers.iter().zip(sets) {
        if at != 0 {
            uaccess::write(&memory, at, bits)?;
        }
    }
    Ok(found)
}

/// Waits until a file has an event of interest, or the clock reaches `deadline`. Returns the ready
/// events of each file; the vector is empty at the deadline.
async fn any(thread: &Arc<Thread>, set: &[Interest], deadline: Option<u64>) -> Result<Vec<u32>, Errno> {
    match thread.interruptible(poll::any(set), deadline).await {
        Ok(ready) => ready,
        // No file has an event.
        Err(Errno::ETIMEDOUT) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Converts the timeout of `poll` and `epoll_wait`, in milliseconds, to a deadline; a negative
/// timeout has none.
pub fn deadline_in(ms: u64) -> Option<u64> {
    let ms = ms as i32;
    (ms >= 0).then(|| now_ns() + ms as u64 * 1_000_000)
}

/// Reads the timeout of `ppoll`, and converts it to a deadline; there is none at address 0.
pub fn deadline_at(thread: &Arc<Thread>, timeout: u64) -> Result<Option<u64>, Errno> {
    Ok(if timeout == 0 { None } else { Some(now_ns().saturating_add(clock::read_time(thread, timeout)?)) })
}

/// Gives the thread the signal mask at an address, unless that is 0, for the rest of this system
/// call, which is the thread's own.
pub fn with_mask(thread: &Arc<Thread>, mask: u64, size: u64) -> Result<(), Errno> {
    if mask != 0 {
        let mask = read_set(thread, mask, size)?;
        // SAFETY: a system call runs in the thread's own future.
        unsafe { thread.context() }.saved_mask = Some(thread.mask.load(Ordering::Relaxed));
        thread.set_mask(mask);
    }
    Ok(())
}

/// Implements `pselect6`. The address and size of its signal mask are read from memory at `mask`.
pub async fn pselect(thread: &Arc<Thread>, [count, read, write, other, timeout, mask]: [u64; 6]) -> Answer {
    let deadline = deadline_at(thread, timeout)?;
    if mask != 0 {
        let mut bytes = [0; 16];
        uaccess::read(&thread.memory(), mask, &mut bytes)?;
        let both = u128::from_le_bytes(bytes);
        let (at, size) = (both as u64, (both >> 64) as u64);
        with_mask(thread, at, size)?;
    }
    wait(thread, count, [read, write, other], deadline).await
}

/// Implements `poll` and the wait of `ppoll`. `deadline` is in nanoseconds of the monotonic clock.
pub async fn poll(thread: &Arc<Thread>, array: u64, count: u64, deadline: Option<u64>) -> Answer {
    if count > file::limit(thread) {
        return Err(Errno::EINVAL);
    }
    let memory = thread.memory();
    let mut bytes = payer::zeros(count as usize * 8)?;
    uaccess::read(&memory, array, &mut bytes)?;
    let files: Arc<Files> = thread.files();
    let mut set = Vec::new();
    let mut bad = false;
    set.try_reserve_exact(count as usize)?;
    for one in bytes.chunks_exact_mut(8) {
        let fd = i32::from_le_bytes(core::array::from_fn(|i| one[i]));
        let wanted = u32::from(u16::from_le_bytes([one[4], one[5]]));
        one[6..8].fill(0);
        let open = if fd < 0 { None } else { files.open(fd as u64).ok() };
        if fd >= 0 && open.is_none() {
            one[6..8].copy_from_slice(&(abi::POLLNVAL as u16).to_le_bytes());
            bad = true;
        }
        set.push((open, wanted | poll::ALWAYS));
    }
    // A descriptor that is not open is an event (`POLLNVAL`), so the call does not wait.
    let found = if bad {
        let mut found = Vec::new();
        found.try_reserve_exact(set.len())?;
        found.extend(set.iter().map(poll::now));
        found
    } else {
        any(thread, &set, deadline.map(|deadline| thread.wait_until(deadline))).await?
    };
    let mut ready = 0;
    for (one, found) in bytes.chunks_exact_mut(8).zip(found) {
        if found != 0 {
            one[6..8].copy_from_slice(&(found as u16).to_le_bytes());
        }
        ready += u64::from(one[6..8] != [0, 0]);
    }
    uaccess::write(&memory, array, &bytes)?;
    Ok(ready)
}

/// Implements `ppoll`.
pub async fn ppoll(thread: &Arc<Thread>, a: [u64; 6]) -> Answer {
    let [array, count, timeout, mask, size, _] = a;
    let deadline = deadline_at(thread, timeout)?;
    with_mask(thread, mask, size)?;
    poll(thread, array, count, deadline).await
}
