//! A thread's life: into user mode, and what it comes back for, again and again.

use super::thread::{NOWHERE, Thread};
use crate::arch::cpu::after_store;
use crate::arch::types::Trap;
use crate::arch::{entry, interrupts};
use crate::mem::thread::{self, BlockedOn};
use crate::mem::{now_ns, space};
use crate::task::{background, deliver, executor, percpu, time};
use alloc::sync::Arc;
use core::pin::Pin;
use core::ptr;
use core::sync::atomic::Ordering;
use core::task::{Context as Waking, Poll};
use vellum_kernel::errno::Errno;

/// Whether a system call that a signal ended is made again (signal(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restart {
    /// It is not.
    Never,
    /// It is after a signal that no handler took: one that stopped the program, say.
    AfterStops,
    /// It is also after a handler that asks for that (`SA_RESTART`).
    AfterHandlers,
}

/// What the layer of the system calls does for a thread. The calls are bound statically: they cost
/// what a direct call costs.
pub trait SystemCalls: 'static {
    /// Carries out a system call of the thread's, which runs in the thread's own future.
    fn call(thread: &Arc<Thread>, number: u64, arguments: [u64; 6]) -> impl Future<Output = Result<u64, Errno>> + Send;

    /// Returns whether a call that a signal ended is made again.
    fn restarts(number: u64) -> Restart;

    /// Ends the thread: called last, in the thread's own future.
    fn thread_ends(thread: &Arc<Thread>);
}

impl Thread {
    /// Lets the thread run, with `S` for its system calls.
    pub fn start<S: SystemCalls>(self: Arc<Self>) {
        executor::spawn_ranked(self.rank.clone(), Running { thread: self.clone(), future: run::<S>(self) });
    }

    /// Runs user mode until it comes back.
    fn enter(self: &Arc<Self>) -> Trap {
        interrupts::disable();
        let cpu = percpu::current();
        if cpu.thread.get() != Arc::as_ptr(self) {
            self.resume();
        }
        self.place.store(cpu.mem.arch.index, Ordering::SeqCst);
        after_store();
        if cpu.mem.arch.tick.load(Ordering::Relaxed) || self.alerted.load(Ordering::SeqCst) {
            self.place.store(NOWHERE, Ordering::Relaxed);
            interrupts::enable();
            return Trap::Interrupt;
        }
        // SAFETY: the thread's own future runs this.
        space::load(unsafe { &self.context().memory });
        time::arm_for_turn();
        // SAFETY: the thread's own future runs this, and keeps no reference.
        let registers = unsafe { &mut self.context().registers };
        #[cfg(feature = "holds")]
        crate::mem::holds::end(crate::mem::holds::Kind::Work);
        // SAFETY: interrupts are off. The registers are the thread's, whose space and other
        // registers are loaded; whoever writes the segments or flags takes what user mode may have.
        let trap = unsafe { entry::enter(registers) };
        #[cfg(feature = "holds")]
        crate::mem::holds::begin(crate::mem::holds::Kind::Work);
        self.place.store(NOWHERE, Ordering::Relaxed);
        interrupts::enable();
        trap
    }

    /// Has this processor hold the thread's registers, beside the general ones.
    #[cold]
    fn resume(&self) {
        // SAFETY: the thread's own future runs this.
        let context = unsafe { self.context() };
        context.held.restore();
        percpu::current().thread.set(ptr::from_ref(self));
    }

    /// Takes them back, if this processor holds them.
    fn suspend(&self) {
        self.save_held();
        self.forget_held();
    }

    /// Brings the saved registers beside the general ones up to date. For the thread's own future.
    pub fn save_held(&self) {
        if ptr::eq(percpu::current().thread.get(), self) {
            // SAFETY: the thread's own future runs this.
            unsafe { self.context() }.held.save();
        }
    }

    /// From now on the saved ones are those that count. For the thread's own future.
    pub fn forget_held(&self) {
        let cpu = percpu::current();
        if ptr::eq(cpu.thread.get(), self) {
            cpu.thread.set(ptr::null());
        }
    }
}

/// The thread's future, which takes the thread's registers along when it gives way.
struct Running<F> {
    thread: Arc<Thread>,
    future: F,
}

impl<F: Future<Output = ()>> Future for Running<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Waking) -> Poll<()> {
        // SAFETY: `future` is never moved: this is the only access to it, and hands out a pinned
        // reference.
        let (thread, future) = unsafe {
            let this = self.get_unchecked_mut();
            (&this.thread, Pin::new_unchecked(&mut this.future))
        };
        let cpu = percpu::current();
        cpu.polled.set(Arc::as_ptr(thread));
        // SAFETY: the future has a reference to the thread, and the thread to its process, for as
        // long as it is polled.
        unsafe { thread::work_for(&thread.mem, &thread.process.payer) };
        let began = now_ns();
        thread.working.store(began, Ordering::Relaxed);
        let outcome = future.poll(context);
        cpu.polled.set(ptr::null());
        thread::work_for_none();
        thread.worked.fetch_add(now_ns().saturating_sub(began), Ordering::Relaxed);
        thread.working.store(0, Ordering::Relaxed);
        thread.suspend();
        outcome
    }
}

/// The thread's life.
async fn run<S: SystemCalls>(thread: Arc<Thread>) {
    loop {
        match thread.enter() {
            Trap::PageFault(address, access) => {
                // SAFETY: the thread's own future, and the reference is used for the last time by
                // the fault.
                let memory = &unsafe { thread.context() }.memory;
                let result = memory.engine.fault(address, access);
                thread.mem.faults.count(&result);
                if let Err(error) = result {
                    let passed = match BlockedOn::of(error, &thread.memory()) {
                        Some(on) => on.passes(&thread, false).await,
                        None => false,
                    };
                    if !passed {
                        deliver::fault(&thread, address, error);
                    }
                }
                if background::look() {
                    executor::give_way().await;
                }
            }
            Trap::SystemCall(number) => {
                // SAFETY: as above.
                let arguments = unsafe { thread.context() }.registers.arguments();
                let answer = S::call(&thread, number, arguments).await;
                if thread.mem.is_blocked() && thread.may_repeat(answer).await {
                    deliver::again(&thread, number);
                } else {
                    deliver::answer::<S>(&thread, number, answer);
                }
            }
            Trap::Exception(raised) => deliver::exception(&thread, raised),
            Trap::Interrupt => {
                time::expire();
                if thread.alerted.swap(false, Ordering::SeqCst) && !deliver::settle::<S>(&thread).await {
                    break;
                }
                if executor::others_wait() {
                    executor::give_way().await;
                }
            }
        }
    }
    S::thread_ends(&thread);
}
