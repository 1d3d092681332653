//! The plugin for QEMU: it is loaded by `-plugin FILE,roles=ROLES,out=TALLY`, with the path of a
//! text of [`Roles`] and the path that gets the [`Tally`](crate::tally::Tally)
//! when QEMU ends. With `probe=on` alone it ends QEMU with the status [`PROBED`], which shows that
//! this QEMU can load it. With a further `profile=PROFILE` it counts the executions of each
//! instruction, too.
//!
//! Instructions are counted by code that QEMU adds to its translation, or from QEMU 9.0 on, with
//! several CPUs, by a call each. A function of the plugin is called for each block, and most calls
//! end after two comparisons. QEMU must execute all CPUs in one thread (`-accel tcg,thread=single`,
//! or `-icount`).
//!
//! | module | contents |
//! |---|---|
//! | [`api`] | QEMU's functions |
//! | [`strings`] | instructions that count once and execute many times |

pub mod api;
pub mod strings;

use crate::attribution::block::Block;
use crate::attribution::{Executed, Machine, Mode};
use crate::profile::Profile;
use crate::roles::Roles;
use api::{Api, Info, PluginId, RawBlock};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use strings::Repetitions;

/// The status with which QEMU ends if it was to load the plugin and nothing else.
pub const PROBED: i32 = 86;

/// The version of the interface that the plugin was written for. QEMU reads this word once the
/// library is loaded, and accepts version 1 or the later ones, but not both.
// SAFETY: no other item has the name, and QEMU reads an `int`.
#[unsafe(no_mangle)]
#[used]
static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// Chooses the version when the library is loaded.
#[used]
// SAFETY: the section has pointers to functions of this type, which the loader calls.
#[unsafe(link_section = ".init_array")]
static CHOOSE_VERSION: extern "C" fn() = choose_version;

extern "C" fn choose_version() {
    if api::counts_by_cpu() {
        qemu_plugin_version.store(2, Relaxed);
    }
}

struct Plugin {
    api: Api,
    machine: Mutex<Machine>,
    out: PathBuf,
    profile: Option<(PathBuf, Mutex<Profile>)>,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();
/// The repetitions of string instructions, in all modes.
static REPETITIONS: Repetitions = Repetitions::new();
/// The CPU that executed the latest block.
static RUNNING: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The word of the blocks that change nothing as long as this CPU executes them:
/// [`Block::USER`] in user mode, [`Block::KERNEL`] in the kernel; or [`NONE`].
static EXPECTED: AtomicUsize = AtomicUsize::new(NONE);
/// No block has this word.
const NONE: usize = usize::MAX;

/// Starts the plugin. QEMU calls this once.
///
/// # Safety
///
/// The arguments are those that QEMU's documentation of plugins describes.
// SAFETY: no other item has the name, and this is the type that QEMU calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: PluginId,
    info: *const Info,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    let word = |nth| {
        // SAFETY: QEMU passes so many C strings.
        let word = unsafe { CStr::from_ptr(*words.add(nth)) };
        word.to_string_lossy().into_owned()
    };
    let words: Vec<String> = (0..usize::try_from(count).unwrap_or(0)).map(word).collect();
    // SAFETY: QEMU passes a pointer to what it says of itself.
    let started = prepare(unsafe { &*info }, &words).map(|plugin| PLUGIN.get_or_init(|| plugin));
    match started {
        Ok(plugin) => {
            // SAFETY: the number is this plugin's.
            unsafe { plugin.api.start(id, translates, ends) };
            0
        }
        Err(message) => {
            eprintln!("vellum-count: {message}");
            1
        }
    }
}

fn prepare(info: &Info, words: &[String]) -> Result<Plugin, String> {
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    if !info.system_emulation {
        return Err("this QEMU runs no kernels".into());
    }
    let api = Api::find(info.version, info.most_cpus)?;
    if value("probe").is_some() {
        std::process::exit(PROBED);
    }
    let roles = Path::new(value("roles").ok_or("the argument roles is missing")?);
    let text = std::fs::read_to_string(roles).map_err(|error| format!("{}: {error}", roles.display()))?;
    let roles = Roles::parse(&text).map_err(|line| format!("{}: not a role: {line}", roles.display()))?;
    let out = value("out").ok_or("the argument out is missing")?.into();
    let profile = value("profile").map(|path| (path.into(), Mutex::default()));
    Ok(Plugin { api, machine: Mutex::new(Machine::new(&roles)), out, profile })
}

impl Plugin {
    /// Returns what all CPUs have executed.
    fn executed(&self) -> Executed {
        let repetitions = REPETITIONS.count();
        Executed { instructions: self.api.executed() - repetitions, repetitions }
    }
}

/// Runs `f` with the machine and what has been executed so far, and notes what the CPU is about to
/// do.
fn follow(cpu: c_uint, f: impl FnOnce(&mut Machine, usize, Executed)) {
    let Some(plugin) = PLUGIN.get() else { return };
    let cpu = cpu as usize;
    let mut machine = lock(&plugin.machine);
    f(&mut machine, cpu, plugin.executed());
    let expected = match machine.mode(cpu) {
        Mode::User => Block::USER.0,
        Mode::Kernel => Block::KERNEL.0,
        Mode::Unsettled => NONE,
    };
    RUNNING.store(cpu, Relaxed);
    EXPECTED.store(expected, Relaxed);
}

