//! Follows the CPUs of a machine from block to block, and charges the instructions that they
//! execute to causes.
//!
//! - An entry into the kernel begins a **frame**. An entry while another frame is open is an
//!   interrupt or an exception in kernel mode, and begins a frame above it. All instructions belong
//!   to the cause of the top frame, until an instruction that returns from an exception ends it.
//!   User mode ends all frames. An entry that no block in user mode precedes is one from user mode
//!   all the same if the frames before it have ended: the first instruction faulted.
//! - The frames belong to a **thread**, and stay with it while the CPU runs others. So what a
//!   system call does after a sleep belongs to the call, and a switch belongs to the thread that
//!   goes as far as the switch, and then to the one that comes.
//! - A thread without frames is on its way to its first instruction in user mode, or is one of the
//!   kernel's own, which never comes there. Its instructions are charged once that is known.
//! - A kernel whose threads have no stacks notes causes itself
//!   ([`Role::Notes`](super::roles::Role)), also where it goes on with another thread.
//!
//! Counting begins with the first block of the program in user mode.
//!
//! | module | contents |
//! |---|---|
//! | [`block`] | what is known of a block when it is translated |
//! | [`thread`] | frames |

pub mod block;
pub mod thread;

use crate::roles::Roles;
use crate::tally::{self, Cause, Tally};
use block::{Block, Mark, Marks};
use std::collections::HashMap;
use thread::{Base, Frame, Thread};

/// The part of the run, which decides whether the plugin counts instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    /// The program has not begun.
    Before,
    /// The next block in user mode is its first: the first thread is there, or `execve` returns.
    Imminent,
    /// The program runs.
    Open,
    /// The program has ended.
    Closed,
}

/// The state of a CPU, by which a block without a mark is attributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is in user mode.
    User,
    /// It is in the kernel.
    Kernel,
    /// Any block must be shown to [`Machine::block`].
    Unsettled,
}

/// The instructions and repetitions that all CPUs have executed up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// The number of instructions.
    pub instructions: u64,
    /// The number of repetitions of string instructions ([`tally::REPETITIONS`]).
    pub repetitions: u64,
}

impl From<u64> for Executed {
    fn from(instructions: u64) -> Self {
        Self { instructions, repetitions: 0 }
    }
}

#[derive(Default)]
struct Cpu {
    thread: Thread,
    /// The address that identifies the thread; 0 until the first switch.
    key: u64,
    in_user: bool,
    /// True if the block that the CPU executes ends with the return from an exception.
    returns: bool,
    /// True from the beginning of the function that switches to its first read.
    switches: bool,
}

impl Cpu {
    /// Returns the cause of what the CPU does: for a frame without a name, the one that it has if
    /// none comes; for a thread without frames that is not idle, [`tally::START`].
    fn cause(&self) -> Cause {
        match (self.thread.frames.last(), self.thread.base) {
            _ if self.in_user && !self.thread.is_init => tally::PROGRAM,
            (Some(frame), _) if frame.cause == tally::INTERRUPT => tally::INTERRUPT,
            _ if self.thread.is_init => tally::INIT,
            (Some(frame), _) => frame.cause,
            (None, Base::Idle) => tally::IDLE,
            (None, Base::Start) => tally::START,
        }
    }
}

/// The CPUs of a machine, and the counts so far.
pub struct Machine {
    marks: Marks,
    tally: Tally,
    cpus: Vec<Cpu>,
    /// The threads that no CPU runs.
    waiting: HashMap<u64, Thread>,
    /// The CPU that executed the latest block, and what had been executed at its beginning.
    running: usize,
    charged: Executed,
    window: Window,
    has_init: bool,
    /// True if the first process that calls the kernel is not the program.
    expects_init: bool,
    /// The causes that have a meaning of their own here.
    executes: [Cause; 2],
    ends: Cause,
}

impl Machine {
    /// Returns a machine whose kernel has these roles, before its first instruction.
    pub fn new(roles: &Roles) -> Self {
        let mut tally = Tally::default();
        let marks = Marks::new(roles, &mut tally);
        let executes = ["execve", "execveat"].map(|name| tally.cause(name));
        let ends = tally.cause(roles.init_ends_by.as_deref().unwrap_or(Roles::END));
        Self {
            marks,
            tally,
            cpus: Vec::new(),
            waiting: HashMap::new(),
            running: 0,
            charged: Executed::default(),
            window: Window::Before,
            has_init: false,
            expects_init: roles.init_ends_by.is_some(),
            executes,
            ends,
        }
    }

