//! Implements `ptrace`.

use super::{Answer, remote};
use crate::arch::abi::AUDIT_ARCH;
use crate::arch::regset::Stopped;
use crate::mem::{forced, payer, uaccess};
use crate::task::life::Life;
use crate::task::signal::{COUNT, Info};
use crate::task::trace::{self, Halt};
use crate::task::{Thread, process, signal};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{SI_USER, SIGKILL, SIGSTOP};
use linux_raw_sys::ptrace as abi;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::errno::Errno;
use vellum_kernel::ptrace::{Resume, options};

/// `PTRACE_GET_SYSCALL_INFO`.
const GET_CALL_INFO: u32 = 0x420e;
/// The size in bytes of `siginfo_t`.
const INFO_SIZE: usize = 128;

/// Implements `ptrace`.
pub fn ptrace(thread: &Arc<Thread>, [request, pid, address, data]: [u64; 4]) -> Answer {
    let request = request as u32;
    match request {
        abi::PTRACE_TRACEME => return trace_me(thread),
        abi::PTRACE_ATTACH => return attach(thread, pid, false, 0),
        abi::PTRACE_SEIZE if address != 0 => return Err(Errno::EIO),
        abi::PTRACE_SEIZE => return attach(thread, pid, true, options(data).map_err(|_| Errno::EIO)?),
        _ => {}
    }
    let own = &thread.process;
    let tracee = own.tracees.lock().get(&(pid as u32)).cloned().ok_or(Errno::ESRCH)?;
    match request {
        abi::PTRACE_KILL => {
            tracee.process.end(Life::Killed(SIGKILL));
            Ok(0)
        }
        abi::PTRACE_INTERRUPT => interrupt(&tracee),
        abi::PTRACE_CONT => go_on(&tracee, Resume::Run, data),
        abi::PTRACE_SYSCALL => go_on(&tracee, Resume::Calls, data),
        abi::PTRACE_SINGLESTEP => go_on(&tracee, Resume::Step, data),
        abi::PTRACE_DETACH => {
            with_halt(&tracee, |_| Ok(0))?;
            trace::release(own, &tracee, signal_of(data)?);
            Ok(0)
        }
        abi::PTRACE_LISTEN => with_halt(&tracee, |halt| {
            if halt.stop.status >> 8 != abi::PTRACE_EVENT_STOP {
                return Err(Errno::EIO);
            }
            halt.listens = true;
            Ok(0)
        })
        .inspect(|_| tracee.process.changed.wake_all()),
        abi::PTRACE_PEEKTEXT | abi::PTRACE_PEEKDATA => {
            let mut word = [0; 8];
            with_halt(&tracee, |_| Ok(0))?;
            let memory = tracee.process.memory().ok_or(Errno::EIO)?;
            if forced::read(&memory, address, &mut word) < word.len() {
                return Err(Errno::EIO);
            }
            uaccess::write(&thread.memory(), data, &word).map(|()| 0)
        }
        abi::PTRACE_POKETEXT | abi::PTRACE_POKEDATA => {
            with_halt(&tracee, |_| Ok(0))?;
            let memory = tracee.process.memory().ok_or(Errno::EIO)?;
            if forced::write(&memory, address, &data.to_le_bytes()) < 8 { Err(Errno::EIO) } else { Ok(0) }
        }
        abi::PTRACE_SETOPTIONS => {
            let options = options(data)?;
            with_halt(&tracee, |_| Ok(0))?;
            if let Some(link) = &mut tracee.trace.lock().link {
                link.options = options;
            }
            Ok(0)
        }
        abi::PTRACE_GETSIGMASK | abi::PTRACE_SETSIGMASK => signal_mask(thread, &tracee, request, address, data),
        abi::PTRACE_SETSIGINFO => {
            let mut bytes = [0; INFO_SIZE];
            uaccess::read(&thread.memory(), data, &mut bytes)?;
            with_halt(&tracee, |halt| {
                halt.info = if halt.stop.has_info() { Info::from_bytes(&bytes) } else { return Err(Errno::EINVAL) };
                Ok(0)
            })
        }
        abi::PTRACE_GETSIGINFO => {
            let info =
                with_halt(&tracee, |halt| if halt.stop.has_info() { Ok(halt.info) } else { Err(Errno::EINVAL) })?;
            uaccess::write(&thread.memory(), data, &info.bytes()).map(|()| 0)
        }
        abi::PTRACE_GETEVENTMSG => {
            let message = with_halt(&tracee, |halt| Ok(halt.stop.message))?;
            uaccess::write(&thread.memory(), data, &message.to_le_bytes()).map(|()| 0)
        }
        GET_CALL_INFO => {
            let (bytes, size) = with_halt(&tracee, |halt| {
                let Stopped { registers, call, .. } = &*halt.registers;
                let place = [registers.program_counter(), registers.stack()];
                let arguments = registers.arguments();
                Ok(halt.stop.call_info(AUDIT_ARCH, place, *call, arguments, registers.answer()))
            })?;
            let most = size.min(address as usize);
            uaccess::write(&thread.memory(), data, &bytes[..most]).map(|()| size as u64)
        }
        abi::PTRACE_GETREGSET | abi::PTRACE_SETREGSET => register_set(thread, &tracee, request, address as u32, data),
        _ => registers(thread, &tracee, request, address, data),
    }
}

