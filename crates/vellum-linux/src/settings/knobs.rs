//! Changes sysfs settings in a scope, and restores them on every way out.
//!
//! The settings apply to the whole machine. They are changed only while a region is touched, and
//! restored whatever ends the benchmark:
//!
//! | end | restored by |
//! |---|---|
//! | the scope ends, an error, a panic | [`Scope`], when dropped |
//! | Ctrl-C, SIGTERM, SIGHUP, SIGQUIT | the signal thread, before the signal takes effect |
//! | SIGKILL, out of memory, abort | the [`keeper`](super::keeper), which outlives this process |
//!
//! A lock on the settings' directory keeps two benchmarks from recording each other's changes as
//! the originals.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, flock};

use super::keeper::Keeper;
use crate::Skip;

/// A setting and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub path: PathBuf,
    /// The value to write.
    pub value: String,
}

/// Changes settings below a directory.
pub struct Knobs {
    /// The directory that is locked against other benchmarks, from the first change on.
    directory: PathBuf,
    guarded: bool,
    state: Arc<Mutex<State>>,
}

/// The current changes, and the guard.
#[derive(Default)]
struct State {
    /// The original values, in order of change.
    originals: Vec<Change>,
    guard: Option<Guard>,
}

struct Guard {
    _lock: File,
    keeper: Option<Keeper>,
}

impl Knobs {
    /// Returns settings that are restored whatever happens to this process.
    pub fn guarded(directory: &Path) -> Knobs {
        Knobs { directory: directory.to_owned(), guarded: true, state: Arc::default() }
    }

    /// Applies the changes until the scope is dropped. If one fails, none remains.
    ///
    /// # Errors
    /// A setting can't be changed, or another benchmark holds the lock.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Scope<'_>, Skip> {
        let made = self.try_apply(changes);
        // If a change failed, `scope` is dropped here, which restores the changes made before it.
        let scope = Scope(&self.state);
        made.map(|()| scope)
    }

    fn try_apply(&self, changes: &[Change]) -> Result<(), Skip> {
        let mut state = lock(&self.state);
        if state.guard.is_none() && !changes.is_empty() {
            state.guard = Some(self.guard()?);
        }
        changes.iter().try_for_each(|change| state.change(change))
    }

    fn guard(&self) -> Result<Guard, Skip> {
        let failed = |error: io::Error| Skip::Setting { path: self.directory.clone(), error: error.to_string() };
        let directory = File::open(&self.directory).map_err(failed)?;
        flock(&directory, FlockOperation::NonBlockingLockExclusive).map_err(|_| Skip::Busy)?;
        let keeper = if self.guarded {
            restore_on_signals(self.state.clone()).map_err(failed)?;
            Some(Keeper::start(&directory).map_err(failed)?)
        } else {
            None
        };
        Ok(Guard { _lock: directory, keeper })
    }
}

impl Drop for Knobs {
    fn drop(&mut self) {
        // Release the lock and the keeper now: the signal thread holds a reference to the state as
        // long as the process lives.
        lock(&self.state).guard = None;
    }
}

impl State {
    fn change(&mut self, change: &Change) -> Result<(), Skip> {
        let failed = |error: io::Error| setting_failed(&change.path, &error);
        let value = read(&change.path).map_err(failed)?;
        if value == change.value {
            return Ok(());
        }
        let original = Change { path: change.path.clone(), value };
        // Notify the keeper before the setting is written, so that it can restore the setting from
        // then on.
        if let Some(keeper) = self.guard.as_mut().and_then(|guard| guard.keeper.as_mut()) {
            keeper.record(&original).map_err(failed)?;
        }
        std::fs::write(&change.path, &change.value).map_err(failed)?;
        self.originals.push(original);
        Ok(())
    }

    /// Restores all settings, the last change first. Continues after failures, and returns the
    /// first.
    fn restore(&mut self) -> Result<(), Skip> {
        let mut result = Ok(());
        while let Some(original) = self.originals.pop() {
            if let Err(error) = std::fs::write(&original.path, &original.value) {
                eprintln!("vellum: cannot restore '{}' in {}: {error}", original.value, original.path.display());
                result = result.and(Err(setting_failed(&original.path, &error)));
            }
        }
        if let Some(keeper) = self.guard.as_mut().and_then(|guard| guard.keeper.as_mut()) {
            keeper.clear();
        }
        result
    }
}

/// Guard. The changes last while it exists.
#[must_use = "dropping it restores the settings"]
pub struct Scope<'a>(&'a Mutex<State>);

