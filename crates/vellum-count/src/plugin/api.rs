//! The functions of QEMU's plugin interface, as its documentation describes them, found by name in
//! the running QEMU. Version 1 is that of QEMU 6 to 8.2; version 2 came with QEMU 9.0, and version
//! 3, which changed how the bytes of an instruction are read, with QEMU 9.1.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// QEMU's number of this plugin.
pub type PluginId = u64;

/// A block while it is translated.
pub enum RawBlock {}
/// An instruction while it is translated.
pub enum RawInstruction {}
enum Scoreboard {}

/// QEMU's description of itself.
#[repr(C)]
#[allow(missing_docs)]
pub struct Info {
    pub target_name: *const c_char,
    pub oldest_version: c_int,
    pub version: c_int,
    pub system_emulation: bool,
    pub cpus: c_int,
    pub most_cpus: c_int,
}

/// A counter a CPU, from version 2 on.
#[repr(C)]
#[derive(Clone, Copy)]
struct PerCpu {
    scoreboard: *mut Scoreboard,
    offset: usize,
}

/// Called when a block is translated.
pub type OnTranslation = extern "C" fn(PluginId, *mut RawBlock);
/// Called when a block or an instruction is executed, with the CPU and the word that was given for
/// it.
pub type OnExecution = extern "C" fn(c_uint, *mut c_void);
/// Called when an instruction accesses memory, with the CPU, the kind of access, and the address.
pub type OnAccess = extern "C" fn(c_uint, u32, u64, *mut c_void);
/// Called when QEMU ends.
pub type OnEnd = extern "C" fn(PluginId, *mut c_void);

const NO_REGISTERS: c_int = 0;
/// Reads and writes. QEMU 7.2 takes each for the other where an instruction needs no helper.
const ACCESSES: c_int = 3;
const ADD: c_int = 0;

/// The number of instructions that the CPUs have begun, unless QEMU keeps it.
static EXECUTED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_one(_: c_uint, _: *mut c_void) {
    // The CPUs take turns in one thread.
    EXECUTED.store(EXECUTED.load(Relaxed) + 1, Relaxed);
}

/// The way in which the plugin counts instructions.
#[derive(Clone, Copy)]
enum Counter {
    /// All CPUs add to one word. They take turns in one thread of QEMU.
    Shared { add: unsafe extern "C" fn(*mut RawInstruction, c_int, *mut c_void, u64), word: &'static AtomicU64 },
    /// The only CPU adds to its word.
    Own {
        add: unsafe extern "C" fn(*mut RawInstruction, c_int, PerCpu, u64),
        sum: unsafe extern "C" fn(PerCpu) -> u64,
        words: PerCpu,
    },
    /// All CPUs call a function.
    Called,
}

/// The way in which the plugin reads the bytes of an instruction.
#[derive(Clone, Copy)]
enum Bytes {
    Pointer(unsafe extern "C" fn(*const RawInstruction) -> *const c_void),
    Copy(unsafe extern "C" fn(*const RawInstruction, *mut c_void, usize) -> usize),
}

/// The interface.
#[derive(Clone, Copy)]
pub struct Api {
    on_translation: unsafe extern "C" fn(PluginId, OnTranslation),
    on_end: unsafe extern "C" fn(PluginId, OnEnd, *mut c_void),
    on_block: unsafe extern "C" fn(*mut RawBlock, OnExecution, c_int, *mut c_void),
    on_instruction: unsafe extern "C" fn(*mut RawInstruction, OnExecution, c_int, *mut c_void),
    on_access: unsafe extern "C" fn(*mut RawInstruction, OnAccess, c_int, c_int, *mut c_void),
    instructions: unsafe extern "C" fn(*const RawBlock) -> usize,
    instruction: unsafe extern "C" fn(*const RawBlock, usize) -> *mut RawInstruction,
    start: unsafe extern "C" fn(*const RawBlock) -> u64,
    address: unsafe extern "C" fn(*const RawInstruction) -> u64,
    size: unsafe extern "C" fn(*const RawInstruction) -> usize,
    is_store: unsafe extern "C" fn(u32) -> bool,
    bytes: Bytes,
    counter: Counter,
}

// SAFETY: the pointers are to functions and to a scoreboard, which QEMU lets any thread use.
unsafe impl Send for Api {}
// SAFETY: likewise.
unsafe impl Sync for Api {}

/// Returns the function of that name, as the type that the caller expects.
///
/// # Safety
///
/// `F` is the type of a pointer to that function.
unsafe fn function<F: Copy>(name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("this QEMU has no {}", name.to_string_lossy()));
    }
    // SAFETY: it is a pointer to a function, whose type is `F` (this function's contract).
    Ok(unsafe { core::mem::transmute_copy(&found) })
}

