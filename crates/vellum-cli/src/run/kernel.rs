//! The kernel to boot: its kind, and what it needs from the machine.

use super::arch::Arch;
use super::archive::Extra;
use super::disk::{Disk, Role};
use super::root::Root;
use super::{modules, release};
use anyhow::{Context, bail};
use memchr::memmem;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kind of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The reference kernel.
    Vellum,
    /// Linux.
    Linux,
}

impl Kind {
    /// Returns the folder in the archive for the files that are laid over the root file system.
    pub fn files_over_root(self) -> &'static str {
        match self {
            Kind::Vellum => "",
            // The first process lays them over it.
            Kind::Linux => "/.vellum/files",
        }
    }
}

/// An existing kernel image.
pub struct Kernel {
    /// The path of the image.
    pub image: PathBuf,
    /// The kind.
    pub kind: Kind,
    /// The architecture.
    pub arch: Arch,
    /// True for a Linux that has zswap before its swap.
    pub zswap: bool,
}

/// Returns the path of a file that `./x` leaves under `target/`, the folder above this command's.
///
/// # Errors
/// The folder of this command is unknown.
pub fn built(path: &str) -> anyhow::Result<PathBuf> {
    let command = std::env::current_exe().context("finding this command's path")?;
    let target = command.parent().and_then(Path::parent).context("this command's path has no folder")?;
    Ok(target.join(path))
}

impl Kernel {
    /// Returns the reference kernel that `./x build --kernel` leaves.
    ///
    /// # Errors
    /// There is none.
    pub fn reference(arch: Arch) -> anyhow::Result<Self> {
        let image = built(arch.reference())?;
        if !image.is_file() {
            bail!(
                "there is no reference kernel at {}: build it with `./x build --kernel {}`",
                image.display(),
                arch.name()
            );
        }
        Ok(Self { image, kind: Kind::Vellum, arch, zswap: false })
    }

    /// Returns the reference kernel that records non-preemptible sections, which `./x build
    /// --holds` leaves.
    ///
    /// # Errors
    /// There is none.
    pub fn recording(arch: Arch) -> anyhow::Result<Self> {
        let image = built(&arch.reference().replacen("kernel/", "kernel-holds/", 1))?;
        if !image.is_file() {
            bail!(
                "there is no recording reference kernel at {}: build it with `./x build --holds {}`",
                image.display(),
                arch.name()
            );
        }
        Ok(Self { image, kind: Kind::Vellum, arch, zswap: false })
    }

    /// Returns the Linux that `./x linux` fetched.
    ///
    /// # Errors
    /// There is none.
    pub fn linux(arch: Arch) -> anyhow::Result<Self> {
        let image = built(arch.linux())?;
        if !image.is_file() {
            let path = image.display();
            bail!("there is no Linux at {path}: fetch one with `./x linux --arch {}`, or use --kernel", arch.name());
        }
        Self::at(&image)
    }

    /// Returns the minimal Linux that `./x linux --minimal` built, or `None` if there is none.
    ///
    /// # Errors
    /// The file can't be read, or is not a kernel.
    pub fn minimal(arch: Arch) -> anyhow::Result<Option<Self>> {
        let image = built(arch.minimal())?;
        image.is_file().then(|| Self::at(&image)).transpose()
    }

    /// Returns the kernel in a file.
    ///
    /// # Errors
    /// The file can't be read, or is not a kernel.
    pub fn at(image: &Path) -> anyhow::Result<Self> {
        let mut bytes = Vec::new();
        let read = File::open(image).and_then(|mut file| file.read_to_end(&mut bytes));
        read.with_context(|| format!("reading the kernel {}", image.display()))?;
        let (kind, arch) = if let Some(arch) = Arch::of_linux(&bytes) {
            (Kind::Linux, arch)
        } else if let Some(arch) = Arch::of_elf(&bytes) {
            (if memmem::find(&bytes, release::BANNER).is_some() { Kind::Linux } else { Kind::Vellum }, arch)
        } else {
            bail!("{} is not a kernel for x86-64 or AArch64", image.display());
        };
        // Resolve a link: the kernel's modules lie beside the link's target.
        Ok(Self { image: fs::canonicalize(image)?, kind, arch, zswap: false })
    }

    /// Returns the release of a Linux, as `uname -r` prints it; `None` for the reference kernel,
    /// and if the image does not have it in the clear.
    pub fn release(&self) -> Option<String> {
        let image = (self.kind == Kind::Linux).then(|| fs::read(&self.image).ok()).flatten()?;
        release::of_linux(&image)
    }

