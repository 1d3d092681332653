//! Finds and decompresses modules of a Linux kernel, with their dependencies.

use anyhow::{Context, bail};
use lzma_rust2::XzReader;
use object::{Object, ObjectSection};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Returns a module and its dependencies, in the order in which they can be loaded. Returns none if
/// the kernel has no module of that name: it may be built in.
///
/// # Errors
/// A module can't be read, or a dependency is missing.
pub fn with_dependencies(image: &Path, name: &str) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    for folder in folders(image) {
        list(&folder, &mut files);
    }
    let mut found = Vec::new();
    if find(&files, name).is_some() {
        load(&files, name, &mut found)?;
    }
    Ok(found)
}

/// Returns the folders where modules may be: beside the image, or where distributions install those
/// of `/boot/vmlinuz-VERSION`.
fn folders(image: &Path) -> Vec<PathBuf> {
    let name = image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let version = name.split_once('-').map(|(_, version)| Path::new("/lib/modules").join(version).join("kernel"));
    image.parent().map(|folder| folder.join("kernel")).into_iter().chain(version).collect()
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { list(&path, files) } else { files.push(path) }
    }
}

/// Finds a module's file. Module names have underscores where file names may have dashes.
fn find<'a>(files: &'a [PathBuf], name: &str) -> Option<&'a PathBuf> {
    files.iter().find(|path| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        file.split_once(".ko").is_some_and(|(stem, _)| stem.replace('-', "_") == name.replace('-', "_"))
    })
}

fn load(files: &[PathBuf], name: &str, found: &mut Vec<(String, Vec<u8>)>) -> anyhow::Result<()> {
    if found.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    let path = find(files, name).with_context(|| format!("the kernel has no module {name}"))?;
    let contents = unpack(path).with_context(|| format!("reading the module {}", path.display()))?;
    for needed in dependencies(&contents).with_context(|| format!("{} is not a module", path.display()))? {
        load(files, &needed, found)?;
    }
    found.push((name.into(), contents));
    Ok(())
}

fn unpack(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = fs::read(path)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => Ok(bytes),
        Some("xz") => {
            let mut contents = Vec::new();
            XzReader::new(bytes.as_slice(), true).read_to_end(&mut contents)?;
            Ok(contents)
        }
        other => bail!("unknown compression ({})", other.unwrap_or_default()),
    }
}

/// Returns the names of the modules that a module depends on, from the zero-terminated strings
/// `key=value` in its section `.modinfo`.
///
/// # Errors
/// The file is not a module.
pub fn dependencies(module: &[u8]) -> anyhow::Result<Vec<String>> {
    let file = object::File::parse(module)?;
    let section = file.section_by_name(".modinfo").context("no section .modinfo")?;
    let text = String::from_utf8_lossy(section.data()?).into_owned();
    let list = text.split('\0').find_map(|entry| entry.strip_prefix("depends=")).unwrap_or_default();
    Ok(list.split(',').filter(|name| !name.is_empty()).map(String::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::write;

    fn module(folder: &Path, file: &str, info: &str) {
        let mut object =
            write::Object::new(object::BinaryFormat::Elf, object::Architecture::X86_64, object::Endianness::Little);
        let section = object.add_section(Vec::new(), b".modinfo".to_vec(), object::SectionKind::ReadOnlyData);
        object.append_section_data(section, info.as_bytes(), 1);
        fs::write(folder.join(file), object.write().unwrap()).unwrap();
    }

    #[test]
    fn dependencies_come_before_a_module() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = folder.path().join("kernel/deep");
        fs::create_dir_all(&kernel).unwrap();
        module(&kernel, "top.ko", "license=GPL\0depends=left-hand,right\0");
        module(&kernel, "left_hand.ko", "depends=base\0");
        module(&kernel, "right.ko", "depends=base\0");
        module(&kernel, "base.ko", "depends=\0name=base\0");
        let image = folder.path().join("vmlinuz");
        let names = |name| {
            let found = with_dependencies(&image, name).unwrap();
            found.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names("top"), ["base", "left-hand", "right", "top"]);
        assert!(names("zram").is_empty(), "a kernel may have it built in");
        module(&kernel, "broken.ko", "depends=nothing\0");
        assert!(with_dependencies(&image, "broken").unwrap_err().to_string().contains("nothing"));
    }
}
