//! A thread's loop: enter user mode, handle the trap that ends it, and enter again.

use super::thread::{NOT_IN_USER, Thread};
use crate::arch::cause::Cause;
use crate::arch::cpu::store_load_barrier;
use crate::arch::types::Trap;
use crate::arch::{entry, interrupts};
use crate::mem::thread::{self, BlockedOn};
use crate::mem::{now_ns, space};
use crate::task::{background, blocked, deliver, executor, percpu, time};
use alloc::sync::Arc;
use core::pin::Pin;
use core::ptr;
use core::sync::atomic::Ordering;
use core::task::{Context as Waking, Poll};
use vellum_kernel::errno::Errno;
use vellum_kernel::siginfo::Info;

/// The rule by which a system call that a signal interrupted is restarted (signal(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// It is never restarted.
    Never,
    /// It is restarted after a signal without a handler, for example one that stopped the program.
    AfterStops,
    /// It is also restarted after a handler with `SA_RESTART`.
    AfterHandlers,
}

/// The interface to the system call layer. It is bound statically, so that it costs no more than a
/// direct call.
pub trait SystemCalls: 'static {
    /// Executes a system call in the thread's own future.
    fn call(thread: &Arc<Thread>, number: u64, arguments: [u64; 6]) -> impl Future<Output = Result<u64, Errno>> + Send;

    /// Checks a system call of a thread whose calls are restricted or traced. Returns the number of
    /// the call that it makes, or `None` if it makes none, and what happens instead is done.
    fn check(thread: &Arc<Thread>, number: u64) -> impl Future<Output = Option<u64>> + Send;

    /// Returns the restart rule of a system call.
    fn restarts(number: u64) -> Restart;

    /// Writes the core of the thread's process, which a signal is about to end, to a file, unless
    /// the process may have none. Returns whether it did.
    fn dump_core(thread: &Arc<Thread>, info: &Info) -> impl Future<Output = bool> + Send;

    /// Ends the thread. Called once, at the end of the thread's own future.
    fn thread_ends(thread: &Arc<Thread>);
}

impl Thread {
    /// Lets the thread run, with `S` for its system calls.
    pub fn start<S: SystemCalls>(self: Arc<Self>) {
        executor::spawn_with(self.entity.clone(), Running { thread: self.clone(), future: run::<S>(self) });
    }

    /// Enters user mode and returns the trap that ended it. Returns at once, as if interrupted, if
    /// the thread is alerted or this CPU's tick is due.
    fn enter(self: &Arc<Self>) -> Trap {
        interrupts::disable();
        let cpu = percpu::current();
        if cpu.thread.get() != Arc::as_ptr(self) {
            self.resume();
        }
        self.user_cpu.store(cpu.mem.arch.index, Ordering::SeqCst);
        store_load_barrier();
        if cpu.mem.arch.tick.load(Ordering::Relaxed) || self.alerted.load(Ordering::SeqCst) {
            self.user_cpu.store(NOT_IN_USER, Ordering::Relaxed);
            interrupts::enable();
            return Trap::Interrupt;
        }
        // SAFETY: runs in the thread's own future.
        space::load(unsafe { &self.context().memory });
        time::arm_for_time_slice();
        // SAFETY: runs in the thread's own future, which keeps no other reference.
        let registers = unsafe { &mut self.context().registers };
        #[cfg(feature = "holds")]
        crate::mem::holds::end(crate::mem::holds::Kind::Work);
        // SAFETY: interrupts are off. The registers are the thread's, its space and its extended
        // registers are loaded, and all code that sets segments or flags admits only what user mode
        // may have.
        let trap = unsafe { entry::enter(registers) };
        #[cfg(feature = "holds")]
        crate::mem::holds::begin(crate::mem::holds::Kind::Work);
        self.cause.set(Cause::of(&trap));
        self.user_cpu.store(NOT_IN_USER, Ordering::Relaxed);
        interrupts::enable();
        trap
    }

    /// Loads the thread's extended registers (FPU, vector, TLS) on this CPU.
    #[cold]
    fn resume(&self) {
        // SAFETY: runs in the thread's own future.
        let context = unsafe { self.context() };
        context.extended.restore();
        percpu::current().thread.set(ptr::from_ref(self));
    }

    /// Saves the thread's extended registers, if this CPU holds them, and marks them as not loaded.
    fn suspend(&self) {
        self.save_extended();
        self.unload_extended();
    }

