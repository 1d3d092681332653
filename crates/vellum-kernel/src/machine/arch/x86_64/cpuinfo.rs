//! The CPU's identification (CPUID; Intel SDM, volume 2A, and AMD APM, volume 3), for
//! `/proc/cpuinfo`.

use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::fmt::{self, Write};
use vellum_kernel::proc::Text;

/// The names of the bits of leaf 1's EDX.
const LEAF_1_EDX: &str = "fpu vme de pse tsc msr pae mce cx8 apic . sep mtrr pge mca cmov pat pse36 pn clflush . dts \
    acpi mmx fxsr sse sse2 ss ht tm ia64 pbe";
/// The names of the bits of leaf 1's ECX.
const LEAF_1_ECX: &str = "pni pclmulqdq dtes64 monitor ds_cpl vmx smx est tm2 ssse3 cid sdbg fma cx16 xtpr pdcm . \
    pcid dca sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave . avx f16c rdrand hypervisor";
/// The names of the bits of leaf 7's EBX.
const LEAF_7_EBX: &str = "fsgsbase tsc_adjust sgx bmi1 hle avx2 . smep bmi2 erms invpcid rtm cqm . mpx rdt_a avx512f \
    avx512dq rdseed adx smap avx512ifma . clflushopt clwb intel_pt avx512pf avx512er avx512cd sha_ni avx512bw avx512vl";
/// The names of the bits of leaf 7's ECX.
const LEAF_7_ECX: &str = ". avx512vbmi umip pku ospke";
/// The names of the bits of leaf 8000_0001h's EDX, without those that repeat leaf 1's.
const EXTENDED_EDX: &str = ". . . . . . . . . . . syscall . . . . . . . . nx . mmxext . . fxsr_opt pdpe1gb rdtscp . lm \
    3dnowext 3dnow";

/// Writes the `/proc/cpuinfo` text of one of `cpus` CPUs.
pub fn describe(text: &mut Text, cpu: usize, cpus: usize) -> fmt::Result {
    let (zero, one) = (__cpuid(0), __cpuid(1));
    let vendor = [zero.ebx, zero.edx, zero.ecx].map(u32::to_le_bytes);
    let vendor = core::str::from_utf8(vendor.as_flattened()).unwrap_or("unknown");
    let signature = one.eax;
    let base = signature >> 8 & 15;
    let family = if base == 15 { base + (signature >> 20 & 255) } else { base };
    let model = signature >> 4 & 15 | if base == 6 || base == 15 { signature >> 12 & 0xf0 } else { 0 };
    writeln!(text, "processor\t: {cpu}\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}")?;
    let most = __cpuid(0x8000_0000).eax;
    let mut brand = [[0; 16]; 3];
    if most >= 0x8000_0004 {
        for (leaf, place) in (0x8000_0002..).zip(&mut brand) {
            let leaf = __cpuid(leaf);
            let words = [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes);
            place.copy_from_slice(words.as_flattened());
        }
    }
    let brand = core::str::from_utf8(brand.as_flattened()).unwrap_or_default().trim_matches(['\0', ' ']);
    writeln!(text, "model name\t: {brand}\nstepping\t: {}\nphysical id\t: 0\nsiblings\t: {cpus}", signature & 15)?;
    writeln!(text, "core id\t\t: {cpu}\ncpu cores\t: {cpus}\nfpu\t\t: yes\ncpuid level\t: {}\nwp\t\t: yes", zero.eax)?;
    text.write_str("flags\t\t:")?;
    let [seven, seven_ecx] = if zero.eax >= 7 { [__cpuid_count(7, 0).ebx, __cpuid_count(7, 0).ecx] } else { [0; 2] };
    let extended = if most >= 0x8000_0001 { __cpuid(0x8000_0001).edx } else { 0 };
    let leaves = [
        (one.edx, LEAF_1_EDX),
        (extended, EXTENDED_EDX),
        (one.ecx, LEAF_1_ECX),
        (seven, LEAF_7_EBX),
        (seven_ecx, LEAF_7_ECX),
    ];
    for (bits, names) in leaves {
        let set = names.split_whitespace().enumerate().filter(|(bit, name)| bits >> bit & 1 != 0 && *name != ".");
        set.map(|(_, name)| name).try_for_each(|name| write!(text, " {name}"))?;
    }
    let line = one.ebx >> 8 & 0xff;
    writeln!(text, "\nclflush size\t: {0}\ncache_alignment\t: {0}", line * 8)?;
    let sizes = if most >= 0x8000_0008 { __cpuid(0x8000_0008).eax } else { 36 | 48 << 8 };
    writeln!(text, "address sizes\t: {} bits physical, {} bits virtual\n", sizes & 0xff, sizes >> 8 & 0xff)
}
