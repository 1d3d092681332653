//! A disk for the machine to swap to.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use vellum_inspect::size;

/// Where what is swapped out goes on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// Into a file of so many bytes that is there as long as the machine.
    New(u64),
    /// Into this file, whose contents are lost.
    File(PathBuf),
}

/// What the disk is asked to do in vain, to see what becomes of it.
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
    /// Whether the reference kernel keeps checksums of what is there.
    pub checked: bool,
}

/// Reads a size, or else the path of a file.
pub fn parse(text: &str) -> Result<Image, String> {
    match size::parse(text) {
        Ok(0) => Err("no room for anything".into()),
        Ok(bytes) => Ok(Image::New(bytes)),
        Err(_) if Path::new(text).is_file() => Ok(Image::File(text.into())),
        Err(error) => Err(format!("no file, and no size: {error}")),
    }
}

impl Disk<'_> {
    /// Tells QEMU of it. What there has to be is made in `folder`.
    ///
    /// # Errors
    /// The host refuses to make a file of this size; a file's path has a comma.
    pub fn plug_in(self, qemu: &mut Command, folder: &Path) -> anyhow::Result<()> {
        let path = match self.image {
            Image::File(path) => path.clone(),
            Image::New(bytes) => {
                let path = folder.join("disk");
                File::create(&path).and_then(|file| file.set_len(*bytes)).context("making a disk")?;
                path
            }
        };
        let path = path.display().to_string();
        ensure!(!path.contains(','), "QEMU takes no file with a comma in its path: {path}");
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
        // What is on it is worth nothing once the machine is gone.
        qemu.arg("-drive").arg(format!("if=none,id=swap,driver=raw,cache=unsafe,{file}"));
        qemu.args(["-device", "virtio-blk-pci,drive=swap,addr=3,disable-legacy=on"]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_a_size_or_a_file_that_there_is() {
        assert_eq!(parse("64MiB"), Ok(Image::New(64 << 20)));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        assert_eq!(parse(path), Ok(Image::File(path.into())));
        for wrong in ["0", "64 parsecs", "/there/is/no/such/file"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
