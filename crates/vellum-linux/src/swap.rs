//! Times swap-out and swap-in of a region, on a zram device of the benchmark's own.

use crate::region::{Region, evict_caches, warm_memory};
use crate::settings::resource::{HeldResource, Resource};
use crate::workload::data::{Data, Steps};
use crate::{Sample, Skip};

/// Times swap-out and swap-in of regions.
#[derive(Default)]
pub struct SwapTimer {
    zram: Option<HeldResource>,
}

impl SwapTimer {
    /// Provides swap for `bytes`, from the first call until this value is dropped.
    ///
    /// # Errors
    /// zram is missing, or this user may not set it up.
    pub fn prepare(&mut self, bytes: u64) -> Result<(), Skip> {
        if self.zram.is_none() {
            // Make the device twice as large as the region: the compressed size is not known in
            // advance.
            self.zram = Some(HeldResource::new(&Resource::Zram { bytes: 2 * bytes })?);
        }
        Ok(())
    }

    /// Times swap-out of a touched region of `pages` pages, and its swap-in by `reads`. The sample
    /// has the bytes that these swapped in: those of the region, as the kernel's `pswpin` has other
    /// processes' pages too. Afterwards all pages are in memory, and their contents are checked.
    ///
    /// # Errors
    /// Pages were not swapped out, or came back with other contents.
    pub fn measure(&self, region: &Region, pages: u64, data: Data, reads: Steps) -> Result<Sample, Skip> {
        region.fill(|number| data.page(number));
        warm_memory(data.most_stored(pages))?;
        evict_caches()?;
        let (op, left) = region.page_out_all()?;
        // A few pages may stay because another context holds a reference.
        if left > pages / 1000 {
            return Err(Skip::NotSwappedOut(left));
        }
        let swapped = || region.swapped_bytes().map_err(|error| Skip::system("/proc/self/smaps", error));
        let before = swapped()?;
        warm_memory(before)?;
        evict_caches()?;
        let back = Some(region.read(reads.step()));
        let moved = Some(before.saturating_sub(swapped()?));
        data.check(pages, |number, page| {
            *page = region.contents(number);
            Ok(())
        })?;
        Ok(Sample { op, back, moved, ..Sample::default() })
    }
}
