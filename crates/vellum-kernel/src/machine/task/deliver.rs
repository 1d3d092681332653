//! Signal delivery: before a thread enters user mode, it takes its pending signals, and pushes a
//! handler's frame on its stack, or stops or ends the program.

use crate::arch::abi as machine;
use crate::arch::serial::println;
use crate::arch::types::{Handler, Raised};
use crate::arch::{frame, keys};
use crate::mem::uaccess;
use crate::task::job;
use crate::task::life::{self, Life};
use crate::task::run::{Restart, SystemCalls};
use crate::task::signal::{self, Action, Default, Info, Set, bit};
use crate::task::trace;
use crate::task::{Thread, context::Context};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum::space::FaultError;
use vellum_kernel::errno::Errno;

/// Handles everything the thread was alerted to: stops, ends, pending signals. Restores the signal
/// mask and restarts an interrupted system call where due. Returns false if the thread is to end.
pub async fn handle_alert<S: SystemCalls>(thread: &Arc<Thread>) -> bool {
    loop {
        if thread.ending.load(Ordering::Relaxed) {
            return false;
        }
        if thread.is_traced() {
            trace::before_signals(thread).await;
        }
        if thread.must_stop() {
            if thread.is_traced() {
                trace::process_stopped(thread).await;
            } else {
                let process = &thread.process;
                let goes_on = || (!thread.must_stop() || thread.is_traced()).then_some(());
                let _ = thread.killable(process.changed.wait_until(goes_on)).await;
            }
            // Another stop comes before signals.
            continue;
        }
        let continues = thread.process.continues.load(Ordering::Relaxed);
        let Some(mut info) = next(thread) else { break };
        if thread.is_traced() && info.signal != abi::SIGKILL {
            let Some(taken) = trace::take_signal(thread, info).await else { continue };
            info = taken;
        }
        let action = *thread.process.signals.lock().action(info.signal);
        match action.handler {
            1 => {}
            0 => match signal::default_of(info.signal) {
                Default::End => {
                    trace::ends(thread, info.signal).await;
                    let dumps = signal::DUMPING & bit(info.signal) != 0 && S::dump_core(thread, &info).await;
                    thread.process.end(Life::Killed(info.signal | if dumps { life::CORE } else { 0 }));
                }
                Default::Stop => job::stop(&thread.process, info.signal, continues),
                Default::Ignore | Default::Continue => {}
            },
            _ => {
                let steps = trace::ends_step(thread);
                retry_frame(thread, || handle::<S>(thread, &info, &action)).await.unwrap_or_default();
                if steps {
                    trace::handler_begins(thread).await;
                }
            }
        }
    }
    // SAFETY: runs in the thread's own future.
    let context = unsafe { thread.context() };
    if let Some(mask) = context.saved_mask.take() {
        thread.set_mask(mask);
    }
    if let Some(number) = context.restart.take() {
        context.registers.repeat(number);
    }
    true
}

/// Returns the signals that are pending for the thread or for its process.
pub fn pending_signals(thread: &Thread) -> u64 {
    // In the lock order of `task::process`: both guards live until the end of the expression.
    let signals = thread.process.signals.lock();
    signals.pending.set() | thread.pending.lock().set()
}

/// Returns whether `SIGKILL` is pending for the thread.
pub fn has_kill(thread: &Thread) -> bool {
    pending_signals(thread) & bit(abi::SIGKILL) != 0
}

/// Returns whether the thread is to end, or will as soon as it takes its pending signals, because
/// an unblocked one is fatal. As on Linux, a signal that dumps core does not count, and only
/// `SIGKILL` does while the program is stopped.
pub fn is_dying(thread: &Thread) -> bool {
    if thread.ending.load(Ordering::SeqCst) {
        return true;
    }
    let counted = if thread.process.is_stopped() { bit(abi::SIGKILL) } else { !signal::DUMPING };
    let mut signals = thread.process.signals.lock();
    let pending = thread.pending.lock().set() | signals.pending.set();
    let pending = pending & counted & !thread.mask.load(Ordering::SeqCst);
    let mut ends = |signal| signals.action(signal).handler == 0 && signal::default_of(signal) == Default::End;
    pending != 0 && (1..=signal::COUNT).any(|signal| pending & bit(signal) != 0 && ends(signal))
}

/// Removes and returns the next unblocked pending signal.
fn next(thread: &Thread) -> Option<Info> {
    take_pending(thread, !thread.mask.load(Ordering::Relaxed))
}