/// Returns whether the running QEMU counts by CPU: whether its version is 2 or a later one.
pub fn counts_by_cpu() -> bool {
    // SAFETY: the function is only looked for, and a pointer to data has the same size.
    unsafe { function::<*mut c_void>(c"qemu_plugin_scoreboard_new") }.is_ok()
}

impl Api {
    /// Finds the functions of this version, for a machine with so many CPUs.
    ///
    /// # Errors
    /// Returns a message for the user if one is missing.
    pub fn find(version: c_int, cpus: c_int) -> Result<Self, String> {
        // SAFETY: the types are those of the interface's documentation, for this version.
        unsafe {
            let bytes = match version {
                ..3 => Bytes::Pointer(function(c"qemu_plugin_insn_data")?),
                _ => Bytes::Copy(function(c"qemu_plugin_insn_data")?),
            };
            let counter = if !counts_by_cpu() {
                Counter::Shared { add: function(c"qemu_plugin_register_vcpu_insn_exec_inline")?, word: &EXECUTED }
            } else if cpus > 1 {
                // QEMU 10.0 crashes in what it generates for such a word, where several CPUs take
                // turns in one thread.
                Counter::Called
            } else {
                let new: unsafe extern "C" fn(usize) -> *mut Scoreboard = function(c"qemu_plugin_scoreboard_new")?;
                Counter::Own {
                    add: function(c"qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu")?,
                    sum: function(c"qemu_plugin_u64_sum")?,
                    words: PerCpu { scoreboard: new(size_of::<u64>()), offset: 0 },
                }
            };
            Ok(Self {
                on_translation: function(c"qemu_plugin_register_vcpu_tb_trans_cb")?,
                on_end: function(c"qemu_plugin_register_atexit_cb")?,
                on_block: function(c"qemu_plugin_register_vcpu_tb_exec_cb")?,
                on_instruction: function(c"qemu_plugin_register_vcpu_insn_exec_cb")?,
                on_access: function(c"qemu_plugin_register_vcpu_mem_cb")?,
                instructions: function(c"qemu_plugin_tb_n_insns")?,
                instruction: function(c"qemu_plugin_tb_get_insn")?,
                start: function(c"qemu_plugin_tb_vaddr")?,
                address: function(c"qemu_plugin_insn_vaddr")?,
                size: function(c"qemu_plugin_insn_size")?,
                is_store: function(c"qemu_plugin_mem_is_store")?,
                bytes,
                counter,
            })
        }
    }

    /// Returns the number of instructions that all CPUs have begun. Those of the block that a CPU
    /// executes are counted one by one.
    pub fn executed(&self) -> u64 {
        match self.counter {
            Counter::Shared { .. } | Counter::Called => EXECUTED.load(Relaxed),
            // SAFETY: the scoreboard is never freed.
            Counter::Own { sum, words, .. } => unsafe { sum(words) },
        }
    }

    /// Returns whether an access, of the kind that a callback gets, is a write.
    pub fn is_store(&self, kind: u32) -> bool {
        // SAFETY: the function decodes a number.
        unsafe { (self.is_store)(kind) }
    }

