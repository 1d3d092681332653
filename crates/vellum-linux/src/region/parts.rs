//! Unmaps parts of a region.

use std::ops::Range;

use rustix::mm::munmap;

use super::Region;
use crate::Skip;

impl Region {
    /// Unmaps parts of the region, each by a call of its own.
    ///
    /// Other mappings may use the addresses afterwards, so the caller must not drop the region,
    /// which would unmap all of its addresses: it stays until the process exits.
    ///
    /// # Errors
    /// `munmap` failed.
    pub fn unmap_parts(&self, parts: &[Range<u64>]) -> Result<(), Skip> {
        for part in parts {
            assert!(part.start <= part.end && part.end <= self.len as u64);
            let start = self.start.wrapping_byte_add(part.start as usize);
            // SAFETY: the part is in the region, to whose contents no reference exists.
            unsafe { munmap(start, (part.end - part.start) as usize) }
                .map_err(|error| Skip::system("munmap", error))?;
        }
        Ok(())
    }
}
