//! What a thread does about signals, before it enters user mode again: the handler's frame on the stack, or the program's end.

use crate::arch::frame;
use crate::arch::types::{Handler, Raised};
use crate::mem::uaccess;
use crate::println;
use crate::task::life::Life;
use crate::task::run::{Restart, SystemCalls};
use crate::task::signal::{self, Action, Default, Info, Set, bit};
use crate::task::{Thread, context::Context};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum::space::FaultError;
use vellum_kernel::errno::Errno;

/// Deals with what the thread was alerted to. `false`: it is to end.
pub async fn settle<S: SystemCalls>(thread: &Arc<Thread>) -> bool {
    loop {
        if thread.ending.load(Ordering::Relaxed) {
            return false;
        }
        if thread.process.is_stopped() {
            let process = &thread.process;
            let goes_on = || (!process.is_stopped()).then_some(());
            let _ = thread.killable(process.changed.wait_until(goes_on)).await;
            if thread.ending.load(Ordering::Relaxed) {
                return false;
            }
        }
        let Some(info) = next(thread) else { break };
        let action = *thread.process.signals.lock().action(info.signal);
        match action.handler {
            1 => {}
            0 => match signal::default_of(info.signal) {
                Default::End => thread.process.end(Life::Killed(info.signal)),
                Default::Stop => thread.process.stop(info.signal),
                Default::Ignore | Default::Continue => {}
            },
            _ => once_there(thread, || handle::<S>(thread, &info, &action)).await.unwrap_or_default(),
        }
    }
    // SAFETY: the thread's own future.
    let context = unsafe { thread.context() };
    if let Some(mask) = context.saved_mask.take() {
        thread.set_mask(mask);
    }
    if let Some(number) = context.restart.take() {
        context.registers.repeat(number);
    }
    true
}

/// Whether `SIGKILL` waits for it.
pub fn has_kill(thread: &Thread) -> bool {
    (thread.pending.lock().set() | thread.process.signals.lock().pending.set()) & bit(abi::SIGKILL) != 0
}

/// Returns whether the thread is to end, or is going to as soon as it deals with its signals: one
/// that it does not block ends the program. As on Linux, one that would leave a core file does not
/// count, and only `SIGKILL` does while the program is stopped.
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

/// The next signal to deliver.
fn next(thread: &Thread) -> Option<Info> {
    let open = !thread.mask.load(Ordering::Relaxed);
    let own = thread.pending.lock().take(open);
    own.or_else(|| thread.process.signals.lock().pending.take(open))
}

/// Has the thread make its last system call once more.
pub fn again(thread: &Thread, number: u64) {
    // SAFETY: the thread's own future.
    unsafe { thread.context() }.registers.repeat(number);
}

/// Does something with the frame of a handler, as soon as its memory can be had. None: that is never, and the program ends.
async fn once_there<T>(thread: &Arc<Thread>, attempt: impl Fn() -> Result<T, Errno>) -> Option<T> {
    loop {
        let result = attempt();
        if let Ok(done) = result {
            return Some(done);
        }
        if !thread.mem.is_blocked() || !thread.may_repeat(result).await {
            thread.process.end(Life::Killed(abi::SIGSEGV));
            return None;
        }
        // What comes meanwhile is dealt with afterwards; but for the end.
        thread.has_heard();
        if thread.ending.load(Ordering::Relaxed) {
            return None;
        }
    }
}

/// Has the thread run a handler. What fails may be tried again.
fn handle<S: SystemCalls>(thread: &Arc<Thread>, info: &Info, action: &Action) -> Result<(), Errno> {
    let flags = action.flags as u32;
    let now = thread.mask.load(Ordering::Relaxed);
    // SAFETY: the thread's own future.
    let context = unsafe { thread.context() };
    let insists = core::mem::take(&mut context.insists);
    if let Some(number) = context.restart.take()
        && (insists || flags & abi::SA_RESTART != 0 && S::restarts(number) == Restart::AfterHandlers)
    {
        context.registers.repeat(number);
    }
    context.waits_until = None;
    thread.save_held();
    // SAFETY: as above; the reference before ended.
    let context = unsafe { thread.context() };
    let handler = Handler {
        signal: info.signal,
        info: info.bytes(),
        address: action.handler,
        restorer: (action.flags & u64::from(abi::SA_RESTORER) != 0).then_some(action.restorer),
        mask: context.saved_mask.unwrap_or(now),
        top: stack_for(context, action, frame::RED_ZONE),
        signal_stack: context.signal_stack,
        stack_flags: stack_flags(context),
        fault_address: context.fault_address,
    };
    frame::push(&mut context.registers, &context.held, &context.memory, &handler)?;
    context.saved_mask = None;
    let own = if flags & abi::SA_NODEFER == 0 { bit(info.signal) } else { 0 };
    thread.set_mask(now | action.mask | own);
    if flags & abi::SA_RESETHAND != 0 {
        *thread.process.signals.lock().action(info.signal) = Action::default();
    }
    Ok(())
}

