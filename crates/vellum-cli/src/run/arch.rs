//! Architectures: what each asks of QEMU, and where `./x` leaves what is built for it.

use super::accel::Accel;
use std::path::Path;
use std::process::Command;

/// What machines there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    /// PCs
    #[value(name = "x86_64")]
    X86_64,
    /// QEMU's machine `virt`
    #[value(name = "aarch64")]
    Aarch64,
}

/// Where `virt` has its memory.
const MEMORY: u64 = 0x4000_0000;
/// Where in it the archive of first files goes, as the loader knows none: above the reference
/// kernel, which has 16 MiB at most.
const ARCHIVE: u64 = MEMORY + (16 << 20);

impl Arch {
    /// The architecture for which an ELF file is.
    pub fn of_elf(bytes: &[u8]) -> Option<Self> {
        const MACHINE: usize = 18;
        let machine = bytes.get(MACHINE..MACHINE + 2).filter(|_| bytes.starts_with(b"\x7fELF"))?;
        match machine {
            [62, 0] => Some(Arch::X86_64),
            [183, 0] => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// The architecture for which an image of Linux is that is no ELF file (Linux,
    /// `Documentation/arch/x86/boot.rst` and `Documentation/arch/arm64/booting.rst`).
    pub fn of_linux(bytes: &[u8]) -> Option<Self> {
        let has = |at: usize, magic: &[u8]| bytes.get(at..at + magic.len()) == Some(magic);
        if has(0x202, b"HdrS") { Some(Arch::X86_64) } else { has(0x38, b"ARM\x64").then_some(Arch::Aarch64) }
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    /// Where the reference kernel is, under `target/`.
    pub fn reference(self) -> &'static str {
        match self {
            Arch::X86_64 => "kernel/x86_64-unknown-none/release/vellum-kernel",
            Arch::Aarch64 => "kernel/aarch64-unknown-none-softfloat/release/vellum-kernel",
        }
    }

    /// Where Linux is.
    pub fn linux(self) -> &'static str {
        match self {
            Arch::X86_64 => "linux/vmlinuz",
            Arch::Aarch64 => "linux/aarch64/vmlinuz",
        }
    }

    /// Where our programs are.
    pub fn programs(self) -> &'static str {
        match self {
            Arch::X86_64 => "programs",
            Arch::Aarch64 => "programs/aarch64",
        }
    }

    /// Where our init for Linux is.
    pub fn init(self) -> &'static str {
        match self {
            Arch::X86_64 => "programs/init",
            Arch::Aarch64 => "programs/aarch64/init",
        }
    }

    /// Linux's names of the console, and of the port that is the wire.
    pub fn ports(self) -> [&'static str; 2] {
        match self {
            Arch::X86_64 => ["ttyS0", "ttyS1"],
            Arch::Aarch64 => ["ttyAMA0", "ttyS0"],
        }
    }

    /// QEMU for it, and the package of Debian's that has it.
    pub fn qemu(self) -> [&'static str; 2] {
        match self {
            Arch::X86_64 => ["qemu-system-x86_64", "qemu-system-x86"],
            Arch::Aarch64 => ["qemu-system-aarch64", "qemu-system-arm"],
        }
    }

    /// Whether the host's CPU may execute its instructions.
    pub fn is_hosts(self) -> bool {
        self == Arch::X86_64 && cfg!(target_arch = "x86_64")
    }

    /// Tells QEMU of the machine: what ends it with a status, the console in a file, the wire on
    /// standard input and output.
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

    /// The memory, in bytes, that the reference kernel and an archive of this length fill, if the
    /// command and not QEMU places them.
    pub fn filled(self, len: usize) -> u64 {
        match self {
            Arch::X86_64 => 0,
            Arch::Aarch64 => ARCHIVE - MEMORY + len as u64,
        }
    }

    /// Tells QEMU of the reference kernel's archive of first files; what the kernel is told of it.
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