    /// Returns what a block is that begins at this address.
    pub fn describe(&self, start: u64, returns: bool) -> Block {
        self.marks.describe(start, returns)
    }

    /// Returns the marks, for the addresses of single instructions.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Returns what this CPU is about to do.
    pub fn mode(&self, cpu: usize) -> Mode {
        match self.cpus.get(cpu) {
            Some(cpu) if cpu.returns => Mode::Unsettled,
            Some(cpu) if cpu.in_user => Mode::User,
            Some(_) => Mode::Kernel,
            None => Mode::Unsettled,
        }
    }

    /// Returns the cause of the kernel work that a CPU does; `None` if it does none, or if the
    /// program does not run.
    pub fn kernel_work(&self, cpu: usize) -> Option<Cause> {
        let cause = self.cpus.get(cpu).filter(|_| self.window == Window::Open)?.cause();
        Tally::is_kernel_work(cause).then_some(cause)
    }

    /// Returns the name of a cause.
    pub fn name_of(&self, cause: Cause) -> &str {
        self.tally.name(cause)
    }

    /// A CPU begins a block. `now` is what all CPUs have executed.
    pub fn block(&mut self, cpu: usize, now: impl Into<Executed>, block: Block) {
        self.turn_to(cpu, now);
        let state = &mut self.cpus[cpu];
        let came_from_user = std::mem::replace(&mut state.in_user, block.is_user());
        let returned = std::mem::replace(&mut state.returns, block.returns());
        if block.is_user() {
            if !came_from_user {
                self.enter_user(cpu);
            }
            return;
        }
        if returned && let Some(frame) = state.thread.frames.pop() {
            self.end_frame(cpu, frame);
        }
        let mark = block.mark().and_then(|mark| self.marks.get(mark));
        let state = &mut self.cpus[cpu];
        match mark {
            Some(Mark::Entry(cause)) => {
                state.thread.push(Frame { cause, unnamed: None });
                self.occurs(cpu, cause);
            }
            Some(Mark::Unnamed(cause)) => state.thread.push(Frame { cause, unnamed: Some(0) }),
            _ if came_from_user => {
                state.thread.push(Frame { cause: tally::EXCEPTION, unnamed: Some(0) });
            }
            _ => {}
        }
        match mark {
            Some(Mark::Names(cause)) => self.name(cpu, cause),
            Some(Mark::Switch) => self.cpus[cpu].switches = true,
            Some(Mark::Start) => self.become_thread(cpu, Base::Start),
            Some(Mark::Idle) => self.become_thread(cpu, Base::Idle),
            _ => {}
        }
    }

    /// The function that switches reads this address.
    pub fn reads_in_switch(&mut self, cpu: usize, now: impl Into<Executed>, address: u64) {
        if !self.cpus.get(cpu).is_some_and(|cpu| cpu.switches) {
            return;
        }
        self.turn_to(cpu, now);
        let state = &mut self.cpus[cpu];
        state.switches = false;
        let next = self.waiting.remove(&address).unwrap_or_default();
        let before = std::mem::replace(&mut state.thread, next);
        let key = std::mem::replace(&mut state.key, address);
        self.waiting.insert(key, before);
    }

    /// The kernel notes a cause by a read of this address.
    pub fn notes(&mut self, cpu: usize, now: impl Into<Executed>, address: u64) {
        let Some(cause) = self.marks.noted(address) else { return };
        self.turn_to(cpu, now);
        if cause == self.ends {
            self.close();
        }
        if cause == tally::START && self.window == Window::Before {
            self.window = Window::Imminent;
        }
        let thread = &mut self.cpus[cpu].thread;
        thread.frames.truncate(1);
        match thread.frames.first_mut() {
            Some(frame) if frame.unnamed.is_some() => self.name(cpu, cause),
            Some(frame) => frame.cause = cause,
            None => thread.push(Frame { cause, unnamed: None }),
        }
    }

