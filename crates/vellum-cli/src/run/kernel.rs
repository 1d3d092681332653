//! The kernel to boot: which it is, and what that asks of the machine.

use super::arch::Arch;
use super::archive::Extra;
use super::disk::Disk;
use super::modules;
use anyhow::{Context, bail};
use memchr::memmem;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// What is in each uncompressed image of Linux.
const LINUX_BANNER: &[u8] = b"Linux version ";

/// Which kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The reference kernel.
    Vellum,
    /// Linux.
    Linux,
}

/// An image that there is.
pub struct Kernel {
    /// Where.
    pub image: PathBuf,
    /// Which.
    pub kind: Kind,
    /// For what machine.
    pub arch: Arch,
}

/// A file that `./x` leaves under `target/`, which is the folder above this command's.
///
/// # Errors
/// This command is in no folder.
pub fn built(path: &str) -> anyhow::Result<PathBuf> {
    let command = std::env::current_exe().context("where this command is")?;
    let target = command.parent().and_then(Path::parent).context("this command is in no folder")?;
    Ok(target.join(path))
}

impl Kernel {
    /// The reference kernel, as `./x build --kernel` leaves it.
    ///
    /// # Errors
    /// There is none.
    pub fn reference(arch: Arch) -> anyhow::Result<Self> {
        let image = built(arch.reference())?;
        if !image.is_file() {
            bail!(
                "there is no reference kernel at {}: build it by `./x build --kernel {}`",
                image.display(),
                arch.name()
            );
        }
        Ok(Self { image, kind: Kind::Vellum, arch })
    }

    /// The reference kernel that records how long a CPU can do nothing else, as `./x build --holds`
    /// leaves it.
    ///
    /// # Errors
    /// There is none.
    pub fn that_records(arch: Arch) -> anyhow::Result<Self> {
        let image = built(&arch.reference().replacen("kernel/", "kernel-holds/", 1))?;
        if !image.is_file() {
            bail!(
                "there is no reference kernel that records at {}: build it by `./x build --holds {}`",
                image.display(),
                arch.name()
            );
        }
        Ok(Self { image, kind: Kind::Vellum, arch })
    }

    /// The Linux that `./x linux` fetched.
    ///
    /// # Errors
    /// There is none.
    pub fn linux(arch: Arch) -> anyhow::Result<Self> {
        let image = built(arch.linux())?;
        if !image.is_file() {
            let path = image.display();
            bail!(
                "there is no Linux at {path}: fetch one by `./x linux --arch {}`, or name one by --kernel",
                arch.name()
            );
        }
        Self::at(&image)
    }

    /// The kernel in a file.
    ///
    /// # Errors
    /// It can't be read, or is no kernel.
    pub fn at(image: &Path) -> anyhow::Result<Self> {
        let mut bytes = Vec::new();
        let read = File::open(image).and_then(|mut file| file.read_to_end(&mut bytes));
        read.with_context(|| format!("reading the kernel {}", image.display()))?;
        let (kind, arch) = if let Some(arch) = Arch::of_linux(&bytes) {
            (Kind::Linux, arch)
        } else if let Some(arch) = Arch::of_elf(&bytes) {
            (if memmem::find(&bytes, LINUX_BANNER).is_some() { Kind::Linux } else { Kind::Vellum }, arch)
        } else {
            bail!("{} is no kernel for x86-64 or AArch64", image.display());
        };
        // A link's target has its modules beside it.
        Ok(Self { image: fs::canonicalize(image)?, kind, arch })
    }

    /// What the kernel is told; `joins` and `counts` as in [`super::machine::Machine`].
    pub fn command_line(&self, joins: bool, counts: bool) -> String {
        match self.kind {
            Kind::Vellum => ["run", if joins { "" } else { " apart" }, if counts { " counted" } else { "" }].concat(),
            // Without what guards against flaws of hardware that an emulated CPU doesn't have: the
            // reference kernel has none of it. A panic ends the machine.
            Kind::Linux => {
                let [console, wire] = self.arch.ports();
                format!("console={console} panic=-1 rdinit=/init mitigations=off WIRE=/dev/{wire}")
            }
        }
    }

    /// The status with which QEMU ends when all went well.
    pub fn success(&self) -> i32 {
        match self.kind {
            // By the exit device, or what stands for it (`vellum-kernel`, `arch/*/exit.rs`).
            Kind::Vellum => 33,
            // The machine is turned off.
            Kind::Linux => 0,
        }
    }

    /// Files that the kernel needs, by their paths in the archive, and what `/.vellum/options`
    /// says.
    ///
    /// # Errors
    /// There is no such file.
    pub fn needs(&self, swap: Option<u64>, disk: Option<Disk<'_>>) -> anyhow::Result<(Vec<Extra>, String)> {
        let (mut files, mut options) = (Vec::new(), String::new());
        if self.kind == Kind::Linux {
            let init = built(self.arch.init())?;
            let contents = fs::read(&init).with_context(|| {
                format!("no init for Linux at {}: build it by `./x build --kernel`", init.display())
            })?;
            files.push(Extra { path: "init".into(), mode: 0o755, contents });
            for module in [swap.map(|_| "zram"), disk.map(|_| "virtio_blk")].into_iter().flatten() {
                for (name, contents) in modules::with_dependencies(&self.image, module)? {
                    options += &format!("module=/.vellum/{name}.ko\n");
                    files.push(Extra { path: format!(".vellum/{name}.ko"), mode: 0o644, contents });
                }
            }
        }
        if let Some(bytes) = swap {
            options += &format!("swap={bytes}\n");
        }
        if let Some(disk) = disk {
            let checked = disk.checked && self.kind == Kind::Vellum;
            options += if checked { "swap-disk=checked\n" } else { "swap-disk=\n" };
        }
        Ok((files, options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(bytes: &[u8]) -> Option<(Kind, Arch)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        Kernel::at(file.path()).ok().map(|kernel| (kernel.kind, kernel.arch))
    }

    fn elf(machine: u8, contents: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x7fELF".to_vec();
        bytes.resize(64, 0);
        bytes[18] = machine;
        [&bytes, contents].concat()
    }

    #[test]
    fn a_kernel_is_known_by_its_image() {
        let mut packed = vec![0; 0x400];
        packed[0x202..0x206].copy_from_slice(b"HdrS");
        assert_eq!(known(&packed), Some((Kind::Linux, Arch::X86_64)));
        let mut image = vec![0; 0x400];
        image[0x38..0x3c].copy_from_slice(b"ARM\x64");
        assert_eq!(known(&image), Some((Kind::Linux, Arch::Aarch64)));
        assert_eq!(known(&elf(62, b"Linux version %s (%s)")), Some((Kind::Linux, Arch::X86_64)));
        assert_eq!(known(&elf(62, b"vellum")), Some((Kind::Vellum, Arch::X86_64)));
        assert_eq!(known(&elf(183, b"vellum")), Some((Kind::Vellum, Arch::Aarch64)));
        assert_eq!(known(&elf(40, b"vellum")), None);
        assert_eq!(known(b"#!/bin/sh\n"), None);
    }
}
