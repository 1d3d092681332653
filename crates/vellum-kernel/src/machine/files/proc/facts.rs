//! Formats the files of `/proc/PID` that describe a process: `status`, `stat`, `limits` and the
//! like.

use super::memory::figures;
use super::process::Subject;
use super::reader;
use crate::arch::keys;
use crate::files::cgroupfs;
use crate::mem::{UserSpace, machine, uaccess};
use crate::task::context::Traits;
use crate::task::signal::{Action, COUNT, bit};
use crate::task::{Process, Thread, oom};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use vellum::platform::Cpus;
use vellum_kernel::credentials::Credentials;
use vellum_kernel::errno::Errno;
use vellum_kernel::parse;
use vellum_kernel::proc::process::{self as words, Memory, State};
use vellum_kernel::proc::{Text, limits as limit_words};

/// Nanoseconds per clock tick (1/100 s), the unit in which programs get CPU times.
const TICK: u64 = 10_000_000;

/// Returns the contents of `comm`.
pub fn name(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let mut name = subject.thread().ok_or(Errno::ESRCH)?.name();
    name.push(b'\n');
    Ok(name)
}

/// Handles a write to `comm`.
pub fn rename(subject: &Subject, name: &[u8]) -> Result<(), Errno> {
    let thread = subject.thread().ok_or(Errno::ESRCH)?;
    thread.set_name(name.strip_suffix(b"\n").unwrap_or(name));
    Ok(())
}

/// Reads a range of a process's memory, up to the first byte that is not mapped.
fn bytes(subject: &Subject, range: impl FnOnce(&UserSpace) -> [u64; 2]) -> Result<Vec<u8>, Errno> {
    let Some(memory) = subject.process()?.memory() else { return Ok(Vec::new()) };
    let [start, end] = range(&memory);
    let mut bytes = Vec::new();
    let len = end.saturating_sub(start) as usize;
    bytes.try_reserve_exact(len)?;
    bytes.resize(len, 0);
    let copied = keys::with_all(|| uaccess::read_some(&memory, start, &mut bytes));
    bytes.truncate(copied);
    Ok(bytes)
}

/// Returns the contents of `cmdline`.
pub fn arguments(subject: &Subject) -> Result<Vec<u8>, Errno> {
    bytes(subject, |memory| memory.image.lock().arguments)
}

/// Returns the contents of `environ`.
pub fn environment(subject: &Subject) -> Result<Vec<u8>, Errno> {
    bytes(subject, |memory| memory.image.lock().environment)
}

/// Returns the contents of `auxv`.
pub fn aux(subject: &Subject) -> Result<Vec<u8>, Errno> {
    bytes(subject, |memory| memory.image.lock().aux)
}

/// Returns the contents of `limits`.
pub fn limits(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let limits = *subject.process()?.limits.lock();
    Text::of(|text| limit_words::limits(text, &limits))
}

/// Returns the contents of `cgroup`.
pub fn group(subject: &Subject) -> Result<Vec<u8>, Errno> {
    cgroupfs::line(&*subject.process()?)
}

/// Returns the contents of `coredump_filter`.
pub fn core_filter(subject: &Subject) -> Result<Vec<u8>, Errno> {
    Ok(format!("{:08x}\n", subject.process()?.core_filter.load(Relaxed)).into_bytes())
}

/// Handles a write to `coredump_filter`.
pub fn set_core_filter(subject: &Subject, value: &[u8]) -> Result<(), Errno> {
    let filter = parse::bits(value)?;
    subject.process()?.core_filter.store(filter & 0x1ff, Relaxed);
    Ok(())
}

/// Returns the contents of `oom_score`.
pub fn score(subject: &Subject) -> Result<Vec<u8>, Errno> {
    Ok(format!("{}\n", oom::score(&*subject.process()?)).into_bytes())
}

/// Returns the contents of `oom_score_adj`.
pub fn score_adj(subject: &Subject) -> Result<Vec<u8>, Errno> {
    Ok(format!("{}\n", subject.process()?.oom_score_adj.load(Relaxed)).into_bytes())
}

/// Returns the contents of `personality`.
pub fn personality(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let own = subject.thread().map_or(0, |thread| thread.traits.lock().personality);
    Ok(format!("{own:08x}\n").into_bytes())
}

/// Returns the contents of `timerslack_ns`.
pub fn slack(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let thread = slack_owner(subject)?;
    let slack = thread.traits.lock().slack;
    Ok(format!("{slack}\n").into_bytes())
}

/// Handles a write to `timerslack_ns`; 0 restores the default.
pub fn set_slack(subject: &Subject, value: &[u8]) -> Result<(), Errno> {
    let value = parse::number(value)?;
    let thread = slack_owner(subject)?;
    let mut traits = thread.traits.lock();
    traits.slack = if value == 0 { traits.usual_slack } else { value };
    Ok(())
}

