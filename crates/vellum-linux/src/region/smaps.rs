//! Reads how a region is mapped, from `/proc/self/smaps`.

use procfs::process::Process;

use super::Region;

impl Region {
    /// Returns the bytes mapped by huge PTEs, from `smaps`.
    ///
    /// # Errors
    /// `smaps` can't be read.
    pub fn huge_bytes(&self) -> procfs::ProcResult<u64> {
        self.smaps_bytes(&["AnonHugePages", "FilePmdMapped"])
    }

    /// Returns the bytes of its pages that are mapped, from `smaps`.
    ///
    /// # Errors
    /// `smaps` can't be read.
    pub fn resident_bytes(&self) -> procfs::ProcResult<u64> {
        self.smaps_bytes(&["Rss"])
    }

    /// Returns the bytes of its pages in memory that no other process maps, from `smaps`: after a
    /// fork, and as long as the child exists, those that copy-on-write faults copied.
    ///
    /// # Errors
    /// `smaps` can't be read.
    pub fn private_bytes(&self) -> procfs::ProcResult<u64> {
        self.smaps_bytes(&["Private_Clean", "Private_Dirty"])
    }

    /// Returns the bytes of its pages that are swapped out, from `smaps`.
    ///
    /// # Errors
    /// `smaps` can't be read.
    pub fn swapped_bytes(&self) -> procfs::ProcResult<u64> {
        self.smaps_bytes(&["Swap"])
    }

    /// Returns the sum of these lines of `smaps` for the region.
    fn smaps_bytes(&self, lines: &[&str]) -> procfs::ProcResult<u64> {
        let (start, end) = (self.start as u64, self.start as u64 + self.len as u64);
        let vmas = Process::myself()?.smaps()?;
        let inside = vmas.iter().filter(|vma| vma.address.0 >= start && vma.address.1 <= end);
        Ok(inside.flat_map(|vma| lines.iter().filter_map(|line| vma.extension.map.get(*line))).sum())
    }
}