/// Calls `work` with the stop that a traced thread is in.
///
/// # Errors
///
/// `ESRCH`: it is in none, or listens. Those of `work`.
fn with_halt<T>(tracee: &Thread, work: impl FnOnce(&mut Halt) -> Result<T, Errno>) -> Result<T, Errno> {
    work(tracee.trace.lock().halted().filter(|halt| !halt.listens).ok_or(Errno::ESRCH)?)
}

/// Checks the number of a signal that a tracer passes on; 0: none.
fn signal_of(data: u64) -> Result<u32, Errno> {
    if data <= COUNT.into() { Ok(data as u32) } else { Err(Errno::EIO) }
}

fn go_on(tracee: &Thread, resume: Resume, data: u64) -> Answer {
    let signal = signal_of(data)?;
    trace::resume(tracee, resume, signal).map(|()| 0)
}

/// Has the caller's parent trace the caller.
fn trace_me(thread: &Arc<Thread>) -> Answer {
    let parent = thread.process.parent.lock().upgrade().filter(|parent| parent.pid != process::FIRST);
    trace::attach(&parent.ok_or(Errno::EPERM)?, thread, false, 0).map(|()| 0)
}

fn attach(thread: &Arc<Thread>, pid: u64, is_seized: bool, options: u32) -> Answer {
    let tracee = process::find_thread(pid as u32).ok_or(Errno::ESRCH)?;
    if tracee.process.pid == thread.process.pid {
        return Err(Errno::EPERM);
    }
    remote::may_look_into(thread, &tracee.process)?;
    payer::afford(FRAME_SIZE)?;
    trace::attach(&thread.process, &tracee, is_seized, options)?;
    if !is_seized {
        signal::send_to(&tracee, Info { signal: SIGSTOP, code: SI_USER as i32, ..Info::default() });
    }
    Ok(0)
}

/// Makes a thread stop without a signal.
fn interrupt(tracee: &Thread) -> Answer {
    let mut trace = tracee.trace.lock();
    if !trace.link.as_ref().is_some_and(|link| link.is_seized) {
        return Err(Errno::EIO);
    }
    trace.interrupts = true;
    drop(trace);
    tracee.alert();
    tracee.process.changed.wake_all();
    Ok(0)
}

fn signal_mask(thread: &Thread, tracee: &Thread, request: u32, size: u64, data: u64) -> Answer {
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    with_halt(tracee, |_| Ok(0))?;
    if request == abi::PTRACE_GETSIGMASK {
        let mask = tracee.mask.load(Ordering::Relaxed);
        return uaccess::write(&thread.memory(), data, &mask.to_le_bytes()).map(|()| 0);
    }
    let mut mask = [0; 8];
    uaccess::read(&thread.memory(), data, &mut mask)?;
    tracee.set_mask(u64::from_le_bytes(mask));
    Ok(0)
}

