//! Scripts: files that begin with `#!` and name the program that is to read them.

use crate::errno::Errno;
use alloc::vec::Vec;

/// How much of a file is looked at, as in Linux.
pub const HEAD: usize = 256;
/// How many interpreters may be scripts themselves before it is `ELOOP`.
pub const MAX_DEPTH: usize = 5;

/// The first line of a script (`#!`). The kernel starts the interpreter with its own name, the
/// argument if there is one, the path of the script, and the script's arguments but the first.
#[derive(Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// A path.
    pub interpreter: &'a [u8],
    /// All the rest of the line is one argument.
    pub argument: Option<&'a [u8]>,
}

impl Script<'_> {
    /// The arguments that the interpreter is started with.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn arguments(&self, path: &[u8], mut arguments: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Errno> {
        let mut all = Vec::new();
        all.try_reserve_exact(arguments.len() + 3)?;
        for string in [Some(self.interpreter), self.argument, Some(path)].into_iter().flatten() {
            let mut copy = Vec::new();
            copy.try_reserve_exact(string.len())?;
            copy.extend_from_slice(string);
            all.push(copy);
        }
        all.extend(arguments.drain(..).skip(1));
        Ok(all)
    }
}

/// Read the first line, arguments the start of a file, [`HEAD`] bytes if it has that many; `None` if it
/// is no script.
///
/// # Errors
/// `ENOEXEC`: no interpreter, or its path may be cut off.
pub fn parse(first: &[u8]) -> Option<Result<Script<'_>, Errno>> {
    let line = first[..first.len().min(HEAD)].strip_prefix(b"#!")?;
    let space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let whole = line.iter().position(|byte| matches!(byte, b'\n' | 0));
    let line = &line[..whole.unwrap_or(line.len())];
    let Some(start) = line.iter().position(|byte| !space(byte)) else { return Some(Err(Errno::ENOEXEC)) };
    let line = &line[start..];
    let end = line.iter().position(space);
    // A file that ends without a newline ends its line; a line that goes on beyond what is seen
    // does not.
    if whole.is_none() && end.is_none() && first.len() >= HEAD {
        return Some(Err(Errno::ENOEXEC));
    }
    let (interpreter, rest) = line.split_at(end.unwrap_or(line.len()));
    let argument = rest.iter().position(|byte| !space(byte)).map(|from| {
        let to = rest.iter().rposition(|byte| !space(byte)).unwrap_or(from);
        &rest[from..=to]
    });
    Some(Ok(Script { interpreter, argument }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line() {
        let plain = |interpreter| Some(Ok(Script { interpreter, argument: None }));
        assert_eq!(parse(b"\x7fELF"), None);
        assert_eq!(parse(b"#"), None);
        assert_eq!(parse(b"#!/bin/sh\necho"), plain(b"/bin/sh"));
        assert_eq!(parse(b"#! \t/bin/sh \t\n"), plain(b"/bin/sh"));
        assert_eq!(parse(b"#!/bin/sh"), plain(b"/bin/sh"));
        assert_eq!(
            parse(b"#!/usr/bin/env  a b \nx"),
            Some(Ok(Script { interpreter: b"/usr/bin/env", argument: Some(b"a b") }))
        );
        assert_eq!(parse(b"#!\n/bin/sh"), Some(Err(Errno::ENOEXEC)));
        assert_eq!(parse(b"#!   "), Some(Err(Errno::ENOEXEC)));
    }

    #[test]
    fn what_the_interpreter_gets() {
        let strings = |all: &[&str]| all.iter().map(|one| one.as_bytes().to_vec()).collect::<Vec<_>>();
        let script = parse(b"#!/bin/sed -n -e\n").unwrap().unwrap();
        let arguments = script.arguments(b"./a.sed", strings(&["a", "b", "c"])).unwrap();
        assert_eq!(arguments, strings(&["/bin/sed", "-n -e", "./a.sed", "b", "c"]));
        let script = parse(b"#!/bin/sh\n").unwrap().unwrap();
        assert_eq!(script.arguments(b"x", Vec::new()).unwrap(), strings(&["/bin/sh", "x"]));
    }

    #[test]
    fn a_path_that_is_cut_off() {
        let mut long = [b'a'; 300];
        long[..3].copy_from_slice(b"#!/");
        assert_eq!(parse(&long), Some(Err(Errno::ENOEXEC)));
        long[100] = b' ';
        assert_eq!(parse(&long).unwrap().unwrap().interpreter.len(), 98);
    }
}
