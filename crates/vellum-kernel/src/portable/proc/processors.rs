//! The processors, as `/sys` tells of them: sets of them, and how they lie in packages.

use super::Text;
use core::fmt::{self, Write};

/// A set in ascending order, as lists of processors and nodes say it: `0-3,5`.
///
/// # Errors
/// No memory for the text.
pub fn list(text: &mut Text, set: impl Iterator<Item = usize>) -> fmt::Result {
    let mut set = set.peekable();
    let mut comma = "";
    while let Some(first) = set.next() {
        let mut last = first;
        while let Some(next) = set.next_if_eq(&(last + 1)) {
            last = next;
        }
        write!(text, "{comma}{first}")?;
        if last > first {
            write!(text, "-{last}")?;
        }
        comma = ",";
    }
    writeln!(text)
}

/// The same in hexadecimal, a bit each, with as many digits as `of` processors need, at most 32 of
/// them.
///
/// # Errors
/// No memory for the text.
pub fn mask(text: &mut Text, set: impl Iterator<Item = usize>, of: usize) -> fmt::Result {
    let bits = set.fold(0u64, |bits, one| bits | 1 << one);
    writeln!(text, "{bits:0digits$x}", digits = of.div_ceil(4))
}

/// What one of the files in `topology` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The number of what it lies in.
    In(u32),
    /// Which processors share that.
    With(With),
    /// The same as a list.
    ListedWith(With),
}

/// Who lies together with a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum With {
    /// Nobody.
    Itself,
    /// All there are.
    All,
}

/// The files of a processor's `topology`: each is a core of its own, and all lie in one package, as
/// QEMU makes machines by itself. Linux calls unknown clusters 65535.
pub fn topology(cpu: u32) -> [(&'static str, Place); 16] {
    use Place::{In, ListedWith, With as Shared};
    use With::{All, Itself};
    [
        ("core_id", In(cpu)),
        ("core_cpus", Shared(Itself)),
        ("core_cpus_list", ListedWith(Itself)),
        ("thread_siblings", Shared(Itself)),
        ("thread_siblings_list", ListedWith(Itself)),
        ("cluster_id", In(65535)),
        ("cluster_cpus", Shared(Itself)),
        ("cluster_cpus_list", ListedWith(Itself)),
        ("die_id", In(0)),
        ("die_cpus", Shared(All)),
        ("die_cpus_list", ListedWith(All)),
        ("physical_package_id", In(0)),
        ("package_cpus", Shared(All)),
        ("package_cpus_list", ListedWith(All)),
        ("core_siblings", Shared(All)),
        ("core_siblings_list", ListedWith(All)),
    ]
}

impl Place {
    /// The file's text, for a processor of so many.
    ///
    /// # Errors
    /// No memory for the text.
    pub fn show(self, text: &mut Text, cpu: usize, cpus: usize) -> fmt::Result {
        let set = |with| match with {
            With::Itself => cpu..cpu + 1,
            With::All => 0..cpus,
        };
        match self {
            Place::In(number) => writeln!(text, "{number}"),
            Place::With(with) => mask(text, set(with), cpus),
            Place::ListedWith(with) => list(text, set(with)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    fn text(write: impl FnOnce(&mut Text) -> fmt::Result) -> String {
        String::from_utf8(Text::of(write).unwrap()).unwrap()
    }

    /// As Linux 7.2 has it for five processors of QEMU's.
    #[test]
    fn five_processors() {
        let file = |name: &str| {
            let place = topology(1).into_iter().find(|(other, _)| *other == name).unwrap().1;
            text(|text| place.show(text, 1, 5))
        };
        assert_eq!(
            (file("core_id"), file("physical_package_id"), file("cluster_id")),
            ("1\n".into(), "0\n".into(), "65535\n".into())
        );
        assert_eq!((file("core_cpus"), file("core_cpus_list")), ("02\n".into(), "1\n".into()));
        assert_eq!((file("package_cpus"), file("package_cpus_list")), ("1f\n".into(), "0-4\n".into()));
    }

    #[test]
    fn sets() {
        assert_eq!((text(|text| list(text, 0..0)), text(|text| list(text, 0..1))), ("\n".into(), "0\n".into()));
        assert_eq!(
            (text(|text| mask(text, 0..2, 2)), text(|text| mask(text, 0..1, 16))),
            ("3\n".into(), "0001\n".into())
        );
        let odd = || [0, 2, 3, 4, 6, 8, 9].into_iter();
        assert_eq!(
            (text(|text| list(text, odd())), text(|text| mask(text, odd(), 10))),
            ("0,2-4,6,8-9\n".into(), "35d\n".into())
        );
    }
}
