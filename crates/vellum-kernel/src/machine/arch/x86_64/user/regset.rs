//! The registers of a traced thread, in the layouts in which its tracer sees them (`ptrace`).

use crate::arch::cpu::{USER_CODE, USER_DATA};
use crate::arch::entry::{Registers, SYSTEM_CALL};
use crate::arch::extended_state::ExtendedState;
use crate::arch::frame::USER_FLAGS;
use crate::arch::paging::user_end;
use alloc::vec::Vec;
use vellum_kernel::errno::Errno;
use x86_64::registers::rflags::RFlags;

/// The number of words of `struct user_regs_struct`.
pub const WORDS: usize = 27;
/// The code of the signal that ends a step at the end of a system call, as on Linux.
pub const CALL_STEP_CODE: u32 = linux_raw_sys::general::TRAP_BRKPT;
/// The number of a call where there is none.
pub const NO_CALL: u64 = u64::MAX;
/// The kinds of register sets: `NT_PRSTATUS`, `NT_PRFPREG`, `NT_X86_XSTATE`.
const GENERAL: u32 = 1;
const FLOATING: u32 = 2;
const EXTENDED: u32 = 0x202;
/// The selectors of user mode's segments on Linux, by which debuggers know a 64-bit program.
const CODE: u64 = 0x33;
const DATA: u64 = 0x2b;
/// The offset in the extended state at which programs find the enabled components.
const COMPONENTS: usize = 464;
/// The size in bytes of the legacy area, which `PTRACE_GETFPREGS` copies.
pub const LEGACY: usize = 512;

/// The registers of a thread that has stopped for its tracer.
pub struct Stopped {
    /// The general registers.
    pub registers: Registers,
    /// The extended registers.
    pub extended: ExtendedState,
    /// The number of the system call that the thread makes or has made last, or [`NO_CALL`].
    pub call: u64,
}

impl Stopped {
    /// Copies a thread's registers.
    pub fn of(registers: &Registers, extended: &ExtendedState) -> Self {
        let call = if registers.vector == SYSTEM_CALL { registers.error } else { NO_CALL };
        Self { registers: *registers, extended: extended.clone(), call }
    }

    /// Makes the registers look as Linux's do where a system call begins.
    pub fn begin_call(&mut self) {
        self.registers.rax = (-i64::from(Errno::ENOSYS.number())) as u64;
    }

    /// Takes over what the tracer has changed of a call that begins.
    pub fn changed_call(&mut self) {}

    /// Returns the general registers (`struct user_regs_struct`).
    pub fn general(&self) -> [u64; WORDS] {
        let (r, extended) = (&self.registers, &self.extended);
        let first = [r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx, r.rsi];
        let rest = [r.rdi, self.call, r.rip, CODE, r.rflags, r.rsp, DATA, extended.fs, extended.gs, 0, 0, 0, 0];
        let mut words = [0; WORDS];
        words[..14].copy_from_slice(&first);
        words[14..].copy_from_slice(&rest);
        words
    }

    /// Sets the general registers, as far as user mode may set them. Segments stay as they are.
    ///
    /// # Errors
    ///
    /// `EIO`: an address is no user address.
    pub fn set_general(&mut self, words: &[u64; WORDS]) -> Result<(), Errno> {
        let [rip, fs, gs] = [words[16], words[21], words[22]];
        if [rip, fs, gs].iter().any(|address| *address >= user_end()) {
            return Err(Errno::EIO);
        }
        let r = &mut self.registers;
        let places = [
            &mut r.r15,
            &mut r.r14,
            &mut r.r13,
            &mut r.r12,
            &mut r.rbp,
            &mut r.rbx,
            &mut r.r11,
            &mut r.r10,
            &mut r.r9,
            &mut r.r8,
            &mut r.rax,
            &mut r.rcx,
            &mut r.rdx,
            &mut r.rsi,
            &mut r.rdi,
            &mut self.call,
            &mut r.rip,
        ];
        places.into_iter().zip(words).for_each(|(place, word)| *place = *word);
        (r.cs, r.ss, r.rsp) = (USER_CODE, USER_DATA, words[19]);
        r.rflags = words[18] & USER_FLAGS | RFlags::INTERRUPT_FLAG.bits();
        (self.extended.fs, self.extended.gs) = (fs, gs);
        Ok(())
    }

    /// Returns a register set; `None` if there is no such kind.
    pub fn set_of_kind(&self, kind: u32) -> Option<Vec<u8>> {
        let bytes = self.extended.vector.bytes();
        match kind {
            GENERAL => Some(self.general().iter().flat_map(|word| word.to_le_bytes()).collect()),
            FLOATING => Some(bytes[..LEGACY].to_vec()),
            EXTENDED if bytes.len() > LEGACY => {
                let mut bytes = bytes.to_vec();
                bytes[COMPONENTS..COMPONENTS + 8].copy_from_slice(&self.extended.vector.components().to_le_bytes());
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Sets the first registers of a set, as many as `bytes` has.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such kind, or part of a register. `EIO` as for [`Self::set_general`].
    pub fn change_set(&mut self, kind: u32, bytes: &[u8]) -> Result<(), Errno> {
        match kind {
            GENERAL if bytes.len().is_multiple_of(8) => {
                let mut words = self.general();
                for (place, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *place = u64::from_le_bytes(*word);
                }
                self.set_general(&words)
            }
            FLOATING | EXTENDED => {
                let known = self.set_of_kind(kind).ok_or(Errno::EINVAL)?.len();
                let mut whole = self.extended.vector.bytes().to_vec();
                let len = bytes.len().min(known);
                whole[..len].copy_from_slice(&bytes[..len]);
                self.extended.vector.set(&whole);
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Makes the thread stop after its next instruction, or not.
    pub fn set_step(&mut self, steps: bool) {
        let flag = RFlags::TRAP_FLAG.bits();
        self.registers.rflags = if steps { self.registers.rflags | flag } else { self.registers.rflags & !flag };
    }

    /// Gives the registers back to the thread.
    pub fn restore(&self, registers: &mut Registers, extended: &mut ExtendedState) {
        *registers = self.registers;
        // A tracer may have put the thread back into a call that a signal interrupted.
        (registers.vector, registers.error) = match self.call {
            NO_CALL if registers.vector == SYSTEM_CALL => (SYSTEM_CALL, NO_CALL),
            NO_CALL => (registers.vector, registers.error),
            call => (SYSTEM_CALL, call),
        };
        *extended = self.extended.clone();
    }
}
