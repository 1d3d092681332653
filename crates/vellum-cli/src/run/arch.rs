//! Architectures: their QEMU options, and the paths of what `./x` builds for them.

use super::accel::Accel;
use std::path::Path;
use std::process::Command;

/// The architectures of machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// A PC
    #[value(name = "x86_64")]
    X86_64,
    /// QEMU's machine `virt`
    #[value(name = "aarch64")]
    Aarch64,
}

/// The address of the memory of `virt`.
const MEMORY: u64 = 0x4000_0000;
/// The address of the archive, which the loader does not choose: above the reference kernel, which
/// has at most 16 MiB.
const ARCHIVE: u64 = MEMORY + (16 << 20);

impl Arch {
    /// Returns the architecture of an ELF file.
    pub fn of_elf(bytes: &[u8]) -> Option<Self> {
        const MACHINE: usize = 18;
        let machine = bytes.get(MACHINE..MACHINE + 2).filter(|_| bytes.starts_with(b"\x7fELF"))?;
        match machine {
            [62, 0] => Some(Arch::X86_64),
            [183, 0] => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// Returns the architecture of a Linux image that is not an ELF file (Linux,
    /// `Documentation/arch/x86/boot.rst` and `Documentation/arch/arm64/booting.rst`).
    pub fn of_linux(bytes: &[u8]) -> Option<Self> {
        let has = |at: usize, magic: &[u8]| bytes.get(at..at + magic.len()) == Some(magic);
        if has(0x202, b"HdrS") { Some(Arch::X86_64) } else { has(0x38, b"ARM\x64").then_some(Arch::Aarch64) }
    }

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    /// Returns the path of the reference kernel, under `target/`.
    pub fn reference(self) -> &'static str {
        match self {
            Arch::X86_64 => "kernel/x86_64-unknown-none/release/vellum-kernel",
            Arch::Aarch64 => "kernel/aarch64-unknown-none-softfloat/release/vellum-kernel",
        }
    }

    /// Returns the path of Linux, under `target/`.
    pub fn linux(self) -> &'static str {
        match self {
            Arch::X86_64 => "linux/vmlinuz",
            Arch::Aarch64 => "linux/aarch64/vmlinuz",
        }
    }

    /// Returns the path of the minimal Linux, under `target/`.
    pub fn minimal(self) -> &'static str {
        match self {
            Arch::X86_64 => "linux/minimal/x86_64/vmlinuz",
            Arch::Aarch64 => "linux/minimal/aarch64/vmlinuz",
        }
    }

    /// Returns the path of the test programs, under `target/`.
    pub fn programs(self) -> &'static str {
        match self {
            Arch::X86_64 => "programs",
            Arch::Aarch64 => "programs/aarch64",
        }
    }

    /// Returns the path of the init for Linux, under `target/`.
    pub fn init(self) -> &'static str {
        match self {
            Arch::X86_64 => "programs/init",
            Arch::Aarch64 => "programs/aarch64/init",
        }
    }

    /// Returns Linux's device names of the console, and of the serial port of the program's
    /// streams.
    pub fn ports(self) -> [&'static str; 2] {
        match self {
            Arch::X86_64 => ["ttyS0", "ttyS1"],
            Arch::Aarch64 => ["ttyAMA0", "ttyS0"],
        }
    }

    /// Returns QEMU's program name, and the Debian package that has it.
    pub fn qemu(self) -> [&'static str; 2] {
        match self {
            Arch::X86_64 => ["qemu-system-x86_64", "qemu-system-x86"],
            Arch::Aarch64 => ["qemu-system-aarch64", "qemu-system-arm"],
        }
    }

    /// Returns whether the host's CPU can execute this architecture's instructions.
    pub fn is_hosts(self) -> bool {
        self == Arch::X86_64 && cfg!(target_arch = "x86_64")
    }

    /// Adds the machine to QEMU's arguments: an exit device, the console to a file, and the serial
    /// port of the program's streams on standard input and output.
    pub fn machine(self, qemu: &mut Command, accel: Accel, console: &Path) {
        let wire = ["-chardev", "stdio,id=wire,signal=off"];
        match self {
            Arch::X86_64 => {
                qemu.args(["-machine", "q35", "-cpu", "max"]);
                qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
                qemu.arg("-serial").arg(format!("file:{}", console.display()));
                qemu.args(wire).args(["-serial", "chardev:wire"]);
            }
            Arch::Aarch64 => {
                qemu.args(["-machine", "virt,gic-version=3", "-cpu", "max"]);
                if accel == Accel::Tcg {
                    qemu.args(["-semihosting-config", "enable=on,target=native"]);
                }
                qemu.arg("-serial").arg(format!("file:{}", console.display()));
                qemu.args(wire).args(["-device", "pci-serial,chardev=wire,addr=1"]);
            }
        }
    }

    /// Returns the bytes of memory up to the end of the archive (of `len` bytes), where this
    /// command and not QEMU chooses its address; 0 where QEMU does.
    pub fn filled(self, len: usize) -> u64 {
        match self {
            Arch::X86_64 => 0,
            Arch::Aarch64 => ARCHIVE - MEMORY + len as u64,
        }
    }

    /// Adds the reference kernel's archive to QEMU's arguments. Returns the option of the kernel's
    /// command line that describes the archive, if it needs one.
    pub fn hand_over(self, qemu: &mut Command, archive: &Path, len: usize) -> String {
        match self {
            Arch::X86_64 => {
                qemu.arg("-initrd").arg(archive);
                String::new()
            }
            Arch::Aarch64 => {
                let file = archive.display();
                qemu.arg("-device").arg(format!("loader,file={file},addr={ARCHIVE:#x},force-raw=on"));
                format!("archive={ARCHIVE:x},{len:x} ")
            }
        }
    }
}