    /// Has the functions called for each translation of a block, and at QEMU's end.
    ///
    /// # Safety
    ///
    /// `id` is the number that QEMU has given this plugin.
    pub unsafe fn start(&self, id: PluginId, translates: OnTranslation, ends: OnEnd) {
        // SAFETY: the number is this plugin's, and the functions live as long as QEMU.
        unsafe {
            (self.on_translation)(id, translates);
            (self.on_end)(id, ends, core::ptr::null_mut());
        }
    }

    /// Returns the block of a callback.
    ///
    /// # Safety
    ///
    /// `raw` is the block that QEMU translates, and the result is used during the callback only.
    pub unsafe fn block(&self, raw: *mut RawBlock) -> Translated<'_> {
        Translated { api: self, raw }
    }
}

/// A block while QEMU translates it.
pub struct Translated<'a> {
    api: &'a Api,
    raw: *mut RawBlock,
}

/// An instruction of such a block.
pub struct Instruction<'a> {
    api: &'a Api,
    raw: *mut RawInstruction,
}

// SAFETY of all calls below: the pointers are those of the block that QEMU translates
// (`Api::block`), and the functions that are registered live as long as QEMU.
impl Translated<'_> {
    /// Returns the address of the first instruction.
    pub fn start(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (self.api.start)(self.raw) }
    }

    /// Returns the instructions.
    pub fn instructions(&self) -> impl DoubleEndedIterator<Item = Instruction<'_>> {
        // SAFETY: as above.
        let count = unsafe { (self.api.instructions)(self.raw) };
        // SAFETY: as above, and there are so many instructions.
        let nth = |nth| Instruction { api: self.api, raw: unsafe { (self.api.instruction)(self.raw, nth) } };
        (0..count).map(nth)
    }

    /// Has `function` called, with `word`, before each execution.
    pub fn on_execution(&self, function: OnExecution, word: usize) {
        // SAFETY: as above; the word is only passed on.
        unsafe { (self.api.on_block)(self.raw, function, NO_REGISTERS, word as *mut c_void) };
    }
}

impl Instruction<'_> {
    /// Returns the address.
    pub fn address(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (self.api.address)(self.raw) }
    }

    /// Returns the first bytes, padded with zeros, and the number of them that count.
    pub fn bytes(&self) -> ([u8; 4], usize) {
        let mut bytes = [0; 4];
        // SAFETY: as above.
        let size = unsafe { (self.api.size)(self.raw) };
        let taken = size.min(bytes.len());
        match self.api.bytes {
            Bytes::Pointer(find) => {
                // SAFETY: as above; the pointer is to as many bytes as the instruction has.
                unsafe { core::ptr::copy_nonoverlapping(find(self.raw).cast(), bytes.as_mut_ptr(), taken) };
            }
            // SAFETY: as above; QEMU writes so many bytes at most.
            Bytes::Copy(copy) => unsafe {
                copy(self.raw, bytes.as_mut_ptr().cast(), taken);
            },
        }
        (bytes, size)
    }

    /// Has each execution counted ([`Api::executed`]).
    pub fn count(&self) {
        match self.api.counter {
            // SAFETY: as above; the word lives forever.
            Counter::Shared { add, word } => unsafe { add(self.raw, ADD, word.as_ptr().cast(), 1) },
            // SAFETY: as above; the scoreboard is never freed.
            Counter::Own { add, words, .. } => unsafe { add(self.raw, ADD, words, 1) },
            Counter::Called => self.on_execution(count_one, 0),
        }
    }

    /// Has `function` called, with `word`, before each execution. An iteration of a string
    /// instruction is one; from QEMU 10.0 on several may be.
    pub fn on_execution(&self, function: OnExecution, word: usize) {
        // SAFETY: as above; the word is only passed on.
        unsafe { (self.api.on_instruction)(self.raw, function, NO_REGISTERS, word as *mut c_void) };
    }

    /// Has `function` called after each access to memory; QEMU 7.2 calls it after some accesses of
    /// other instructions, too.
    pub fn on_access(&self, function: OnAccess) {
        // SAFETY: as above.
        unsafe { (self.api.on_access)(self.raw, function, NO_REGISTERS, ACCESSES, core::ptr::null_mut()) };
    }
}
