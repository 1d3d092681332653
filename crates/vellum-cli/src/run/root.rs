//! The root file system of the machine, which is not changed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// The slot of the root file system's device on the PCI bus, by which the reference kernel finds
/// it.
const SLOT: u8 = 6;

/// The root file system on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// A folder, which QEMU shares by 9P.
    Folder(PathBuf),
    /// A file with an ext4 file system.
    Image(PathBuf),
}

/// Parses the path of a folder or of a file.
///
/// # Errors
/// There is no such folder or file.
pub fn parse(text: &str) -> Result<Root, String> {
    let path = Path::new(text);
    if path.is_dir() {
        Ok(Root::Folder(path.into()))
    } else if path.is_file() {
        Ok(Root::Image(path.into()))
    } else {
        Err("there is no such folder or file".into())
    }
}

impl Root {
    /// Returns the value of the kernel's option `root=`.
    pub fn kind(&self) -> &'static str {
        match self {
            Root::Folder(_) => "folder",
            Root::Image(_) => "disk",
        }
    }

    /// Adds the root file system to QEMU's arguments.
    ///
    /// # Errors
    /// The path is gone, or has a comma.
    pub fn add_to(&self, qemu: &mut Command) -> anyhow::Result<()> {
        let (Root::Folder(path) | Root::Image(path)) = self;
        let path = path.canonicalize().with_context(|| format!("the root file system {}", path.display()))?;
        let path = path.into_os_string().into_string();
        let path = path.map_err(|_: OsString| anyhow::anyhow!("the path of the root file system is not UTF-8"))?;
        ensure!(!path.contains(','), "QEMU accepts no comma in the path of the root file system: {path}");
        match self {
            Root::Folder(_) => {
                let folder = format!("local,id=root,path={path},security_model=none,multidevs=remap,readonly=on");
                qemu.args(["-fsdev", &folder, "-device"]);
                qemu.arg(format!("virtio-9p-pci,fsdev=root,mount_tag=root,addr={SLOT},disable-legacy=on"));
            }
            Root::Image(_) => {
                // QEMU puts the kernel's writes, by which it replays a journal, into a temporary
                // file.
                let file = format!("driver=raw,file.driver=file,file.filename={path}");
                qemu.args(["-drive", &format!("if=none,id=root,snapshot=on,cache=unsafe,{file}"), "-device"]);
                qemu.arg(format!("virtio-blk-pci,drive=root,addr={SLOT},disable-legacy=on"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_an_existing_folder_or_file() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, b"").unwrap();
        assert_eq!(parse(folder.path().to_str().unwrap()), Ok(Root::Folder(folder.path().into())));
        assert_eq!(parse(image.to_str().unwrap()), Ok(Root::Image(image)));
        assert!(parse("/there/is/no/such/folder").is_err());
    }
}
