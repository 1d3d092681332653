//! The CPU's identification and features (Arm ARM, DDI 0487, ID_AA64ISAR0_EL1 and others), for
//! programs.

use core::fmt::{self, Write};
use vellum_kernel::proc::Text;

/// `AT_HWCAP` bits (Linux, `arch/arm64/include/uapi/asm/hwcap.h`): the bit, its name, and the shift
/// and least value of the field of ID_AA64ISAR0_EL1 that it stands for.
const FEATURES: [(u32, &str, u32, u64); 9] = [
    (3, "aes", 4, 1),
    (4, "pmull", 4, 2),
    (5, "sha1", 8, 1),
    (6, "sha2", 12, 1),
    (7, "crc32", 16, 1),
    (8, "atomics", 20, 2),
    (12, "asimdrdm", 28, 1),
    (17, "sha3", 32, 1),
    (20, "asimddp", 44, 1),
];

fn features() -> impl Iterator<Item = (u32, &'static str)> {
    let register = read_register!("id_aa64isar0_el1");
    let there = FEATURES.iter().filter(move |(_, _, shift, least)| register >> shift & 15 >= *least);
    [(0, "fp"), (1, "asimd")].into_iter().chain(there.map(|(bit, name, ..)| (*bit, *name)))
}

/// Returns the `AT_HWCAP` values of the auxiliary vector.
pub fn hwcap() -> [u64; 2] {
    [features().fold(0, |bits, (bit, _)| bits | 1 << bit), 0]
}

/// Writes the `/proc/cpuinfo` text of one CPU.
pub fn describe(text: &mut Text, cpu: usize, _cpus: usize) -> fmt::Result {
    let name = read_register!("midr_el1");
    write!(text, "processor\t: {cpu}\nFeatures\t:")?;
    features().try_for_each(|(_, name)| write!(text, " {name}"))?;
    writeln!(text, "\nCPU implementer\t: {:#04x}\nCPU architecture: 8", name >> 24 & 0xff)?;
    writeln!(text, "CPU variant\t: {:#x}\nCPU part\t: {:#05x}", name >> 20 & 0xf, name >> 4 & 0xfff)?;
    writeln!(text, "CPU revision\t: {}\n", name & 0xf)
}
