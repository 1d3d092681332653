//! Fuzz targets of the parsers: functions over any bytes, which panic if a parser does, or if what
//! it returns breaks its promises (`docs/fuzzing.md`). The test below runs them over the kept
//! corpus; `fuzz/fuzz_targets`, over what libFuzzer makes.
//!
//! | file | story |
//! |---|---|
//! | `programs` | files that are executed, and the archive of first files |
//! | `machine` | what firmware and loader say about the machine |
//! | `settings` | what programs write to settings, and what comes over the wire |

mod machine;
mod programs;
mod settings;

pub use machine::{acpi, devicetree, pvh};
pub use programs::{cpio, elf, script};
pub use settings::{settings, stdio};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_hold_their_properties_on_the_corpus_and_its_mutations() {
        let targets: &[vellum_corpus::Target] = &[
            ("acpi", acpi),
            ("cpio", cpio),
            ("devicetree", devicetree),
            ("elf", elf),
            ("pvh", pvh),
            ("script", script),
            ("settings", settings),
            ("stdio", stdio),
        ];
        vellum_corpus::check("vellum_kernel", targets);
    }
}
