//! The process that puts settings back when the benchmark cannot: killed, out of memory, aborted.
//!
//! It is this program, started again before the first change. It reads from a pipe what was changed
//! and what was put back; when the pipe ends, because whoever held its other end is no more, it
//! restores what is still changed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::knobs::{self, Change};
use crate::child::outlive_signals;

/// Told when everything is as it was.
const RESTORED: &str = "restored";

/// The benchmark's end of it.
pub struct Keeper {
    process: Child,
}

impl Keeper {
    /// Starts it. It also gets hold of `lock`: nobody else shall record settings that it has yet to
    /// restore.
    pub fn start(lock: &File) -> io::Result<Keeper> {
        let process = Command::new("/proc/self/exe")
            .args(["linux-child", "keeper"])
            .stdin(Stdio::piped())
            .stdout(lock.try_clone()?)
            // Ctrl-C goes to all of a terminal's foreground group. The keeper is not part of it.
            .process_group(0)
            .spawn()?;
        Ok(Keeper { process })
    }

    /// Remembers what is in a file before it is changed.
    pub fn note(&mut self, original: &Change) -> io::Result<()> {
        let path = original.path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        self.tell(&format!("{}\t{path}\n", original.value))
    }

    /// Everything is as it was.
    pub fn forget(&mut self) {
        // If it is gone, it has restored already.
        let _ = self.tell(&format!("{RESTORED}\n"));
    }

    fn tell(&mut self, line: &str) -> io::Result<()> {
        self.process.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(line.as_bytes())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Waiting closes its pipe first.
        let _ = self.process.wait();
    }
}

/// The keeper's own life.
pub fn keep(notes: impl BufRead) -> anyhow::Result<()> {
    outlive_signals()?;
    let mut changed = BTreeMap::new();
    for line in notes.lines() {
        let line = line?;
        if line == RESTORED {
            changed.clear();
        } else if let Some((value, path)) = line.split_once('\t') {
            // The first value is the original; any later one is a value of ours.
            changed.entry(PathBuf::from(path)).or_insert_with(|| value.to_owned());
        }
    }
    for (path, value) in changed {
        if knobs::read(&path).is_ok_and(|now| now != value) {
            std::fs::write(path, value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_still_changed_is_restored() {
        let directory = tempfile::tempdir().unwrap();
        let files = ["settled", "changed"].map(|name| directory.path().join(name));
        for file in &files {
            std::fs::write(file, "always").unwrap();
        }
        let [settled, changed] = files.each_ref().map(|file| file.to_str().unwrap());
        let notes = format!("never\t{settled}\nrestored\nmadvise\t{changed}\nnever\t{changed}\n");
        keep(notes.as_bytes()).unwrap();
        assert_eq!(knobs::read(&files[0]).unwrap(), "always", "somebody else's change is not undone");
        assert_eq!(knobs::read(&files[1]).unwrap(), "madvise", "the first value noted is the original");
    }
}
