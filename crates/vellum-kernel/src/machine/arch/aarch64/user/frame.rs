//! The signal frame on the user stack, in Linux's layout (`struct rt_sigframe`): a `siginfo` and a
//! `ucontext` with all general registers, which ends with records of a kind and a size each, one of
//! them for the vector registers. Above the frame is a frame record (X29, X30).

use crate::arch::entry::Registers;
use crate::arch::extended_state::ExtendedState;
use crate::arch::paging::user_end;
use crate::arch::trap::USER_STATE;
use crate::arch::types::{Handler, UserMemory};
use alloc::vec::Vec;
use vellum_kernel::errno::Errno;

/// The bytes below the stack pointer that a function may use: none.
pub const RED_ZONE: u64 = 0;
/// The offset of the `ucontext` in the frame, and the offsets of its parts.
const UCONTEXT: usize = 128;
const STACK: usize = UCONTEXT + 16;
const MASK: usize = UCONTEXT + 40;
/// The signal mask takes the space of 1024 signals, and the machine context is aligned to 16 bytes.
const MACHINE: usize = UCONTEXT + 176;
const GENERAL: usize = MACHINE + 8;
const RECORDS: usize = MACHINE + 288;
/// The frame's size, with the room for records.
const SIZE: usize = RECORDS + 4096;
/// A record's magic number, and its size in bytes, which includes the record's header of 8 bytes.
const VECTOR: [u32; 2] = [0x4650_8001, 528];
const SYNDROME: [u32; 2] = [0x4553_5201, 16];
/// The number of bytes of a frame that [`push`] writes: up to the record that ends the list of
/// records.
const WRITTEN: usize = RECORDS + VECTOR[1] as usize + SYNDROME[1] as usize + 16;

/// Pushes a signal frame on the user stack and points the registers at the handler. On failure the
/// registers are unchanged.
///
/// # Errors
///
/// `EFAULT`: the stack is not writable, or the handler is no user address. `ENOMEM`: the kernel has
/// no memory for the frame's copy.
pub fn push(
    registers: &mut Registers,
    extended: &ExtendedState,
    memory: &impl UserMemory,
    handler: &Handler,
) -> Result<(), Errno> {
    if handler.address >= user_end() {
        return Err(Errno::EFAULT);
    }
    let [stack, len] = handler.signal_stack;
    let top = handler.top & !15;
    let link_at = top.wrapping_sub(16);
    let at = link_at.wrapping_sub(SIZE as u64);
    let Registers { x, sp, pc, state, syndrome, .. } = *registers;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(WRITTEN)?;
    bytes.resize(WRITTEN, 0u8);
    let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
    put(0, &handler.info);
    put(STACK, &stack.to_le_bytes());
    put(STACK + 8, &handler.stack_flags.to_le_bytes());
    put(STACK + 16, &len.to_le_bytes());
    put(MASK, &handler.mask.to_le_bytes());
    put(MACHINE, &handler.fault_address.to_le_bytes());
    for (index, word) in x.into_iter().chain([sp, pc, state]).enumerate() {
        put(GENERAL + 8 * index, &word.to_le_bytes());
    }
    let ExtendedState { vector, status, control, .. } = extended;
    let record = |[kind, size]: [u32; 2]| (u64::from(size) << 32 | u64::from(kind)).to_le_bytes();
    put(RECORDS, &record(VECTOR));
    put(RECORDS + 8, &(*control << 32 | status & 0xffff_ffff).to_le_bytes());
    for (index, register) in vector.iter().enumerate() {
        put(RECORDS + 16 + 16 * index, &register.to_le_bytes());
    }
    put(RECORDS + VECTOR[1] as usize, &record(SYNDROME));
    put(RECORDS + VECTOR[1] as usize + 8, &syndrome.to_le_bytes());
    let link: [u8; 16] =
        core::array::from_fn(|i| if i < 8 { x[29].to_le_bytes()[i] } else { x[30].to_le_bytes()[i - 8] });
    memory.write(link_at, &link)?;
    memory.write(at, &bytes)?;
    let r = registers;
    (r.pc, r.sp, r.x[29]) = (handler.address, at, link_at);
    r.x[30] = handler.restorer.unwrap_or_default();
    (r.x[0], r.x[1], r.x[2]) = (handler.signal.into(), at, at.wrapping_add(UCONTEXT as u64));
    Ok(())
}

/// Restores the registers from the signal frame at the stack pointer, as far as user mode may set
/// them. Returns the signal mask.
///
/// # Errors
///
/// `EFAULT`: the frame is not readable, or its instruction pointer is no user address. `EINVAL`: a
/// record is malformed. `ENOMEM`: the kernel has no memory for the frame's copy.
pub fn pop(registers: &mut Registers, extended: &mut ExtendedState, memory: &impl UserMemory) -> Result<u64, Errno> {
    let at = registers.sp;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(SIZE)?;
    bytes.resize(SIZE, 0u8);
    memory.read(at, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let r = registers;
    for (index, place) in r.x.iter_mut().chain([&mut r.sp, &mut r.pc, &mut r.state]).enumerate() {
        *place = word(GENERAL + 8 * index);
    }
    r.state &= USER_STATE;
    if r.pc >= user_end() {
        return Err(Errno::EFAULT);
    }
    let mut record = RECORDS;
    while record + 16 <= SIZE {
        let (kind, size) = (word(record) as u32, (word(record) >> 32) as usize);
        if kind == 0 {
            break;
        }
        if size < 16 || !size.is_multiple_of(16) || record + size > SIZE {
            return Err(Errno::EINVAL);
        }
        if [kind, size as u32] == VECTOR {
            (extended.status, extended.control) = (word(record + 8) & 0xffff_ffff, word(record + 8) >> 32);
            for (index, register) in extended.vector.iter_mut().enumerate() {
                let at = record + 16 + 16 * index;
                *register = u128::from(word(at + 8)) << 64 | u128::from(word(at));
            }
        }
        record += size;
    }
    Ok(word(MASK))
}
