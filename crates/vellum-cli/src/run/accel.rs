//! Chooses between KVM and QEMU's translation (TCG): KVM where a test boot works.
//!
//! The existence of `/dev/kvm` proves little: inside a virtual machine KVM may abort QEMU, or stop
//! at an instruction that it does not emulate. So this command first boots the kernel under KVM
//! with a program that exits at once, and remembers the result until the host boots again.

use super::archive::{self, Program};
use super::kernel::Kernel;
use super::machine::{Machine, Outcome};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

/// The accelerator of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The host's CPU executes the guest's instructions (KVM).
    Kvm,
    /// QEMU translates the guest's instructions (TCG).
    Tcg,
}

/// The time limit of a test boot with KVM, which takes a fraction of it.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(10);

/// Returns the best accelerator that works for all of these kernels.
pub fn best(kernels: &[&Kernel]) -> Accel {
    let usable = kernels.iter().all(|kernel| kernel.arch.is_hosts())
        && OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    if usable && kernels.iter().all(|kernel| works(kernel)) { Accel::Kvm } else { Accel::Tcg }
}

/// Returns whether KVM runs the kernel, from the cache if it was tried since the host booted.
fn works(kernel: &Kernel) -> bool {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let cache = cache_file(kernel);
    let known = cache.as_ref().and_then(|path| recall(&fs::read_to_string(path).ok()?, &boot));
    known.unwrap_or_else(|| {
        let outcome = attempt(kernel);
        if let Ok(Outcome::Interrupted(signal)) = outcome {
            // The user interrupted the command itself.
            process::exit(128 + signal);
        }
        let works = outcome.is_ok_and(|outcome| outcome == Outcome::Exited(0));
        // Ignore errors: without the cache file the next run does the test boot again.
        if let Some(path) = cache.filter(|_| !boot.is_empty()) {
            let _ = path.parent().map(fs::create_dir_all);
            let _ = fs::write(path, format!("{} {works}\n", boot.trim()));
        }
        works
    })
}

/// Returns the path of the cache file for this kind of kernel.
fn cache_file(kernel: &Kernel) -> Option<PathBuf> {
    Some(cache_folder()?.join(format!("kvm-{:?}", kernel.kind).to_lowercase()))
}

/// Returns the folder for files that can be made anew.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("vellum"))
}

/// Returns the cached result if it is from the host's current boot, which has the ID `boot`.
fn recall(text: &str, boot: &str) -> Option<bool> {
    let (then, works) = text.trim().split_once(' ')?;
    (then == boot.trim()).then(|| works.parse().ok()).flatten()
}

/// Boots the kernel with KVM and a program that exits at once.
fn attempt(kernel: &Kernel) -> anyhow::Result<Outcome> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), exiting_program())?;
    let (extras, options) = kernel.needs(None, &[], None, None, None)?;
    let program = Program { path: file.path(), arguments: &[], environment: &[], files: &[], root: None };
    let archive = archive::pack(program, &extras, &options)?;
    let machine = Machine::plain(kernel, &archive, Accel::Kvm, ATTEMPT_LIMIT);
    Ok(machine.run(io::empty(), io::sink(), io::sink())?.outcome)
}

/// Returns a static x86-64 Linux program that exits with status 0: headers, and three instructions.
fn exiting_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    // xor edi, edi; mov eax, 231 (exit_group); syscall
    const CODE: [u8; 9] = [0x31, 0xff, 0xb8, 231, 0, 0, 0, 0x0f, 0x05];
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let size = HEADERS + CODE.len() as u64;
    let mut put = |value: u64, width: usize| bytes.extend_from_slice(&value.to_le_bytes()[..width]);
    // The ELF header: an executable for x86-64, version 1; the entry; program headers follow; no
    // sections; no flags.
    for (value, width) in [(2, 2), (62, 2), (1, 4), (BASE + HEADERS, 8), (64, 8), (0, 8), (0, 4)] {
        put(value, width);
    }
    // The sizes and numbers of headers: this one, program headers, section headers.
    for value in [64, 56, 1, 64, 0, 0] {
        put(value, 2);
    }
    // A loadable segment, readable and executable: the whole file.
    for (value, width) in [(1, 4), (5, 4), (0, 8), (BASE, 8), (BASE, 8), (size, 8), (size, 8), (0x1000, 8)] {
        put(value, width);
    }
    bytes.extend(CODE);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_exiting_program_exits_with_zero() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nothing");
        fs::write(&path, exiting_program()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(Command::new(&path).status().unwrap().code(), Some(0));
    }

    #[test]
    fn the_result_of_another_boot_is_ignored() {
        assert_eq!(recall("a-b true\n", "a-b\n"), Some(true));
        assert_eq!(recall("a-b false\n", "a-b\n"), Some(false));
        assert_eq!(recall("a-b true\n", "c-d\n"), None);
        assert_eq!(recall("", "a-b"), None);
    }
}
