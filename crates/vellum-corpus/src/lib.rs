//! Runs fuzz targets over kept inputs and their mutations, as a test.
//!
//! A *target* is a function over bytes that calls a parser and panics if a property does not hold.
//! The crate with the parser has it in its module `fuzz`, which is compiled for tests and for
//! `cargo fuzz` (`cfg(fuzzing)`). Two callers share it:
//!
//! | caller | inputs |
//! |---|---|
//! | a unit test of that crate, by [`check`] | the files in `fuzz/corpus/TARGET`, and mutations of each |
//! | `fuzz/fuzz_targets/TARGET.rs`, by [`run`] | what libFuzzer makes of those files, with coverage as its guide |
//!
//! Both fail as well if the target asks for more memory than [`allowed`] by the length of its
//! input.
//!
//! | module | contents |
//! |---|---|
//! | `heap` | a count of the bytes that a thread has allocated |
//! | `mutate` | mutations of inputs |

mod heap;
mod mutate;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Mutations of each kept input that [`check`] runs.
const MUTATIONS: u64 = 300;
/// The longest input that a mutation may have, in bytes.
const LONGEST: usize = 1 << 16;

/// Returns how many bytes a target may have allocated at a time for an input of `len` bytes. No
/// parser needs a tenth of it; a parser that believes a length field needs more.
pub fn allowed(len: usize) -> usize {
    (4 << 20) + len * 1024
}

/// Runs a target over one input.
///
/// # Panics
/// As the target does, or it had more than [`allowed`] allocated at a time.
pub fn run(target: fn(&[u8]), bytes: &[u8]) {
    let peak = heap::peak(|| target(bytes));
    let most = allowed(bytes.len());
    assert!(peak <= most, "{peak} bytes allocated at a time for an input of {}, allowed are {most}", bytes.len());
}

/// Runs targets over their kept inputs and mutations of these, the same ones each time. `krate` is
/// the name of the crate with the targets.
///
/// # Panics
/// A target panics: the input goes to `target/fuzz/failed`. Or a target has no kept inputs, or no
/// file in `fuzz/fuzz_targets`.
pub fn check(krate: &str, targets: &[Target]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, target) in targets {
        let calls = format!(
            "#![no_main]\n\nlibfuzzer_sys::fuzz_target!(|bytes: &[u8]| \
             vellum_corpus::run({krate}::fuzz::{name}, bytes));\n"
        );
        let file = root.join(format!("fuzz/fuzz_targets/{name}.rs"));
        assert_eq!(fs::read_to_string(&file).unwrap_or_default(), calls, "{}", file.display());
        let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap_or_default();
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml does not name the target {name}");
        let kept = inputs(&root.join("fuzz/corpus").join(name));
        assert!(!kept.is_empty(), "fuzz/corpus/{name} has no inputs");
        let mut random = fastrand::Rng::with_seed(1);
        for (path, bytes) in &kept {
            one(name, *target, bytes, path, &root);
            for _ in 0..MUTATIONS {
                let (_, other) = &kept[random.usize(..kept.len())];
                let mut bytes = mutate::mutated(bytes, other, &mut random);
                bytes.truncate(LONGEST);
                one(name, *target, &bytes, path, &root);
            }
        }
    }
}

/// Runs a target over one input. If it panics, saves the input and panics again.
fn one(name: &str, target: fn(&[u8]), bytes: &[u8], path: &Path, root: &Path) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(target, bytes))) {
        let failed = root.join("target/fuzz/failed").join(name);
        let saved = fs::create_dir_all(root.join("target/fuzz/failed")).and_then(|()| fs::write(&failed, bytes));
        let at = if saved.is_ok() { failed.display().to_string() } else { format!("{bytes:02x?}") };
        eprintln!("the target {name} fails with the input {at}, which is {} or was made of it", path.display());
        resume_unwind(panic);
    }
}

/// Returns the kept inputs of a target with their paths, in order.
fn inputs(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    paths.into_iter().filter_map(|path| fs::read(&path).ok().map(|bytes| (path, bytes))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "allocated at a time")]
    fn a_target_that_trusts_a_length_field_is_caught() {
        run(|bytes| drop(Vec::<u8>::with_capacity(usize::from(bytes[0]) << 20)), &[200]);
    }

    #[test]
    fn freed_memory_does_not_count() {
        run(|_| (0..100).for_each(|_| drop(vec![0u8; 1 << 20])), &[]);
    }
}
