//! Implements the calls that query the system, resource limits and usage, and a few that fit
//! nowhere else.

use super::{Answer, process::process_of};
use crate::arch::abi::NAME;
use crate::arch::percpu;
use crate::arch::random::random;
use crate::mem::{machine, now_ns, shootdown, uaccess};
use crate::task::limits::allowance;
use crate::task::process::find_thread;
use crate::task::usage::Usage;
use crate::task::{Process, Thread};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{self as abi, CAP_SYS_RESOURCE, RLIMIT_CPU, RLIMIT_NOFILE};
use vellum::addr::FRAME_SIZE;
use vellum::platform::Cpus;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::table;
use vellum_kernel::uname::{DOMAIN, HOST, RELEASE, SYSTEM, VERSION};
use vellum_kernel::wait::yield_now;

/// Implements `uname`.
pub fn uname(thread: &Arc<Thread>, to: u64) -> Answer {
    const FIELD: usize = 65;
    let fields = [SYSTEM, HOST, RELEASE, VERSION, NAME, DOMAIN];
    let mut names = [0; FIELD * 6];
    for (field, name) in names.chunks_exact_mut(FIELD).zip(fields) {
        field[..name.len()].copy_from_slice(name.as_bytes());
    }
    uaccess::write(&thread.memory(), to, &names).map(|()| 0)
}

/// Implements `getrandom`. A signal after the first page ends the call with fewer bytes.
pub async fn getrandom(thread: &Arc<Thread>, to: u64, len: u64, flags: u64) -> Answer {
    if flags & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    let (memory, len) = (thread.memory(), len.min(i32::MAX as u64));
    let mut done = 0;
    while done < len {
        let mut bytes = [0; 256];
        let piece = (len - done).min(256) as usize;
        bytes.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&random().to_le_bytes()));
        uaccess::write(&memory, to.wrapping_add(done), &bytes[..piece])?;
        done += piece as u64;
        if done.is_multiple_of(FRAME_SIZE) {
            yield_now().await;
            if thread.is_interrupted() {
                break;
            }
        }
    }
    Ok(done)
}

/// Implements `set_tid_address`.
pub fn set_tid_address(thread: &Arc<Thread>, address: u64) -> Answer {
    // SAFETY: a system call runs in the thread's own future.
    unsafe { thread.context() }.clear_tid = address;
    Ok(thread.tid.into())
}

/// Implements `set_robust_list`.
pub fn set_robust_list(thread: &Arc<Thread>, head: u64, len: u64) -> Answer {
    if len != 24 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: a system call runs in the thread's own future.
    unsafe { thread.context() }.robust_list = head;
    Ok(0)
}

/// Implements `get_robust_list` for the calling thread; `EPERM` for any other thread.
pub fn get_robust_list(thread: &Arc<Thread>, tid: u64, head: u64, len: u64) -> Answer {
    match tid as u32 {
        0 => {}
        tid if tid == thread.tid => {}
        tid => return Err(if find_thread(tid).is_some() { Errno::EPERM } else { Errno::ESRCH }),
    }
    // SAFETY: a system call runs in the thread's own future.
    let list = unsafe { thread.context() }.robust_list;
    uaccess::write(&thread.memory(), len, &24u64.to_le_bytes())?;
    uaccess::write(&thread.memory(), head, &list.to_le_bytes()).map(|()| 0)
}

