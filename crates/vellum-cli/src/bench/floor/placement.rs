//! The frames in which a region's folios lie.

use vellum_linux::workload::case::Case;

/// The frames of a region's folios. Frames are numbered from the first one of the placement.
pub struct Placement {
    /// The first frame of each folio, in the order of addresses.
    pub heads: Vec<usize>,
    /// The number of frames, those between the folios included.
    pub frames: usize,
}

impl Placement {
    /// Returns the placement by an allocator that gives out frames in ascending order: the folio
    /// that is touched first has the first frames, and then come those of the neighbours' folios.
    pub fn in_order(case: &Case) -> Placement {
        let apart = case.pages_per_folio() as usize * (1 + case.arm.neighbours());
        let mut heads = vec![0; case.folios() as usize];
        for (position, n) in case.arm.order(case.folios()).into_iter().enumerate() {
            heads[n as usize] = position * apart;
        }
        Placement { frames: apart * heads.len(), heads }
    }

    /// Returns the placement of folios whose first frames are known. Folios without one lie behind
    /// all others.
    pub fn known(case: &Case, frames: &[Option<u64>]) -> Placement {
        let pages = case.pages_per_folio() as usize;
        let first = frames.iter().flatten().min().copied().unwrap_or(0);
        let heads = frames.iter().map(|frame| frame.map(|frame| (frame - first) as usize));
        let mut end = heads.clone().flatten().max().map_or(0, |last| last + pages);
        let heads = heads.map(|head| {
            head.unwrap_or_else(|| {
                end += pages;
                end - pages
            })
        });
        Placement { heads: heads.collect(), frames: end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folio_without_known_frames_lies_behind_the_others() {
        let case = Case::of(2 << 20, 512);
        let placement = Placement::known(&case, &[Some(1024), None, Some(512), None]);
        assert_eq!(placement.heads, [512, 640, 0, 768]);
        assert_eq!(placement.frames, 896);
    }
}
