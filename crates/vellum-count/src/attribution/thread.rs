//! The threads of a kernel, as far as it can be seen what they do.

use crate::tally::Cause;

/// The most frames of a thread: an interrupt in an interrupt in a page fault in a system call takes
/// four.
const DEPTH: usize = 16;

/// A stay in the kernel, from an entry to the return.
#[derive(Debug)]
pub struct Frame {
    /// The cause; while the frame has no name, the cause that it has if it gets none.
    pub cause: Cause,
    /// The instructions so far while the frame has no name; `None` once it has one.
    pub unnamed: Option<u64>,
}

/// The activity of a thread without frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Base {
    /// It is on its way to user mode for the first time, or is a task of the kernel.
    #[default]
    Start,
    /// It is the idle loop of a CPU.
    Idle,
}

/// A thread.
#[derive(Debug, Default)]
pub struct Thread {
    /// The frames, the lowest first.
    pub frames: Vec<Frame>,
    /// Its activity without frames.
    pub base: Base,
    /// The instructions that it has executed without frames, while `base` is [`Base::Start`].
    pub started: u64,
    /// True if it is the process beside the program.
    pub is_init: bool,
}

impl Thread {
    /// Begins a frame. If that many are impossible, returns must have been missed: then the others
    /// are forgotten.
    pub fn push(&mut self, frame: Frame) {
        if self.frames.len() == DEPTH {
            self.frames.clear();
        }
        self.frames.push(frame);
    }
}