impl Scope<'_> {
    /// Restores the settings.
    ///
    /// # Errors
    /// A setting could not be restored.
    pub fn restore(self) -> Result<(), Skip> {
        lock(self.0).restore()
        // Dropping restores again, which finds nothing to do.
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        // Ignore the error: `restore` has printed it, and `drop` has no caller that could handle
        // it.
        let _ = lock(self.0).restore();
    }
}

/// Locks the state even if a thread panicked with the lock held: the settings must be restored.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that restores the settings when a signal ends this process.
///
/// # Errors
/// The handler or the thread can't be set up.
fn restore_on_signals(state: Arc<Mutex<State>>) -> io::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    std::thread::Builder::new().name("restore settings".into()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let mut state = lock(&state);
            let _ = state.restore();
            // Keep the lock of the state, so that the benchmark can't change settings again before
            // it ends.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// Reads a setting. In a list of choices, `always [madvise] never`, the value is in brackets.
///
/// # Errors
/// The file can't be read.
pub fn read(path: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(value, _)| value);
    Ok(chosen.unwrap_or(&text).trim().to_owned())
}

fn setting_failed(path: &Path, error: &io::Error) -> Skip {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Skip::Denied,
        _ => Skip::Setting { path: path.to_owned(), error: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICE: &str = "always inherit madvise [never]\n";

    fn directory() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), CHOICE).unwrap();
        std::fs::write(directory.path().join("b"), "madvise\n").unwrap();
        directory
    }

    /// Returns settings without the keeper, which `tests/settings.rs` of vellum-cli covers.
    fn knobs(directory: &Path) -> Knobs {
        Knobs { directory: directory.to_owned(), guarded: false, state: Arc::default() }
    }

    fn change(directory: &Path, file: &str, value: &str) -> Change {
        Change { path: directory.join(file), value: value.into() }
    }

    fn values(directory: &Path) -> [String; 2] {
        ["a", "b"].map(|file| read(&directory.join(file)).unwrap())
    }

    #[test]
    fn the_value_of_a_choice_is_in_brackets() {
        let directory = directory();
        assert_eq!(values(directory.path()), ["never", "madvise"]);
    }

    #[test]
    fn changes_last_for_the_scope() {
        let directory = directory();
        let dir = directory.path();
        let mut knobs = knobs(dir);
        for _ in 0..2 {
            let scope = knobs.apply(&[change(dir, "a", "always"), change(dir, "b", "never")]).unwrap();
            assert_eq!(values(dir), ["always", "never"]);
            drop(scope);
            assert_eq!(values(dir), ["never", "madvise"]);
        }
        knobs.apply(&[change(dir, "a", "always")]).unwrap().restore().unwrap();
        assert_eq!(values(dir), ["never", "madvise"]);
    }

    #[test]
    fn a_file_changed_twice_gets_its_original_value_back() {
        let directory = directory();
        let dir = directory.path();
        drop(knobs(dir).apply(&[change(dir, "b", "always"), change(dir, "b", "never")]).unwrap());
        assert_eq!(values(dir), ["never", "madvise"]);
    }

    #[test]
    fn a_failed_change_restores_the_others() {
        let directory = directory();
        let dir = directory.path();
        let changes = [change(dir, "a", "always"), change(dir, "missing", "never")];
        assert!(matches!(knobs(dir).apply(&changes).err(), Some(Skip::Setting { .. })));
        assert_eq!(values(dir), ["never", "madvise"]);
    }

    #[test]
    fn a_panic_restores_the_settings() {
        let directory = directory();
        let dir = directory.path().to_owned();
        let panicked = std::thread::spawn({
            let dir = dir.clone();
            move || {
                let mut knobs = knobs(&dir);
                let _scope = knobs.apply(&[change(&dir, "a", "always")]).unwrap();
                assert_eq!(values(&dir)[0], "never", "this is the panic");
            }
        });
        assert!(panicked.join().is_err());
        assert_eq!(values(&dir), ["never", "madvise"]);
    }

    #[test]
    fn a_second_benchmark_is_locked_out() {
        let directory = directory();
        let dir = directory.path();
        let (mut first, mut second) = (knobs(dir), knobs(dir));
        let changes = [change(dir, "a", "always")];
        let scope = first.apply(&changes).unwrap();
        assert_eq!(second.apply(&changes).err(), Some(Skip::Busy));
        assert!(second.apply(&[]).is_ok(), "an empty change needs no lock");
        drop(scope);
        drop(first);
        assert!(second.apply(&changes).is_ok());
    }
}
