//! A thread's extended registers: the FPU and vector registers, as one state that is saved and
//! restored whole (Intel SDM, volume 1, "Managing State Using the XSAVE Feature Set"), the rights
//! to memory with protection keys, and the FS and GS bases. The kernel itself uses none of them, so
//! a CPU keeps those of the thread that ran last.

use super::keys;
use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use x86_64::VirtAddr;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::model_specific::{FsBase, KernelGsBase};

/// The size in bytes of the buffer for the x87, SSE and AVX state, all that this kernel enables.
const ROOM: usize = 1024;
/// The state components in use: bits of XCR0, or 0 for FXSAVE.
static PARTS: AtomicU64 = AtomicU64::new(0);
/// The size in bytes of the state components in use.
static SIZE: AtomicUsize = AtomicUsize::new(512);

const X87: u64 = 1;
const SSE: u64 = 2;
const AVX: u64 = 4;

/// The saved extended registers of a thread, valid while no CPU has them loaded.
#[derive(Clone)]
pub struct ExtendedState {
    /// The FPU and vector registers.
    pub vector: State,
    /// The FS base, the thread pointer. User mode can't change it, so it is always current.
    pub fs: u64,
    /// The GS base. User mode can't change it, so it is always current.
    pub gs: u64,
    /// The rights to memory with protection keys (PKRU).
    pub rights: u32,
    /// True if user mode may not read the time-stamp counter (`PR_SET_TSC`).
    denies_tsc: bool,
}

/// True once a thread may not read the time-stamp counter: until then no CPU need look.
static TSC_DENIED: AtomicBool = AtomicBool::new(false);

impl ExtendedState {
    /// Returns the state in which a program starts.
    pub const fn new() -> Self {
        Self { vector: State::new(), fs: 0, gs: 0, rights: keys::DEFAULT, denies_tsc: false }
    }

    /// Sets the thread pointer.
    pub fn set_thread_pointer(&mut self, value: u64) {
        self.fs = value;
    }

    /// Returns whether user mode may not read the time-stamp counter.
    pub fn denies_tsc(&self) -> bool {
        self.denies_tsc
    }

    /// Sets whether user mode may not read the time-stamp counter, from the next
    /// [`Self::restore`] on. Returns false if the architecture can't.
    pub fn deny_tsc(&mut self, denies: bool) -> bool {
        self.denies_tsc = denies;
        TSC_DENIED.fetch_or(denies, Relaxed);
        true
    }

    /// Saves this CPU's registers.
    pub fn save(&mut self) {
        self.vector.save();
        self.rights = keys::current();
    }

    /// Loads the rights to memory with protection keys, for accesses by the kernel.
    pub fn load_rights(&self) {
        keys::load_in_use(self.rights);
    }

    /// Gives a signal handler the rights that a program begins with. Returns false if it has them.
    pub fn reset_rights(&mut self) -> bool {
        core::mem::replace(&mut self.rights, keys::DEFAULT) != keys::DEFAULT
    }

    /// Sets what the thread may not do to memory with a protection key.
    pub fn deny(&mut self, key: u8, denied: u32) {
        keys::use_keys();
        self.rights = keys::with_denied(self.rights, key, denied);
        keys::load(self.rights);
    }

    /// Loads the registers on this CPU.
    pub fn restore(&self) {
        self.vector.restore();
        keys::load_in_use(self.rights);
        self.restore_bases();
        if TSC_DENIED.load(Relaxed) {
            // SAFETY: the flag concerns user mode alone, which gets an exception then.
            unsafe { Cr4::update(|cr4| cr4.set(Cr4Flags::TIMESTAMP_DISABLE, self.denies_tsc)) };
        }
    }

    /// Loads only the FS and GS bases on this CPU.
    pub fn restore_bases(&self) {
        FsBase::write(VirtAddr::new_truncate(self.fs));
        KernelGsBase::write(VirtAddr::new_truncate(self.gs));
    }
}

/// The saved FPU and vector registers.
#[repr(C, align(64))]
#[derive(Clone)]
pub struct State([u8; ROOM]);

