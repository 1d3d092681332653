//! Tracing of threads (`ptrace`): stops, and the tracer that ends them.
//!
//! A process traces threads of others ([`Process::tracees`]). A traced thread stops in its own
//! future, on its way to user mode or within a system call. It copies its registers to its
//! [`Halt`], and takes them back when it goes on: its tracer never touches the thread's own. A stop
//! ends when the tracer ends it, when the tracer is gone, or when the thread is killed.
//!
//! Whatever a traced thread does for that hangs on flags that each thread looks at in any case: it
//! counts as restricted (`Thread::is_restricted`) at the beginning of each system call, and is
//! alerted at the end.
//!
//! The tasklist lock is held wherever a thread gets or loses its tracer. A thread's trace is locked
//! after all locks of a process. Unlike on Linux, any thread of the tracer's process may make its
//! requests, and tracing ends with that process.

use crate::arch::regset::{CALL_STEP_CODE, NO_CALL, Stopped};
use crate::task::life::Life;
use crate::task::process::TasklistLock;
use crate::task::signal::{self, Info, bit};
use crate::task::{Process, Thread};
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use linux_raw_sys::ptrace::{
    PTRACE_EVENT_EXEC, PTRACE_EVENT_EXIT, PTRACE_EVENT_SECCOMP, PTRACE_EVENT_VFORK, PTRACE_EVENT_VFORK_DONE,
    PTRACE_O_EXITKILL, PTRACE_O_TRACEEXIT, PTRACE_O_TRACESECCOMP, PTRACE_O_TRACEVFORKDONE,
};
use vellum_kernel::credentials::id_index;
use vellum_kernel::errno::Errno;
use vellum_kernel::ptrace::{Cause, Resume, Stop, event_of_clone};

/// The result that a tracer sees of a call that a signal interrupted (Linux: `ERESTARTSYS`).
const RESTARTS: i64 = -512;
/// The last of the values of which a call is repeated (Linux: `ERESTART_RESTARTBLOCK`).
const LAST_RESTART: i64 = -516;

/// The state of a thread that is traced, or was until lately.
#[derive(Default)]
pub struct Trace {
    /// The tracer.
    pub link: Option<Link>,
    /// The stop that the thread is in.
    pub halt: Option<Halt>,
    /// The thread's end, until its tracer has been told.
    pub ended: Option<Life>,
    /// How the thread has gone on after its last stop.
    pub resume: Resume,
    /// True while the thread makes a system call whose end the tracer may want to know about.
    pub in_call: bool,
    /// True if the thread makes its last system call again because memory was short.
    pub repeats: bool,
    /// True if the thread is to stop without another reason (`PTRACE_INTERRUPT`).
    pub interrupts: bool,
    /// The number of the process's stop of which the tracer has been told ([`Process::stops`]).
    pub seen_stop: u32,
}

/// A thread's relation to its tracer.
#[derive(Clone)]
pub struct Link {
    /// The process that traces the thread.
    pub tracer: Weak<Process>,
    /// Its number.
    pub pid: u32,
    /// True if it began with `PTRACE_SEIZE`.
    pub is_seized: bool,
    /// The `PTRACE_O_` options.
    pub options: u32,
}

/// The state of a thread that has stopped for its tracer.
pub struct Halt {
    /// The stop, as the tracer sees it.
    pub stop: Stop,
    /// The signal's information.
    pub info: Info,
    /// True once a `wait` has reported the stop.
    pub is_reported: bool,
    /// True if the thread stops anew when its process goes on (`PTRACE_LISTEN`).
    pub listens: bool,
    /// Once the thread may go on, the signal that it takes; 0: none.
    pub resumed: Option<u32>,
    /// The thread's registers, which the tracer may change.
    pub registers: Box<Stopped>,
}

impl Trace {
    /// Returns the stop, if the thread is in one that its tracer has not ended.
    pub fn halted(&mut self) -> Option<&mut Halt> {
        self.halt.as_mut().filter(|halt| halt.resumed.is_none())
    }

    /// Returns whether an option is set.
    pub fn has_option(&self, option: u32) -> bool {
        self.link.as_ref().is_some_and(|link| link.options & option != 0)
    }
}

/// The signal and its information with which a thread goes on.
struct Resumed {
    /// The signal that it takes; 0: none.
    signal: u32,
    /// The information of the signal for which it stopped.
    info: Info,
    /// The number of the system call, which the tracer may have changed.
    call: u64,
}

