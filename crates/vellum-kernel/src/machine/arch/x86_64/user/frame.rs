//! The signal frame on the user stack, in Linux's layout (`struct rt_sigframe`): the return
//! address, a `ucontext` with all general registers, a `siginfo`, and above them the vector
//! registers.

use crate::arch::cpu::{USER_CODE, USER_DATA};
use crate::arch::entry::Registers;
use crate::arch::extended_state::ExtendedState;
use crate::arch::keys;
use crate::arch::paging::user_end;
use crate::arch::types::{Handler, UserMemory};
use alloc::vec::Vec;
use vellum_kernel::errno::Errno;
use x86_64::registers::rflags::RFlags;

/// The bytes below the stack pointer that a function may use (System V ABI, "The Stack Frame").
pub const RED_ZONE: u64 = 128;
/// The offset of the `ucontext` in the frame, and the offsets of its parts.
const UCONTEXT: usize = 8;
const STACK: usize = UCONTEXT + 16;
const MACHINE: usize = UCONTEXT + 40;
const MASK: usize = MACHINE + 256;
const INFO: usize = MASK + 8;
const SIZE: usize = INFO + 128;
/// The index of the machine context's word with the address of the vector registers.
const VECTOR_WORD: usize = 23;
/// The offset in the vector registers' state of the word that tells which components it has.
const COMPONENTS: usize = 512;
/// The flags that user mode may set: CF PF AF ZF SF TF DF OF RF AC ID.
pub const USER_FLAGS: u64 = 0x0025_0dd5;

/// Pushes a signal frame on the user stack and points the registers at the handler. On failure the
/// registers are unchanged.
///
/// # Errors
///
/// `EFAULT`: the stack is not writable, there is no restorer, or the handler is no user address.
/// `ENOMEM`: the kernel has no memory for the frame's copy.
pub fn push(
    registers: &mut Registers,
    extended: &ExtendedState,
    memory: &impl UserMemory,
    handler: &Handler,
) -> Result<(), Errno> {
    // Returning to an address that is not canonical would fault in the kernel.
    if handler.restorer.is_none() || handler.address >= user_end() {
        return Err(Errno::EFAULT);
    }
    let [stack, len] = handler.signal_stack;
    let top = handler.top;
    let vector = extended.vector.bytes();
    // The rights to memory with protection keys are far behind the other registers, where programs
    // look for them.
    let rights_at = keys::offset();
    let vector_at = top.wrapping_sub(rights_at.map_or(vector.len(), |at| at + 8) as u64) & !63;
    // The handler starts like a called function: its stack pointer is 8 below a multiple of 16.
    let at = (vector_at.wrapping_sub(SIZE as u64) & !15).wrapping_sub(8);
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(SIZE)?;
    bytes.resize(SIZE, 0u8);
    let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    put(0, handler.restorer.unwrap_or_default());
    put(STACK, stack);
    put(STACK + 8, handler.stack_flags);
    put(STACK + 16, len);
    for (index, word) in words(registers).into_iter().enumerate() {
        put(MACHINE + 8 * index, word);
    }
    let Registers { error, vector: number, .. } = *registers;
    for (index, word) in
        [(19, error), (20, number), (21, handler.mask), (22, handler.fault_address), (VECTOR_WORD, vector_at)]
    {
        put(MACHINE + 8 * index, word);
    }
    put(MASK, handler.mask);
    bytes[INFO..].copy_from_slice(&handler.info);
    memory.write(vector_at, vector)?;
    if let Some(at) = rights_at {
        let components = u64::from(vector[COMPONENTS]) | keys::COMPONENT;
        memory.write(vector_at.wrapping_add(COMPONENTS as u64), &components.to_le_bytes())?;
        memory.write(vector_at.wrapping_add(at as u64), &u64::from(extended.rights).to_le_bytes())?;
    }
    memory.write(at, &bytes)?;
    let r = registers;
    (r.rip, r.rsp, r.rax) = (handler.address, at, 0);
    (r.rdi, r.rsi, r.rdx) = (handler.signal.into(), at.wrapping_add(INFO as u64), at.wrapping_add(UCONTEXT as u64));
    r.rflags &= !(RFlags::DIRECTION_FLAG | RFlags::TRAP_FLAG | RFlags::RESUME_FLAG).bits();
    Ok(())
}

/// Returns the general registers in the order of `struct sigcontext`, and the segments.
fn words(r: &Registers) -> [u64; 19] {
    [
        r.r8,
        r.r9,
        r.r10,
        r.r11,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.rdi,
        r.rsi,
        r.rbp,
        r.rbx,
        r.rdx,
        r.rax,
        r.rcx,
        r.rsp,
        r.rip,
        r.rflags,
        r.cs | r.ss << 48,
    ]
}

/// Restores the registers from the signal frame at the stack pointer, whose first word has been
/// popped, as far as user mode may set them. Returns the signal mask.
///
/// # Errors
///
/// `EFAULT`: the frame is not readable, or its instruction pointer is no user address. `ENOMEM`:
/// the kernel has no memory for the frame's copy.
pub fn pop(registers: &mut Registers, extended: &mut ExtendedState, memory: &impl UserMemory) -> Result<u64, Errno> {
    let at = registers.rsp.wrapping_sub(UCONTEXT as u64);
    let mut bytes = [0; INFO];
    memory.read(at, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let machine = |index: usize| word(MACHINE + 8 * index);
    let vector_at = machine(VECTOR_WORD);
    let (mut vector, mut rights) = (Vec::new(), keys::DEFAULT);
    if vector_at != 0 {
        vector.try_reserve_exact(extended.vector.bytes().len())?;
        vector.resize(extended.vector.bytes().len(), 0);
        memory.read(vector_at, &mut vector)?;
        if let Some(at) = keys::offset()
            && vector.get(COMPONENTS + 1).is_some_and(|byte| u64::from(*byte) << 8 & keys::COMPONENT != 0)
        {
            let mut bytes = [0; 4];
            memory.read(vector_at.wrapping_add(at as u64), &mut bytes)?;
            rights = u32::from_le_bytes(bytes);
        }
    }
    // Failures up to here leave the registers unchanged and may be retried.
    let r = registers;
    let places = [
        &mut r.r8, &mut r.r9, &mut r.r10, &mut r.r11, &mut r.r12, &mut r.r13, &mut r.r14, &mut r.r15, &mut r.rdi,
        &mut r.rsi, &mut r.rbp, &mut r.rbx, &mut r.rdx, &mut r.rax, &mut r.rcx, &mut r.rsp, &mut r.rip,
    ];
    for (index, place) in places.into_iter().enumerate() {
        *place = machine(index);
    }
    if r.rip >= user_end() {
        return Err(Errno::EFAULT);
    }
    (r.cs, r.ss) = (USER_CODE, USER_DATA);
    r.rflags = machine(17) & USER_FLAGS | RFlags::INTERRUPT_FLAG.bits();
    if vector_at != 0 {
        extended.vector.set(&vector);
    }
    extended.rights = rights;
    Ok(word(MASK))
}
