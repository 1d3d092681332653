//! Implements process and thread creation and exit, process groups and sessions.

use super::program::{self, Program, Strings};
use super::{Answer, Calls, file, futex as robust, pidfd};
use crate::arch::cause::Cause;
use crate::arch::exit::{Outcome, exit as stop};
use crate::arch::serial::println;
use crate::arch::serial::stdio;
use crate::files::{self, cgroupfs, terminals};
use crate::mem::spaces;
use crate::mem::uffd::Notices;
use crate::mem::{self, UserSpace, space, uaccess};
use crate::task::blocked::notify;
use crate::task::context::Context;
use crate::task::deliver::is_dying;
use crate::task::life::Life;
use crate::task::limits::allowance;
use crate::task::limits::count::Counted;
use crate::task::process::{FIRST, TasklistLock, count_one, find, new_number};
use crate::task::signal::COUNT;
use crate::task::trace;
use crate::task::{Process, Thread, collapse, executor, futex, job};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::Credentials;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Open;
use vellum_kernel::fs::lock::Owner;
use vellum_kernel::fs::tty::terminal::Window;

/// Starts the first program (Linux's init), whose standard streams are a terminal if there is a
/// `window`. When it exits, the machine stops.
///
/// # Errors
///
/// Those of `execve`.
pub fn first(
    file: Program,
    path: &[u8],
    (arguments, environment): (&[Vec<u8>], &[Vec<u8>]),
    window: Option<Window>,
) -> Result<(), Errno> {
    let everybodys = Process::new(&TasklistLock::lock(), FIRST, None, None, 0);
    let limits = *everybodys.limits.lock();
    let open = |path: &[u8]| Program::open(files::from_root(|view| files::executable(&view, path, true))?);
    let (mut loaded, mut arguments) = (path.to_vec(), arguments.to_vec());
    let file = program::interpret(file, &mut loaded, &mut arguments, open)?;
    let strings = Strings { path: &loaded, arguments: &arguments, environment };
    let (memory, registers) = program::load(&file, &strings, &limits, &Credentials::root(), false, open)?;
    let terminal = window.map(terminals::begin_host).transpose()?;
    let controls = terminal.as_ref().and_then(terminals::of);
    let files = Arc::new(files::first(terminal)?);
    let pid = new_number();
    let process = Process::new(&TasklistLock::lock(), pid, Some(&everybodys), Some(memory.clone()), abi::SIGCHLD);
    process.group.store(pid, Ordering::Relaxed);
    process.session.store(pid, Ordering::Relaxed);
    if let Some(terminal) = controls {
        job::take_terminal(&process, &terminal, false);
    }
    *process.files.lock() = Some(files.clone());
    let context = Context::new(memory, files.clone(), registers);
    let thread = Thread::new(pid, &process, context, Counted::new(0, u64::MAX)?, None);
    thread.set_name(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
    executor::spawn(async move {
        // Reaps the children of the root process (orphans among them) until the first program
        // exits.
        let everybodys = &everybodys;
        loop {
            let over = || {
                let families = TasklistLock::lock();
                let ended = everybodys.children.lock().values().find(|child| child.has_ended(&families)).cloned();
                ended.inspect(|child| everybodys.reap(&families, child))
            };
            let child = everybodys.child_changed.wait_until(over).await;
            if child.pid == pid {
                Cause::END.note();
                let status = child.life.lock().shell_status();
                files::writeback::finish().await;
                terminals::flush_host();
                stdio::send(stdio::Frame::Exit, &status.to_le_bytes());
                println!("the program ended with status {status}: {}", mem::CounterSummary);
                stop(Outcome::Success);
            }
        }
    });
    thread.start::<Calls>();
    executor::spawn(collapse::run());
    Ok(())
}

/// The arguments of `clone` and `clone3`.
pub struct Wanted {
    /// `CLONE_` flags.
    pub flags: u64,
    /// The signal that the parent gets when the child exits.
    pub exit_signal: u32,
    /// The child's stack pointer; 0 keeps the parent's.
    pub stack: u64,
    /// The address in the parent's memory at which the child's TID is stored.
    pub parent_tid: u64,
    /// The address in the child's memory at which the child's TID is stored.
    pub child_tid: u64,
    /// The child's thread pointer.
    pub tls: u64,
    /// The address at which the child's pidfd is stored.
    pub pidfd: u64,
    /// The cgroup directory in which the child starts (`CLONE_INTO_CGROUP`).
    pub group: Option<Arc<Open>>,
}

/// The `CLONE_` flags of new namespaces that need `CAP_SYS_ADMIN`.
const NAMESPACES: u64 = abi::CLONE_NEWNS as u64
    | abi::CLONE_NEWPID as u64
    | abi::CLONE_NEWNET as u64
    | abi::CLONE_NEWIPC as u64
    | abi::CLONE_NEWUTS as u64
    | abi::CLONE_NEWCGROUP as u64;

/// Implements `clone`, `clone3`, `fork` and `vfork`.
pub async fn clone(thread: &Arc<Thread>, wanted: Wanted) -> Answer {
    let has = |flag: u32| wanted.flags & u64::from(flag) != 0;
    let needs = |flag, other| has(flag) && !has(other);
    if needs(abi::CLONE_THREAD, abi::CLONE_SIGHAND) || needs(abi::CLONE_SIGHAND, abi::CLONE_VM) {
        return Err(Errno::EINVAL);
    }
    // There are no namespaces. As on a Linux without them, the right to make one is checked first.
    if wanted.flags & NAMESPACES != 0 {
        thread.credentials().needs(abi::CAP_SYS_ADMIN)?;
    }
    if wanted.flags & (NAMESPACES | u64::from(abi::CLONE_NEWUSER)) != 0 {
        return Err(Errno::EINVAL);
    }
    if has(abi::CLONE_PIDFD) && has(abi::CLONE_THREAD) {
        return Err(Errno::EINVAL);
    }
    let counted = count_one(thread)?;
    let memory = thread.memory();
    let (memory, notices) = match has(abi::CLONE_VM) {
        true => (memory, Notices::default()),
        false => {
            let follow = Notices::followers(&memory)?;
            let child = spaces::register(memory.fork(&follow)?);
            let notices = Notices::fork(follow, &child)?;
            (child, notices)
        }
    };
    thread.save_extended();
    // SAFETY: a system call runs in the thread's own future.
    let parent = unsafe { thread.context() };
    let files = if has(abi::CLONE_FILES) { parent.files.clone() } else { Arc::new(parent.files.copy()?) };
    let mut context = Context::new(memory.clone(), files.clone(), parent.registers);
    context.extended = parent.extended.clone();
    context.registers.set_answer(0);
    if wanted.stack != 0 {
        context.registers.set_stack(wanted.stack);
    }
    if !has(abi::CLONE_VM) || has(abi::CLONE_VFORK) {
        context.signal_stack = parent.signal_stack;
    }
    if has(abi::CLONE_SETTLS) {
        context.extended.set_thread_pointer(wanted.tls);
    }
    if has(abi::CLONE_CHILD_CLEARTID) {
        context.clear_tid = wanted.child_tid;
    }
    let tid = new_number();
    if has(abi::CLONE_CHILD_SETTID) {
        // A failed store is not an error, as on Linux: the child can get its TID by `gettid`.
        let _ = uaccess::write(&memory, wanted.child_tid, &tid.to_le_bytes());
    }
    if has(abi::CLONE_PARENT_SETTID) {
        uaccess::write(&thread.memory(), wanted.parent_tid, &tid.to_le_bytes())?;
    }
    if has(abi::CLONE_THREAD) {
        let new = Thread::new(tid, &thread.process, context, counted, Some(thread));
        start(thread, new, &wanted).await;
        return Ok(tid.into());
    }
    let own = &thread.process;
    let (parent, process) = {
        let families = TasklistLock::lock();
        // The tasklist lock orders this fork against a signal to the whole process group: either
        // the signal reaches the child, or the parent sees here that it is being killed.
        if is_dying(thread) {
            return Err(Errno::EINTR);
        }
        let others = if has(abi::CLONE_PARENT) { own.parent.lock().upgrade() } else { None };
        let parent = others.unwrap_or_else(|| own.clone());
        let process = Process::new(&families, tid, Some(&parent), Some(memory), wanted.exit_signal);
        (parent, process)
    };
    let equipped = wanted.group.as_ref().map_or(Ok(()), |group| cgroupfs::begin_in(&process, &**group.inode()));
    let equipped = equipped.and_then(|()| match has(abi::CLONE_PIDFD) {
        true => give_descriptor(thread, &process, wanted.pidfd),
        false => Ok(()),
    });
    allowance::watch(&process);
    if let Err(error) = equipped {
        process.end(Life::Killed(abi::SIGKILL));
        parent.reap(&TasklistLock::lock(), &process);
        return Err(error);
    }
    *process.files.lock() = Some(files);
    process.signals.lock().actions = own.signals.lock().actions;
    let new = Thread::new(tid, &process, context, counted, Some(thread));
    notify(thread, notices).await;
    start(thread, new, &wanted).await;
    Ok(tid.into())
}

/// Starts a new thread. With `CLONE_VFORK` waits until the new thread has
/// released its creator's memory or the creator is being killed. `blocks_creator` is set before the
/// new thread starts, so that the new thread cannot exit unnoticed.
async fn start(maker: &Arc<Thread>, new: Arc<Thread>, wanted: &Wanted) {
    let blocks_creator = wanted.flags & u64::from(abi::CLONE_VFORK) != 0;
    new.blocks_creator.store(blocks_creator, Ordering::SeqCst);
    let event = trace::inherit(maker, &new, wanted.flags, wanted.exit_signal);
    new.clone().start::<Calls>();
    trace::created(maker, event, new.tid).await;
    if blocks_creator {
        let let_go = || (!new.blocks_creator.load(Ordering::SeqCst)).then_some(());
        let _ = maker.killable(new.process.changed.wait_until(let_go)).await;
        trace::child_has_gone_on(maker, new.tid).await;
    }
}

/// Creates a pidfd for a new process and stores it at `to` in the parent's memory.
fn give_descriptor(thread: &Thread, process: &Arc<Process>, to: u64) -> Result<(), Errno> {
    let fd = file::add(thread, pidfd::open(process, 0), abi::O_CLOEXEC)?;
    let written = uaccess::write(&thread.memory(), to, &(fd as u32).to_le_bytes());
    if written.is_err() {
        file::close(thread, fd)?;
    }
    written
}

/// Implements `clone3`.
pub async fn clone3(thread: &Arc<Thread>, at: u64, size: u64) -> Answer {
    const WORDS: usize = 11;
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    /// The most namespaces of processes inside each other, each of which has a number for the
    /// child.
    const MOST_NUMBERS: u64 = 32;
    if !(64..=4096).contains(&size) {
        return Err(if size < 64 { Errno::EINVAL } else { Errno::E2BIG });
    }
    let mut bytes = [0; 8 * WORDS];
    let len = bytes.len().min(size as usize);
    uaccess::read(&thread.memory(), at, &mut bytes[..len])?;
    // A program may know fields that this kernel does not, but they must be zero.
    if !uaccess::are_zero(&thread.memory(), at.wrapping_add(len as u64), size - len as u64)? {
        return Err(Errno::E2BIG);
    }
    let word = |i: usize| u64::from_le_bytes(core::array::from_fn(|k| bytes[8 * i + k]));
    let [flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls] = core::array::from_fn(word);
    if word(9) > MOST_NUMBERS || (word(8) == 0) != (word(9) == 0) {
        return Err(Errno::EINVAL);
    }
    let bad_stack = (stack == 0) != (stack_size == 0);
    if flags & (u64::from(abi::CSIGNAL | abi::CLONE_DETACHED)) != 0 || exit_signal > u64::from(COUNT) || bad_stack {
        return Err(Errno::EINVAL);
    }
    if flags & u64::from(abi::CLONE_THREAD | abi::CLONE_PARENT) != 0 && exit_signal != 0 {
        return Err(Errno::EINVAL);
    }
    // The choice of the child's number (`set_tid`) is for those that restore checkpoints.
    if word(9) != 0 {
        let own = thread.credentials();
        own.needs(abi::CAP_CHECKPOINT_RESTORE).or_else(|_| own.needs(abi::CAP_SYS_ADMIN))?;
        return Err(Errno::EINVAL);
    }
    let stack = stack.wrapping_add(stack_size);
    let group = match flags & CLONE_INTO_CGROUP {
        0 => None,
        _ if size < 8 * WORDS as u64 => return Err(Errno::EINVAL),
        _ => Some(file::open_of(thread, word(10))?),
    };
    clone(thread, Wanted { flags, exit_signal: exit_signal as u32, stack, parent_tid, child_tid, tls, pidfd, group })
        .await
}

/// Releases what refers to the thread's memory, on exit and `execve`: walks the robust futex list,
/// clears `clear_child_tid` and wakes one waiter on it (Linux: `mm_release`).
pub fn let_go_of_memory(thread: &Arc<Thread>) {
    // SAFETY: a system call runs in the thread's own future.
    let context = unsafe { thread.context() };
    let (robust_list, clear_tid) = (context.robust_list, context.clear_tid);
    (context.robust_list, context.clear_tid) = (0, 0);
    if robust_list != 0 {
        robust::release_robust_list(thread, robust_list);
    }
    let memory = thread.memory();
    if clear_tid != 0
        && Arc::strong_count(&memory) > 2
        && uaccess::write(&memory, clear_tid, &0u32.to_le_bytes()).is_ok()
        && let Ok(key) = futex::key(&memory, clear_tid)
    {
        futex::wake(key, 1, u32::MAX);
    }
}

/// Ends a thread: releases its memory and files, and with the last thread those of its process.
pub fn thread_ends(thread: &Arc<Thread>) {
    let_go_of_memory(thread);
    thread.unload_extended();
    let process = &thread.process;
    let last = thread.begin_exit();
    space::unload();
    // The memory is freed before the parent is notified of the exit.
    if last {
        process.change_memory(None);
    }
    // SAFETY: a system call runs in the thread's own future.
    let context = unsafe { thread.context() };
    context.memory = UserSpace::empty();
    context.files = files::none();
    if last {
        // Closing files takes other locks.
        let files = process.files.lock().take();
        drop(files);
        files::locks().release_all(Owner::Process(process.pid), None);
    }
    thread.unblock_creator();
    if last {
        job::process_ends(process);
    }
    process.thread_ended(thread);
}

/// Implements `exit`.
pub fn exit(thread: &Thread, status: u64) -> Answer {
    thread.exit_status.store(status as u32 & 0xff, Ordering::Relaxed);
    thread.ending.store(true, Ordering::Relaxed);
    thread.alert();
    Ok(0)
}

/// Implements `exit_group`.
pub fn exit_group(thread: &Thread, status: u64) -> Answer {
    thread.process.end(Life::Exited(status as u8));
    Ok(0)
}

/// Returns the process with the PID `pid`; 0 is the calling process. `ESRCH` if there is none.
pub fn process_of(thread: &Thread, pid: u64) -> Result<Arc<Process>, Errno> {
    if pid as i32 == 0 { Ok(thread.process.clone()) } else { find(pid as u32).ok_or(Errno::ESRCH) }
}

/// Implements `setpgid`.
pub fn setpgid(thread: &Thread, pid: u64, group: u64) -> Answer {
    if (group as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    // The tasklist lock keeps the group alive until the process has joined it.
    let _tasklist = TasklistLock::lock();
    let process = process_of(thread, pid)?;
    let session = process.session.load(Ordering::Relaxed);
    let own_session = thread.process.session.load(Ordering::Relaxed);
    if process.parent_pid() == thread.process.pid {
        if session != own_session {
            return Err(Errno::EPERM);
        }
        if process.has_executed.load(Ordering::Relaxed) {
            return Err(Errno::EACCES);
        }
    } else if process.pid != thread.process.pid {
        return Err(Errno::ESRCH);
    }
    if job::leads_session(&process) {
        return Err(Errno::EPERM);
    }
    let group = if group == 0 { process.pid } else { group as u32 };
    if group != process.pid && !is_group_of(session, group) {
        return Err(Errno::EPERM);
    }
    process.group.store(group, Ordering::Relaxed);
    Ok(0)
}

/// Returns whether a process of a group is in a session.
pub fn is_group_of(session: u32, group: u32) -> bool {
    job::members(group).any(|member| member.session.load(Ordering::Relaxed) == session)
}

/// Implements `setsid`.
pub fn setsid(thread: &Thread) -> Answer {
    let process = &thread.process;
    let _tasklist = TasklistLock::lock();
    if job::members(process.pid).next().is_some() {
        return Err(Errno::EPERM);
    }
    process.group.store(process.pid, Ordering::Relaxed);
    process.session.store(process.pid, Ordering::Relaxed);
    let terminal = process.terminal.lock().take();
    drop(terminal);
    Ok(process.pid.into())
}
