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
pub enum TopologyFile {
    /// The number of what it lies in.
    Id(u32),
    /// Which processors share that.
    Mask(Siblings),
    /// The same as a list.
    List(Siblings),
}

/// Who lies together with a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Siblings {
    /// Nobody.
    Itself,
    /// All there are.
    All,
}

/// The files of a processor's `topology`: each is a core of its own, and all lie in one package, as
/// QEMU makes machines by itself. Linux calls unknown clusters 65535.
pub fn topology(cpu: u32) -> [(&'static str, TopologyFile); 16] {
    use Siblings::{All, Itself};
    use TopologyFile::{Id, List, Mask};
    [
        ("core_id", Id(cpu)),
        ("core_cpus", Mask(Itself)),
        ("core_cpus_list", List(Itself)),
        ("thread_siblings", Mask(Itself)),
        ("thread_siblings_list", List(Itself)),
        ("cluster_id", Id(65535)),
        ("cluster_cpus", Mask(Itself)),
        ("cluster_cpus_list", List(Itself)),
        ("die_id", Id(0)),
        ("die_cpus", Mask(All)),
        ("die_cpus_list", List(All)),
        ("physical_package_id", Id(0)),
        ("package_cpus", Mask(All)),
        ("package_cpus_list", List(All)),
        ("core_siblings", Mask(All)),
        ("core_siblings_list", List(All)),
    ]
}

impl TopologyFile {
    /// The file's text, for a processor of so many.
    ///
    /// # Errors
    /// No memory for the text.
    pub fn show(self, text: &mut Text, cpu: usize, cpus: usize) -> fmt::Result {
        let set = |siblings| match siblings {
            Siblings::Itself => cpu..cpu + 1,
            Siblings::All => 0..cpus,
        };
        match self {
            TopologyFile::Id(number) => writeln!(text, "{number}"),
            TopologyFile::Mask(siblings) => mask(text, set(siblings), cpus),
            TopologyFile::List(siblings) => list(text, set(siblings)),
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
        let contents = |name: &str| {
            let file = topology(1).into_iter().find(|(other, _)| *other == name).unwrap().1;
            text(|text| file.show(text, 1, 5))
        };
        assert_eq!(
            (contents("core_id"), contents("physical_package_id"), contents("cluster_id")),
            ("1\n".into(), "0\n".into(), "65535\n".into())
        );
        assert_eq!((contents("core_cpus"), contents("core_cpus_list")), ("02\n".into(), "1\n".into()));
        assert_eq!((contents("package_cpus"), contents("package_cpus_list")), ("1f\n".into(), "0-4\n".into()));
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