/// Removes and returns the next pending signal of `set`: the thread's own before the process's.
pub fn take_pending(thread: &Thread, set: Set) -> Option<Info> {
    let own = thread.pending.lock().take(set);
    own.or_else(|| thread.process.signals.lock().pending.take(set))
}

/// Makes the thread repeat its last system call, which has the number `number`.
pub fn again(thread: &Thread, number: u64) {
    // SAFETY: runs in the thread's own future.
    unsafe { thread.context() }.registers.repeat(number);
    trace::call_repeats(thread);
}

/// Calls `attempt`, which accesses the frame of a signal handler, until the kernel has the memory
/// that the access needs. Returns `None` if it can't get it: the program then ends by `SIGSEGV`.
async fn retry_frame<T>(thread: &Arc<Thread>, attempt: impl Fn() -> Result<T, Errno>) -> Option<T> {
    loop {
        let result = attempt();
        if let Ok(done) = result {
            return Some(done);
        }
        if !thread.mem.is_blocked() || !thread.may_repeat(result).await {
            thread.process.end(Life::Killed(abi::SIGSEGV));
            return None;
        }
        // Signals that arrive meanwhile are delivered afterwards, except that the thread may have
        // to end.
        thread.clear_alert();
        if thread.ending.load(Ordering::Relaxed) {
            return None;
        }
    }
}

/// Pushes a handler's frame and points the thread at the handler. On failure nothing has changed
/// that a repeated call would not set again.
fn handle<S: SystemCalls>(thread: &Arc<Thread>, info: &Info, action: &Action) -> Result<(), Errno> {
    let flags = action.flags as u32;
    let now = thread.mask.load(Ordering::Relaxed);
    // SAFETY: runs in the thread's own future.
    let context = unsafe { thread.context() };
    let always_restarts = core::mem::take(&mut context.always_restarts);
    if let Some(number) = context.restart.take()
        && (always_restarts || flags & abi::SA_RESTART != 0 && S::restarts(number) == Restart::AfterHandlers)
    {
        context.registers.repeat(number);
    }
    context.wait_deadline = None;
    thread.save_extended();
    // SAFETY: runs in the thread's own future, and the previous reference is not used any more.
    let context = unsafe { thread.context() };
    let handler = Handler {
        signal: info.signal,
        info: info.bytes(),
        address: action.handler,
        restorer: (action.flags & u64::from(abi::SA_RESTORER) != 0).then_some(action.restorer).or_else(|| {
            machine::RETURN_OFFSET.map(|offset| context.memory.vdso.load(Ordering::Relaxed).wrapping_add(offset))
        }),
        mask: context.saved_mask.unwrap_or(now),
        top: stack_for(context, action, frame::RED_ZONE),
        signal_stack: context.signal_stack,
        stack_flags: stack_flags(context),
        fault_address: context.fault_address,
    };
    // The stack may have a key that the program denies itself, but not its handlers.
    let Context { registers, extended, memory, .. } = context;
    keys::with_all(|| frame::push(registers, extended, memory, &handler))?;
    if extended.reset_rights() {
        thread.unload_extended();
    }
    context.saved_mask = None;
    let own = if flags & abi::SA_NODEFER == 0 { bit(info.signal) } else { 0 };
    thread.set_mask(now | action.mask | own);
    if flags & abi::SA_RESETHAND != 0 {
        // The flags and the mask stay, as on Linux.
        thread.process.signals.lock().action(info.signal).handler = 0;
    }
    Ok(())
}

/// Returns from a signal handler (`sigreturn`): restores the registers and the mask from the frame,
/// as far as user mode may set them.
pub async fn return_from_handler(thread: &Arc<Thread>) -> Result<u64, Errno> {
    let attempt = || {
        thread.save_extended();
        // SAFETY: runs in the thread's own future.
        let Context { registers, extended, memory, .. } = unsafe { thread.context() };
        keys::with_all(|| frame::pop(registers, extended, memory))
    };
    let Some(mask) = retry_frame(thread, attempt).await else { return Ok(0) };
    // SAFETY: runs in the thread's own future, and the previous reference is not used any more.
    let context = unsafe { thread.context() };
    context.restart = None;
    let answer = context.registers.answer();
    thread.unload_extended();
    thread.set_mask(mask);
    Ok(answer)
}

