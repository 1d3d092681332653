//! `/proc/PID/maps`, `smaps` and `smaps_rollup`.

use super::{Text, kib};
use crate::fs::meta::Device;
use core::fmt::{self, Write};
use core::ops::Range;

/// The column at which names begin in a line.
const COLUMN: usize = 73;

/// A VMA, as `maps` shows it.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct MapsEntry<'a> {
    pub range: Range<u64>,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    pub shared: bool,
    /// The offset in the file of the VMA's first byte.
    pub offset: u64,
    pub device: Device,
    pub inode: u64,
    /// A path, or `[heap]` and the like; may be empty.
    pub name: &'a [u8],
}

/// The memory use of a VMA. In `pss` a page counts in proportion to its number of mappings.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Usage {
    pub rss: u64,
    pub pss: u64,
    pub pss_dirty: u64,
    pub pss_anon: u64,
    pub pss_file: u64,
    pub pss_shmem: u64,
    pub shared_clean: u64,
    pub shared_dirty: u64,
    pub private_clean: u64,
    pub private_dirty: u64,
    pub referenced: u64,
    pub anonymous: u64,
    pub ksm: u64,
    pub lazy_free: u64,
    /// Anonymous memory that huge PTEs map. `shmem_huge` and `file_huge` count shared and file
    /// memory that they map.
    pub anon_huge: u64,
    pub shmem_huge: u64,
    pub file_huge: u64,
    /// Huge pages of the pool that others map too, and those that no other maps.
    pub hugetlb_shared: u64,
    pub hugetlb_private: u64,
    pub swap: u64,
    pub swap_pss: u64,
    pub locked: u64,
    /// Memory that cont blocks (runs of PTEs that one TLB entry can hold) map, for each of the two
    /// [`Usage::cont_block_sizes`].
    pub cont_blocks: [u64; 2],
    /// The sizes of the page-table format's cont blocks; 0 in place of a size that it lacks.
    pub cont_block_sizes: [u64; 2],
}

impl core::ops::AddAssign<&Usage> for Usage {
    fn add_assign(&mut self, other: &Usage) {
        let mut other = *other;
        for (own, other) in self.fields().into_iter().zip(other.fields()) {
            *own += *other;
        }
        self.cont_block_sizes = other.cont_block_sizes;
    }
}

impl Usage {
    fn fields(&mut self) -> [&mut u64; 24] {
        let [small, large] = &mut self.cont_blocks;
        [
            small,
            large,
            &mut self.rss,
            &mut self.pss,
            &mut self.pss_dirty,
            &mut self.pss_anon,
            &mut self.pss_file,
            &mut self.pss_shmem,
            &mut self.shared_clean,
            &mut self.shared_dirty,
            &mut self.private_clean,
            &mut self.private_dirty,
            &mut self.referenced,
            &mut self.anonymous,
            &mut self.ksm,
            &mut self.lazy_free,
            &mut self.anon_huge,
            &mut self.shmem_huge,
            &mut self.file_huge,
            &mut self.hugetlb_shared,
            &mut self.hugetlb_private,
            &mut self.swap,
            &mut self.swap_pss,
            &mut self.locked,
        ]
    }
}

/// Writes a line of `maps`.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn line(text: &mut Text, vma: &MapsEntry<'_>) -> fmt::Result {
    let begin = text.0.len();
    let bit = |set: bool, letter| if set { letter } else { '-' };
    write!(
        text,
        "{:08x}-{:08x} {}{}{}{} {:08x} {:02x}:{:02x} {} ",
        vma.range.start,
        vma.range.end,
        bit(vma.read, 'r'),
        bit(vma.write, 'w'),
        bit(vma.execute, 'x'),
        if vma.shared { 's' } else { 'p' },
        vma.offset,
        vma.device.major,
        vma.device.minor,
        vma.inode
    )?;
    if !vma.name.is_empty() {
        let width = COLUMN.saturating_sub(text.0.len() - begin);
        write!(text, "{:width$}", "")?;
        for piece in vma.name.split_inclusive(|&byte| byte == b'\n') {
            match piece.split_last() {
                Some((b'\n', before)) => {
                    text.put(before)?;
                    text.put(b"\\012")?;
                }
                _ => text.put(piece)?,
            }
        }
    }
    text.put(b"\n")
}