    /// Updates the saved extended registers from this CPU, if it holds them. Must run in the
    /// thread's own future.
    pub fn save_extended(&self) {
        if ptr::eq(percpu::current().thread.get(), self) {
            // SAFETY: runs in the thread's own future.
            unsafe { self.context() }.extended.save();
        }
    }

    /// Sets whether the thread's program may not read the time-stamp counter. Returns false if the
    /// architecture can't. Must run in the thread's own future.
    pub fn deny_tsc(&self, denies: bool) -> bool {
        self.save_extended();
        // SAFETY: runs in the thread's own future.
        let can = unsafe { self.context() }.extended.deny_tsc(denies);
        self.unload_extended();
        can
    }

    /// Sets what the thread may not do to memory with a protection key (`PKEY_DISABLE_*`). Must run
    /// in the thread's own future.
    pub fn deny_key(&self, key: u8, denied: u32) {
        self.save_extended();
        // SAFETY: runs in the thread's own future.
        unsafe { self.context() }.extended.deny(key, denied);
        self.unload_extended();
    }

    /// Marks the thread's extended registers as not loaded, so that the saved copy is loaded before
    /// user mode. Must run in the thread's own future.
    pub fn unload_extended(&self) {
        let cpu = percpu::current();
        if ptr::eq(cpu.thread.get(), self) {
            cpu.thread.set(ptr::null());
        }
    }
}

/// The thread's future. It saves the thread's extended registers whenever the task yields.
struct Running<F> {
    thread: Arc<Thread>,
    future: F,
}

impl<F: Future<Output = ()>> Future for Running<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Waking) -> Poll<()> {
        // SAFETY: `future` is never moved: this is the only access to it, and it hands out a pinned
        // reference.
        let (thread, future) = unsafe {
            let this = self.get_unchecked_mut();
            (&this.thread, Pin::new_unchecked(&mut this.future))
        };
        let cpu = percpu::current();
        thread.cause.note();
        cpu.polled.set(Arc::as_ptr(thread));
        // SAFETY: the future holds a reference to the thread, and the thread one to its process,
        // for as long as it is polled.
        unsafe { thread::work_for(&thread.mem, &thread.process.payer) };
        // SAFETY: the thread's own future does not run yet.
        unsafe { thread.context() }.extended.load_rights();
        let began = now_ns();
        thread.running_since.store(began, Ordering::Relaxed);
        let outcome = future.poll(context);
        cpu.polled.set(ptr::null());
        thread::work_for_none();
        thread.cpu_time.fetch_add(now_ns().saturating_sub(began), Ordering::Relaxed);
        thread.running_since.store(0, Ordering::Relaxed);
        thread.suspend();
        outcome
    }
}

/// Runs the thread's loop until the thread ends.
async fn run<S: SystemCalls>(thread: Arc<Thread>) {
    loop {
        match thread.enter() {
            Trap::PageFault(address, access) => {
                // SAFETY: runs in the thread's own future, and the reference is last used by the
                // fault.
                let memory = &unsafe { thread.context() }.memory;
                let result = memory.engine.fault(address, access);
                thread.mem.faults.count(&result);
                if let Err(error) = result {
                    let passed = match BlockedOn::of(error, &thread.memory()) {
                        Some(on) => on.wait(&thread, false).await,
                        None => false,
                    };
                    if !passed {
                        deliver::fault(&thread, address, error);
                    }
                }
                if background::wake_if_low() {
                    executor::yield_now().await;
                }
                if thread.mem.dirtied.is_some() {
                    blocked::throttle(&thread).await;
                }
            }
            Trap::SystemCall(mut number) => {
                if thread.is_restricted.load(Ordering::Relaxed) {
                    match S::check(&thread, number).await {
                        Some(checked) => number = checked,
                        None => continue,
                    }
                }
                // SAFETY: runs in the thread's own future.
                let arguments = unsafe { thread.context() }.registers.arguments();
                let answer = S::call(&thread, number, arguments).await;
                if thread.mem.is_blocked() && thread.may_repeat(answer).await {
                    deliver::again(&thread, number);
                } else {
                    deliver::answer::<S>(&thread, number, answer);
                }
                if thread.mem.dirtied.is_some() {
                    blocked::throttle(&thread).await;
                }
            }
            Trap::Exception(raised) => deliver::exception(&thread, raised),
            Trap::Interrupt => {
                time::expire();
                if thread.alerted.swap(false, Ordering::SeqCst) && !deliver::handle_alert::<S>(&thread).await {
                    break;
                }
                if executor::is_contended() {
                    executor::yield_now().await;
                }
            }
        }
    }
    S::thread_ends(&thread);
}
