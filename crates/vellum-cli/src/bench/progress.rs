//! Shows the progress of a benchmark on the terminal's standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar. It has no thread that redraws it, which would disturb a measurement.
pub struct Progress(ProgressBar);

impl Progress {
    /// Makes a bar of `steps` steps.
    pub fn new(steps: u64) -> Progress {
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// Sets the text beside the bar.
    pub fn set_text(&self, text: String) {
        self.0.set_message(text);
    }

    /// Returns the number of completed steps.
    pub fn steps(&self) -> u64 {
        self.0.position()
    }

    /// Sets the number of completed steps.
    pub fn at(&self, steps: u64) {
        self.0.set_position(steps);
    }

    /// Completes a step.
    pub fn step(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