/// Stores a system call's result in the thread's registers. An interrupted call is remembered for a
/// restart.
pub fn answer<S: SystemCalls>(thread: &Thread, number: u64, answer: Result<u64, Errno>) {
    // SAFETY: runs in the thread's own future.
    let context = unsafe { thread.context() };
    if answer == Err(Errno::EINTR) && S::restarts(number) != Restart::Never {
        context.restart = Some(number);
    } else {
        context.wait_deadline = None;
        context.always_restarts = false;
    }
    context.registers.set_answer(answer.unwrap_or_else(|error| error.returned() as u64));
}

/// Sends the signal for a page fault that the engine could not resolve.
pub fn fault(thread: &Arc<Thread>, address: u64, error: FaultError) {
    let (signal, code) = match error {
        FaultError::Unmapped(_) => (abi::SIGSEGV, abi::SEGV_MAPERR),
        FaultError::Denied(_) => (abi::SIGSEGV, abi::SEGV_ACCERR),
        // A page that is pending could not be read.
        FaultError::BeyondEnd(_)
        | FaultError::NoHugePage(_)
        | FaultError::TooManyReferences(_)
        | FaultError::Pending(_) => (abi::SIGBUS, abi::BUS_ADRERR),
        // A userfaultfd that resolves no faults (`UFFD_FEATURE_SIGBUS`).
        FaultError::Uffd(_) => (abi::SIGBUS, abi::BUS_ADRERR),
        FaultError::Poisoned(_) => (abi::SIGBUS, abi::BUS_MCEERR_AR),
        FaultError::NoMemory(_) => {
            let process = &thread.process;
            println!("out of memory: killed process {}: {error}, and no process is left to kill", process.pid);
            return process.end(Life::Killed(abi::SIGKILL));
        }
    };
    // SAFETY: runs in the thread's own future.
    unsafe { thread.context() }.fault_address = address;
    force(thread, Info::fault(signal, code, address));
}

/// Sends the signal for a CPU exception other than a page fault.
pub fn exception(thread: &Arc<Thread>, raised: Raised) {
    let Raised { signal, code, address } = raised;
    let mut fields = [address, 0, 0, 0];
    if signal == abi::SIGSEGV && code == abi::SEGV_PKUERR as i32 {
        // SAFETY: runs in the thread's own future.
        unsafe { thread.context() }.fault_address = address;
        thread.memory().engine.vmas(address, |vma| {
            fields[2] = if vma.range.contains(address) { vma.prot.key().into() } else { 0 };
            false
        });
    }
    force(thread, Info { signal, errno: 0, code, fields });
}

/// Sends a signal that the thread's own instruction raised. A blocked or ignored one has its
/// default action, because the thread can't continue (Linux: `force_sig`).
pub fn force(thread: &Arc<Thread>, info: Info) {
    let blocked = thread.mask.load(Ordering::Relaxed) & bit(info.signal) != 0;
    let action = *thread.process.signals.lock().action(info.signal);
    if blocked || action.handler == 1 {
        // It is taken nevertheless: a tracer is told, and the core is written.
        // The flags and the mask stay, as on Linux.
        thread.process.signals.lock().action(info.signal).handler = 0;
        thread.set_mask(thread.mask.load(Ordering::Relaxed) & !bit(info.signal));
    }
    thread.pending.lock().push(info);
    thread.alert();
}

/// Returns whether the thread's stack pointer is on its alternate signal stack.
pub fn is_on_signal_stack(context: &Context) -> bool {
    let [start, len] = context.signal_stack;
    context.registers.stack().wrapping_sub(start) <= len && len > 0
}

/// Returns the address below which a handler's frame is pushed: the end of the alternate stack, or
/// `red_zone` bytes below the stack pointer.
pub fn stack_for(context: &Context, action: &Action, red_zone: u64) -> u64 {
    let [start, len] = context.signal_stack;
    let switches = action.flags & u64::from(abi::SA_ONSTACK) != 0 && len > 0 && !is_on_signal_stack(context);
    if switches { start.wrapping_add(len) } else { context.registers.stack().wrapping_sub(red_zone) }
}

/// Returns the `SS_` flags that `sigaltstack` reports.
pub fn stack_flags(context: &Context) -> u64 {
    const ON_STACK: u64 = 1;
    const DISABLED: u64 = 2;
    match context.signal_stack {
        [_, 0] => DISABLED,
        _ if is_on_signal_stack(context) => ON_STACK,
        _ => 0,
    }
}

/// Reads a signal set from user memory.
///
/// # Errors
///
/// `EINVAL`: `size` is not that of a set. `EFAULT`.
pub fn read_set(thread: &Thread, address: u64, size: u64) -> Result<Set, Errno> {
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; 8];
    uaccess::read(&thread.memory(), address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
