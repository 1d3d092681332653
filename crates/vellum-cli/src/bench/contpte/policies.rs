//! Mapping policies, and the cores that support them.

use vellum_sim::TlbModel;

use super::replay::{Format, Policy};

const fn policy(name: &'static str, format: Format, folios: bool, cont_blocks: bool, text: bool) -> Policy {
    Policy { name, format, folios, cont_blocks, text }
}

/// The policies of each page-table format; the first of a format maps single pages. The policies of
/// AArch64 have the names under which results for Linux were published ([`PUBLISHED`]).
pub const POLICIES: &[Policy] = &[
    policy(BASE, Format::Aarch64(4), false, false, false),
    policy("anonfolio", Format::Aarch64(4), true, false, false),
    policy("contpte", Format::Aarch64(4), true, true, false),
    policy("exefolio", Format::Aarch64(4), true, true, true),
    policy("16K granule", Format::Aarch64(16), false, false, false),
    policy("64K granule", Format::Aarch64(64), false, false, false),
    policy(BASE, Format::X86, false, false, false),
    policy("anonfolio", Format::X86, true, false, false),
    policy("exefolio", Format::X86, true, false, true),
    policy(BASE, Format::Riscv, false, false, false),
    policy("anonfolio", Format::Riscv, true, false, false),
    policy("contpte", Format::Riscv, true, true, false),
    policy("exefolio", Format::Riscv, true, true, true),
];

/// The name of the policy with which the others are compared: single 4 KiB pages.
pub const BASE: &str = "4K";

/// The policies' names, in the order of the report.
pub const NAMES: [&str; 6] = [BASE, "anonfolio", "contpte", "exefolio", "16K granule", "64K granule"];

/// Returns whether a core supports a policy.
pub fn fits(model: &TlbModel, policy: &Policy) -> bool {
    match policy.format {
        Format::X86 => X86.contains(&&*model.name),
        Format::Riscv => RISCV.contains(&&*model.name),
        // The core has no 64 KiB granule.
        Format::Aarch64(64) if model.name == "apple-m1" => false,
        Format::Aarch64(_) => !X86.contains(&&*model.name) && !RISCV.contains(&&*model.name),
    }
}

const X86: [&str; 3] = ["skylake", "sapphire-rapids", "zen-4"];
const RISCV: [&str; 1] = ["xiangshan-kunminghu"];

/// Results for Linux 6.4 on an Ampere Altra (Neoverse N1), compiling a kernel: R. Roberts,
/// "Transparent Contiguous PTEs for User Mappings", linux-mm, 22 June 2023. Changes against 4 KiB
/// pages in percent: of real time, of time in the kernel, of time in programs.
pub const PUBLISHED: [(&str, [f64; 3]); 6] = [
    (NAMES[0], [0.0, 0.0, 0.0]),
    (NAMES[1], [-5.4, -46.0, -0.3]),
    (NAMES[2], [-6.8, -45.7, -2.1]),
    (NAMES[3], [-8.4, -46.4, -3.7]),
    (NAMES[4], [-8.7, -49.2, -3.7]),
    (NAMES[5], [-10.5, -66.0, -3.5]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_has_a_base_and_no_name_twice() {
        for model in TlbModel::CORES {
            let names: Vec<_> =
                POLICIES.iter().filter(|policy| fits(model, policy)).map(|policy| policy.name).collect();
            assert_eq!(names[0], BASE);
            assert!(
                names
                    .windows(2)
                    .all(|two| NAMES.iter().position(|n| *n == two[0]) < NAMES.iter().position(|n| *n == two[1]))
            );
        }
    }
}
