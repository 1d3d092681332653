//! Disks of the machine: one to swap to, and one for the program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use vellum_inspect::size;

/// The image of the disk on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// A temporary file of this many bytes.
    New(u64),
    /// This file, which the machine reads and writes.
    File(PathBuf),
}

/// The requests that the disk fails, to test the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Failing {
    /// Each read fails
    Reads,
    /// Each write fails
    Writes,
}

/// A disk.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Disk<'a> {
    pub image: &'a Image,
    pub failing: Option<Failing>,
    /// The bytes that it reads and writes in a second at most.
    pub rate: Option<u64>,
    pub role: Role,
}

/// The use that the machine makes of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// To swap to.
    Swap {
        /// The reference kernel keeps checksums of its pages.
        checked: bool,
    },
    /// For the program.
    Program,
}

impl Role {
    /// Returns the disk's name in QEMU, its slot on the PCI bus, by which the reference kernel
    /// finds it, and how QEMU caches it: what was swapped out is of no use once the machine is
    /// gone.
    fn place(self) -> (&'static str, u8, &'static str) {
        match self {
            Role::Swap { .. } => ("swap", 3, "unsafe"),
            Role::Program => ("disk", 4, "writeback"),
        }
    }
}

/// Parses a size, or else the path of a file.
///
/// # Errors
/// The text is neither.
pub fn parse(text: &str) -> Result<Image, String> {
    match size::parse(text) {
        Ok(0) => Err("the size must be more than 0".into()),
        Ok(bytes) => Ok(Image::New(bytes)),
        Err(_) if Path::new(text).is_file() => Ok(Image::File(text.into())),
        Err(error) => Err(format!("neither a file nor a size: {error}")),
    }
}

/// Parses the bytes in a second that a disk does at most.
///
/// # Errors
/// The text is not a size, or is 0.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    match size::parse(text) {
        // QEMU takes 0 for no limit.
        Ok(0) => Err("the rate must be more than 0".into()),
        other => other.map_err(|error| error.to_string()),
    }
}

impl Disk<'_> {
    /// Adds the disk to QEMU's arguments. A new image is made in `folder`.
    ///
    /// # Errors
    /// The host can't make a file of this size, or the path has a comma.
    pub fn add_to(self, qemu: &mut Command, folder: &Path) -> anyhow::Result<()> {
        let (name, slot, cache) = self.role.place();
        let path = match self.image {
            Image::File(path) => path.clone(),
            Image::New(bytes) => {
                let path = folder.join(name);
                File::create(&path).and_then(|file| file.set_len(*bytes)).context("making a disk")?;
                path
            }
        };
        let path = path.display().to_string();
        ensure!(!path.contains(','), "QEMU accepts no comma in the path of a disk: {path}");
        let file = match self.failing {
            None => format!("file.driver=file,file.filename={path}"),
            Some(failing) => {
                let what = if failing == Failing::Reads { "read" } else { "write" };
                format!(
                    "file.driver=blkdebug,file.image.driver=file,file.image.filename={path},\
                     file.inject-error.0.event=none,file.inject-error.0.iotype={what},file.inject-error.0.errno=5"
                )
            }
        };
        let rate = self.rate.map_or_else(String::new, |rate| format!(",throttling.bps-total={rate}"));
        qemu.arg("-drive").arg(format!("if=none,id={name},driver=raw,cache={cache},{file}{rate}"));
        qemu.arg("-device").arg(format!("virtio-blk-pci,drive={name},addr={slot},disable-legacy=on"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_stands_still_is_refused() {
        assert_eq!(parse_rate("4MiB"), Ok(4 << 20));
        assert!(parse_rate("0").is_err());
    }

    #[test]
    fn a_disk_is_a_size_or_an_existing_file() {
        assert_eq!(parse("64MiB"), Ok(Image::New(64 << 20)));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(parse(path), Ok(Image::File(path.into())));
        for wrong in ["0", "64 parsecs", "/there/is/no/such/file"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
