//! Protection keys (Intel SDM, volume 3A, "Protection Keys"). The register PKRU, which programs
//! write themselves, decides what a thread may do to memory with each key. It counts for accesses
//! by the kernel too, so a CPU has the PKRU of the thread that it works for.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use x86_64::registers::control::{Cr4, Cr4Flags};

/// The rights that a program begins with: memory with the default key alone, as on Linux.
pub const DEFAULT: u32 = 0x5555_5554;
/// PKRU among the state components: a bit of XCR0 and of a state's first word.
pub const COMPONENT: u64 = 1 << 9;

static ENABLED: AtomicBool = AtomicBool::new(false);
/// True once a thread has other rights than the default, or a key was allocated.
static IN_USE: AtomicBool = AtomicBool::new(false);
/// The offset of PKRU in a state with all components.
static OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Enables protection keys on this CPU, if it has them. Returns the component to enable in XCR0.
pub fn init() -> u64 {
    let has_keys = __cpuid_count(7, 0).ecx & 1 << 3 != 0;
    let has_component = __cpuid_count(0xd, 0).eax & COMPONENT as u32 != 0;
    if !has_keys || !has_component {
        return 0;
    }
    // SAFETY: no PTE in use has a key, and the kernel's pages obey none.
    unsafe { Cr4::update(|cr4| cr4.insert(Cr4Flags::PROTECTION_KEY_USER)) };
    OFFSET.store(__cpuid_count(0xd, 9).ebx as usize, Relaxed);
    ENABLED.store(true, Relaxed);
    load(DEFAULT);
    COMPONENT
}

/// Returns the number of keys; 1, the default, if the CPU has none.
pub fn count() -> u8 {
    if ENABLED.load(Relaxed) { 16 } else { 1 }
}

/// Returns the offset of PKRU in a state with all components, if states have it.
pub fn offset() -> Option<usize> {
    IN_USE.load(Relaxed).then(|| OFFSET.load(Relaxed))
}

/// Makes CPUs load the rights of a thread before they work for it, and signal frames contain them.
pub fn use_keys() {
    IN_USE.store(true, Relaxed);
}

/// Returns the rights on this CPU.
pub fn current() -> u32 {
    if !ENABLED.load(Relaxed) {
        return DEFAULT;
    }
    let rights: u32;
    // SAFETY: reads a register, which the CPU has.
    unsafe { asm!("rdpkru", in("ecx") 0, out("eax") rights, out("edx") _, options(nomem, nostack, preserves_flags)) };
    if rights != DEFAULT {
        use_keys();
    }
    rights
}

/// Sets the rights on this CPU.
pub fn load(rights: u32) {
    if ENABLED.load(Relaxed) {
        // SAFETY: decides about user memory alone. Without `nomem`, so that the compiler moves no
        // access over it.
        unsafe { asm!("wrpkru", in("ecx") 0, in("eax") rights, in("edx") 0, options(nostack, preserves_flags)) };
    }
}

/// Sets the rights on this CPU, if keys are in use: otherwise every thread has the default.
pub fn load_in_use(rights: u32) {
    if IN_USE.load(Relaxed) {
        load(rights);
    }
}

/// Runs `body` with access to memory with any key.
pub fn with_all<T>(body: impl FnOnce() -> T) -> T {
    if !IN_USE.load(Relaxed) {
        return body();
    }
    let before = current();
    load(0);
    let result = body();
    load(before);
    result
}

/// Returns `rights` with those to memory with `key` replaced: bit 0 of `denied` denies all accesses
/// to data, bit 1 denies writes (`PKEY_DISABLE_ACCESS`, `PKEY_DISABLE_WRITE`).
pub fn with_denied(rights: u32, key: u8, denied: u32) -> u32 {
    let shift = 2 * u32::from(key);
    rights & !(3 << shift) | denied << shift
}
