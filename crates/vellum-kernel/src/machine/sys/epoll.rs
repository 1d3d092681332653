//! Implements `epoll`.

use super::select::with_mask;
use super::{Answer, file};
use crate::mem::{payer, uaccess};
use crate::task::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::device;
use vellum_kernel::fs::poll::epoll::{Epoll, EpollEvent, epoll_of};

/// The size in bytes of an `epoll_event`, which is packed on x86-64.
const SIZE: usize = size_of::<abi::epoll_event>();
/// The place of the program's value in it.
const DATA: usize = SIZE - 8;

/// Implements `epoll_create1`.
pub fn create(thread: &Thread, flags: u64) -> Answer {
    let flags = flags as u32;
    if flags & !abi::EPOLL_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    let open = device::open(Epoll::new(), abi::O_RDWR);
    file::add(thread, open, if flags & abi::EPOLL_CLOEXEC != 0 { abi::O_CLOEXEC } else { 0 })
}

/// Implements `epoll_ctl`.
pub fn control(thread: &Thread, [set, operation, fd, event, _, _]: [u64; 6]) -> Answer {
    let operation = operation as u32;
    let mut bytes = [0; SIZE];
    if operation != abi::EPOLL_CTL_DEL {
        uaccess::read(&thread.memory(), event, &mut bytes)?;
    }
    let wanted = EpollEvent {
        events: u32::from_le_bytes(core::array::from_fn(|i| bytes[i])),
        data: u64::from_le_bytes(core::array::from_fn(|i| bytes[DATA + i])),
    };
    let own = file::open_of(thread, set)?;
    let open = file::open_of(thread, fd)?;
    if open.flags() & abi::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    let (set, fd) = (epoll_of(&own).ok_or(Errno::EINVAL)?, fd as u32);
    match operation {
        abi::EPOLL_CTL_ADD => set.add(fd, &open, wanted),
        abi::EPOLL_CTL_MOD => set.modify(fd, &open, wanted),
        abi::EPOLL_CTL_DEL => set.remove(fd, &open),
        _ => Err(Errno::EINVAL),
    }
    .map(|()| 0)
}

/// Implements the waits of `epoll_wait`, `epoll_pwait` and `epoll_pwait2`. `deadline` is in
/// nanoseconds of the monotonic clock. `mask` and `size` are those of a signal mask for the wait; 0
/// for none.
pub async fn wait(
    thread: &Arc<Thread>,
    [set, events, most]: [u64; 3],
    deadline: Option<u64>,
    [mask, size]: [u64; 2],
) -> Answer {
    let most = usize::try_from(most as i32).ok().filter(|most| (1..=i32::MAX as usize / SIZE).contains(most));
    let most = most.ok_or(Errno::EINVAL)?;
    let own = file::open_of(thread, set)?;
    let set = epoll_of(&own).ok_or(Errno::EINVAL)?;
    with_mask(thread, mask, size)?;
    let deadline = deadline.map(|deadline| thread.wait_until(deadline));
    let found = match thread.interruptible(set.wait(most), deadline).await {
        Ok(found) => found?,
        Err(Errno::ETIMEDOUT) => Vec::new(),
        Err(error) => return Err(error),
    };
    let written = payer::zeros(found.len() * SIZE).and_then(|mut bytes| {
        for (bytes, found) in bytes.chunks_exact_mut(SIZE).zip(&found) {
            bytes[..4].copy_from_slice(&found.event.events.to_le_bytes());
            bytes[DATA..].copy_from_slice(&found.event.data.to_le_bytes());
        }
        uaccess::write(&thread.memory(), events, &bytes)
    });
    // An event that the program does not get comes again, perhaps when this call is repeated.
    written.inspect_err(|_| set.put_back(&found))?;
    Ok(found.len() as u64)
}
