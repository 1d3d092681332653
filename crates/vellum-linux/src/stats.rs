//! Summarises samples.

use serde::{Deserialize, Serialize};

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

/// The time of a part that is subtracted from other times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The median of its runs.
    pub time: Time,
    /// Nanoseconds between the longest and the shortest run, of the time for which the thread ran.
    pub spread_ns: u64,
}

impl Part {
    /// Returns the part with these runs.
    pub fn of(runs: &[Time]) -> Part {
        let all: Vec<u64> = runs.iter().map(|run| run.cpu_ns).collect();
        let spread_ns = Summary::of(&all).map_or(0, |summary| summary.max - summary.min);
        Part { time: median(runs), spread_ns }
    }
}

/// The distribution of samples: quantiles, each a sample that so large a share of the samples does
/// not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// The number of samples.
    pub samples: u64,
    /// The median.
    pub p50: u64,
    /// 99 % do not exceed it.
    pub p99: u64,
    /// 99.9 % do not exceed it.
    pub p999: u64,
    /// The largest sample.
    pub max: u64,
}

impl Quantiles {
    /// Returns the quantiles of `samples`; `None` if there are none. Sorts the samples.
    pub fn of(samples: &mut [u64]) -> Option<Quantiles> {
        samples.sort_unstable();
        let &max = samples.last()?;
        let rank = |thousandths: usize| samples[(samples.len() * thousandths).div_ceil(1000) - 1];
        Some(Quantiles { samples: samples.len() as u64, p50: rank(500), p99: rank(990), p999: rank(999), max })
    }

    /// Returns the quantiles of these samples less `ns` each, or zero where a sample is less.
    pub fn less(self, ns: u64) -> Quantiles {
        let Quantiles { samples, p50, p99, p999, max } = self;
        let [p50, p99, p999, max] = [p50, p99, p999, max].map(|quantile| quantile.saturating_sub(ns));
        Quantiles { samples, p50, p99, p999, max }
    }
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

    #[test]
    fn a_part_is_its_median_with_the_spread_of_its_runs() {
        let runs = [7, 3, 12].map(|ns| Time { wall_ns: 100 * ns, cpu_ns: ns });
        assert_eq!(Part::of(&runs), Part { time: Time { wall_ns: 700, cpu_ns: 7 }, spread_ns: 9 });
        assert_eq!(Part::of(&[]).spread_ns, 0);
    }

    #[test]
    fn a_quantile_is_the_sample_that_its_share_does_not_exceed() {
        let mut samples: Vec<u64> = (1..=2000).rev().collect();
        let expected = Quantiles { samples: 2000, p50: 1000, p99: 1980, p999: 1998, max: 2000 };
        assert_eq!(Quantiles::of(&mut samples), Some(expected));
        assert_eq!(Quantiles::of(&mut [7]), Some(Quantiles { samples: 1, p50: 7, p99: 7, p999: 7, max: 7 }));
        assert_eq!(Quantiles::of(&mut []), None);
    }

    #[test]
    fn the_quantiles_of_lessened_samples_are_lessened_quantiles() {
        let mut samples: Vec<u64> = (1..=2000).map(|n| n * n).collect();
        let before = Quantiles::of(&mut samples).unwrap();
        let median = before.p50;
        samples.iter_mut().for_each(|ns| *ns = ns.saturating_sub(median));
        assert_eq!(Some(before.less(median)), Quantiles::of(&mut samples));
        assert_eq!(before.less(u64::MAX).max, 0);
    }
}
