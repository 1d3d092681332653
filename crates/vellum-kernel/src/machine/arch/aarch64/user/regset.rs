//! The registers of a traced thread, in the layouts in which its tracer sees them (`ptrace`).

use crate::arch::entry::Registers;
use crate::arch::extended_state::ExtendedState;
use crate::arch::paging::user_end;
use crate::arch::trap::{self, USER_STATE};
use alloc::vec::Vec;
use vellum_kernel::errno::Errno;

/// The number of words of `struct user_pt_regs`.
pub const WORDS: usize = 34;
/// The code of the signal that ends a step at the end of a system call, as on Linux.
pub const CALL_STEP_CODE: u32 = linux_raw_sys::general::SI_USER;
/// The number of a call where there is none.
pub const NO_CALL: u64 = u64::MAX;
/// The kinds of register sets: `NT_PRSTATUS`, `NT_PRFPREG`, `NT_ARM_TLS`, `NT_ARM_SYSTEM_CALL`.
const GENERAL: u32 = 1;
const FLOATING: u32 = 2;
const THREAD_POINTER: u32 = 0x401;
const CALL: u32 = 0x404;

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
        let call = if trap::is_system_call(registers) { registers.x[8] } else { NO_CALL };
        Self { registers: *registers, extended: extended.clone(), call }
    }

    /// Makes the registers look as Linux's do where a system call begins: as they are.
    pub fn begin_call(&mut self) {}

    /// Takes over what the tracer has changed of a call that begins.
    pub fn changed_call(&mut self) {
        self.registers.first = self.registers.x[0];
    }

    /// Returns the general registers (`struct user_pt_regs`).
    pub fn general(&self) -> [u64; WORDS] {
        let Registers { x, sp, pc, state, .. } = self.registers;
        core::array::from_fn(|index| if index < 31 { x[index] } else { [sp, pc, state][index - 31] })
    }

    /// Sets the general registers, as far as user mode may set them.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the program counter is no user address.
    pub fn set_general(&mut self, words: &[u64; WORDS]) -> Result<(), Errno> {
        if words[32] >= user_end() {
            return Err(Errno::EINVAL);
        }
        let r = &mut self.registers;
        r.x.copy_from_slice(&words[..31]);
        (r.sp, r.pc, r.state) = (words[31], words[32], words[33] & USER_STATE);
        Ok(())
    }

    /// Returns a register set; `None` if there is no such kind.
    pub fn set_of_kind(&self, kind: u32) -> Option<Vec<u8>> {
        let ExtendedState { vector, status, control, thread_pointer, .. } = &self.extended;
        match kind {
            GENERAL => Some(self.general().iter().flat_map(|word| word.to_le_bytes()).collect()),
            FLOATING => {
                let mut bytes: Vec<u8> = vector.iter().flat_map(|register| register.to_le_bytes()).collect();
                bytes.extend_from_slice(&(*status as u32).to_le_bytes());
                bytes.extend_from_slice(&(*control as u32).to_le_bytes());
                bytes.resize(bytes.len() + 8, 0);
                Some(bytes)
            }
            THREAD_POINTER => Some(thread_pointer.to_le_bytes().to_vec()),
            CALL => Some((self.call as u32).to_le_bytes().to_vec()),
            _ => None,
        }
    }

    /// Sets the first registers of a set, as many as `bytes` has.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such kind, part of a register, or as for [`Self::set_general`].
    pub fn change_set(&mut self, kind: u32, bytes: &[u8]) -> Result<(), Errno> {
        let mut whole = self.set_of_kind(kind).ok_or(Errno::EINVAL)?;
        let len = bytes.len().min(whole.len());
        whole[..len].copy_from_slice(&bytes[..len]);
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| whole[at + i]));
        let half = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| whole[at + i]));
        match kind {
            GENERAL => return self.set_general(&core::array::from_fn(|index| word(8 * index))),
            FLOATING => {
                for (place, bytes) in self.extended.vector.iter_mut().zip(whole.as_chunks::<16>().0) {
                    *place = u128::from_le_bytes(*bytes);
                }
                (self.extended.status, self.extended.control) = (half(512).into(), half(516).into());
            }
            THREAD_POINTER => self.extended.thread_pointer = word(0),
            // −1 is no call.
            _ => self.call = i64::from(half(0) as i32) as u64,
        }
        Ok(())
    }

    /// Makes the thread stop after its next instruction, or not.
    pub fn set_step(&mut self, steps: bool) {
        self.extended.set_step(steps);
        self.registers.state = self.registers.state & !trap::STEP_STATE | if steps { trap::STEP_STATE } else { 0 };
    }

    /// Gives the registers back to the thread.
    pub fn restore(&self, registers: &mut Registers, extended: &mut ExtendedState) {
        *registers = self.registers;
        *extended = self.extended.clone();
    }
}
