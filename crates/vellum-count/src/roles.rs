//! The meanings of addresses of a kernel, and their text form, which the command writes and the
//! plugin reads.

use std::fmt::{self, Display};
use std::ops::Range;

/// The meaning of a block of instructions that begins at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The CPU enters the kernel here, for the cause with this name.
    Entry(String),
    /// The CPU enters the kernel here. A later [`Role::Names`] has the cause; if none comes, it is
    /// the one with this name.
    Unnamed(String),
    /// The kernel comes here for the cause with this name.
    Names(String),
    /// The function that switches to another thread: the first address that it reads is in the
    /// next thread's descriptor, and so identifies the thread.
    Switch,
    /// A new thread begins here.
    Start,
    /// A CPU's idle thread begins here.
    Idle,
    /// The kernel tells the cause of what it does next: each instruction of the function reads a
    /// byte of the kernel's table of causes ([`Roles::table`]).
    Notes,
}

/// A place in the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its addresses. Those of a role that a single address has are one byte.
    pub range: Range<u64>,
    /// Their role.
    pub role: Role,
}

/// The places of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// The places, in any order.
    pub places: Vec<Place>,
    /// The places where an instruction that returns from an exception does so; empty: everywhere.
    pub returns: Vec<Range<u64>>,
    /// The address of the kernel's table of causes, for [`Role::Notes`], and a name for each of
    /// its bytes that means one.
    pub table: Option<(u64, Vec<(u64, String)>)>,
    /// The name of the system call with which the first process, which is not the program, shows
    /// the program's end. Without one the kernel notes [`Roles::END`].
    pub init_ends_by: Option<String>,
}

impl Roles {
    /// The name of the cause that ends counting.
    pub const END: &str = "end";

    /// Adds a place.
    pub fn add(&mut self, range: Range<u64>, role: Role) {
        self.places.push(Place { range, role });
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// Returns the first line that is not of this form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut roles = Self::default();
        for line in text.lines() {
            roles.read_line(line).ok_or_else(|| line.to_string())?;
        }
        Ok(roles)
    }

    fn read_line(&mut self, line: &str) -> Option<()> {
        let mut words = line.splitn(4, ' ');
        let word = words.next()?;
        if word == "init-ends-by" {
            self.init_ends_by = Some(words.next()?.into());
            return Some(());
        }
        let start = u64::from_str_radix(words.next()?, 16).ok()?;
        if word == "table" {
            self.table = Some((start, Vec::new()));
            return Some(());
        }
        let second = words.next()?;
        let end = u64::from_str_radix(second, 16);
        let name = words.next();
        let role = match word {
            "cause" => {
                let name = line.splitn(3, ' ').nth(2)?;
                self.table.as_mut()?.1.push((start, name.into()));
                return Some(());
            }
            "returns" => {
                self.returns.push(start..end.ok()?);
                return Some(());
            }
            "entry" => Role::Entry(name?.into()),
            "unnamed" => Role::Unnamed(name?.into()),
            "names" => Role::Names(name?.into()),
            "switch" => Role::Switch,
            "start" => Role::Start,
            "idle" => Role::Idle,
            "notes" => Role::Notes,
            _ => return None,
        };
        self.add(start..end.ok()?, role);
        Some(())
    }
}

/// The text form: a line for each place, `ROLE START END NAME`, with hexadecimal addresses.
impl Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for Place { range, role } in &self.places {
            let (word, name) = match role {
                Role::Entry(name) => ("entry", name.as_str()),
                Role::Unnamed(name) => ("unnamed", name.as_str()),
                Role::Names(name) => ("names", name.as_str()),
                Role::Switch => ("switch", ""),
                Role::Start => ("start", ""),
                Role::Idle => ("idle", ""),
                Role::Notes => ("notes", ""),
            };
            let gap = if name.is_empty() { "" } else { " " };
            writeln!(f, "{word} {:x} {:x}{gap}{name}", range.start, range.end)?;
        }
        for range in &self.returns {
            writeln!(f, "returns {:x} {:x}", range.start, range.end)?;
        }
        if let Some((address, causes)) = &self.table {
            writeln!(f, "table {address:x}")?;
            for (at, name) in causes {
                writeln!(f, "cause {at:x} {name}")?;
            }
        }
        if let Some(name) = &self.init_ends_by {
            writeln!(f, "init-ends-by {name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_keeps_all_places() {
        let mut roles = Roles { init_ends_by: Some("getppid".into()), ..Roles::default() };
        roles.add(0x1000..0x1001, Role::Entry("page fault".into()));
        roles.add(0x1100..0x1101, Role::Unnamed("other system call".into()));
        roles.add(0x1200..0x1201, Role::Names("read".into()));
        roles.add(0x1300..0x1340, Role::Switch);
        roles.add(0x1400..0x1401, Role::Start);
        roles.add(0x1500..0x1501, Role::Idle);
        roles.add(0x1600..0x1620, Role::Notes);
        roles.returns.push(0x1000..0x2000);
        roles.table = Some((0x8000, vec![(0, "read".into()), (0x200, "page fault".into())]));
        assert_eq!(Roles::parse(&roles.to_string()), Ok(roles));
    }

    #[test]
    fn an_unknown_line_is_an_error() {
        for line in ["entry 10 11", "somewhere 10 11", "entry x 11 read", "switch 10"] {
            assert_eq!(Roles::parse(line), Err(line.into()));
        }
    }
}