    /// Returns the kernel's command line. The arguments are the fields of the same names in
    /// [`super::machine::Machine`].
    pub fn command_line(&self, cont_blocks: bool, icount: bool, ram_disk: Option<u64>) -> String {
        match self.kind {
            Kind::Vellum => {
                ["run", if cont_blocks { "" } else { " apart" }, if icount { " counted" } else { "" }].concat()
            }
            // Mitigations of CPU vulnerabilities are off, as the reference kernel has none and an
            // emulated CPU is not vulnerable. So is the hardening that zeroes every allocation,
            // which distributions turn on. `panic=-1` ends the machine at a panic. `nokaslr` keeps
            // functions at the addresses in the image's map.
            Kind::Linux => {
                let [console, wire] = self.arch.ports();
                // For a kernel that has the driver built in. The init passes a module its
                // parameters.
                let ram_disk = ram_disk.map_or_else(String::new, |bytes| ram_disk_parameters(bytes, " brd."));
                format!(
                    "console={console} panic=-1 nokaslr rdinit=/init mitigations=off init_on_alloc=0 \
                     WIRE=/dev/{wire}{ram_disk}"
                )
            }
        }
    }

    /// Returns QEMU's exit code on success.
    pub fn success(&self) -> i32 {
        match self.kind {
            // The kernel's exit device sets this code (`vellum-kernel`, `arch/*/exit.rs`).
            Kind::Vellum => 33,
            // Linux powers the machine off.
            Kind::Linux => 0,
        }
    }

    /// Returns the files that the kernel needs, and the text of `/.vellum/options`. `time`: that of
    /// the machine's clock, since 1970.
    ///
    /// # Errors
    /// A file is missing.
    pub fn needs(
        &self,
        swap: Option<u64>,
        disks: &[Disk<'_>],
        ram_disk: Option<u64>,
        root: Option<&Root>,
        time: Option<Duration>,
    ) -> anyhow::Result<(Vec<Extra>, String)> {
        let (mut files, mut options) = (Vec::new(), String::new());
        if self.kind == Kind::Linux {
            let init = built(self.arch.init())?;
            let contents = fs::read(&init).with_context(|| {
                format!("no init for Linux at {}: build it with `./x build --kernel`", init.display())
            })?;
            files.push(Extra { path: "init".into(), mode: 0o755, contents });
            let parameters = ram_disk.map(|bytes| ram_disk_parameters(bytes, " "));
            if let Some(Root::Folder(path)) = root {
                let path = path.display();
                bail!("Debian's cloud kernels have no 9P: make an image, by `mke2fs -t ext4 -d {path} IMAGE SIZE`");
            }
            let virtio = disks.first().map(|_| ()).or(root.map(|_| ()));
            let needed = [
                swap.map(|_| "zram"),
                virtio.map(|()| "virtio_blk"),
                root.map(|_| "overlay"),
                parameters.as_ref().map(|_| "brd"),
            ];
            for module in needed.into_iter().flatten() {
                for (name, contents) in modules::with_dependencies(&self.image, module)? {
                    let parameters = parameters.as_deref().filter(|_| name == "brd").unwrap_or_default();
                    options += &format!("module=/.vellum/{name}.ko {}\n", parameters.trim());
                    files.push(Extra { path: format!(".vellum/{name}.ko"), mode: 0o644, contents });
                }
            }
        }
        if self.zswap {
            options += "zswap=lz4\n";
        }
        if let Some(bytes) = swap {
            options += &format!("swap={bytes}\n");
        }
        for disk in disks {
            options += match disk.role {
                Role::Swap { checked: true } if self.kind == Kind::Vellum => "swap-disk=checked\n",
                Role::Swap { .. } => "swap-disk=\n",
                Role::Program => "disk=\n",
            };
        }
        if let Some(root) = root {
            options += &format!("root={}\n", root.kind());
        }
        if let Some(bytes) = ram_disk {
            options += &format!("ram-disk={bytes}\n");
        }
        // Linux reads the machine's clock.
        if let (Kind::Vellum, Some(time)) = (self.kind, time) {
            options += &format!("time={}\n", time.as_nanos());
        }
        Ok((files, options))
    }
}

/// Returns the parameters of Linux's brd for one disk in memory of this size, with `before` before
/// each.
fn ram_disk_parameters(bytes: u64, before: &str) -> String {
    format!("{before}rd_nr=1{before}rd_size={}", bytes.div_ceil(1 << 10))
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
    fn linux_boots_without_mitigations_and_without_zeroing_allocations() {
        for arch in [Arch::X86_64, Arch::Aarch64] {
            let line = Kernel { image: "vmlinuz".into(), kind: Kind::Linux, arch, zswap: false }
                .command_line(true, true, None);
            let words: Vec<_> = line.split(' ').collect();
            assert!(words.contains(&"mitigations=off") && words.contains(&"init_on_alloc=0"), "{line}");
        }
    }

    #[test]
    fn a_kernel_is_identified_by_its_image() {
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
