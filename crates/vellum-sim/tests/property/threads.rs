//! Actors are threads, and a test must survive one that fails.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::thread;

use super::watch;

/// Threads of the host, or of a deterministic schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    Host,
    #[cfg(feature = "shuttle")]
    Shuttle,
}

/// Dropped when that is asked for, and leaked otherwise: a test that fails may leave locks as they are, and the end of a
/// space would wait for them for ever.
pub struct Leaky<T>(ManuallyDrop<T>);

impl<T> Leaky<T> {
    pub fn new(value: T) -> Self {
        Leaky(ManuallyDrop::new(value))
    }

    /// Drop it.
    pub fn end(self) {
        drop(ManuallyDrop::into_inner(self.0));
    }
}

impl<T> Deref for Leaky<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Run all of these side by side, and wait for all.
pub fn together<F: FnOnce() + Send>(threads: Threads, jobs: Vec<F>) {
    match threads {
        Threads::Host if jobs.len() == 1 => jobs.into_iter().for_each(|job| job()),
        Threads::Host => thread::scope(|scope| jobs.into_iter().for_each(|job| drop(scope.spawn(job)))),
        #[cfg(feature = "shuttle")]
        Threads::Shuttle => shuttle::thread::scope(|scope| jobs.into_iter().for_each(|job| drop(scope.spawn(job)))),
    }
}

/// Says what an actor was doing when it failed.
pub struct Doing<T: fmt::Debug>(pub T);

impl<T: fmt::Debug> Drop for Doing<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            watch::say(&format!("while: {:x?}", self.0));
        }
    }
}