/// Stops the thread for its tracer until that lets it go on. Returns `None` at once if nothing
/// traces it.
async fn stop(thread: &Arc<Thread>, cause: Cause, info: Option<Info>, message: u64) -> Option<Resumed> {
    begin(thread, cause, info, message)?;
    let process = &thread.process;
    let goes_on = || {
        let is_stopped = process.is_stopped();
        let mut trace = thread.trace.lock();
        let interrupts = trace.interrupts;
        let stays = trace.halted().is_some_and(|halt| !halt.listens || is_stopped && !interrupts);
        (!stays).then_some(())
    };
    // The error means that the thread is to end, and so goes on, too.
    let _ = thread.until_ending(process.changed.wait_until(goes_on)).await;
    finish(thread)
}

/// Begins a stop, and notifies the tracer.
fn begin(thread: &Arc<Thread>, cause: Cause, info: Option<Info>, message: u64) -> Option<()> {
    thread.save_extended();
    // SAFETY: runs in the thread's own future.
    let context = unsafe { thread.context() };
    let mut registers = Box::new(Stopped::of(&context.registers, &context.extended));
    if context.restart.is_some() {
        registers.registers.set_answer(RESTARTS as u64);
    }
    if matches!(cause, Cause::CallBegins | Cause::Event(PTRACE_EVENT_SECCOMP)) {
        registers.begin_call();
    }
    let user = thread.credentials().uids[id_index::REAL];
    let tasklist = TasklistLock::lock();
    let mut trace = thread.trace.lock();
    let Link { options, is_seized, tracer, .. } = trace.link.clone()?;
    if trace.resume == Resume::Step {
        registers.set_step(false);
    }
    let stop = Stop::new(cause, options, is_seized, message);
    let own = Info {
        signal: stop.status & 0x7f,
        errno: 0,
        code: stop.status as i32,
        fields: [u64::from(thread.tid) | u64::from(user) << 32, 0, 0, 0],
    };
    let info = info.unwrap_or(own);
    trace.halt = Some(Halt { stop, info, is_reported: false, listens: false, resumed: None, registers });
    drop(trace);
    if let Some(tracer) = tracer.upgrade() {
        notify(&tasklist, &tracer, thread.tid, abi::CLD_TRAPPED, stop.status);
    }
    Some(())
}

/// Ends a stop: takes the registers back.
fn finish(thread: &Arc<Thread>) -> Option<Resumed> {
    let mut trace = thread.trace.lock();
    let mut halt = trace.halt.take()?;
    let steps = trace.link.is_some() && trace.resume == Resume::Step;
    if halt.resumed.is_none() && halt.listens {
        // The process goes on, or the tracer interrupts the thread: it stops anew.
        trace.interrupts = true;
    } else if matches!(halt.stop.cause, Cause::Stop(signal) if signal != abi::SIGTRAP)
        && trace.link.as_ref().is_some_and(|link| link.is_seized)
        && !thread.process.is_stopped()
    {
        trace.interrupts = true;
    }
    let stops_anew = trace.interrupts;
    drop(trace);
    if stops_anew {
        thread.mark_alerted();
    }
    if steps {
        halt.registers.set_step(true);
    }
    if matches!(halt.stop.cause, Cause::CallBegins | Cause::Event(PTRACE_EVENT_SECCOMP)) {
        halt.registers.changed_call();
    }
    // SAFETY: runs in the thread's own future.
    let context = unsafe { thread.context() };
    let answer = halt.registers.registers.answer() as i64;
    context.restart = None;
    if (LAST_RESTART..=RESTARTS).contains(&answer) && halt.registers.call != NO_CALL {
        context.restart = Some(halt.registers.call);
        halt.registers.registers.set_answer(Errno::EINTR.returned() as u64);
    }
    halt.registers.restore(&mut context.registers, &mut context.extended);
    thread.unload_extended();
    let signal = halt.resumed.unwrap_or_default();
    if signal != 0 && halt.stop.takes_signal() {
        let info = Info { signal, code: abi::SI_USER as i32, ..Info::default() };
        thread.pending.lock().push(info);
        thread.alert();
    }
    Some(Resumed { signal, info: halt.info, call: halt.registers.call })
}

