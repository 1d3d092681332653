//! The counts by cause, and their text form.

use std::collections::HashMap;
use std::fmt::{self, Display, Write};

/// The cause of instructions: an index of [`Tally`]'s rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cause(u32);

/// The program's own instructions, in user mode.
pub const PROGRAM: Cause = Cause(0);
/// A CPU's idle loop.
pub const IDLE: Cause = Cause(1);
/// The process that Vellum's command runs on Linux beside the program, in either mode.
pub const INIT: Cause = Cause(2);
/// Tasks of the kernel itself.
pub const KERNEL_TASK: Cause = Cause(3);
/// The way of a new thread to its first instruction in user mode.
pub const START: Cause = Cause(4);
/// Interrupts, and what the kernel does before it returns from them.
pub const INTERRUPT: Cause = Cause(5);
/// Page faults, in user mode and in the kernel's own accesses to user memory.
pub const PAGE_FAULT: Cause = Cause(6);
/// Exceptions that are neither.
pub const EXCEPTION: Cause = Cause(7);
/// System calls that did not show their name.
pub const NAMELESS: Cause = Cause(8);

/// Further iterations of the kernel's string instructions, such as `rep movsb`, each of which
/// counts as one instruction. They are no instructions.
pub const REPETITIONS: Cause = Cause(9);

/// The names of the constants above, in their order. No system call has such a name.
const FIXED: [&str; 10] = [
    "program",
    "idle",
    "init",
    "kernel tasks",
    "thread start",
    "interrupt",
    "page fault",
    "other exception",
    "other system call",
    "string repetitions",
];

/// The counts of a cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The number of occurrences; 0 for causes that are no events, like [`PROGRAM`].
    pub times: u64,
    /// The number of instructions.
    pub instructions: u64,
}

/// The counts by cause.
#[derive(Debug, Clone)]
pub struct Tally {
    rows: Vec<(String, Count)>,
    causes: HashMap<String, Cause>,
    /// True if the counts are of the whole run: from the program's first instruction to its end.
    pub complete: bool,
}

impl Default for Tally {
    fn default() -> Self {
        let mut tally = Self { rows: Vec::new(), causes: HashMap::new(), complete: false };
        for name in FIXED {
            tally.cause(name);
        }
        tally
    }
}

impl Tally {
    /// Returns the cause with this name; adds it, with counts of zero, if there is none.
    pub fn cause(&mut self, name: &str) -> Cause {
        if let Some(cause) = self.causes.get(name) {
            return *cause;
        }
        let cause = Cause(self.rows.len() as u32);
        self.rows.push((name.into(), Count::default()));
        self.causes.insert(name.into(), cause);
        cause
    }

    /// Returns the counts of a cause.
    pub fn of(&self, cause: Cause) -> Count {
        self.rows.get(cause.0 as usize).map_or(Count::default(), |(_, count)| *count)
    }

    /// Returns the counts of a cause, to change them.
    pub fn count(&mut self, cause: Cause) -> &mut Count {
        &mut self.rows[cause.0 as usize].1
    }

    /// Returns the name of a cause.
    pub fn name(&self, cause: Cause) -> &str {
        self.rows.get(cause.0 as usize).map_or("", |(name, _)| name)
    }

    /// Returns whether a cause is kernel work: all are except [`PROGRAM`], [`IDLE`], [`INIT`] and
    /// [`REPETITIONS`].
    pub fn is_kernel_work(cause: Cause) -> bool {
        ![PROGRAM, IDLE, INIT, REPETITIONS].contains(&cause)
    }

    /// Returns the causes of kernel work that occurred, with their names and counts.
    pub fn kernel_work(&self) -> impl Iterator<Item = (&str, Count)> {
        let rows = (0..).map(Cause).zip(&self.rows).filter(|(cause, _)| Self::is_kernel_work(*cause));
        rows.map(|(_, (name, count))| (name.as_str(), *count)).filter(|(_, count)| *count != Count::default())
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// Returns the first line that is not of this form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut tally = Self::default();
        for line in text.lines() {
            if line == "complete" {
                tally.complete = true;
                continue;
            }
            let read = || {
                let (times, rest) = line.split_once(' ')?;
                let (instructions, name) = rest.split_once(' ')?;
                Some((Count { times: times.parse().ok()?, instructions: instructions.parse().ok()? }, name))
            };
            let (count, name) = read().ok_or_else(|| line.to_string())?;
            let cause = tally.cause(name);
            *tally.count(cause) = count;
        }
        Ok(tally)
    }
}

/// The text form: a line `TIMES INSTRUCTIONS NAME` for each cause that occurred, and a line
/// `complete` if the counts are.
impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (name, count) in self.rows.iter().filter(|(_, count)| *count != Count::default()) {
            writeln!(f, "{} {} {name}", count.times, count.instructions)?;
        }
        if self.complete {
            f.write_str("complete")?;
            f.write_char('\n')?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_keeps_names_and_counts() {
        let mut tally = Tally::default();
        let read = tally.cause("read");
        *tally.count(read) = Count { times: 2, instructions: 700 };
        *tally.count(PAGE_FAULT) = Count { times: 1, instructions: 90 };
        tally.count(PROGRAM).instructions = 5;
        tally.complete = true;
        let text = tally.to_string();
        assert_eq!(text, "0 5 program\n1 90 page fault\n2 700 read\ncomplete\n");
        let again = Tally::parse(&text).unwrap();
        assert_eq!(again.to_string(), text);
        assert_eq!(again.kernel_work().map(|(name, _)| name).collect::<Vec<_>>(), ["page fault", "read"]);
        assert_eq!(again.of(PROGRAM).instructions, 5);
        assert_eq!(Tally::parse("1 x read").unwrap_err(), "1 x read");
    }

    #[test]
    fn a_cause_has_one_row() {
        let mut tally = Tally::default();
        assert_eq!(tally.cause("page fault"), PAGE_FAULT);
        assert_eq!(tally.cause("mmap"), tally.cause("mmap"));
        assert_eq!(tally.name(INTERRUPT), "interrupt");
    }
}
