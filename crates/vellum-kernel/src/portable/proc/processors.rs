//! CPUs as `/sys` shows them: lists and masks of them, and their topology.

use super::Text;
use core::fmt::{self, Write};

/// Writes a set of numbers in ascending order, as lists of CPUs and NUMA nodes are written:
/// `0-3,5`.
///
/// # Errors
/// Fails if there is no memory for the text.
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

/// Writes a set of numbers as a hexadecimal mask, with as many digits as `of` CPUs need. `of` is at
/// most 32, as Linux separates groups of 32 bits by commas.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn mask(text: &mut Text, set: impl Iterator<Item = usize>, of: usize) -> fmt::Result {
    let bits = set.fold(0u64, |bits, one| bits | 1 << one);
    writeln!(text, "{bits:0digits$x}", digits = of.div_ceil(4))
}

/// The contents of a file in `topology`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyFile {
    /// The number of a core, cluster, die or package.
    Id(u32),
    /// The mask of the CPUs that share the core, cluster, die or package.
    Mask(Siblings),
    /// The list of the CPUs that share the core, cluster, die or package.
    List(Siblings),
}

/// The CPUs that share a part of the topology with a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Siblings {
    /// Only the CPU itself.
    Itself,
    /// All CPUs.
    All,
}

/// Returns the names and contents of the files in a CPU's `topology`. Each CPU is a core, and all
/// are in one package, as in QEMU's default machine. Linux reports unknown clusters as 65535.
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
    /// Writes the contents of this file for CPU `cpu` of a machine with `cpus` CPUs.
    ///
    /// # Errors
    /// Fails if there is no memory for the text.
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

    /// As Linux 7.2 shows it on a machine of QEMU's with five CPUs.
    #[test]
    fn the_topology_of_five_cpus_is_that_of_linux() {
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
    fn sets_are_written_as_lists_and_masks() {
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
