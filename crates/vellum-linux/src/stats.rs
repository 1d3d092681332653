//! Summarises samples.

use crate::time::Time;

/// A summary of samples: the median, which a few samples lengthened by noise hardly change, and the
/// extremes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The median: the middle sample, or the mean of the middle two.
    pub median: u64,
    /// The smallest sample.
    pub min: u64,
    /// The largest sample.
    pub max: u64,
}

impl Summary {
    /// Summarises `samples`. Returns `None` if there are none.
    pub fn of(samples: &[u64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Summary { median: low.midpoint(high), min, max })
    }
}

/// Returns the median of each part of `times`, or zeros if there are none.
pub fn median(times: &[Time]) -> Time {
    let of = |part: fn(&Time) -> u64| {
        let all: Vec<u64> = times.iter().map(part).collect();
        Summary::of(&all).map_or(0, |summary| summary.median)
    };
    Time { wall_ns: of(|time| time.wall_ns), cpu_ns: of(|time| time.cpu_ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_samples_have_no_summary() {
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn the_median_ignores_order_and_outliers() {
        assert_eq!(Summary::of(&[7]), Some(Summary { median: 7, min: 7, max: 7 }));
        assert_eq!(Summary::of(&[9, 1, 5]), Some(Summary { median: 5, min: 1, max: 9 }));
        assert_eq!(Summary::of(&[5, 1_000_000, 1]), Some(Summary { median: 5, min: 1, max: 1_000_000 }));
        assert_eq!(Summary::of(&[4, 1, 10, 2]), Some(Summary { median: 3, min: 1, max: 10 }));
        assert_eq!(Summary::of(&[u64::MAX, u64::MAX]).map(|s| s.median), Some(u64::MAX));
    }
}
