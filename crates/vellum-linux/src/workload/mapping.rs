//! The kind of mapping that a region is.

use clap::ValueEnum;

use super::case::Case;

/// The kind of a region's mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mapping {
    /// Private anonymous memory, each page written.
    #[default]
    #[value(name = "anon")]
    Anonymous,
    /// A shared mapping of a file in memory (memfd), each page written through it. The file
    /// outlives the mapping.
    Shared,
    /// A private mapping of such a file, whose pages were written before, and each page read
    /// through it.
    PrivateFile,
    /// A file of a disk, which an operation on it maps or doesn't.
    #[value(skip)]
    DiskFile,
}

impl Mapping {
    /// Returns the name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Mapping::Anonymous => "anon",
            Mapping::Shared => "shared",
            Mapping::PrivateFile => "private-file",
            Mapping::DiskFile => "disk-file",
        }
    }

    /// Returns whether the mapping is one of a file.
    pub fn is_file(self) -> bool {
        self != Mapping::Anonymous
    }

    /// Returns whether the folios of a case can be mapped this way. The benchmarks of files in
    /// memory have no folios of 2 MiB, which huge PTEs map.
    pub fn can_be(self, case: &Case) -> bool {
        !self.is_file() || self == Mapping::DiskFile || case.folio_kib < 2048
    }
}
