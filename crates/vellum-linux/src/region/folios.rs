//! Reads which folios a region has, from `/proc/kpageflags`.

use procfs::process::Process;
use vellum_pagemap::{Categories, FolioStats, Frames};

use super::Region;
use crate::Skip;
use crate::workload::case::{Case, PAGE};

const PAGEMAP: &str = "/proc/self/pagemap";

impl Region {
    /// Returns the share of its pages, 0 to 1, that are not mapped, or in folios of another size
    /// than the case's.
    ///
    /// # Errors
    /// Linux tells this user nothing about frames, or a system call failed.
    pub fn in_other_folios(&self, case: &Case) -> Result<f64, Skip> {
        let myself = Process::myself().map_err(|error| Skip::system(PAGEMAP, error))?;
        let frames = Frames::open(&myself).map_err(|error| Skip::system(PAGEMAP, error))?;
        let mut frames = frames.ok_or(Skip::NotRoot("read which folios a file has"))?;
        let (start, mut stats) = (self.start as u64, FolioStats::default());
        let all = vellum_pagemap::Region { start, end: start + self.len as u64, categories: Categories::PRESENT };
        frames.add(&all, PAGE, &mut stats, &mut |_, _, _| ()).map_err(|error| Skip::system(PAGEMAP, error))?;
        let these = stats.by_order[case.pages_per_folio().ilog2() as usize];
        Ok(1.0 - these as f64 / (self.len as u64 / PAGE) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_folios_than_those_of_the_case_are_found() {
        let case = Case::of(4 << 20, 4);
        let region = Region::map(case.bytes).unwrap();
        region.touch(&case, &[]).unwrap();
        // Another user than root is not told.
        if let Ok(share) = region.in_other_folios(&case) {
            let larger = Case::of(4 << 20, 64);
            assert!((0.0..0.01).contains(&share), "{share}");
            assert!((region.in_other_folios(&larger).unwrap() - (1.0 - share)).abs() < 0.01);
        }
    }
}
