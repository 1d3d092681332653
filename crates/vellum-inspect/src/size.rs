//! Parses and formats sizes in bytes and shares.

/// The reason why a text is not a size.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text does not start with digits.
    #[error("a size must start with a whole number, as in 64KiB or 1GiB")]
    NoNumber,
    /// The number is followed by an unknown unit.
    #[error("'{0}' is not a unit: use B, KiB, MiB, GiB, TiB or K, M, G, T (all powers of 1024)")]
    Unit(String),
    /// The size does not fit in 64 bits.
    #[error("the size does not fit in 64 bits")]
    TooBig,
}

/// Parses a size such as `1GiB`, `256M` or `4096`. All units are powers of 1024.
///
/// # Errors
/// [`SizeError`].
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::NoNumber);
    }
    let number: u64 = number.parse().map_err(|_| SizeError::TooBig)?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(SizeError::Unit(unit.trim().to_owned())),
    };
    number.checked_mul(1 << shift).ok_or(SizeError::TooBig)
}

/// Formats a size exactly, in the largest unit that gives a whole number.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = if bytes == 0 { 0 } else { (bytes.trailing_zeros() as usize / 10).min(UNITS.len() - 1) };
    format!("{} {}", bytes >> (10 * power), UNITS[power])
}

/// Formats a size to three significant digits.
pub fn about(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    // Write 1000 or more of a unit in the next larger one.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits =
        if unit == 0 || value.fract() == 0.0 || value >= 100.0 { 0 } else { 2 - value.max(1.0).log10() as usize };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Parses a share, as a fraction or a percentage.
///
/// # Errors
/// The number is not in (0, 1].
pub fn parse_share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number.trim(), 100.0));
    match number.parse::<f64>().map(|number| number / unit) {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share must be more than 0 and at most 1 (or 100%), as in 2%".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_a_power_of_1024() {
        for (text, bytes) in [("4096", 4096), ("64KiB", 65536), ("64k", 65536), (" 1 GiB ", 1 << 30), ("2TB", 2 << 40)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn about_gives_three_digits() {
        let sizes = [0, 512, 4096, 6636, 1000 << 10, 1776 << 10, 590 << 30, 55 << 40, u64::MAX];
        let shown = ["0 B", "512 B", "4 KiB", "6.48 KiB", "0.98 MiB", "1.73 MiB", "590 GiB", "55 TiB", "16384 PiB"];
        assert_eq!(sizes.map(about), shown);
    }

    #[test]
    fn malformed_sizes_have_a_reason() {
        assert_eq!(parse("GiB"), Err(SizeError::NoNumber));
        assert_eq!(parse("-1"), Err(SizeError::NoNumber));
        assert_eq!(parse("1.5GiB"), Err(SizeError::Unit(".5GiB".into())));
        assert_eq!(parse("1 parsec"), Err(SizeError::Unit("parsec".into())));
        assert_eq!(parse("99999999999TiB"), Err(SizeError::TooBig));
        assert_eq!(parse("99999999999999999999"), Err(SizeError::TooBig));
    }

    #[test]
    fn a_shown_size_reads_back_as_itself() {
        for bytes in [0, 1, 4096, 65536, 3 << 19, 1 << 30, 50 << 30, u64::MAX] {
            assert_eq!(parse(&show(bytes)), Ok(bytes), "{}", show(bytes));
        }
    }
}