/// Returns from a handler: to what the frame says, as far as a program may say it.
pub async fn return_from_handler(thread: &Arc<Thread>) -> Result<u64, Errno> {
    let attempt = || {
        thread.save_held();
        // SAFETY: the thread's own future.
        let Context { registers, held, memory, .. } = unsafe { thread.context() };
        frame::pop(registers, held, memory)
    };
    let Some(mask) = once_there(thread, attempt).await else { return Ok(0) };
    // SAFETY: as above; the reference before ended.
    let context = unsafe { thread.context() };
    context.restart = None;
    let answer = context.registers.answer();
    thread.forget_held();
    thread.set_mask(mask);
    Ok(answer)
}

/// The end of a system call.
pub fn answer<S: SystemCalls>(thread: &Thread, number: u64, answer: Result<u64, Errno>) {
    // SAFETY: the thread's own future.
    let context = unsafe { thread.context() };
    if answer == Err(Errno::EINTR) && S::restarts(number) != Restart::Never {
        context.restart = Some(number);
    } else {
        context.waits_until = None;
        context.insists = false;
    }
    context.registers.set_answer(answer.unwrap_or_else(|error| error.returned() as u64));
}

/// A touch that the engine refused.
pub fn fault(thread: &Arc<Thread>, address: u64, error: FaultError) {
    let (signal, code) = match error {
        FaultError::Unmapped(_) => (abi::SIGSEGV, abi::SEGV_MAPERR),
        FaultError::Denied(_) => (abi::SIGSEGV, abi::SEGV_ACCERR),
        FaultError::BeyondEnd(_) | FaultError::TooManyReferences(_) => (abi::SIGBUS, abi::BUS_ADRERR),
        FaultError::Poisoned(_) => (abi::SIGBUS, abi::BUS_MCEERR_AR),
        // The access is made again.
        FaultError::Watched(_) => return,
        FaultError::NoMemory(_) => {
            let process = &thread.process;
            println!("process {} is killed: {error}", process.pid);
            return process.end(Life::Killed(abi::SIGKILL));
        }
    };
    // SAFETY: the thread's own future.
    unsafe { thread.context() }.fault_address = address;
    force(thread, Info::fault(signal, code, address));
}

/// An exception that is no page fault.
pub fn exception(thread: &Arc<Thread>, raised: Raised) {
    let Raised { signal, code, address } = raised;
    force(thread, Info { signal, code, fields: [address, 0, 0, 0] });
}

/// A signal that the thread's own instruction raised: it can't go on without dealing with it.
pub fn force(thread: &Arc<Thread>, info: Info) {
    let blocked = thread.mask.load(Ordering::Relaxed) & bit(info.signal) != 0;
    let action = *thread.process.signals.lock().action(info.signal);
    if blocked || action.handler == 1 {
        return thread.process.end(Life::Killed(info.signal));
    }
    thread.pending.lock().push(info);
    thread.alert();
}

/// Whether the thread's stack pointer is on its alternate stack.
pub fn is_on_signal_stack(context: &Context) -> bool {
    let [start, len] = context.signal_stack;
    context.registers.stack().wrapping_sub(start) <= len && len > 0
}

/// Where the frame of a handler is to end: on the alternate stack, or so far below the stack pointer.
pub fn stack_for(context: &Context, action: &Action, red_zone: u64) -> u64 {
    let [start, len] = context.signal_stack;
    let switches = action.flags & u64::from(abi::SA_ONSTACK) != 0 && len > 0 && !is_on_signal_stack(context);
    if switches { start.wrapping_add(len) } else { context.registers.stack().wrapping_sub(red_zone) }
}

/// What `sigaltstack` says about the thread's alternate stack now.
pub fn stack_flags(context: &Context) -> u64 {
    const ON_STACK: u64 = 1;
    const DISABLED: u64 = 2;
    match context.signal_stack {
        [_, 0] => DISABLED,
        _ if is_on_signal_stack(context) => ON_STACK,
        _ => 0,
    }
}

/// Copies a set of signals from a program.
pub fn read_set(thread: &Thread, address: u64, size: u64) -> Result<Set, Errno> {
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; 8];
    uaccess::read(&thread.memory(), address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
