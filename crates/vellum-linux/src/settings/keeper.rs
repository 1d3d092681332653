//! The process that restores settings when the benchmark can't, because it was killed or aborted.
//!
//! The keeper is this program, which the benchmark starts again before the first change. The
//! keeper's standard input is a pipe. Before each change the benchmark writes the original value to
//! it, and when it has restored all settings, it writes a line that reports that. When the
//! benchmark is gone, the pipe ends, and the keeper restores the settings that are still changed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::knobs::{self, Change};
use crate::child::outlive_signals;

/// The message that all settings are restored.
const RESTORED: &str = "restored";

/// The benchmark's handle of the keeper.
pub struct Keeper {
    process: Child,
}

impl Keeper {
    /// Starts the keeper. The keeper inherits `lock`, so that no other benchmark takes settings
    /// that the keeper still has to restore for the originals.
    ///
    /// # Errors
    /// The process can't be started.
    pub fn start(lock: &File) -> io::Result<Keeper> {
        let process = Command::new("/proc/self/exe")
            .args(["linux-child", "keeper"])
            .stdin(Stdio::piped())
            .stdout(lock.try_clone()?)
            // Put the keeper into a process group of its own: Ctrl-C signals the terminal's
            // foreground group.
            .process_group(0)
            .spawn()?;
        Ok(Keeper { process })
    }

    /// Notifies the keeper of an original value, before the change.
    ///
    /// # Errors
    /// The path is not UTF-8, or the keeper is gone.
    pub fn record(&mut self, original: &Change) -> io::Result<()> {
        let path = original.path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        self.send(&format!("{}\t{path}\n", original.value))
    }

    /// Notifies the keeper that all settings are restored.
    pub fn clear(&mut self) {
        // Ignore an error: a keeper that is gone has nothing to restore.
        let _ = self.send(&format!("{RESTORED}\n"));
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        self.process.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(line.as_bytes())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // `wait` first closes the pipe, at which the keeper ends.
        let _ = self.process.wait();
    }
}

/// Runs the keeper: reads `notes` to their end, then restores.
///
/// # Errors
/// The pipe can't be read, or a setting can't be written.
pub fn run(notes: impl BufRead) -> anyhow::Result<()> {
    outlive_signals()?;
    let mut changed = BTreeMap::new();
    for line in notes.lines() {
        let line = line?;
        if line == RESTORED {
            changed.clear();
        } else if let Some((value, path)) = line.split_once('\t') {
            // The first value is the original; later ones are the benchmark's.
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
    fn only_settings_that_are_still_changed_are_restored() {
        let directory = tempfile::tempdir().unwrap();
        let files = ["restored", "changed"].map(|name| directory.path().join(name));
        for file in &files {
            std::fs::write(file, "always").unwrap();
        }
        let [restored, changed] = files.each_ref().map(|file| file.to_str().unwrap());
        let notes = format!("never\t{restored}\nrestored\nmadvise\t{changed}\nnever\t{changed}\n");
        run(notes.as_bytes()).unwrap();
        assert_eq!(knobs::read(&files[0]).unwrap(), "always", "a change by another process is not undone");
        assert_eq!(knobs::read(&files[1]).unwrap(), "madvise", "the first value recorded is the original");
    }
}
