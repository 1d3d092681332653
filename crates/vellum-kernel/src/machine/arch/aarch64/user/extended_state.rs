//! A thread's extended registers: the FPU and vector registers, and the thread pointer. The kernel
//! itself is compiled without them, so a CPU keeps those of the thread that ran last.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The saved extended registers of a thread, valid while no CPU has them loaded.
#[repr(C, align(16))]
#[derive(Clone)]
pub struct ExtendedState {
    /// V0 to V31.
    pub vector: [u128; 32],
    /// The floating-point status (FPSR).
    pub status: u64,
    /// The floating-point control (FPCR).
    pub control: u64,
    /// The thread pointer (TPIDR_EL0).
    pub thread_pointer: u64,
    /// True if user mode stops after an instruction.
    steps: bool,
}

global_asm!(
    r#"
    .section .text.extended, "ax", @progbits
    .arch_extension fp
    .arch_extension simd
extended_save:                              // (state)
    stp     q0, q1, [x0, #0]
    stp     q2, q3, [x0, #32]
    stp     q4, q5, [x0, #64]
    stp     q6, q7, [x0, #96]
    stp     q8, q9, [x0, #128]
    stp     q10, q11, [x0, #160]
    stp     q12, q13, [x0, #192]
    stp     q14, q15, [x0, #224]
    stp     q16, q17, [x0, #256]
    stp     q18, q19, [x0, #288]
    stp     q20, q21, [x0, #320]
    stp     q22, q23, [x0, #352]
    stp     q24, q25, [x0, #384]
    stp     q26, q27, [x0, #416]
    stp     q28, q29, [x0, #448]
    stp     q30, q31, [x0, #480]
    mrs     x1, fpsr
    mrs     x2, fpcr
    add     x0, x0, #512
    stp     x1, x2, [x0]
    mrs     x1, tpidr_el0
    str     x1, [x0, #16]
    ret
extended_restore:                           // (state)
    ldp     q0, q1, [x0, #0]
    ldp     q2, q3, [x0, #32]
    ldp     q4, q5, [x0, #64]
    ldp     q6, q7, [x0, #96]
    ldp     q8, q9, [x0, #128]
    ldp     q10, q11, [x0, #160]
    ldp     q12, q13, [x0, #192]
    ldp     q14, q15, [x0, #224]
    ldp     q16, q17, [x0, #256]
    ldp     q18, q19, [x0, #288]
    ldp     q20, q21, [x0, #320]
    ldp     q22, q23, [x0, #352]
    ldp     q24, q25, [x0, #384]
    ldp     q26, q27, [x0, #416]
    ldp     q28, q29, [x0, #448]
    ldp     q30, q31, [x0, #480]
    add     x0, x0, #512
    ldp     x1, x2, [x0]
    msr     fpsr, x1
    msr     fpcr, x2
    ldr     x1, [x0, #16]
    msr     tpidr_el0, x1
    ret
    "#
);

/// True once a thread is to stop after an instruction: until then no CPU need look.
static STEPPED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn extended_save(extended: *mut ExtendedState);
    fn extended_restore(extended: *const ExtendedState);
}

impl ExtendedState {
    /// Returns the state in which a program starts.
    pub const fn new() -> Self {
        Self { vector: [0; 32], status: 0, control: 0, thread_pointer: 0, steps: false }
    }

    /// Sets the thread pointer.
    pub fn set_thread_pointer(&mut self, value: u64) {
        self.thread_pointer = value;
    }

    /// Sets whether user mode stops after an instruction, from the next [`Self::restore`] on.
    pub fn set_step(&mut self, steps: bool) {
        self.steps = steps;
        STEPPED.fetch_or(steps, Relaxed);
    }

    /// Returns whether user mode may not read the time-stamp counter: it always may.
    pub fn denies_tsc(&self) -> bool {
        false
    }

    /// Sets whether user mode may not read the time-stamp counter. Returns false if the
    /// architecture can't.
    pub fn deny_tsc(&mut self, denies: bool) -> bool {
        !denies
    }

    /// Loads the rights to memory with protection keys: there are none.
    pub fn load_rights(&self) {}

    /// Gives a signal handler the rights that a program begins with. Returns false: it has them.
    pub fn reset_rights(&mut self) -> bool {
        false
    }

    /// Sets what the thread may not do to memory with a protection key, of which there are none.
    pub fn deny(&mut self, _key: u8, _denied: u32) {}

    /// Saves the extended registers of this CPU into this state.
    pub fn save(&mut self) {
        // SAFETY: the assembly code writes this structure, whose layout it knows.
        unsafe { extended_save(self) };
    }

    /// Loads this state into the extended registers of this CPU.
    pub fn restore(&self) {
        // SAFETY: the assembly code reads this structure, whose layout it knows; the kernel does
        // not use the registers.
        unsafe { extended_restore(self) };
        if STEPPED.load(Relaxed) {
            // SAFETY: SS of MDSCR_EL1 concerns user mode alone. The lock of the debug registers,
            // which would keep the exception away, is opened first.
            unsafe {
                write_register!("oslar_el1", 0);
                write_register!("mdscr_el1", u64::from(self.steps));
            }
        }
    }
}