/// Stops a traced thread that is about to make a system call, if its tracer wants that. Returns the
/// call's number, or `None` if the tracer does not want the call to be made.
pub async fn call_begins(thread: &Arc<Thread>, number: u64) -> Option<u64> {
    let mut trace = thread.trace.lock();
    trace.in_call = true;
    let stops = trace.resume == Resume::Calls && !core::mem::take(&mut trace.repeats);
    drop(trace);
    // On the way back the thread stops, if the tracer wants that then.
    thread.mark_alerted();
    if !stops {
        return Some(number);
    }
    let call = stop(thread, Cause::CallBegins, None, 0).await.map_or(number, |resumed| resumed.call);
    (call as i32 >= 0).then_some(call)
}

/// Returns whether the thread's tracer wants to be told of calls for which a filter asks it.
pub fn asks_for_filtered(thread: &Thread) -> bool {
    thread.is_traced() && thread.trace.lock().has_option(PTRACE_O_TRACESECCOMP)
}

/// Stops a traced thread whose filter asks its tracer about a call. Returns the call's number, or
/// `None` if the tracer does not want the call to be made.
pub async fn filtered(thread: &Arc<Thread>, number: u64, data: u32) -> Option<u64> {
    let resumed = stop(thread, Cause::Event(PTRACE_EVENT_SECCOMP), None, data.into()).await;
    let call = resumed.map_or(number, |resumed| resumed.call);
    (call as i32 >= 0).then_some(call)
}

/// Notes that the thread makes its last system call again, which its tracer need not know.
pub fn call_repeats(thread: &Thread) {
    if thread.is_traced() {
        let mut trace = thread.trace.lock();
        (trace.repeats, trace.in_call) = (true, false);
    }
}

/// Stops a traced thread for what has come up while it was in the kernel, before it takes signals:
/// the end of a system call, or its tracer's wish.
pub async fn before_signals(thread: &Arc<Thread>) {
    let mut trace = thread.trace.lock();
    let ended_call = core::mem::take(&mut trace.in_call);
    let resume = trace.resume;
    drop(trace);
    match resume {
        Resume::Calls if ended_call => _ = stop(thread, Cause::CallEnds, None, 0).await,
        // The instruction after the call would be executed, too.
        Resume::Step if ended_call => step_ends(thread).await,
        _ => {}
    }
    let interrupts = core::mem::take(&mut thread.trace.lock().interrupts);
    if interrupts {
        let life = *thread.process.life.lock();
        let signal = if let Life::Stopped(signal, _) = life { signal } else { abi::SIGTRAP };
        stop(thread, Cause::Stop(signal), None, 0).await;
    }
}

/// Stops a thread of which the instruction that its tracer has let it execute was a system call.
async fn step_ends(thread: &Arc<Thread>) {
    let info = Info { signal: abi::SIGTRAP, code: CALL_STEP_CODE as i32, ..Info::default() };
    if let Some(info) = take_signal(thread, info).await {
        thread.pending.lock().push(info);
        thread.mark_alerted();
    }
}

/// Stops a thread of which the process is stopped.
pub async fn process_stopped(thread: &Arc<Thread>) {
    let process = &thread.process;
    let life = *process.life.lock();
    thread.trace.lock().seen_stop = process.stops.load(Ordering::Relaxed);
    if let Life::Stopped(signal, _) = life {
        stop(thread, Cause::Stop(signal), None, 0).await;
    }
}

/// Stops a thread that is about to take a signal. Returns the signal that it takes instead, if any.
pub async fn take_signal(thread: &Arc<Thread>, info: Info) -> Option<Info> {
    let Some(resumed) = stop(thread, Cause::Signal(info.signal), Some(info), 0).await else { return Some(info) };
    let info = match resumed.signal {
        0 => return None,
        signal if signal == resumed.info.signal => resumed.info,
        signal => {
            let tracer = thread.trace.lock().link.as_ref().map_or(0, |link| link.pid);
            Info { signal, code: abi::SI_USER as i32, fields: [tracer.into(), 0, 0, 0], errno: 0 }
        }
    };
    // It may have been blocked meanwhile.
    if thread.mask.load(Ordering::Relaxed) & bit(info.signal) != 0 {
        thread.pending.lock().push(info);
        return None;
    }
    Some(info)
}

