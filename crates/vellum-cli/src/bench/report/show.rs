//! Formats numbers for readers.

use vellum_linux::stats::Summary;

/// Formats a median with its unit, and its range in the same unit.
pub fn nanoseconds(summary: Summary) -> (String, String) {
    let (unit, per) = match summary.median {
        0..1_000 => ("ns", 1.0),
        1_000..1_000_000 => ("µs", 1e3),
        1_000_000..1_000_000_000 => ("ms", 1e6),
        _ => ("s", 1e9),
    };
    let show = |ns: u64| three_digits(ns as f64 / per);
    (format!("{} {unit}", show(summary.median)), format!("{}–{}", show(summary.min), show(summary.max)))
}

/// Formats a ratio.
pub fn ratio(ratio: f64) -> String {
    format!("{}×", three_digits(ratio))
}

/// Formats a ratio as a change in percent, with two decimals for a decrease of more than 95 %.
pub fn change(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    // A true minus sign, and none in front of zero.
    match percent.round() {
        ..-95.0 => format!("−{:.2} %", -percent),
        whole @ ..0.0 => format!("−{:.0} %", -whole),
        whole => format!("+{:.0} %", whole.abs()),
    }
}

/// Formats a whole number with its thousands separated.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join("\u{202f}")
}

/// Formats a size in bytes with three significant digits.
pub fn size(bytes: u64) -> String {
    vellum_inspect::size::about(bytes)
}

/// Formats a number with three significant digits.
pub fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_in_the_unit_of_its_median() {
        let (main, range) = nanoseconds(Summary { median: 19_412_345, min: 900_000, max: 1_200_000_000 });
        assert_eq!((main.as_str(), range.as_str()), ("19.4 ms", "0.90–1200"));
        assert_eq!(nanoseconds(Summary { median: 999, min: 0, max: 999 }).0, "999 ns");
        assert_eq!(nanoseconds(Summary { median: 1_000, min: 0, max: 0 }).0, "1.00 µs");
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, shown) in [(0.0, "0.00"), (1.005, "1.00"), (9.999, "10.0"), (99.96, "100"), (1234.5, "1234")] {
            assert_eq!(three_digits(value), shown);
        }
        assert_eq!(change(0.42), "−58 %");
        assert_eq!(change(0.9999), "+0 %");
        assert_eq!(change(0.0123), "−98.77 %");
        assert_eq!(change(1.5), "+50 %");
        assert_eq!(grouped(102_640), "102\u{202f}640");
        assert_eq!(grouped(240), "240");
    }
}