extern "C" fn translates(_: PluginId, block: *mut RawBlock) {
    let Some(Plugin { api, machine, profile, .. }) = PLUGIN.get() else { return };
    // SAFETY: QEMU translates this block, and it is used during this call only.
    let block = unsafe { api.block(block) };
    let start = block.start();
    let machine = lock(machine);
    let returns = block.instructions().next_back().is_some_and(|last| returns(last.bytes()));
    let word = machine.describe(start, returns);
    block.on_execution(executes, word.0);
    // A block that begins with a string instruction consists of its repetitions.
    let repeats = block.instructions().next().is_some_and(|first| strings::repeats(first.bytes()));
    if let Some((_, profile)) = profile.as_ref().filter(|_| !word.is_user() && !repeats) {
        let addresses = block.instructions().map(|instruction| instruction.address());
        block.on_execution(profiles, lock(profile).add(addresses));
    }
    for instruction in block.instructions() {
        instruction.count();
        let address = instruction.address();
        if strings::repeats(instruction.bytes()) {
            instruction.on_execution(iterates, address as usize);
        }
        if word.is_user() {
            continue;
        }
        if machine.marks().is_in_switch(address) {
            instruction.on_access(accesses_in_switch);
        } else if machine.marks().is_in_notes(address) {
            instruction.on_access(notes);
        }
    }
}

/// Returns whether an instruction returns from an exception or a system call. No instruction of the
/// other architecture has these bytes in kernels.
fn returns((bytes, size): ([u8; 4], usize)) -> bool {
    const IRETQ: [u8; 2] = [0x48, 0xcf];
    const SYSRETQ: [u8; 3] = [0x48, 0x0f, 0x07];
    const ERET: [u8; 4] = 0xd69f_03e0_u32.to_le_bytes();
    [&IRETQ[..], &SYSRETQ, &ERET].contains(&&bytes[..size.min(4)])
}

extern "C" fn executes(cpu: c_uint, word: *mut c_void) {
    let word = word as usize;
    if EXPECTED.load(Relaxed) != word || RUNNING.load(Relaxed) != cpu as usize {
        follow(cpu, |machine, cpu, now| machine.block(cpu, now, Block(word)));
    }
}

extern "C" fn profiles(cpu: c_uint, block: *mut c_void) {
    let Some(Plugin { machine, profile: Some((_, profile)), .. }) = PLUGIN.get() else { return };
    if let Some(cause) = lock(machine).kernel_work(cpu as usize) {
        lock(profile).executes(block as usize, cause);
    }
}

extern "C" fn iterates(_: c_uint, address: *mut c_void) {
    let Some(Plugin { api, .. }) = PLUGIN.get() else { return };
    REPETITIONS.iterates(address as usize, api.executed());
}

extern "C" fn accesses_in_switch(cpu: c_uint, kind: u32, address: u64, _: *mut c_void) {
    if PLUGIN.get().is_none_or(|plugin| plugin.api.is_store(kind)) {
        return;
    }
    follow(cpu, |machine, cpu, now| machine.reads_in_switch(cpu, now, address));
}

extern "C" fn notes(cpu: c_uint, _: u32, address: u64, _: *mut c_void) {
    follow(cpu, |machine, cpu, now| machine.notes(cpu, now, address));
}

extern "C" fn ends(_: PluginId, _: *mut c_void) {
    let Some(plugin @ Plugin { machine, out, profile, .. }) = PLUGIN.get() else { return };
    let mut machine = lock(machine);
    write(out, &machine.finish(plugin.executed()).to_string());
    if let Some((path, profile)) = profile {
        write(path, &lock(profile).text(|cause| machine.name_of(cause)));
    }
}

fn write(path: &Path, text: &str) {
    if let Err(error) = std::fs::write(path, text) {
        eprintln!("vellum-count: {}: {error}", path.display());
    }
}

/// Locks, also after a panic of another thread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_from_exceptions_are_known_by_their_bytes() {
        assert!(returns(([0x48, 0xcf, 0, 0], 2)) && returns(([0x48, 0x0f, 0x07, 0], 3)));
        assert!(returns(([0xe0, 0x03, 0x9f, 0xd6], 4)));
        assert!(!returns(([0xc3, 0, 0, 0], 1)), "an ordinary return");
        assert!(!returns(([0x48, 0xcf, 0, 0], 4)));
    }

    #[test]
    fn an_argument_that_is_missing_or_wrong_is_named() {
        let info = |system_emulation| Info {
            target_name: core::ptr::null(),
            oldest_version: 0,
            version: 1,
            system_emulation,
            cpus: 1,
            most_cpus: 1,
        };
        let message = |system, words: &[String]| prepare(&info(system), words).err().unwrap();
        assert!(message(false, &[]).contains("no kernels"));
        // No QEMU runs this test.
        assert!(message(true, &[]).contains("qemu_plugin"));
    }
}