/// Copies a register set from or to the buffer that a `struct iovec` describes, and stores its size
/// there.
fn register_set(thread: &Thread, tracee: &Thread, request: u32, kind: u32, at: u64) -> Answer {
    let memory = thread.memory();
    let mut vector = [0; 16];
    uaccess::read(&memory, at, &mut vector)?;
    let [buffer, len] = [0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|i| vector[at + i])));
    let set = with_halt(tracee, |halt| halt.registers.set_of_kind(kind).ok_or(Errno::EINVAL))?;
    // All sets consist of words, but for those of one half.
    if !len.is_multiple_of(set.len().min(8) as u64) {
        return Err(Errno::EINVAL);
    }
    let len = set.len().min(usize::try_from(len).unwrap_or(usize::MAX));
    if request == abi::PTRACE_GETREGSET {
        uaccess::write(&memory, buffer, &set[..len])?;
    } else {
        let mut bytes = set;
        uaccess::read(&memory, buffer, &mut bytes[..len])?;
        with_halt(tracee, |halt| halt.registers.change_set(kind, &bytes[..len]))?;
    }
    uaccess::write(&memory, at + 8, &(len as u64).to_le_bytes()).map(|()| 0)
}

/// Implements the requests that only AArch64 lacks: `GETREGS` and the like.
#[cfg(target_arch = "x86_64")]
fn registers(thread: &Thread, tracee: &Thread, request: u32, address: u64, data: u64) -> Answer {
    use crate::arch::regset::{LEGACY, WORDS};
    /// `struct user`: its size, and the offset of the debug registers, of which there are 8.
    const USER_SIZE: u64 = 928;
    const DEBUG: u64 = 848;
    let memory = thread.memory();
    let is_general = |address: u64| address < 8 * WORDS as u64;
    let word = |address: u64| -> Result<usize, Errno> {
        if address.is_multiple_of(8) && address < USER_SIZE { Ok(address as usize / 8) } else { Err(Errno::EIO) }
    };
    match request {
        abi::PTRACE_GETREGS => {
            let words = with_halt(tracee, |halt| Ok(halt.registers.general()))?;
            uaccess::write(&memory, data, words.map(u64::to_le_bytes).as_flattened()).map(|()| 0)
        }
        abi::PTRACE_SETREGS => {
            let mut bytes = [[0; 8]; WORDS];
            uaccess::read(&memory, data, bytes.as_flattened_mut())?;
            with_halt(tracee, |halt| halt.registers.set_general(&bytes.map(u64::from_le_bytes)))?;
            Ok(0)
        }
        abi::PTRACE_GETFPREGS => {
            let mut bytes = [0; LEGACY];
            with_halt(tracee, |halt| {
                bytes.copy_from_slice(&halt.registers.extended.vector.bytes()[..LEGACY]);
                Ok(())
            })?;
            uaccess::write(&memory, data, &bytes).map(|()| 0)
        }
        abi::PTRACE_SETFPREGS => {
            let mut bytes = [0; LEGACY];
            uaccess::read(&memory, data, &mut bytes)?;
            with_halt(tracee, |halt| halt.registers.change_set(2, &bytes))?;
            Ok(0)
        }
        abi::PTRACE_PEEKUSR => {
            let index = word(address)?;
            let value =
                with_halt(tracee, |halt| Ok(if is_general(address) { halt.registers.general()[index] } else { 0 }))?;
            uaccess::write(&memory, data, &value.to_le_bytes()).map(|()| 0)
        }
        abi::PTRACE_POKEUSR => {
            let index = word(address)?;
            with_halt(tracee, |halt| {
                if is_general(address) {
                    let mut words = halt.registers.general();
                    words[index] = data;
                    halt.registers.set_general(&words)?;
                } else if (DEBUG..DEBUG + 64).contains(&address) && data != 0 {
                    // No thread has breakpoints of the processor.
                    return Err(Errno::EIO);
                }
                Ok(0)
            })
        }
        _ => Err(Errno::EIO),
    }
}

/// Refuses requests that the architecture does not have.
#[cfg(target_arch = "aarch64")]
fn registers(_: &Thread, tracee: &Thread, _: u32, _: u64, _: u64) -> Answer {
    with_halt(tracee, |_| Err(Errno::EIO))
}
