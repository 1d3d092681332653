//! Scripts: files that begin with `#!` and name their interpreter.

use crate::errno::Errno;
use alloc::vec::Vec;

/// The number of bytes at the start of a file that are parsed, as in Linux.
pub const HEAD: usize = 256;
/// The most nested scripts: interpreters that are scripts themselves. More are `ELOOP`.
pub const MAX_DEPTH: usize = 5;

/// The first line of a script (`#!`). The kernel executes the interpreter with these arguments: its
/// own path, the argument of the line if there is one, the path of the script, and the script's
/// arguments without the first.
#[derive(Debug, PartialEq, Eq)]
pub struct Script<'a> {
    /// The path of the interpreter.
    pub interpreter: &'a [u8],
    /// The rest of the line, as one argument.
    pub argument: Option<&'a [u8]>,
}

impl Script<'_> {
    /// Returns the interpreter's arguments, for a script at `path` that is executed with
    /// `arguments`.
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

/// Parses the first line of a file. `first` is the start of the file: [`HEAD`] bytes, unless the
/// file has fewer. Returns `None` if the file is not a script.
///
/// # Errors
/// `ENOEXEC`: there is no interpreter, or its path may be truncated.
pub fn parse(first: &[u8]) -> Option<Result<Script<'_>, Errno>> {
    let line = first[..first.len().min(HEAD)].strip_prefix(b"#!")?;
    let space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line_end = line.iter().position(|byte| matches!(byte, b'\n' | 0));
    let line = &line[..line_end.unwrap_or(line.len())];
    let Some(start) = line.iter().position(|byte| !space(byte)) else { return Some(Err(Errno::ENOEXEC)) };
    let line = &line[start..];
    let end = line.iter().position(space);
    // The end of a file ends the line. The end of a full `first` does not: the path may go on.
    if line_end.is_none() && end.is_none() && first.len() >= HEAD {
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
    fn the_first_line_is_parsed() {
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
    fn the_interpreter_gets_the_script_and_its_arguments() {
        let strings = |all: &[&str]| all.iter().map(|one| one.as_bytes().to_vec()).collect::<Vec<_>>();
        let script = parse(b"#!/bin/sed -n -e\n").unwrap().unwrap();
        let arguments = script.arguments(b"./a.sed", strings(&["a", "b", "c"])).unwrap();
        assert_eq!(arguments, strings(&["/bin/sed", "-n -e", "./a.sed", "b", "c"]));
        let script = parse(b"#!/bin/sh\n").unwrap().unwrap();
        assert_eq!(script.arguments(b"x", Vec::new()).unwrap(), strings(&["/bin/sh", "x"]));
    }

    #[test]
    fn a_truncated_interpreter_path_is_refused() {
        let mut long = [b'a'; 300];
        long[..3].copy_from_slice(b"#!/");
        assert_eq!(parse(&long), Some(Err(Errno::ENOEXEC)));
        long[100] = b' ';
        assert_eq!(parse(&long).unwrap().unwrap().interpreter.len(), 98);
    }
}
