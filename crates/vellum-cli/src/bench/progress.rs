//! How far a benchmark is: on the terminal's standard error, and nowhere if that is no terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that is redrawn only when somebody calls it: no thread of its own ticks during a
/// measurement.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar of `steps` steps.
    pub fn new(steps: u64) -> Progress {
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// Names what is being done.
    pub fn say(&self, what: String) {
        self.0.set_message(what);
    }

    /// How many steps are done.
    pub fn steps(&self) -> u64 {
        self.0.position()
    }

    /// So many steps are done.
    pub fn at(&self, steps: u64) {
        self.0.set_position(steps);
    }

    /// One step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
