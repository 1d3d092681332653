//! Packs the program and its files into a cpio archive such as Linux's initramfs.

use anyhow::{Context, bail};
use cpio::newc::{Builder, ModeFileType, trailer};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Directories that a program may expect.
const DIRECTORIES: [&str; 8] = ["bin", "dev", "dev/shm", "etc", "proc", "sys", "tmp", ".vellum"];

struct Archive {
    bytes: Vec<u8>,
    directories: Vec<String>,
    files: Vec<String>,
}

impl Archive {
    fn add(&mut self, path: &str, kind: ModeFileType, mode: u32, contents: &[u8]) -> anyhow::Result<()> {
        let entry = Builder::new(path).mode(mode).set_mode_file_type(kind);
        let size = u32::try_from(contents.len()).with_context(|| format!("{path} is larger than 4 GiB"))?;
        let mut writer = entry.write(&mut self.bytes, size);
        std::io::Write::write_all(&mut writer, contents)?;
        writer.finish()?;
        Ok(())
    }

    fn directory(&mut self, path: &str) -> anyhow::Result<()> {
        if path.is_empty() || self.directories.iter().any(|known| known == path) {
            return Ok(());
        }
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent)?;
        }
        self.directories.push(path.into());
        self.add(path, ModeFileType::Directory, 0o755, &[])
    }

    fn file(&mut self, host: &Path, guest: &str) -> anyhow::Result<()> {
        let contents = fs::read(host).with_context(|| format!("reading {}", host.display()))?;
        let mode = fs::metadata(host)?.permissions().mode() & 0o777;
        let guest = guest.trim_start_matches('/');
        if self.files.iter().any(|known| known == guest) {
            bail!("{}: another --file has the path /{guest}", host.display());
        }
        self.files.push(guest.into());
        if let Some((parent, _)) = guest.rsplit_once('/') {
            self.directory(parent)?;
        }
        self.add(guest, ModeFileType::Regular, mode, &contents)
    }

    /// Adds a file at `path` with the strings in `words`, each terminated by a zero byte.
    fn words(&mut self, path: &str, words: impl IntoIterator<Item = impl AsRef<[u8]>>) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        for word in words {
            bytes.extend_from_slice(word.as_ref());
            bytes.push(0);
        }
        self.add(path, ModeFileType::Regular, 0o644, &bytes)
    }
}

/// A program, its arguments, environment and files.
#[derive(Clone, Copy)]
pub struct Program<'a> {
    /// The path of its file on this machine, or of one of `files` in the virtual machine.
    pub path: &'a Path,
    /// The arguments after the name.
    pub arguments: &'a [String],
    /// The environment variables, each `KEY=VALUE`.
    pub environment: &'a [String],
    /// Files on this machine, and their paths in the virtual machine.
    pub files: &'a [(PathBuf, String)],
    /// With a root file system, which may have the program: the folder in the archive for the
    /// files, which the kernel lays over it.
    pub root: Option<&'a str>,
}

/// A file that the kernel needs.
pub struct Extra {
    /// The path in the virtual machine, without the leading slash.
    pub path: String,
    /// The permission bits.
    pub mode: u32,
    /// The contents.
    pub contents: Vec<u8>,
}

