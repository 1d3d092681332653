//! Implements the system calls for user IDs, group IDs and capabilities.

use super::Answer;
use super::memory::set_limits;
use crate::mem::{payer, uaccess};
use crate::task::{Thread, process};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::{Credentials, IdSet, Ids, NGROUPS_MAX, id_index};
use vellum_kernel::errno::Errno;

/// Replaces the thread's credentials by a changed copy, if `change` returns no error. Moves the
/// thread to its new user's count, and updates the limits on locked memory if `CAP_IPC_LOCK`
/// changed.
pub fn change(thread: &Thread, change: impl FnOnce(&mut Credentials) -> Answer) -> Answer {
    let mut new = Credentials::clone(&thread.credentials());
    let answer = change(&mut new)?;
    let before = core::mem::replace(&mut thread.traits.lock().credentials, Arc::new(new.clone()));
    if let Some(counted) = &mut *thread.counted.lock() {
        counted.belongs_to(new.uids[id_index::REAL]);
    }
    if before.has(abi::CAP_IPC_LOCK) != new.has(abi::CAP_IPC_LOCK) {
        let limits = thread.process.limits.lock();
        thread.memory().engine.set_limits(|of_space| set_limits(of_space, &limits, &new));
    }
    Ok(answer)
}

/// Implements `setuid`, `setreuid` and `setresuid`. `RLIMIT_NPROC` of the new user is checked by
/// the next `clone`.
pub fn set_users(thread: &Thread, wanted: Ids) -> Answer {
    change(thread, |own| own.set_uids(wanted).map(|()| 0))
}

/// Implements `setgid`, `setregid` and `setresgid`.
pub fn set_groups(thread: &Thread, wanted: Ids) -> Answer {
    change(thread, |own| own.set_gids(wanted).map(|()| 0))
}

/// Implements `getresuid` and `getresgid`.
pub fn get(thread: &Thread, ids: IdSet, to: [u64; 3]) -> Answer {
    for (to, id) in to.into_iter().zip(ids) {
        uaccess::write(&thread.memory(), to, &id.to_le_bytes())?;
    }
    Ok(0)
}

/// Implements `getgroups`.
pub fn getgroups(thread: &Thread, room: u64, to: u64) -> Answer {
    let groups = thread.credentials().groups.clone();
    let room = room as i32;
    if room < 0 || (room > 0 && (room as usize) < groups.len()) {
        return Err(Errno::EINVAL);
    }
    if room > 0 {
        let mut bytes = payer::zeros(4 * groups.len())?;
        bytes.chunks_exact_mut(4).zip(groups.iter()).for_each(|(to, group)| to.copy_from_slice(&group.to_le_bytes()));
        uaccess::write(&thread.memory(), to, &bytes)?;
    }
    Ok(groups.len() as u64)
}

/// Implements `setgroups`.
pub fn setgroups(thread: &Thread, count: u64, from: u64) -> Answer {
    let count = count as u32 as usize;
    thread.credentials().needs(abi::CAP_SETGID)?;
    if count > NGROUPS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut bytes = payer::zeros(4 * count)?;
    uaccess::read(&thread.memory(), from, &mut bytes)?;
    let mut groups = Vec::new();
    payer::reserve(&mut groups, count)?;
    groups.extend(bytes.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]])));
    change(thread, |own| own.set_groups(Arc::new(groups)).map(|()| 0))
}

/// Reads the header of `capget` and `capset`. Returns the number of 32-bit halves per capability
/// set in the program's version, and the TID.
fn header(thread: &Arc<Thread>, at: u64) -> Result<(usize, i32), Errno> {
    let mut bytes = [0; 8];
    uaccess::read(&thread.memory(), at, &mut bytes)?;
    let both = u64::from_le_bytes(bytes);
    let halves = match both as u32 {
        abi::_LINUX_CAPABILITY_VERSION_1 => 1,
        abi::_LINUX_CAPABILITY_VERSION_2 | abi::_LINUX_CAPABILITY_VERSION_3 => 2,
        _ => {
            uaccess::write(&thread.memory(), at, &abi::_LINUX_CAPABILITY_VERSION_3.to_le_bytes())?;
            return Err(Errno::EINVAL);
        }
    };
    Ok((halves, (both >> 32) as i32))
}

/// Implements `capget`.
pub fn capget(thread: &Arc<Thread>, head: u64, to: u64) -> Answer {
    let (halves, pid) = match header(thread, head) {
        // A call without a data pointer only queries the version.
        Err(Errno::EINVAL) if to == 0 => return Ok(0),
        other => other?,
    };
    let own = match pid {
        ..0 => return Err(Errno::EINVAL),
        0 => thread.credentials(),
        _ => process::find_thread(pid as u32).ok_or(Errno::ESRCH)?.credentials(),
    };
    if to == 0 {
        return Ok(0);
    }
    let mut bytes = Vec::new();
    for half in 0..halves {
        for set in [own.effective, own.permitted, own.inheritable] {
            bytes.extend_from_slice(&((set >> (32 * half)) as u32).to_le_bytes());
        }
    }
    uaccess::write(&thread.memory(), to, &bytes).map(|()| 0)
}

/// Implements `capset`, for the calling thread only.
pub fn capset(thread: &Arc<Thread>, head: u64, from: u64) -> Answer {
    let (halves, pid) = header(thread, head)?;
    if pid != 0 && pid as u32 != thread.tid {
        return Err(Errno::EPERM);
    }
    let mut bytes = [0; 24];
    uaccess::read(&thread.memory(), from, &mut bytes[..12 * halves])?;
    let word = |at: usize| u64::from(u32::from_le_bytes(core::array::from_fn(|i| bytes[4 * at + i])));
    let [effective, permitted, inheritable] = core::array::from_fn(|set| word(set) | word(3 + set) << 32);
    change(thread, |own| own.set_capabilities(effective, permitted, inheritable).map(|()| 0))
}
