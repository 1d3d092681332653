//! Who and what a program is, what it may have, and chance.

use super::{Answer, process::process_of};
use crate::arch::paging::user_end;
use crate::mem::{now_ns, shootdown, uaccess};
use crate::task::Thread;
use alloc::sync::Arc;
use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{FsBase, KernelGsBase};

/// What the system calls itself, for programs that look.
pub const SYSTEM: &str = "Linux";
/// The version of the interface that it has.
pub const RELEASE: &str = "6.18.0-vellum";
/// Its own.
pub const VERSION: &str = concat!("Vellum ", env!("CARGO_PKG_VERSION"));
/// The machine's name.
pub const HOST: &str = "vellum";
/// And where it is at home.
pub const DOMAIN: &str = "(none)";

/// `uname`.
pub fn uname(thread: &Arc<Thread>, to: u64) -> Answer {
    const FIELD: usize = 65;
    let fields = [SYSTEM, HOST, RELEASE, VERSION, "x86_64", DOMAIN];
    let mut names = [0; FIELD * 6];
    for (field, name) in names.chunks_exact_mut(FIELD).zip(fields) {
        field[..name.len()].copy_from_slice(name.as_bytes());
    }
    uaccess::write(&thread.memory(), to, &names).map(|()| 0)
}

/// The next random number (SplitMix64, seeded by the time-stamp counter: nothing here is a secret).
pub fn random() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    // SAFETY: every 64-bit processor has the instruction.
    let seed = unsafe { _rdtsc() };
    let mut z = STATE.fetch_add(0x9e37_79b9_7f4a_7c15 ^ seed << 32, Ordering::Relaxed).wrapping_add(seed);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `getrandom`.
pub fn getrandom(thread: &Arc<Thread>, to: u64, len: u64, flags: u64) -> Answer {
    if flags & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let (memory, len) = (thread.memory(), len.min(i32::MAX as u64));
    let mut done = 0;
    while done < len {
        let bytes = random().to_le_bytes();
        let piece = (len - done).min(8) as usize;
        uaccess::write(&memory, to.wrapping_add(done), &bytes[..piece])?;
        done += piece as u64;
    }
    Ok(len)
}

/// `arch_prctl`.
pub fn arch_prctl(thread: &Arc<Thread>, code: u64, value: u64) -> Answer {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    let memory = thread.memory();
    // SAFETY: the thread's own future.
    let context = unsafe { thread.context() };
    match code {
        SET_FS | SET_GS if value >= user_end() => Err(Errno::EPERM),
        SET_FS => {
            context.fs = value;
            FsBase::write(VirtAddr::new_truncate(value));
            Ok(0)
        }
        SET_GS => {
            context.gs = value;
            KernelGsBase::write(VirtAddr::new_truncate(value));
            Ok(0)
        }
        GET_FS => uaccess::write(&memory, value, &context.fs.to_le_bytes()).map(|()| 0),
        GET_GS => uaccess::write(&memory, value, &context.gs.to_le_bytes()).map(|()| 0),
        _ => Err(Errno::EINVAL),
    }
}

/// `set_tid_address`.
pub fn set_tid_address(thread: &Arc<Thread>, address: u64) -> Answer {
    // SAFETY: the thread's own future.
    unsafe { thread.context() }.clear_tid = address;
    Ok(thread.tid.into())
}

/// `set_robust_list`.
pub fn set_robust_list(thread: &Arc<Thread>, head: u64, len: u64) -> Answer {
    if len != 24 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the thread's own future.
    unsafe { thread.context() }.robust_list = head;
    Ok(0)
}

/// `prlimit64`.
pub fn prlimit(thread: &Arc<Thread>, pid: u64, which: u64, new: u64, old: u64) -> Answer {
    let process = process_of(thread, pid)?;
    let which = which as usize;
    let memory = thread.memory();
    let before = *process.limits.lock().get(which).ok_or(Errno::EINVAL)?;
    if new != 0 {
        let mut bytes = [0; 16];
        uaccess::read(&memory, new, &mut bytes)?;
        let both = u128::from_le_bytes(bytes);
        let wanted = [both as u64, (both >> 64) as u64];
        if wanted[0] > wanted[1] {
            return Err(Errno::EINVAL);
        }
        let mut limits = process.limits.lock();
        limits[which] = wanted;
        // Nobody else sets limits meanwhile, so that the space has the last.
        if let Some(memory) = &*process.memory.lock() {
            memory.engine.set_limits(|of_space| super::memory::set_limits(of_space, &limits));
        }
    }
    if old != 0 {
        let both = u128::from(before[0]) | u128::from(before[1]) << 64;
        uaccess::write(&memory, old, &both.to_le_bytes())?;
    }
    Ok(0)
}

