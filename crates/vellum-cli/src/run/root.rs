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

/// The folders of programs that are called by their name alone, as a shell without `PATH` has them.
const PROGRAMS: [&str; 6] = ["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"];

impl Root {
    /// Returns the path of a program in this file system that is called by its name alone. Returns
    /// `None` for a path, for a name without a program, and if the file system is an image.
    pub fn find(&self, program: &Path) -> Option<PathBuf> {
        let Root::Folder(folder) = self else { return None };
        let is_name = program.components().count() == 1 && program.is_relative();
        let paths = PROGRAMS.iter().map(|of| Path::new(of).join(program));
        paths.filter(|_| is_name).find(|path| folder.join(path).is_file()).map(|path| Path::new("/").join(path))
    }

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
                // Linux's init finds the disk by the serial number.
                qemu.arg(format!("virtio-blk-pci,drive=root,serial=root,addr={SLOT},disable-legacy=on"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_a_folder_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        std::fs::write(folder.path().join("usr/bin/tool"), b"").unwrap();
        let root = Root::Folder(folder.path().into());
        let find = |name: &str| root.find(Path::new(name));
        assert_eq!(find("tool"), Some("/usr/bin/tool".into()));
        assert_eq!([find("other"), find("bin/tool"), find("/tool")], [None, None, None]);
        assert_eq!(Root::Image("image".into()).find(Path::new("tool")), None);
    }

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