    /// Returns the counts up to now.
    pub fn finish(&mut self, now: impl Into<Executed>) -> Tally {
        self.turn_to(self.running, now);
        let mut tally = self.tally.clone();
        for thread in self.waiting.values().chain(self.cpus.iter().map(|cpu| &cpu.thread)) {
            tally.count(tally::KERNEL_TASK).instructions += thread.started;
            for frame in &thread.frames {
                tally.count(frame.cause).instructions += frame.unnamed.unwrap_or_default();
            }
        }
        tally
    }

    /// Returns whether the program has ended.
    pub fn has_ended(&self) -> bool {
        self.window == Window::Closed
    }

    /// Charges the instructions up to now to what the CPU did that executed them, and makes `cpu`
    /// the CPU that executes what follows.
    fn turn_to(&mut self, cpu: usize, now: impl Into<Executed>) {
        if self.cpus.len() <= cpu {
            self.cpus.resize_with(cpu + 1, Cpu::default);
        }
        let now = now.into();
        let charged = std::mem::replace(&mut self.charged, now);
        let executed = now.instructions - charged.instructions;
        let state = &mut self.cpus[std::mem::replace(&mut self.running, cpu)];
        if self.window != Window::Open {
            return;
        }
        if !state.in_user {
            self.tally.count(tally::REPETITIONS).instructions += now.repetitions - charged.repetitions;
        }
        let cause = state.cause();
        let Thread { frames, started, .. } = &mut state.thread;
        match frames.last_mut() {
            Some(Frame { cause: named, unnamed: Some(unnamed) }) if *named == cause => *unnamed += executed,
            None if cause == tally::START => *started += executed,
            _ => self.tally.count(cause).instructions += executed,
        }
    }

    /// Counts an occurrence of the cause.
    fn occurs(&mut self, cpu: usize, cause: Cause) {
        let is_inits = self.cpus[cpu].thread.is_init && cause != tally::INTERRUPT;
        if self.window == Window::Open && !is_inits {
            self.tally.count(cause).times += 1;
        }
    }

    /// Names the top frame, if it has no name yet.
    fn name(&mut self, cpu: usize, cause: Cause) {
        let thread = &mut self.cpus[cpu].thread;
        let Some(frame) = thread.frames.last_mut() else { return };
        let Some(instructions) = frame.unnamed.take() else { return };
        frame.cause = cause;
        if self.expects_init && !self.has_init && cause != tally::PAGE_FAULT {
            self.has_init = true;
            thread.is_init = true;
        }
        let is_init = thread.is_init;
        self.tally.count(cause).instructions += instructions;
        self.occurs(cpu, cause);
        if is_init && cause == self.ends {
            self.close();
        }
    }

    fn close(&mut self) {
        if self.window == Window::Open {
            self.window = Window::Closed;
            self.tally.complete = true;
        }
    }

    /// A frame ends, which may not have got a name.
    fn end_frame(&mut self, cpu: usize, frame: Frame) {
        if self.window == Window::Before && self.executes.contains(&frame.cause) {
            self.window = Window::Imminent;
        }
        self.tally.count(frame.cause).instructions += frame.unnamed.unwrap_or_default();
        // A start is counted at its end, as the kernel may note it several times.
        if frame.unnamed.is_some() || frame.cause == tally::START {
            self.occurs(cpu, frame.cause);
        }
    }

    fn enter_user(&mut self, cpu: usize) {
        let thread = &mut self.cpus[cpu].thread;
        let frames = std::mem::take(&mut thread.frames);
        let started = std::mem::take(&mut thread.started);
        if started > 0 {
            self.tally.count(tally::START).instructions += started;
            self.occurs(cpu, tally::START);
        }
        for frame in frames {
            self.end_frame(cpu, frame);
        }
        if self.window == Window::Imminent {
            self.window = Window::Open;
        }
    }

    /// The CPU's thread begins. A thread that had the same descriptor has ended.
    fn become_thread(&mut self, cpu: usize, base: Base) {
        let ended = std::mem::replace(&mut self.cpus[cpu].thread, Thread { base, ..Thread::default() });
        self.tally.count(tally::KERNEL_TASK).instructions += ended.started;
    }
}

#[cfg(test)]
mod tests;