/// Prepares the thread for a signal handler: a step ends at the handler's first instruction.
/// Returns whether it was to make a step.
pub fn ends_step(thread: &Thread) -> bool {
    let steps = thread.is_traced() && thread.trace.lock().resume == Resume::Step;
    if steps {
        thread.save_extended();
        // SAFETY: runs in the thread's own future.
        let context = unsafe { thread.context() };
        let mut registers = Stopped::of(&context.registers, &context.extended);
        registers.set_step(false);
        registers.restore(&mut context.registers, &mut context.extended);
        thread.unload_extended();
    }
    steps
}

/// Stops a thread that was to make a step where a handler begins.
pub async fn handler_begins(thread: &Arc<Thread>) {
    stop(thread, Cause::Event(0), None, 0).await;
}

/// Has the tracer of `maker` trace a thread that `maker` creates, if it wants that, and returns the
/// event of which the tracer is told ([`created`]). The new thread has not started.
pub fn inherit(maker: &Thread, new: &Arc<Thread>, flags: u64, exit_signal: u32) -> Option<u32> {
    if !maker.is_traced() {
        return None;
    }
    let _tasklist = TasklistLock::lock();
    let link = maker.trace.lock().link.clone()?;
    let event = event_of_clone(link.options, flags, exit_signal);
    if event.is_none() && flags & u64::from(abi::CLONE_PTRACE) == 0 {
        return None;
    }
    let tracer = link.tracer.upgrade()?;
    let is_seized = link.is_seized;
    {
        let mut trace = new.trace.lock();
        trace.link = Some(link);
        trace.interrupts = is_seized;
    }
    if !is_seized {
        new.pending.lock().push(Info { signal: abi::SIGSTOP, ..Info::default() });
    }
    new.set_traced(true);
    tracer.tracees.lock().insert(new.tid, new.clone());
    event
}

/// Stops a thread that has created another, as [`inherit`] has found.
pub async fn created(thread: &Arc<Thread>, event: Option<u32>, tid: u32) {
    if let Some(event) = event {
        stop(thread, Cause::Event(event), None, tid.into()).await;
    }
}

/// Stops a thread whose child has given its memory back (`vfork`), if its tracer wants that.
pub async fn child_has_gone_on(thread: &Arc<Thread>, tid: u32) {
    if thread.is_traced() && thread.trace.lock().has_option(PTRACE_O_TRACEVFORKDONE) {
        stop(thread, Cause::Event(PTRACE_EVENT_VFORK_DONE), None, tid.into()).await;
    }
}

/// Stops a thread that has executed a program, or sends it a signal, where its tracer did not ask
/// to be told otherwise.
pub async fn executed(thread: &Arc<Thread>) {
    let link = if thread.is_traced() { thread.trace.lock().link.clone() } else { None };
    match link {
        Some(link) if link.options >> PTRACE_EVENT_EXEC & 1 != 0 => {
            stop(thread, Cause::Event(PTRACE_EVENT_EXEC), None, thread.tid.into()).await;
        }
        Some(link) if !link.is_seized => {
            let fields = [thread.process.pid.into(), 0, 0, 0];
            let info = Info { signal: abi::SIGTRAP, errno: 0, code: abi::SI_USER as i32, fields };
            thread.pending.lock().push(info);
            thread.mark_alerted();
        }
        _ => {}
    }
}

/// Stops a thread that is about to end with this status, in the encoding of `wait4`, if its tracer
/// wants that.
pub async fn ends(thread: &Arc<Thread>, status: u32) {
    if thread.is_traced() && thread.trace.lock().has_option(PTRACE_O_TRACEEXIT) {
        stop(thread, Cause::Event(PTRACE_EVENT_EXIT), None, status.into()).await;
    }
}

/// Returns whether a process's thread is traced by the process `by`.
pub fn is_traced_by(process: &Process, by: &Process) -> bool {
    by.tracees.lock().contains_key(&process.pid)
}

const _: () = assert!(PTRACE_EVENT_VFORK == 2, "options and events have the same numbers");

/// Sends `SIGCHLD` about a traced thread, unless the tracer has set `SA_NOCLDSTOP` and the thread
/// has not ended, and wakes the tracer's `wait`.
pub fn notify(tasklist: &TasklistLock, tracer: &Arc<Process>, tid: u32, code: u32, status: u32) {
    let is_stop = code == abi::CLD_TRAPPED;
    let flags = tracer.signals.lock().action(abi::SIGCHLD).flags;
    if !is_stop || flags & u64::from(abi::SA_NOCLDSTOP) == 0 {
        let fields = [tid.into(), status.into(), 0, 0];
        signal::send_locked(tasklist, tracer, Info { signal: abi::SIGCHLD, errno: 0, code: code as i32, fields });
    }
    tracer.child_changed.wake_all();
}

