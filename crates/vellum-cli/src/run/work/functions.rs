//! Kernel work by function, as folded stacks: a line `CAUSE;FUNCTION;INLINED…;FILE:LINE COUNT` for
//! each chain of functions, from the cause to the line that the instructions were written in. Tools
//! for flame graphs read this form.

use crate::run::kernel::Kernel;
use crate::run::symbols::{Call, Names};
use anyhow::{Context, anyhow};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use vellum_count::profile::Profile;

/// The file that gets the stacks, and the kernel's symbols.
pub struct Functions {
    file: File,
    path: PathBuf,
    names: Names,
}

impl Functions {
    /// Creates the file.
    ///
    /// # Errors
    /// It can't be written, or the kernel's image has no symbols.
    pub fn open(kernel: &Kernel, path: &Path) -> anyhow::Result<Self> {
        let names = Names::of(&kernel.image)
            .ok_or_else(|| anyhow!("{} has no symbols to name functions by", kernel.image.display()))?;
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file, path: path.into(), names })
    }

    /// Writes the stacks of a profile's text form.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(mut self, profile: &str) -> anyhow::Result<()> {
        let folded = folded(profile, |address| self.names.at(address));
        self.file.write_all(folded.as_bytes()).with_context(|| format!("writing {}", self.path.display()))
    }
}

/// Returns the stacks, in the order of their names. `calls` names the functions at an address,
/// inlined ones first.
fn folded(profile: &str, calls: impl Fn(u64) -> Vec<Call>) -> String {
    let mut named: BTreeMap<u64, String> = BTreeMap::new();
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    for row in profile.lines().filter_map(Profile::parse) {
        let stack = named.entry(row.address).or_insert_with(|| {
            let calls = calls(row.address);
            let innermost = calls.first();
            let line = innermost.and_then(|Call { file, line, .. }| Some(format!("{}:{line}", file.as_ref()?)));
            let names = calls.iter().rev().map(|call| call.function.replace(';', ":")).chain(line);
            let names: Vec<_> = names.collect();
            if names.is_empty() { format!("{:#x}", row.address) } else { names.join(";") }
        });
        *stacks.entry(format!("{};{stack}", row.cause)).or_insert(0) += row.times;
    }
    stacks.iter().map(|(stack, count)| format!("{stack} {count}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_the_same_functions_are_one_stack() {
        let call = |name: &str, file: Option<&str>| Call { function: name.into(), file: file.map(Into::into), line: 7 };
        let calls = |address| match address {
            0x10 | 0x14 => vec![call("inner", Some("a.rs")), call("outer", Some("b.rs"))],
            0x20 => vec![call("<[u8; 4]>::outer", None)],
            _ => Vec::new(),
        };
        let profile = "2 10 read\n3 14 read\n4 14 page fault\n5 20 read\n6 30 read\n";
        let lines =
            "page fault;outer;inner;a.rs:7 4\nread;0x30 6\nread;<[u8: 4]>::outer 5\nread;outer;inner;a.rs:7 5\n";
        assert_eq!(folded(profile, calls), lines);
    }
}
