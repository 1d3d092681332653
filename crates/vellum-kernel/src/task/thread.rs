//! A user thread: a future that enters user mode again and again.

use crate::arch::entry::{self, Registers, SYSTEM_CALL};
use crate::arch::trap::{self, PAGE_FAULT};
use crate::arch::{cpu, percpu, vector};
use crate::mem::{UserSpace, space, uaccess};
use crate::task::{Process, executor, time};
use crate::{println, sys};
use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::pin::Pin;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context as Waking, Poll};
use x86_64::VirtAddr;
use x86_64::instructions::interrupts;
use x86_64::registers::control::Cr2;
use x86_64::registers::model_specific::{FsBase, KernelGsBase};
use x86_64::structures::idt::PageFaultErrorCode as Code;

/// A thread.
pub struct Thread {
    /// Its number.
    pub tid: u32,
    /// The program that it is a thread of.
    pub process: Arc<Process>,
    /// The memory it runs in.
    pub memory: Arc<UserSpace>,
    /// Whether it is to end.
    pub ending: AtomicBool,
    context: UnsafeCell<Context>,
}

// SAFETY: the context is touched by the thread's own future only, which one processor polls at a time.
unsafe impl Sync for Thread {}

/// What a thread has of the processor.
pub struct Context {
    /// The general registers.
    pub registers: Registers,
    /// The vector registers, while no processor holds them.
    pub vector: vector::State,
    /// Segment bases.
    pub fs: u64,
    /// As above.
    pub gs: u64,
    /// Where the kernel writes 0 when the thread ends (`set_tid_address`).
    pub clear_tid: u64,
}

impl Thread {
    /// A thread that will begin with these registers.
    pub fn new(tid: u32, process: Arc<Process>, memory: Arc<UserSpace>, registers: Registers) -> Arc<Self> {
        let context = Context { registers, vector: vector::State::new(), fs: 0, gs: 0, clear_tid: 0 };
        Arc::new(Self { tid, process, memory, ending: AtomicBool::new(false), context: UnsafeCell::new(context) })
    }

    /// The context.
    ///
    /// # Safety
    ///
    /// Called by the thread's own future; the reference ends before the next is asked for.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn context(&self) -> &mut Context {
        // SAFETY: by contract, and by the `Sync` above.
        unsafe { &mut *self.context.get() }
    }

    /// Lets the thread run.
    pub fn start(self: Arc<Self>) {
        executor::spawn(Running { thread: self.clone(), future: run(self) });
    }

    /// Runs user mode until it comes back.
    fn enter(self: &Arc<Self>) -> Trap {
        interrupts::disable();
        let cpu = percpu::current();
        if cpu.thread.get() != Arc::as_ptr(self) {
            self.resume();
        }
        if cpu.tick.load(Ordering::Relaxed) {
            interrupts::enable();
            return Trap::Interrupt;
        }
        space::load(&self.memory);
        time::arm_for_turn();
        // SAFETY: the thread's own future runs this, and keeps no reference.
        let registers = unsafe { &mut self.context().registers };
        // SAFETY: interrupts are off. The registers are the thread's, whose space and vector registers are loaded; whoever
        // writes the segments or flags takes what user mode may have.
        unsafe { entry::enter(registers) };
        // Before anything else can fault.
        let address = if registers.vector == PAGE_FAULT { Cr2::read_raw() } else { 0 };
        let (vector, error) = (registers.vector, registers.error);
        cpu::forbid_user_access();
        if vector >= 32 && vector != SYSTEM_CALL {
            trap::interrupt(vector);
        }
        interrupts::enable();
        match vector {
            SYSTEM_CALL => Trap::SystemCall(error),
            PAGE_FAULT => Trap::PageFault(address, Code::from_bits_truncate(error)),
            0..32 => Trap::Exception(vector),
            _ => Trap::Interrupt,
        }
    }

    /// Has this processor hold the thread's registers, beside the general ones.
    #[cold]
    fn resume(&self) {
        // SAFETY: the thread's own future runs this.
        let context = unsafe { self.context() };
        context.vector.restore();
        FsBase::write(VirtAddr::new_truncate(context.fs));
        KernelGsBase::write(VirtAddr::new_truncate(context.gs));
        percpu::current().thread.set(ptr::from_ref(self));
    }

    /// Takes them back, if this processor holds them.
    fn suspend(&self) {
        let cpu = percpu::current();
        if ptr::eq(cpu.thread.get(), self) {
            // SAFETY: the thread's own future runs this.
            unsafe { self.context() }.vector.save();
            cpu.thread.set(ptr::null());
        }
    }
}

/// Why user mode was left.
enum Trap {
    /// For a system call of this number.
    SystemCall(u64),
    /// A touch of this address.
    PageFault(u64, Code),
    /// Another exception.
    Exception(u64),
    /// Something that is not the thread's business.
    Interrupt,
}

/// The thread's future, which takes the thread's registers along when it gives way.
struct Running<F> {
    thread: Arc<Thread>,
    future: F,
}

impl<F: Future<Output = ()>> Future for Running<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Waking) -> Poll<()> {
        // SAFETY: `future` is never moved: this is the only access to it, and hands out a pinned reference.
        let (thread, future) = unsafe {
            let this = self.get_unchecked_mut();
            (&this.thread, Pin::new_unchecked(&mut this.future))
        };
        let outcome = future.poll(context);
        thread.suspend();
        outcome
    }
}

/// The thread's life.
async fn run(thread: Arc<Thread>) {
    while !thread.ending.load(Ordering::Relaxed) {
        match thread.enter() {
            Trap::PageFault(address, code) => {
                if let Err(error) = thread.memory.engine.fault(address, uaccess::access(code)) {
                    // SAFETY: the thread's own future.
                    let registers = unsafe { &thread.context().registers };
                    println!("thread {}: {error} ({code:?})\n{registers}", thread.tid);
                    sys::process::exit_group(&thread, 128 + 11);
                }
            }
            Trap::SystemCall(number) => {
                // SAFETY: the thread's own future, and the reference ends here.
                let r = unsafe { thread.context().registers };
                let arguments = [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
                let answer =
                    sys::call(&thread, number, arguments).await.unwrap_or_else(|error| error.returned() as u64);
                // SAFETY: as above.
                unsafe { thread.context() }.registers.rax = answer;
            }
            Trap::Exception(number) => {
                // SAFETY: as above.
                let registers = unsafe { &thread.context().registers };
                println!("thread {}: exception {number}\n{registers}", thread.tid);
                sys::process::exit_group(&thread, 128 + 4);
            }
            Trap::Interrupt => {
                time::expire();
                if executor::others_wait() {
                    executor::give_way().await;
                }
            }
        }
    }
}
