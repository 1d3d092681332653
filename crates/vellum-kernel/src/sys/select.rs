//! `pselect6`, and what `select` shares with it: `poll` with sets of bits.

use super::{Answer, clock};
use crate::mem::{now_ns, uaccess};
use crate::task::Thread;
use crate::task::deliver::read_set;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::poll::{self, Interest};

/// What each of the three sets asks, and what is answered by it.
const SETS: [(u32, u32); 3] = [
    (abi::POLLIN | abi::POLLRDNORM | abi::POLLRDBAND, abi::POLLHUP | abi::POLLERR),
    (abi::POLLOUT | abi::POLLWRNORM | abi::POLLWRBAND, abi::POLLERR),
    (abi::POLLPRI, 0),
];

/// Waits for what the sets name, and leaves in them what is ready.
pub async fn wait(thread: &Arc<Thread>, count: u64, sets: [u64; 3], deadline: Option<u64>) -> Answer {
    let files = thread.files();
    let count = count as i32;
    if count < 0 {
        return Err(Errno::EINVAL);
    }
    // Nothing beyond the table can be open.
    let count = (count as usize).min(files.table.lock().room().next_multiple_of(64).max(64));
    let len = (count as u64).div_ceil(64) * 8;
    let memory = thread.memory();
    let mut bits = [const { Vec::new() }; 3];
    for (bits, at) in bits.iter_mut().zip(sets) {
        *bits = vec![0u8; len as usize];
        if at != 0 {
            uaccess::read(&memory, at, bits)?;
        }
    }
    let is_in = |bits: &[u8], fd: usize| bits[fd / 8] >> (fd % 8) & 1 != 0;
    let mut interests: Vec<(usize, Interest)> = Vec::new();
    for fd in 0..count {
        let wanted = (0..3).filter(|set| is_in(&bits[*set], fd)).fold(0, |wanted, set| wanted | SETS[set].0);
        if wanted != 0 {
            interests.try_reserve(1)?;
            interests.push((fd, (Some(files.open(fd as u64)?), wanted)));
        }
    }
    let all: Vec<Interest> = interests.iter().map(|(_, interest)| interest.clone()).collect();
    match thread.interruptible(poll::any(&all), deadline).await {
        Ok(ready) => ready?,
        Err(Errno::ETIMEDOUT) => {}
        Err(error) => return Err(error),
    }
    let mut found = 0;
    let mut answers = [const { Vec::new() }; 3];
    for (set, (asked, beside)) in SETS.into_iter().enumerate() {
        answers[set] = vec![0u8; len as usize];
        for (fd, interest) in &interests {
            if is_in(&bits[set], *fd) && poll::ready(interest) & (asked | beside) != 0 {
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

/// `pselect6`: with a mask of signals, whose address and size are in memory.
pub async fn pselect(thread: &Arc<Thread>, [count, read, write, other, timeout, mask]: [u64; 6]) -> Answer {
    let deadline = match timeout {
        0 => None,
        _ => Some(now_ns().saturating_add(clock::read_time(thread, timeout)?)),
    };
    if mask != 0 {
        let mut bytes = [0; 16];
        uaccess::read(&thread.memory(), mask, &mut bytes)?;
        let both = u128::from_le_bytes(bytes);
        let (at, size) = (both as u64, (both >> 64) as u64);
        if at != 0 {
            let set = read_set(thread, at, size)?;
            // SAFETY: the thread's own future.
            unsafe { thread.context() }.saved_mask = Some(thread.mask.load(Ordering::Relaxed));
            thread.set_mask(set);
        }
    }
    wait(thread, count, [read, write, other], deadline).await
}