/// What `smaps` tells of a VMA besides its memory.
#[derive(Clone, Copy, Debug)]
pub struct Traits<'a> {
    /// The size of the VMA's pages in bytes.
    pub page: u64,
    /// Whether the VMA is eligible for huge pages.
    pub huge: bool,
    /// The protection key, if the machine has protection keys.
    pub key: Option<u8>,
    /// The two-letter codes of `VmFlags`.
    pub flags: &'a [&'a str],
}

/// Writes the entry of a VMA in `smaps`.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn smaps_entry(text: &mut Text, vma: &MapsEntry<'_>, usage: &Usage, traits: &Traits<'_>) -> fmt::Result {
    line(text, vma)?;
    let size = vma.range.end - vma.range.start;
    for (name, bytes) in [("Size:", size), ("KernelPageSize:", traits.page), ("MMUPageSize:", traits.page)] {
        amount(text, name, bytes)?;
    }
    amounts(text, usage, false)?;
    text.amount("THPeligible:", u64::from(traits.huge), "")?;
    if let Some(key) = traits.key {
        text.amount("ProtectionKey:", u64::from(key), "")?;
    }
    text.write_str("VmFlags: ")?;
    for flag in traits.flags {
        write!(text, "{flag} ")?;
    }
    text.put(b"\n")
}

/// Writes `smaps_rollup`: the sum over all VMAs, which lie in `range`.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn rollup(text: &mut Text, range: Range<u64>, sum: &Usage) -> fmt::Result {
    line(text, &MapsEntry { range, name: b"[rollup]", ..MapsEntry::default() })?;
    amounts(text, sum, true)
}

fn amount(text: &mut Text, name: &str, bytes: u64) -> fmt::Result {
    text.amount(name, kib(bytes), " kB")
}

