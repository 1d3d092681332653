//! Fuzz targets for the parsers: functions of arbitrary bytes, which panic if a parser panics or if
//! its result breaks a property (`docs/fuzzing.md`). The test below runs them on the stored corpus;
//! `fuzz/fuzz_targets`, on the inputs of libFuzzer.
//!
//! | file | parsers of |
//! |---|---|
//! | `programs` | executable files, and the initramfs |
//! | `machine` | the tables of firmware and loader |
//! | `settings` | settings that programs write, and the stdio channel |

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
