//! The `munmap` calls that take a region away piece by piece, or take a part of it away.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::arm::Arm;

/// The bytes that each call of [`Calls::EverySecond`] unmaps.
const SECOND: u64 = 64 << 10;

/// The `munmap` calls on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Calls {
    /// The region is many mappings of one length, as far apart as they are long, so that each has a
    /// VMA of its own. Each call unmaps one of them.
    Small {
        /// The KiB of a mapping.
        kib: u32,
        /// True if the calls come in random order, otherwise in ascending order.
        random: bool,
    },
    /// One call unmaps the middle quarter of the region.
    MiddleQuarter,
    /// Each call unmaps 64 KiB, in ascending order, and leaves the 64 KiB in front of them.
    EverySecond,
}

impl Calls {
    /// Returns the name of the operation on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Calls::Small { .. } => "munmap-small",
            Calls::MiddleQuarter => "munmap-middle",
            Calls::EverySecond => "munmap-every-second",
        }
    }

    /// Returns the operation's name in tables.
    pub fn title(self) -> String {
        match self {
            Calls::Small { .. } => format!("munmap of small regions in {} order", self.order()),
            Calls::MiddleQuarter => "munmap of the middle quarter".to_owned(),
            Calls::EverySecond => "munmap of every second 64 KiB".to_owned(),
        }
    }

    /// Returns the KiB of each mapping, if the region is several.
    pub fn kib(self) -> Option<u32> {
        if let Calls::Small { kib, .. } = self { Some(kib) } else { None }
    }

    /// Returns the name of the order of the calls.
    pub fn order(self) -> &'static str {
        self.arm().name()
    }

    fn arm(self) -> Arm {
        if matches!(self, Calls::Small { random: true, .. }) { Arm::Random } else { Arm::Ascending }
    }

    /// Returns the bytes of addresses that a region of `bytes` spans.
    pub fn span(self, bytes: u64) -> u64 {
        if self.kib().is_some() { 2 * bytes } else { bytes }
    }

    /// Returns the offset in the span of the region's byte `at`.
    pub fn offset(self, at: u64) -> u64 {
        match self.kib() {
            Some(kib) => at + (at / bytes_of(kib)) * bytes_of(kib),
            None => at,
        }
    }

    /// Returns the ranges of a region of `bytes` that are not mapped, as offsets in its span.
    pub fn gaps(self, bytes: u64) -> Vec<Range<u64>> {
        let gap = |kib: u32| {
            let len = bytes_of(kib);
            (0..bytes / len).map(move |n| (2 * n + 1) * len..(2 * n + 2) * len)
        };
        self.kib().into_iter().flat_map(gap).collect()
    }

    /// Returns the ranges that the calls on a region of `bytes` unmap, in the order of the calls,
    /// as offsets in its span.
    pub fn ranges(self, bytes: u64) -> Vec<Range<u64>> {
        let each = |len: u64, first: u64| {
            let order = self.arm().order(bytes / len / if first == 0 { 1 } else { 2 });
            order.into_iter().map(move |n| 2 * n * len + first..(2 * n + 1) * len + first).collect()
        };
        match self {
            Calls::Small { kib, .. } => each(bytes_of(kib), 0),
            Calls::MiddleQuarter => std::iter::once(bytes / 8 * 3..bytes / 8 * 5).collect(),
            Calls::EverySecond => each(SECOND, SECOND),
        }
    }
}

fn bytes_of(kib: u32) -> u64 {
    u64::from(kib) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 4 << 20;

    fn small(kib: u32, random: bool) -> Calls {
        Calls::Small { kib, random }
    }

    fn sorted(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    #[test]
    fn each_small_region_is_unmapped_once_and_only_it() {
        for kib in [4, 64, 1024] {
            let calls = small(kib, true);
            let (ranges, gaps) = (calls.ranges(BYTES), calls.gaps(BYTES));
            assert_eq!(ranges.iter().map(|range| range.end - range.start).sum::<u64>(), BYTES);
            let all = sorted([ranges.clone(), gaps].concat());
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{kib} KiB");
            assert_eq!((all[0].start, all[all.len() - 1].end), (0, calls.span(BYTES)));
            assert_eq!(sorted(ranges.clone()), small(kib, false).ranges(BYTES));
            assert_ne!(ranges, sorted(ranges.clone()), "{kib} KiB");
        }
    }

    #[test]
    fn the_regions_bytes_lie_in_its_mappings_in_order() {
        let calls = small(16, false);
        let mapped: Vec<u64> = calls.ranges(BYTES).into_iter().flat_map(|range| range.step_by(4 << 10)).collect();
        assert!((0..BYTES).step_by(4 << 10).map(|at| calls.offset(at)).eq(mapped));
        assert_eq!(Calls::EverySecond.offset(77), 77);
    }

    #[test]
    fn a_part_of_the_region_is_unmapped_without_gaps_before() {
        let middle = Calls::MiddleQuarter.ranges(BYTES);
        assert_eq!((middle.len(), &middle[0]), (1, &(1536 << 10..2560 << 10)));
        let every_second = Calls::EverySecond.ranges(BYTES);
        assert_eq!(every_second.len() as u64, BYTES / (128 << 10));
        assert_eq!(every_second[..2], [64 << 10..128 << 10, 192 << 10..256 << 10]);
        for calls in [Calls::MiddleQuarter, Calls::EverySecond] {
            assert_eq!((calls.span(BYTES), calls.gaps(BYTES).len()), (BYTES, 0));
        }
    }
}
