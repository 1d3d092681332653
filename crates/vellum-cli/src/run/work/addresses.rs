//! The addresses of a kernel's functions.
//!
//! They are in the image if it is an ELF file; otherwise in a `System.map` beside it, as a build
//! leaves it; otherwise Linux itself shows them (`/proc/kallsyms`). For that this command boots it
//! once, with a program that prints them, and keeps what that prints until the image changes.

use super::roles;
use crate::run::accel;
use crate::run::archive::{self, Program};
use crate::run::kernel::{Kernel, Kind, built};
use crate::run::machine::{Machine, Outcome};
use anyhow::{Context, bail};
use object::{Object, ObjectSymbol};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of the boot for the addresses.
const LIMIT: Duration = Duration::from_secs(300);

/// A function or a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// The address.
    pub address: u64,
    /// The bytes up to the next symbol that has another address.
    pub size: u64,
    /// The name.
    pub name: String,
}

/// Returns the kernel's symbols; of a Linux, those at least that [`roles::wanted`] names.
///
/// # Errors
/// A file can't be read, or the kernel can't be booted.
pub fn of(kernel: &Kernel) -> anyhow::Result<Vec<Symbol>> {
    let image = fs::read(&kernel.image).with_context(|| format!("reading {}", kernel.image.display()))?;
    // Linux's other images are PE files at the same time.
    if let Some(file) = Some(&image).filter(|image| image.starts_with(b"\x7fELF")) {
        let file = object::File::parse(file.as_slice()).context("reading the image's symbols")?;
        let symbols = file.symbols().filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?.to_owned())));
        return Ok(sized(symbols.collect()));
    }
    if kernel.kind == Kind::Vellum {
        bail!("{} is no ELF file", kernel.image.display());
    }
    for path in maps(&kernel.image) {
        if let Some(symbols) = fs::read_to_string(path).ok().and_then(|text| parse_map(&text)) {
            return Ok(symbols);
        }
    }
    let cache = accel::cache_folder().map(|folder| folder.join(format!("symbols-{}", identity(&image, kernel))));
    if let Some(symbols) = cache.as_ref().and_then(|path| parse(&fs::read_to_string(path).ok()?)) {
        return Ok(symbols);
    }
    let text = boot(kernel)?;
    let symbols = parse(&text).context("the kernel shows no addresses in /proc/kallsyms")?;
    // Ignore errors: without the file the next run boots the kernel again.
    if let Some(path) = cache {
        let _ = path.parent().map(fs::create_dir_all);
        let _ = fs::write(path, text);
    }
    Ok(symbols)
}

/// Returns the paths where the map of an image may be: beside the image, and where distributions
/// install that of `/boot/vmlinuz-VERSION`.
fn maps(image: &Path) -> Vec<PathBuf> {
    let name = image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let version = name.split_once('-').map(|(_, version)| format!("System.map-{version}"));
    let names = ["System.map".to_owned()].into_iter().chain(version);
    names.map(|name| image.with_file_name(name)).collect()
}

/// Reads a map: lines `ADDRESS TYPE NAME`. Returns `None` if it has none of the kernel's addresses:
/// Debian installs a file that names the package with the map.
fn parse_map(text: &str) -> Option<Vec<Symbol>> {
    let symbol = |line: &str| {
        let (address, rest) = line.split_once(' ')?;
        let (_, name) = rest.split_once(' ')?;
        Some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
    };
    let symbols: Vec<_> = text.lines().filter_map(symbol).filter(|(address, _)| address >> 63 != 0).collect();
    (symbols.len() > 1).then(|| sized(symbols))
}

/// Reads what `programs/symbols.c` prints: lines `ADDRESS SIZE NAME`. Returns `None` if there are
/// none.
fn parse(text: &str) -> Option<Vec<Symbol>> {
    let symbol = |line: &str| {
        let mut words = line.split(' ');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        Some(Symbol { address: number()?, size: number()?, name: words.next()?.into() })
    };
    let symbols: Vec<_> = text.lines().filter_map(symbol).collect();
    (!symbols.is_empty()).then_some(symbols)
}

fn sized(mut symbols: Vec<(u64, String)>) -> Vec<Symbol> {
    symbols.sort();
    let addresses: Vec<u64> = symbols.iter().map(|(address, _)| *address).collect();
    let size = |address: u64| {
        let next = addresses.partition_point(|other| *other <= address);
        addresses.get(next).map_or(0, |next| next - address)
    };
    symbols.into_iter().map(|(address, name)| Symbol { address, size: size(address), name }).collect()
}

/// Returns a name for the image and the symbols that are wanted of it.
fn identity(image: &[u8], kernel: &Kernel) -> String {
    let mut hash = Sha256::new();
    hash.update(image);
    hash.update(roles::wanted(kernel.arch).join(" "));
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Boots the kernel with the program that prints the addresses. Returns its output.
fn boot(kernel: &Kernel) -> anyhow::Result<String> {
    let program = built(kernel.arch.programs())?.join("symbols");
    if !program.is_file() {
        bail!("{} is missing: `./x build --kernel {}` makes it", program.display(), kernel.arch.name());
    }
    let (extras, options) = kernel.needs(None, &[], None, None, None)?;
    let arguments: Vec<String> = roles::wanted(kernel.arch).iter().map(|name| (*name).into()).collect();
    let program = Program { path: &program, arguments: &arguments, environment: &[], files: &[], root: None };
    let archive = archive::pack(program, &extras, &options)?;
    let machine = Machine::plain(kernel, &archive, accel::best(&[kernel]), LIMIT);
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let end = machine.run(io::empty(), &mut output, &mut errors)?;
    if end.outcome != Outcome::Exited(0) {
        let errors = String::from_utf8_lossy(&errors).into_owned();
        bail!("the boot for the addresses of its functions failed: {:?} {errors}", end.outcome);
    }
    Ok(String::from_utf8_lossy(&output).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_reaches_to_the_next_address() {
        let map = "ffffffff81000000 T first\nffffffff81000000 t alias\nffffffff81000040 T second\n0 A nothing\n";
        let symbols = parse_map(map).unwrap();
        let of = |name| symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.size);
        assert_eq!((of("first"), of("alias"), of("nothing")), (Some(0x40), Some(0x40), None));
    }

    #[test]
    fn a_file_in_the_place_of_a_map_is_none() {
        assert_eq!(parse_map("ffffffffffffffff B The real System.map is elsewhere\n"), None);
        assert_eq!(parse(""), None);
        let symbol = Symbol { address: 0xffff_ffff_8100_0000, size: 0x40, name: "vectors".into() };
        assert_eq!(parse("ffffffff81000000 40 vectors\n"), Some(vec![symbol]));
    }

    #[test]
    fn a_map_lies_beside_the_image() {
        let paths = maps(Path::new("/boot/vmlinuz-7.1"));
        assert_eq!(paths, [PathBuf::from("/boot/System.map"), PathBuf::from("/boot/System.map-7.1")]);
    }
}