/// Packs a program with its arguments and files, and the kernel's files; `options` are lines
/// `key=value`.
///
/// # Errors
/// A file can't be read, or there is no such program.
pub fn pack(called: Program<'_>, extras: &[Extra], options: &str) -> anyhow::Result<Vec<u8>> {
    let Program { path: program, arguments, environment, files, root } = called;
    let mut archive = Archive { bytes: Vec::new(), directories: Vec::new(), files: Vec::new() };
    for directory in DIRECTORIES {
        archive.directory(directory)?;
    }
    let name = program.to_str().context("the program's name is not UTF-8")?;
    // A `--file` for the path takes precedence over a file of this machine.
    let path = if root.is_some() || files.iter().any(|(_, guest)| guest == name) {
        name.into()
    } else if program.is_file() {
        let base = program.file_name().and_then(|name| name.to_str()).context("the program has no name")?;
        let path = format!("/bin/{base}");
        archive.file(program, &path)?;
        path
    } else {
        bail!("there is no program {name}, on this machine or among the --file options");
    };
    for (host, guest) in files {
        archive.file(host, &format!("{}{guest}", root.unwrap_or_default()))?;
    }
    archive.words(".vellum/argv", [&path, &name.to_string()].into_iter().chain(arguments))?;
    archive.words(".vellum/env", environment)?;
    archive.add(".vellum/options", ModeFileType::Regular, 0o644, options.as_bytes())?;
    for extra in extras {
        archive.add(&extra.path, ModeFileType::Regular, extra.mode, &extra.contents)?;
    }
    trailer(&mut archive.bytes)?;
    Ok(archive.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpio::newc::Reader;
    use std::io::Read;

    fn names(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        loop {
            let mut reader = Reader::new(bytes).unwrap();
            if reader.entry().is_trailer() {
                return found;
            }
            let (name, mode) = (reader.entry().name().to_string(), reader.entry().mode());
            let mut contents = Vec::new();
            reader.read_to_end(&mut contents).unwrap();
            found.push((name, mode, contents));
            bytes = reader.finish().unwrap();
        }
    }

    #[test]
    fn a_program_is_packed_into_bin_with_its_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("tool");
        fs::write(&program, b"contents").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let files = [(program.clone(), "/a/b/data".to_string())];
        let (arguments, environment) = (["x".into(), "".into()], ["K=V".into()]);
        let called =
            Program { path: &program, arguments: &arguments, environment: &environment, files: &files, root: None };
        let extra = Extra { path: "init".into(), mode: 0o755, contents: b"first".to_vec() };
        let packed = names(&pack(called, &[extra], "swap=4096\n").unwrap());
        let find = |name: &str| packed.iter().find(|(n, ..)| n == name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(find("bin/tool").1, 0o100755);
        assert_eq!(find("a/b/data").2, b"contents");
        assert_eq!(find("a/b").1, 0o040755, "the folders of a file are made");
        let called = format!("/bin/tool\0{}\0x\0\0", program.display());
        assert_eq!(find(".vellum/argv").2, called.as_bytes());
        assert_eq!(find(".vellum/env").2, b"K=V\0");
        assert_eq!((find("init").1, find("init").2.as_slice()), (0o100755, &b"first"[..]));
        assert_eq!(find(".vellum/options").2, b"swap=4096\n");
    }

    #[test]
    fn a_file_option_for_the_program_path_is_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, name).unwrap();
            path
        };
        let (here, there) = (file("here"), file("there"));
        let files = [(there.clone(), here.to_str().unwrap().to_string())];
        let called = Program { path: &here, arguments: &[], environment: &[], files: &files, root: None };
        let packed = names(&pack(called, &[], "").unwrap());
        let path = here.to_str().unwrap();
        assert!(packed.iter().any(|(name, _, contents)| name == &path[1..] && contents == b"there"));
        assert!(!packed.iter().any(|(name, ..)| name == "bin/here"));
        let twice = [(there.clone(), "/x".to_string()), (here.clone(), "/x".to_string())];
        let error = pack(Program { files: &twice, ..called }, &[], "").unwrap_err();
        assert!(error.to_string().contains("/x"), "{error}");
    }

    #[test]
    fn a_missing_program_is_an_error() {
        let called =
            Program { path: Path::new("/no/such/program"), arguments: &[], environment: &[], files: &[], root: None };
        let error = pack(called, &[], "").unwrap_err();
        assert!(error.to_string().contains("/no/such/program"));
        let in_root = pack(Program { root: Some(""), ..called }, &[], "").unwrap();
        let words = |name: &str| names(&in_root).into_iter().find(|(n, ..)| n == name).map(|(.., words)| words);
        assert_eq!(words(".vellum/argv").unwrap(), b"/no/such/program\0/no/such/program\0");
    }
}