/// Makes `tracer` trace a thread from now on.
///
/// # Errors
///
/// `EPERM`: the thread is traced already, or is ending.
pub fn attach(tracer: &Arc<Process>, thread: &Arc<Thread>, is_seized: bool, options: u32) -> Result<(), Errno> {
    let tasklist = TasklistLock::lock();
    if thread.ending.load(Ordering::SeqCst) || tracer.life.lock().is_over() {
        return Err(Errno::EPERM);
    }
    let mut trace = thread.trace.lock();
    if trace.link.is_some() {
        return Err(Errno::EPERM);
    }
    let link = Link { tracer: Arc::downgrade(tracer), pid: tracer.pid, is_seized, options };
    *trace = Trace { link: Some(link), seen_stop: u32::MAX, ..Trace::default() };
    drop(trace);
    thread.set_traced(true);
    tracer.tracees.lock().insert(thread.tid, thread.clone());
    drop(tasklist);
    // A thread whose process is stopped stops for its tracer.
    thread.process.changed.wake_all();
    Ok(())
}

/// Ends a stop: the thread goes on as `resume` says, with a signal, unless that is 0.
///
/// # Errors
///
/// `ESRCH`: the thread is not in a stop.
pub fn resume(thread: &Thread, resume: Resume, signal: u32) -> Result<(), Errno> {
    let mut trace = thread.trace.lock();
    trace.halted().filter(|halt| !halt.listens).ok_or(Errno::ESRCH)?.resumed = Some(signal);
    trace.resume = resume;
    drop(trace);
    thread.process.changed.wake_all();
    Ok(())
}

/// Ends the tracing of a thread, which takes `signal`, unless that is 0, if it is in a stop.
pub fn release(tracer: &Process, thread: &Arc<Thread>, signal: u32) {
    let tasklist = TasklistLock::lock();
    release_locked(&tasklist, thread, signal);
    tracer.tracees.lock().remove(&thread.tid);
}

fn release_locked(_: &TasklistLock, thread: &Arc<Thread>, signal: u32) {
    let mut trace = thread.trace.lock();
    trace.link = None;
    (trace.resume, trace.interrupts, trace.in_call, trace.repeats) = (Resume::Run, false, false, false);
    if let Some(halt) = trace.halted() {
        halt.resumed = Some(signal);
    }
    drop(trace);
    thread.set_traced(false);
    thread.alert();
    thread.process.changed.wake_all();
}

/// Ends all tracing by a process that ends.
pub fn release_all(tracer: &Process) {
    loop {
        let tasklist = TasklistLock::lock();
        let Some((_, thread)) = tracer.tracees.lock().pop_first() else { return };
        let kills = thread.trace.lock().has_option(PTRACE_O_EXITKILL);
        release_locked(&tasklist, &thread, 0);
        drop(tasklist);
        if kills {
            thread.process.end(Life::Killed(abi::SIGKILL));
        }
        if thread.trace.lock().ended.is_some() {
            *thread.counted.lock() = None;
        }
    }
}

/// Notes that a traced thread has ended, and notifies its tracer. Returns whether the tracer has to
/// be told, so that the thread counts as one until then.
pub fn thread_ended(thread: &Arc<Thread>) -> bool {
    if !thread.is_traced() {
        return false;
    }
    let tasklist = TasklistLock::lock();
    let process = &thread.process;
    let own = *process.life.lock();
    let life = if own.is_over() { own } else { Life::Exited(thread.exit_status.load(Ordering::Relaxed) as u8) };
    let mut trace = thread.trace.lock();
    let Some(tracer) = trace.link.as_ref().and_then(|link| link.tracer.upgrade()) else { return false };
    let parent = process.parent.lock().as_ptr();
    let is_known = thread.tid == process.pid && parent == Arc::as_ptr(&tracer);
    if is_known {
        // The tracer is told as the parent, when all threads have ended.
        trace.link = None;
        drop(trace);
        tracer.tracees.lock().remove(&thread.tid);
        return false;
    }
    trace.ended = Some(life);
    drop(trace);
    let (code, status) = life.child_status();
    notify(&tasklist, &tracer, thread.tid, code, status);
    true
}