fn amounts(text: &mut Text, usage: &Usage, by_kind: bool) -> fmt::Result {
    for (name, bytes) in [("Rss:", usage.rss), ("Pss:", usage.pss), ("Pss_Dirty:", usage.pss_dirty)] {
        amount(text, name, bytes)?;
    }
    let kinds = [("Pss_Anon:", usage.pss_anon), ("Pss_File:", usage.pss_file), ("Pss_Shmem:", usage.pss_shmem)];
    for (name, bytes) in kinds.into_iter().filter(|_| by_kind) {
        amount(text, name, bytes)?;
    }
    let rest = [
        ("Shared_Clean:", usage.shared_clean),
        ("Shared_Dirty:", usage.shared_dirty),
        ("Private_Clean:", usage.private_clean),
        ("Private_Dirty:", usage.private_dirty),
        ("Referenced:", usage.referenced),
        ("Anonymous:", usage.anonymous),
        ("KSM:", usage.ksm),
        ("LazyFree:", usage.lazy_free),
        ("AnonHugePages:", usage.anon_huge),
        ("ShmemPmdMapped:", usage.shmem_huge),
        ("FilePmdMapped:", usage.file_huge),
        ("Shared_Hugetlb:", usage.hugetlb_shared),
        ("Private_Hugetlb:", usage.hugetlb_private),
        ("Swap:", usage.swap),
        ("SwapPss:", usage.swap_pss),
        ("Locked:", usage.locked),
    ];
    rest.into_iter().try_for_each(|(name, bytes)| amount(text, name, bytes))?;
    // Linux has no such lines.
    let blocks = usage.cont_block_sizes.iter().zip(usage.cont_blocks).filter(|(size, _)| **size != 0);
    blocks.into_iter().try_for_each(|(size, bytes)| writeln!(text, "Contiguous-{}kB: {:>8} kB", kib(*size), kib(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned;
    use std::string::String;
    use std::vec::Vec;

    fn parse(line: &str) -> MapsEntry<'_> {
        let mut words = line.splitn(6, ' ');
        let mut word = || words.next().unwrap();
        let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let (start, end) = word().split_once('-').unwrap();
        let rights = word();
        let offset = hex(word());
        let (major, minor) = word().split_once(':').unwrap();
        MapsEntry {
            range: hex(start)..hex(end),
            read: rights.contains('r'),
            write: rights.contains('w'),
            execute: rights.contains('x'),
            shared: rights.contains('s'),
            offset,
            device: Device { major: hex(major) as u32, minor: hex(minor) as u32 },
            inode: word().parse().unwrap(),
            name: word().trim_start().as_bytes(),
        }
    }

    fn text(write: impl FnOnce(&mut Text) -> fmt::Result) -> String {
        String::from_utf8(Text::of(write).unwrap()).unwrap()
    }

    /// Lines that Linux does not have come last, and only if the format has cont blocks.
    #[test]
    fn cont_blocks_come_last_and_only_if_there_are_any() {
        let mut sum = Usage::default();
        let plain = text(|text| rollup(text, 0..4096, &sum));
        assert!(!plain.contains("Contiguous"));
        sum += &Usage { cont_blocks: [640 << 10, 0], cont_block_sizes: [64 << 10, 32 << 20], ..Usage::default() };
        sum += &Usage { cont_blocks: [64 << 10, 32 << 20], cont_block_sizes: [64 << 10, 32 << 20], ..Usage::default() };
        let lines = text(|text| rollup(text, 0..4096, &sum));
        let more = lines.strip_prefix(&plain).unwrap();
        assert_eq!(more, "Contiguous-64kB:      704 kB\nContiguous-32768kB:    32768 kB\n");
    }

    /// Formats this process's VMAs as the host's Linux does.
    #[test]
    fn maps_and_smaps_are_formatted_as_on_linux() {
        let real = std::fs::read_to_string("/proc/self/maps").unwrap();
        for real in real.lines() {
            assert_eq!(text(|text| line(text, &parse(real))).strip_suffix('\n').unwrap(), real);
        }
        // One VMA of `smaps`, in which Linux has these lines in this order.
        let real = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let lines: Vec<_> = real.lines().take_while(|line| !line.starts_with("VmFlags")).collect();
        let value = |name: &str| {
            let line = lines.iter().find(|line| line.split(':').next() == Some(name));
            line.map_or(0, |line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024)
        };
        let usage = Usage {
            rss: value("Rss"),
            pss: value("Pss"),
            pss_dirty: value("Pss_Dirty"),
            shared_clean: value("Shared_Clean"),
            shared_dirty: value("Shared_Dirty"),
            private_clean: value("Private_Clean"),
            private_dirty: value("Private_Dirty"),
            referenced: value("Referenced"),
            anonymous: value("Anonymous"),
            anon_huge: value("AnonHugePages"),
            file_huge: value("FilePmdMapped"),
            swap: value("Swap"),
            swap_pss: value("SwapPss"),
            locked: value("Locked"),
            ..Usage::default()
        };
        let ours = text(|text| {
            smaps_entry(
                text,
                &parse(lines[0]),
                &usage,
                &Traits { page: 4096, huge: false, key: None, flags: &["rd", "mr"] },
            )
        });
        let ours: Vec<_> = ours.lines().collect();
        // Some keys are only in some kernels, and the test machine may have huge pages or not.
        let key = |line: &str| line.split(':').next().unwrap().to_owned();
        let shared = |line: &str, other: &[&str]| {
            !line.starts_with("THPeligible") && other.iter().any(|other| key(other) == key(line))
        };
        let both: Vec<_> = ours.iter().filter(|line| shared(line, &lines)).collect();
        assert_eq!(both, lines.iter().filter(|line| shared(line, &ours)).collect::<Vec<_>>());
        assert!(both.len() > 18);
        assert_eq!(ours[ours.len() - 1], "VmFlags: rd mr ");
    }

    #[test]
    fn usages_are_summed() {
        let mut sum = Usage { rss: 4096, ..Usage::default() };
        sum += &Usage { rss: 8192, locked: 4096, ..Usage::default() };
        let ours = text(|text| rollup(text, 0x1000..0x7ffd_8344_7000, &sum));
        let first = "00001000-7ffd83447000 ---p 00000000 00:00 0                              [rollup]";
        assert_eq!(ours.lines().next(), Some(first));
        assert!(
            ours.contains("\nRss:                  12 kB\nPss: ") && ours.ends_with("\nLocked:                4 kB\n")
        );
        assert!(ours.contains("\nPss_Anon:              0 kB\nPss_File: "));
    }

    #[test]
    fn newlines_in_names_are_escaped() {
        let vma = MapsEntry { name: b"/a\nb", ..MapsEntry::default() };
        assert!(text(|text| line(text, &vma)).ends_with(" /a\\012b\n"));
    }
}