impl State {
    /// Returns the initial state: empty registers, all exceptions masked (System V ABI, "Initial
    /// Process State").
    const fn new() -> Self {
        let mut room = [0; ROOM];
        room[0] = 0x7f; // FCW 0x037f
        room[1] = 0x03;
        room[24] = 0x80; // MXCSR 0x1f80
        room[25] = 0x1f;
        // XSTATE_BV: the x87 and SSE components are those of the legacy area.
        room[512] = (X87 | SSE) as u8;
        Self(room)
    }

    /// Returns the state's bytes, in the layout that programs see.
    pub fn bytes(&self) -> &[u8] {
        &self.0[..SIZE.load(Relaxed)]
    }

    /// Returns the state components in use, as bits of XCR0; 0 for FXSAVE.
    pub fn components(&self) -> u64 {
        PARTS.load(Relaxed)
    }

    /// Sets the state from a program's bytes. Reserved bits and unknown components are cleared
    /// instead of refused.
    pub fn set(&mut self, bytes: &[u8]) {
        const RESERVED: core::ops::Range<usize> = 512..576;
        let len = bytes.len().min(SIZE.load(Relaxed));
        self.0[..len].copy_from_slice(&bytes[..len]);
        self.0[26..28].fill(0);
        let parts = if len > RESERVED.end { self.0[512] & PARTS.load(Relaxed) as u8 } else { (X87 | SSE) as u8 };
        self.0[RESERVED].fill(0);
        self.0[512] = parts;
    }

    fn save(&mut self) {
        let (at, parts) = (self.0.as_mut_ptr(), PARTS.load(Relaxed));
        // SAFETY: the buffer is aligned, and large enough for the components in use (`init`).
        unsafe {
            if parts == 0 {
                asm!("fxsave64 [{}]", in(reg) at, options(nostack, preserves_flags));
            } else {
                asm!(
                    "xsave64 [{}]",
                    in(reg) at,
                    in("eax") parts as u32,
                    in("edx") 0,
                    options(nostack, preserves_flags),
                );
            }
        }
    }

    fn restore(&self) {
        let (at, parts) = (self.0.as_ptr(), PARTS.load(Relaxed));
        // SAFETY: the state was saved, is the initial one, or was made valid by `set`, so that
        // loading it can't fault.
        unsafe {
            if parts == 0 {
                asm!("fxrstor64 [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
            } else {
                asm!(
                    "xrstor64 [{}]",
                    in(reg) at,
                    in("eax") parts as u32,
                    in("edx") 0,
                    options(nostack, preserves_flags, readonly),
                );
            }
        }
    }
}

/// Enables the FPU and vector registers on this CPU.
pub fn init() {
    let features = __cpuid_count(1, 0).ecx;
    let (xsave, avx) = (features & 1 << 26 != 0, features & 1 << 28 != 0);
    // SAFETY: enables registers for user mode that the kernel does not use.
    unsafe {
        Cr0::update(|cr0| {
            cr0.remove(Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::TASK_SWITCHED);
            cr0.insert(Cr0Flags::MONITOR_COPROCESSOR | Cr0Flags::NUMERIC_ERROR);
        });
        Cr4::update(|cr4| {
            cr4.insert(Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE);
            cr4.set(Cr4Flags::OSXSAVE, xsave);
        });
    }
    if !xsave {
        return;
    }
    let keys = keys::init();
    let parts = X87 | SSE | if avx { AVX } else { 0 };
    // SAFETY: the CPU has XSAVE, which was just enabled, and these components.
    unsafe { asm!("xsetbv", in("ecx") 0, in("eax") parts as u32, in("edx") 0, options(nostack, preserves_flags)) };
    let size = __cpuid_count(0xd, 0).ebx as usize;
    assert!(size <= ROOM, "the XSAVE state takes {size} bytes, more than {ROOM}: raise ROOM");
    // SAFETY: as above. States of this kernel leave PKRU out; programs may have it in theirs.
    unsafe {
        let all = parts | keys;
        asm!("xsetbv", in("ecx") 0, in("eax") all as u32, in("edx") 0, options(nostack, preserves_flags));
    }
    PARTS.store(parts, Relaxed);
    SIZE.store(size, Relaxed);
}
