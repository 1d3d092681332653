//! Regions that map a file in memory.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::{Region, Touched};
use crate::Skip;
use crate::time::Stopwatch;
use crate::workload::case::Case;
use crate::workload::mapping::Mapping;

impl Region {
    /// Maps the region of a case: for [`Mapping::PrivateFile`], for now as a shared mapping, by
    /// which the touch fills the file.
    ///
    /// # Errors
    /// A system call failed.
    pub fn of(case: &Case) -> Result<Region, Skip> {
        if !case.mapping.is_file() {
            return Region::map(case.bytes);
        }
        let file = memfd_create("vellum-region", MemfdFlags::CLOEXEC);
        let file = file.map_err(|error| Skip::system("memfd_create", error))?;
        ftruncate(&file, case.bytes).map_err(|error| Skip::system("ftruncate", error))?;
        Region::of_file(file, case.bytes)
    }

    /// Maps the first `bytes` of a file, a multiple of 2 MiB, as a shared mapping.
    ///
    /// # Errors
    /// A system call failed.
    pub fn of_file(file: OwnedFd, bytes: u64) -> Result<Region, Skip> {
        let mut region = Region::reserve(bytes)?;
        region.file = Some(file);
        region.map_file(MapFlags::SHARED)?;
        Ok(region)
    }

    /// Replaces the region's mapping by one of its file.
    fn map_file(&self, sharing: MapFlags) -> Result<(), Skip> {
        let Some(file) = &self.file else { return Ok(()) };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: replaces the region's pages, which are in its own reservation, and to which no
        // reference exists.
        let mapped = unsafe { mmap(self.start, self.len, access, sharing | MapFlags::FIXED, file, 0) };
        mapped.map(drop).map_err(|error| Skip::system("mmap", error))
    }

    /// Finishes the touch of a region of the case, whose folios are `touched`: for
    /// [`Mapping::PrivateFile`], maps the filled file privately, and reads a byte in each page,
    /// folio by folio in the order of the case's arm. The result has the time of the reads.
    ///
    /// # Errors
    /// A system call failed.
    pub(super) fn finish_touch(&self, case: &Case, touched: Touched) -> Result<Touched, Skip> {
        if case.mapping != Mapping::PrivateFile {
            return Ok(touched);
        }
        self.map_file(MapFlags::PRIVATE)?;
        let (order, pages) = (case.arm.order(case.folios()), case.pages_per_folio());
        let watch = Stopwatch::start();
        for page in order.into_iter().flat_map(|n| n * pages..(n + 1) * pages) {
            // SAFETY: the page is in the region, which is mapped and readable, and any byte is a
            // valid value.
            unsafe { self.page(page).cast::<u8>().read_volatile() };
        }
        let time = watch.time();
        Ok(Touched { time, ..touched })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::case::PAGE;

    fn touched(mapping: Mapping) -> Region {
        let case = Case { mapping, ..Case::of(4 << 20, 4) };
        let region = Region::of(&case).unwrap();
        region.touch(&case, &[]).unwrap();
        region
    }

    #[test]
    fn a_touched_file_has_all_its_pages() {
        for mapping in [Mapping::Shared, Mapping::PrivateFile] {
            let region = touched(mapping);
            assert_eq!(region.present().unwrap(), region.len as u64 / PAGE);
            assert!((0..1024).all(|page| region.word(page) == 1), "{mapping:?}");
        }
    }

    #[test]
    fn a_write_reaches_the_file_of_a_shared_mapping_only() {
        for (mapping, reaches) in [(Mapping::Shared, 7), (Mapping::PrivateFile, 1)] {
            let region = touched(mapping);
            region.set_word(3, 7);
            let mut word = [0; 8];
            rustix::io::pread(region.file.as_ref().unwrap(), &mut word, 3 * PAGE).unwrap();
            assert_eq!(u64::from_le_bytes(word), reaches);
        }
    }
}
