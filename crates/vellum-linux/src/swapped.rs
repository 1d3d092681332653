//! Swap, by the kernel of this machine: to compressed memory that is there for the benchmark alone.

use crate::region::Region;
use crate::settings::lent::{Lent, Thing};
use crate::workload::data::Data;
use crate::{Sample, Skip};

/// How often what is busy at the moment is asked to go again.
const TRIES: usize = 8;

/// Measures going out and coming back of regions.
#[derive(Default)]
pub struct Swapped {
    zram: Option<Lent>,
}

impl Swapped {
    /// Has a place for so many bytes, from the first call on until this is dropped.
    pub fn prepare(&mut self, bytes: u64) -> Result<(), Skip> {
        if self.zram.is_none() {
            // Twice as much: what it takes is known only when it is there.
            self.zram = Some(Lent::of(&Thing::Zram { bytes: 2 * bytes })?);
        }
        Ok(())
    }

    /// Measures both on a touched region. All of it is in memory afterwards, and is what it was.
    pub fn measure(&self, region: &Region, pages: u64, data: Data) -> Result<Sample, Skip> {
        region.fill(|number| data.page(number));
        let (mut op_ns, mut left) = (0, pages);
        for _ in 0..TRIES {
            op_ns += region.page_out()?;
            left = region.present()?;
            if left == 0 {
                break;
            }
        }
        // Single pages that somebody else is looking at do not matter.
        if left > pages / 1000 {
            return Err(Skip::Stayed(left));
        }
        let back_ns = Some(region.read());
        data.check(pages, |number, page| {
            *page = region.contents(number);
            Ok(())
        })?;
        Ok(Sample { touch_ns: None, op_ns, back_ns, fallback: 0.0 })
    }
}