/// Implements `prlimit64`.
pub fn prlimit(thread: &Arc<Thread>, pid: u64, which: u64, new: u64, old: u64) -> Answer {
    let process = process_of(thread, pid)?;
    let own = thread.credentials();
    let theirs = process.credentials().unwrap_or_else(|| own.clone());
    let foreign = process.pid != thread.process.pid && !own.matches(&theirs);
    if foreign && !own.has(CAP_SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    let which = which as usize;
    let memory = thread.memory();
    let mut wanted = None;
    if new != 0 {
        let mut bytes = [0; 16];
        uaccess::read(&memory, new, &mut bytes)?;
        let both = u128::from_le_bytes(bytes);
        wanted = Some([both as u64, (both >> 64) as u64]);
    }
    // The limits lock is held from the check to the store. Otherwise a thread could raise a limit
    // that another thread has just lowered.
    let mut limits = process.limits.lock();
    let before = *limits.get(which).ok_or(Errno::EINVAL)?;
    if let Some(mut wanted) = wanted {
        let raises = wanted[1] > before[1] && !own.has(CAP_SYS_RESOURCE);
        let too_many = which == RLIMIT_NOFILE as usize && wanted[1] > u64::from(table::NR_OPEN);
        match () {
            () if wanted[0] > wanted[1] => return Err(Errno::EINVAL),
            () if raises || too_many => return Err(Errno::EPERM),
            () => {}
        }
        if which == RLIMIT_CPU as usize {
            // A limit of 0 seconds takes effect after one second, as on Linux.
            wanted[0] = wanted[0].max(1);
        }
        limits[which] = wanted;
        // The limits lock is still held, so the address space gets the limits stored last.
        if let Some(memory) = process.memory() {
            memory.engine.set_limits(|of_space| super::memory::set_limits(of_space, &limits, &theirs));
        }
    }
    drop(limits);
    if new != 0 {
        allowance::watch(&process);
    }
    if old != 0 {
        let both = u128::from(before[0]) | u128::from(before[1]) << 64;
        uaccess::write(&memory, old, &both.to_le_bytes())?;
    }
    Ok(0)
}

/// Implements `sysinfo`.
pub fn sysinfo(thread: &Arc<Thread>, to: u64) -> Answer {
    let frames = crate::mem::machine().frames();
    let page = vellum::addr::FRAME_SIZE;
    let shared = crate::mem::machine().counter(vellum::stats::Counter::ShmemPages);
    let mut bytes = [0; 112];
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, now_ns() / 1_000_000_000);
    put(32, frames.total() * page);
    put(40, frames.free_frames() * page);
    put(48, shared * page);
    let [swap, free, _] = crate::mem::swap::bytes();
    put(64, swap);
    put(72, free);
    bytes[80..82].copy_from_slice(&(crate::task::process::count() as u16).to_le_bytes());
    bytes[104..108].copy_from_slice(&1u32.to_le_bytes());
    uaccess::write(&thread.memory(), to, &bytes).map(|()| 0)
}

/// Implements `personality`: returns the one before, and stores another, unless the argument only
/// asks.
pub fn personality(thread: &Thread, wanted: u64) -> Answer {
    const ASKS: u32 = u32::MAX;
    let own = &mut thread.traits.lock().personality;
    let before = *own;
    if wanted as u32 != ASKS {
        *own = wanted as u32;
    }
    Ok(before.into())
}

/// Implements `getcpu`: stores the CPU and its NUMA node.
pub fn getcpu(thread: &Arc<Thread>, cpu: u64, node: u64) -> Answer {
    let index = percpu::current().index;
    for (to, value) in [(cpu, index), (node, machine().platform().node(index))] {
        if to != 0 {
            uaccess::write(&thread.memory(), to, &(value as u32).to_le_bytes())?;
        }
    }
    Ok(0)
}

/// Builds a `struct rusage`. All CPU time counts as user time: user and system time are not told
/// apart.
fn usage(used: Usage) -> [u8; 144] {
    let mut bytes = [0; 144];
    let Usage { time, minor, major, peak_rss } = used;
    let words = [time / 1_000_000_000, time % 1_000_000_000 / 1000, 0, 0, peak_rss >> 10, 0, 0, 0, minor, major];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Returns the `struct rusage` of a child that `wait4` or `waitid` reports.
pub fn usage_of(process: &Process) -> [u8; 144] {
    usage(process.usage() + *process.children_usage.lock())
}

/// Implements `getrusage`.
pub fn getrusage(thread: &Arc<Thread>, whom: u64, to: u64) -> Answer {
    const OWN: i32 = 0;
    const CHILDREN: i32 = -1;
    const THREAD: i32 = 1;
    let process = &thread.process;
    let bytes = match whom as i32 {
        OWN => usage(process.usage()),
        CHILDREN => usage(*process.children_usage.lock()),
        THREAD => usage(Usage { peak_rss: process.usage().peak_rss, ..thread.usage() }),
        _ => return Err(Errno::EINVAL),
    };
    uaccess::write(&thread.memory(), to, &bytes).map(|()| 0)
}

/// Implements `times`, in clock ticks of 10 ms.
pub fn times(thread: &Arc<Thread>, to: u64) -> Answer {
    const TICK: u64 = 10_000_000;
    if to != 0 {
        let process = &thread.process;
        let (own, children) = (process.cpu_time(), process.children_usage.lock().time);
        let words = [own / TICK, 0, children / TICK, 0];
        let bytes: [u8; 32] = core::array::from_fn(|i| words[i / 8].to_le_bytes()[i % 8]);
        uaccess::write(&thread.memory(), to, &bytes)?;
    }
    Ok(now_ns() / TICK)
}

/// Implements `membarrier`: every command executes a barrier on all CPUs.
pub fn membarrier(thread: &Thread, command: u64, flags: u64) -> Answer {
    use abi::membarrier_cmd as cmd;
    /// The expedited commands, each with the command that registers for it.
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
        // The caller of the global command need not be registered itself.
        if *what != EXPEDITED[0].0 && space.barriers.load(Ordering::Relaxed) & by == 0 {
            return Err(Errno::EPERM);
        }
    }
    shootdown::barrier();
    Ok(0)
}
