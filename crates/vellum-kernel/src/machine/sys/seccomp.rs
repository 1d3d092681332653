//! Implements filters of system calls (`seccomp`).

use super::{Answer, process};
use crate::arch::abi::AUDIT_ARCH;
use crate::arch::serial::println;
use crate::mem::{payer, uaccess};
use crate::task::Thread;
use crate::task::deliver;
use crate::task::life::Life;
use crate::task::signal::Info;
use crate::task::trace;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as nr;
use linux_raw_sys::ptrace as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::seccomp::action::{self, MODE_DISABLED, MODE_FILTER, MODE_STRICT};
use vellum_kernel::seccomp::bpf::{self, Call, INSTRUCTION_SIZE, Instruction, Program};
use vellum_kernel::seccomp::filter::{Filter, Seccomp};

/// The flags of a new filter. `SPEC_ALLOW` concerns mitigations that the kernel does not have.
const FLAGS: u32 = abi::SECCOMP_FILTER_FLAG_TSYNC
    | abi::SECCOMP_FILTER_FLAG_LOG
    | abi::SECCOMP_FILTER_FLAG_SPEC_ALLOW
    | abi::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;

/// Returns the number of a system call that a thread wants to make, if its mode permits that, or
/// its tracer has changed it. If not, has done instead what the mode demands: the call has its
/// result, or the thread has a signal.
#[cold]
pub async fn permits(thread: &Arc<Thread>, number: u64) -> Option<u64> {
    let call = Some(number);
    let number = number as u32;
    let Seccomp { mode, filter } = thread.traits.lock().seccomp.clone();
    let Some(filter) = filter else {
        let permitted = [nr::__NR_read, nr::__NR_write, nr::__NR_exit, nr::__NR_rt_sigreturn];
        let is_permitted = mode != MODE_STRICT || permitted.contains(&number);
        if !is_permitted {
            end_thread(thread, nr::SIGKILL);
        }
        return call.filter(|_| is_permitted);
    };
    if filter.always_permits(number) {
        return call;
    }
    // SAFETY: a system call runs in the thread's own future.
    let registers = unsafe { thread.context() }.registers;
    let (place, arguments) = (registers.program_counter(), registers.arguments());
    let (value, decided_by) = filter.decide(&Call { number, arch: AUDIT_ARCH, place, arguments });
    let (wanted, data) = (value & action::ACTION, value & !action::ACTION);
    let is_logged = match wanted {
        action::ALLOW | action::ERRNO | action::TRAP | action::TRACE | action::USER_NOTIF => {
            decided_by.logs && wanted != action::ALLOW
        }
        _ => true,
    };
    if is_logged && decided_by.begin_log() {
        let name = action::NAMES.iter().find(|(known, _)| *known == wanted).map_or("kill_process", |(_, name)| name);
        println!("seccomp: {name} of system call {number} by thread {}", thread.tid);
    }
    match wanted {
        action::ALLOW | action::LOG => return call,
        action::TRACE if trace::asks_for_filtered(thread) => return trace::filtered(thread, number.into(), data).await,
        action::ERRNO => answer(thread, -i64::from(data.min(4095))),
        // No tracer and no other process is asked.
        action::TRACE | action::USER_NOTIF => answer(thread, -i64::from(Errno::ENOSYS.number())),
        action::TRAP => {
            let called = u64::from(number) | u64::from(AUDIT_ARCH) << 32;
            let info = Info { signal: nr::SIGSYS, errno: data as i32, code: 1, fields: [place, called, 0, 0] };
            deliver::force(thread, info);
        }
        action::KILL_THREAD => end_thread(thread, nr::SIGSYS),
        _ => thread.process.end(Life::Killed(nr::SIGSYS)),
    }
    None
}

/// Stores the result of a call that was not made.
fn answer(thread: &Thread, value: i64) {
    // SAFETY: a system call runs in the thread's own future.
    let context = unsafe { thread.context() };
    context.wait_deadline = None;
    context.always_restarts = false;
    context.registers.set_answer(value as u64);
}

/// Ends a thread by a signal, and with the last thread the process.
fn end_thread(thread: &Arc<Thread>, signal: u32) {
    if thread.process.threads.lock().len() == 1 {
        thread.process.end(Life::Killed(signal));
    } else {
        let _ = process::exit(thread, signal.into());
    }
}