/// Returns the thread whose timer slack is read or written. Only the thread itself and threads with
/// `CAP_SYS_NICE` may do that; others get `EPERM`.
fn slack_owner(subject: &Subject) -> Result<Arc<Thread>, Errno> {
    let (thread, reader) = (subject.thread().ok_or(Errno::ESRCH)?, reader()?);
    if !Arc::ptr_eq(&thread, &reader) && !reader.credentials().has(abi::CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    Ok(thread)
}

/// Handles a write to `oom_score_adj`.
pub fn set_score_adj(subject: &Subject, value: &[u8]) -> Result<(), Errno> {
    let value = parse::number::<i32>(value)?;
    if !(-1000..=1000).contains(&value) {
        return Err(Errno::EINVAL);
    }
    let process = subject.process()?;
    // Any owner may raise the value; lowering it needs `CAP_SYS_RESOURCE`.
    if value < process.oom_score_adj.load(Relaxed) && !reader()?.credentials().has(abi::CAP_SYS_RESOURCE) {
        return Err(Errno::EACCES);
    }
    process.oom_score_adj.store(value, Relaxed);
    Ok(())
}

/// Returns the contents of `oom_adj`: the legacy scale from −17 to 15.
pub fn oom_adj(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let value = match subject.process()?.oom_score_adj.load(Relaxed) {
        1000 => 15,
        value => value * 17 / 1000,
    };
    Ok(format!("{value}\n").into_bytes())
}

/// Handles a write to `oom_adj`.
pub fn set_oom_adj(subject: &Subject, value: &[u8]) -> Result<(), Errno> {
    let value = match parse::number::<i32>(value)? {
        15 => 1000,
        value @ -17..15 => value * 1000 / 17,
        _ => return Err(Errno::EINVAL),
    };
    set_score_adj(subject, format!("{value}").as_bytes())
}

/// Returns the contents of `status`.
pub fn status(subject: &Subject) -> Result<Vec<u8>, Errno> {
    described(subject, |known| Text::of(|text| words::status(text, known)))
}

/// Returns the contents of `stat`.
pub fn stat(subject: &Subject) -> Result<Vec<u8>, Errno> {
    described(subject, |known| Text::of(|text| words::stat(text, known)))
}

/// Returns the contents of `statm`.
pub fn statm(subject: &Subject) -> Result<Vec<u8>, Errno> {
    let memory = memory(&*subject.process()?).unwrap_or_default();
    Text::of(|text| words::statm(text, &memory))
}

fn memory(process: &Process) -> Option<Memory> {
    let memory = process.memory();
    memory.map(|memory| figures(&memory))
}

fn state(process: &Process, thread: Option<&Arc<Thread>>) -> State {
    match thread {
        None => State::Zombie,
        Some(thread) if thread.trace.lock().halted().is_some() => State::Traced,
        Some(_) if process.is_stopped() => State::Stopped,
        Some(thread) if thread.sleeps() && thread.is_uninterruptible.load(Relaxed) => State::Uninterruptible,
        Some(thread) if thread.sleeps() => State::Sleeping,
        Some(_) => State::Running,
    }
}

fn described(
    subject: &Subject,
    tell: impl FnOnce(&words::Process<'_>) -> Result<Vec<u8>, Errno>,
) -> Result<Vec<u8>, Errno> {
    let process = subject.process()?;
    let thread = subject.thread();
    if subject.is_thread() && thread.is_none() {
        return Err(Errno::ESRCH);
    }
    let name = thread.as_ref().map_or_else(|| process.last_name.lock().to_vec(), |thread| thread.name());
    let name = String::from_utf8_lossy(&name);
    let (mut ignored, mut caught, shared_pending) = (0, 0, process.signals.lock().pending.set());
    for signal in 1..=COUNT {
        let Action { handler, .. } = *process.signals.lock().action(signal);
        ignored |= if handler == 1 { bit(signal) } else { 0 };
        caught |= if handler > 1 { bit(signal) } else { 0 };
    }
    let limits = *process.limits.lock();
    let terminal = process.terminal.lock().clone();
    let files = process.files.lock().clone();
    let descriptors = files.as_ref().map_or(0, |files| files.table.lock().room());
    let own_pending = thread.as_ref().map_or(0, |thread| thread.pending.lock().set());
    let life = *process.life.lock();
    let (own_usage, children_usage) = (process.usage(), *process.children_usage.lock());
    let threads = process.threads.lock().len().max(1) as u32;
    let own = thread.as_ref().map_or_else(|| Arc::new(Credentials::root()), |thread| thread.credentials());
    let traits = thread.as_ref().map(|thread| thread.traits.lock().clone());
    tell(&words::Process {
        name: &name,
        umask: files.as_ref().map_or(0, |files| files.umask.load(Relaxed)),
        state: state(&process, thread.as_ref()),
        tgid: process.pid,
        tid: thread.as_ref().filter(|_| subject.is_thread()).map_or(process.pid, |thread| thread.tid),
        parent: process.parent_pid(),
        tracer: thread.as_ref().and_then(|thread| Some(thread.trace.lock().link.as_ref()?.pid)).unwrap_or(0),
        process_group: process.group.load(Relaxed),
        session: process.session.load(Relaxed),
        terminal: terminal.map(|terminal| (terminal.device().number() as u32, terminal.foreground() as i32)),
        descriptors: descriptors as u32,
        memory: memory(&process),
        threads,
        queued: [0, limits[abi::RLIMIT_SIGPENDING as usize][0]],
        pending: own_pending,
        shared_pending,
        blocked: thread.as_ref().map_or(0, |thread| thread.mask.load(Relaxed)),
        ignored,
        caught,
        uids: own.uids,
        times: [own_usage.time / TICK, 0, children_usage.time / TICK, 0],
        faults: [own_usage.minor, children_usage.minor, own_usage.major, children_usage.major],
        gids: own.gids,
        groups: &own.groups,
        capabilities: own.effective,
        no_new_privileges: traits.as_ref().is_some_and(|traits| traits.no_new_privileges),
        seccomp: traits
            .map_or([0; 2], |Traits { seccomp, .. }| [seccomp.mode, seccomp.filter.map_or(0, |filter| filter.count)]),
        cpus: machine().platform().count() as u32,
        started: process.started / TICK,
        exit_signal: process.exit_signal.load(Relaxed) as i32,
        limit_resident: limits[abi::RLIMIT_RSS as usize][0],
        exit_code: if life.is_over() { life.status() } else { 0 },
        ..words::Process::default()
    })
}