/// `sched_getaffinity`: every processor.
pub fn getaffinity(thread: &Arc<Thread>, pid: u64, size: u64, to: u64) -> Answer {
    if pid as i32 != 0 {
        crate::task::process::find_thread(pid as u32).ok_or(Errno::ESRCH)?;
    }
    if size < 8 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let cpus = vellum::platform::Cpus::count(crate::mem::machine().platform());
    let set = if cpus >= 64 { u64::MAX } else { (1 << cpus) - 1 };
    uaccess::write(&thread.memory(), to, &u64::to_le_bytes(set))?;
    Ok(8)
}

/// `sched_setaffinity`: any set that has a processor in it, to no effect.
pub fn setaffinity(thread: &Arc<Thread>, pid: u64, size: u64, from: u64) -> Answer {
    if pid as i32 != 0 {
        crate::task::process::find_thread(pid as u32).ok_or(Errno::ESRCH)?;
    }
    let mut bytes = [0; 8];
    uaccess::read(&thread.memory(), from, &mut bytes[..size.min(8) as usize])?;
    let cpus = vellum::platform::Cpus::count(crate::mem::machine().platform());
    if u64::from_le_bytes(bytes) & ((1 << cpus.min(63)) - 1) == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

/// `prctl`: a name, and answers to what C libraries ask.
pub fn prctl(thread: &Arc<Thread>, option: u64, value: u64) -> Answer {
    match option as u32 {
        linux_raw_sys::prctl::PR_SET_NAME => {
            let mut name = [0; 16];
            let copied = uaccess::read_some(&thread.memory(), value, &mut name[..15]);
            if copied < 15 && !name[..copied].contains(&0) {
                return Err(Errno::EFAULT);
            }
            thread.set_name(name.split(|byte| *byte == 0).next().unwrap_or_default());
            Ok(0)
        }
        linux_raw_sys::prctl::PR_GET_NAME => uaccess::write(&thread.memory(), value, &*thread.name.lock()).map(|()| 0),
        linux_raw_sys::prctl::PR_SET_PDEATHSIG => Ok(0),
        linux_raw_sys::prctl::PR_GET_DUMPABLE => Ok(1),
        linux_raw_sys::prctl::PR_SET_DUMPABLE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// `sysinfo`.
pub fn sysinfo(thread: &Arc<Thread>, to: u64) -> Answer {
    let frames = crate::mem::machine().frames();
    let page = vellum::addr::FRAME_SIZE;
    let mut bytes = [0; 112];
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, now_ns() / 1_000_000_000);
    put(32, frames.total() * page);
    put(40, frames.free_frames() * page);
    bytes[80..82].copy_from_slice(&(crate::task::process::all().len() as u16).to_le_bytes());
    bytes[104..108].copy_from_slice(&1u32.to_le_bytes());
    uaccess::write(&thread.memory(), to, &bytes).map(|()| 0)
}

/// `membarrier`: whatever kind is asked for, every processor has a barrier.
pub fn membarrier(thread: &Thread, command: u64, flags: u64) -> Answer {
    use abi::membarrier_cmd as cmd;
    /// What is to be registered for, and what is registered by what.
    const EXPEDITED: [(u32, u32); 3] = [
        (cmd::MEMBARRIER_CMD_GLOBAL_EXPEDITED as u32, cmd::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED as u32),
        (cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED as u32, cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED as u32),
        (
            cmd::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE as u32,
            cmd::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE as u32,
        ),
    ];
    const GLOBAL: u32 = cmd::MEMBARRIER_CMD_GLOBAL as u32;
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (command, space) = (command as u32, thread.memory());
    if command == cmd::MEMBARRIER_CMD_QUERY as u32 {
        return Ok(EXPEDITED.iter().fold(GLOBAL, |all, (what, by)| all | what | by).into());
    }
    if EXPEDITED.iter().any(|(_, by)| *by == command) {
        space.barriers.fetch_or(command, Ordering::Relaxed);
        return Ok(0);
    }
    if command != GLOBAL {
        let (what, by) = EXPEDITED.iter().find(|(what, _)| *what == command).ok_or(Errno::EINVAL)?;
        // Whoever asks for one of all registered processes need not be one of them.
        if *what != EXPEDITED[0].0 && space.barriers.load(Ordering::Relaxed) & by == 0 {
            return Err(Errno::EPERM);
        }
    }
    shootdown::barrier();
    Ok(0)
}

/// Numbers of the classes of scheduling, and their ranges, for those who only want to know.
pub fn sched_priority(class: u64, max: bool) -> Answer {
    match class as u32 {
        abi::SCHED_FIFO | abi::SCHED_RR => Ok(if max { 99 } else { 1 }),
        abi::SCHED_NORMAL | abi::SCHED_BATCH | abi::SCHED_IDLE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}