/// Implements `seccomp`.
pub fn seccomp(thread: &Arc<Thread>, operation: u64, flags: u64, at: u64) -> Answer {
    let flags = flags as u32;
    match operation as u32 {
        abi::SECCOMP_SET_MODE_STRICT if flags == 0 && at == 0 => set_strict(thread),
        abi::SECCOMP_SET_MODE_FILTER => set_filter(thread, flags, at),
        abi::SECCOMP_GET_ACTION_AVAIL if flags == 0 => {
            let mut bytes = [0; 4];
            uaccess::read(&thread.memory(), at, &mut bytes)?;
            let wanted = u32::from_le_bytes(bytes);
            let is_known = action::NAMES.iter().any(|(known, _)| *known == wanted) && wanted != action::USER_NOTIF;
            if is_known { Ok(0) } else { Err(Errno::EOPNOTSUPP) }
        }
        abi::SECCOMP_GET_NOTIF_SIZES if flags == 0 => {
            let sizes = [80, 24, bpf::DATA_SIZE as u16].map(u16::to_le_bytes);
            uaccess::write(&thread.memory(), at, sizes.as_flattened()).map(|()| 0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Sets the mode by `prctl`.
pub fn set_mode(thread: &Arc<Thread>, mode: u64, filter: u64) -> Answer {
    match mode as u32 {
        MODE_STRICT => set_strict(thread),
        MODE_FILTER => set_filter(thread, 0, filter),
        _ => Err(Errno::EINVAL),
    }
}

fn set_strict(thread: &Thread) -> Answer {
    let mut traits = thread.traits.lock();
    if !matches!(traits.seccomp.mode, MODE_DISABLED | MODE_STRICT) {
        return Err(Errno::EINVAL);
    }
    traits.seccomp.mode = MODE_STRICT;
    drop(traits);
    thread.is_restricted.store(true, Relaxed);
    // Where the architecture can.
    let _ = thread.deny_tsc(true);
    Ok(0)
}

/// Reads the program of a `struct sock_fprog` from user memory.
fn read_program(thread: &Thread, at: u64) -> Result<Program, Errno> {
    let memory = thread.memory();
    let mut head = [0; 16];
    uaccess::read(&memory, at, &mut head)?;
    let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    let from = u64::from_le_bytes(core::array::from_fn(|i| head[8 + i]));
    if !(1..=bpf::MOST).contains(&len) {
        return Err(Errno::EINVAL);
    }
    if !thread.traits.lock().no_new_privileges && !thread.credentials().has(nr::CAP_SYS_ADMIN) {
        return Err(Errno::EACCES);
    }
    let mut bytes = payer::zeros(len * INSTRUCTION_SIZE)?;
    uaccess::read(&memory, from, &mut bytes)?;
    let mut instructions: Vec<Instruction> = Vec::new();
    payer::reserve(&mut instructions, len)?;
    instructions.extend(bytes.as_chunks().0.iter().map(Instruction::from_bytes));
    Program::new(instructions)
}

/// Installs a filter for the thread, or with `SECCOMP_FILTER_FLAG_TSYNC` for all threads of its
/// process.
fn set_filter(thread: &Arc<Thread>, flags: u32, at: u64) -> Answer {
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let program = Arc::new(read_program(thread, at)?);
    let logs = flags & abi::SECCOMP_FILTER_FLAG_LOG != 0;
    let all = flags & abi::SECCOMP_FILTER_FLAG_TSYNC != 0;
    loop {
        let before = thread.traits.lock().seccomp.clone();
        if !matches!(before.mode, MODE_DISABLED | MODE_FILTER) {
            return Err(Errno::EINVAL);
        }
        let new = Filter::new(program.clone(), AUDIT_ARCH, logs, before.filter.clone())?;
        // A thread that is created meanwhile gets what its creator has, under this lock.
        let threads = thread.process.threads.lock();
        // Another thread may have installed a filter for all since.
        if !thread.traits.lock().seccomp.is_same(&before) {
            continue;
        }
        let others = || threads.values().filter(|other| !Arc::ptr_eq(other, thread));
        let refuses = |other: &&Arc<Thread>| !other.traits.lock().seccomp.may_follow(before.filter.as_ref());
        if all && let Some(other) = others().find(refuses) {
            let by_number = flags & abi::SECCOMP_FILTER_FLAG_TSYNC_ESRCH == 0;
            return if by_number { Ok(other.tid.into()) } else { Err(Errno::ESRCH) };
        }
        let state = Seccomp { mode: MODE_FILTER, filter: Some(new) };
        thread.set_seccomp(state.clone());
        let keeps_privileges = thread.traits.lock().no_new_privileges;
        for other in others().filter(|_| all) {
            other.traits.lock().no_new_privileges |= keeps_privileges;
            other.set_seccomp(state.clone());
        }
        return Ok(0);
    }
}
