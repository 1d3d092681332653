//! `/proc/PID/limits`.

use super::Text;
use core::fmt::{self, Write};

/// The names and units of the limits, by their numbers (`RLIMIT_*`).
const NAMES: [(&str, &str); 16] = [
    ("Max cpu time", "seconds"),
    ("Max file size", "bytes"),
    ("Max data size", "bytes"),
    ("Max stack size", "bytes"),
    ("Max core file size", "bytes"),
    ("Max resident set", "bytes"),
    ("Max processes", "processes"),
    ("Max open files", "files"),
    ("Max locked memory", "bytes"),
    ("Max address space", "bytes"),
    ("Max file locks", "locks"),
    ("Max pending signals", "signals"),
    ("Max msgqueue size", "bytes"),
    ("Max nice priority", ""),
    ("Max realtime priority", ""),
    ("Max realtime timeout", "us"),
];

/// Writes the file, from the soft and hard limits. `u64::MAX` is unlimited.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn limits(text: &mut Text, limits: &[[u64; 2]; 16]) -> fmt::Result {
    writeln!(text, "{:<25} {:<20} {:<20} {:<10}", "Limit", "Soft Limit", "Hard Limit", "Units")?;
    for ((name, unit), values) in NAMES.iter().zip(limits) {
        write!(text, "{name:<25} ")?;
        for value in values {
            match value {
                &u64::MAX => write!(text, "{:<20} ", "unlimited")?,
                value => write!(text, "{value:<20} ")?,
            }
        }
        // Linux writes no spaces in place of a missing unit.
        let width = if unit.is_empty() { 0 } else { 10 };
        writeln!(text, "{unit:<width$}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    /// Formats this process's limits as the host's Linux does.
    #[test]
    fn limits_are_formatted_as_on_linux() {
        let real = std::fs::read_to_string("/proc/self/limits").unwrap();
        let value = |word: &str| if word == "unlimited" { u64::MAX } else { word.parse().unwrap() };
        let mut values = [[0; 2]; 16];
        for (line, values) in real.lines().skip(1).zip(&mut values) {
            *values = [value(line[26..46].trim()), value(line[47..67].trim())];
        }
        let ours = Text::of(|text| limits(text, &values)).unwrap();
        assert_eq!(String::from_utf8(ours).unwrap(), real);
    }
}
