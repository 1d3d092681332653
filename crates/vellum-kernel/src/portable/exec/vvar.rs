//! The page from which programs read the clocks without a system call (Linux: `[vvar]`).
//!
//! The kernel fills the page in, and the shared object that it maps beside the page into every
//! program (`[vdso]`, the sources in `vdso/`) reads it. Both are compiled from this file, so that
//! they agree on the layout, and on what a clock reads.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// The number of CPUs whose NUMA node the page has.
pub const CPUS: usize = 64;
/// The size in bytes of what the kernel writes: the fields of [`Vvar`].
pub const SIZE: usize = 24 + CPUS;
/// The nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

// The numbers of clocks (`linux/time.h`).
const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;
const MONOTONIC_RAW: u32 = 4;
const REALTIME_COARSE: u32 = 5;
const MONOTONIC_COARSE: u32 = 6;
const BOOTTIME: u32 = 7;
const TAI: u32 = 11;

/// The page's contents. Nanoseconds since the start are the counter's ticks since `start`, times
/// `scale`, over 2³².
#[repr(C)]
pub struct Vvar {
    start: AtomicU64,
    scale: AtomicU64,
    /// The wall clock at the start, in nanoseconds since 1970.
    started_at: AtomicU64,
    nodes: [AtomicU8; CPUS],
}

/// Returns the page's bytes for a counter with these parameters. `nodes` are the CPUs' NUMA nodes.
pub fn bytes(start: u64, scale: u64, started_at: u64, nodes: impl Iterator<Item = u8>) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    for (place, word) in bytes.chunks_exact_mut(8).zip([start, scale, started_at]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes[24..].iter_mut().zip(nodes).for_each(|(place, node)| *place = node);
    bytes
}

/// Returns whether a clock is one of the machine's, which [`Vvar::read`] reads.
pub fn is_of_machine(clock: u32) -> bool {
    matches!(clock, REALTIME | MONOTONIC | MONOTONIC_RAW | REALTIME_COARSE | MONOTONIC_COARSE | BOOTTIME | TAI)
}

impl Vvar {
    /// Returns a clock of the machine in nanoseconds when the counter reads `ticks`.
    pub fn read(&self, clock: u32, ticks: u64) -> u64 {
        let passed = ticks.wrapping_sub(self.start.load(Relaxed));
        let ns = ((u128::from(passed) * u128::from(self.scale.load(Relaxed))) >> 32) as u64;
        match clock {
            REALTIME | REALTIME_COARSE | TAI => ns.wrapping_add(self.started_at.load(Relaxed)),
            _ => ns,
        }
    }

    /// Returns the wall clock in nanoseconds since 1970 when the counter reads `ticks`.
    pub fn wall_clock(&self, ticks: u64) -> u64 {
        self.read(REALTIME, ticks)
    }

    /// Returns the NUMA node of a CPU; 0 if the page does not have it.
    pub fn node(&self, cpu: usize) -> u8 {
        self.nodes.get(cpu).map_or(0, |node| node.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general as abi;

    /// Returns the page that a program sees when the kernel has written `bytes`.
    fn page(bytes: &[u8; SIZE]) -> Vvar {
        let word = |at: usize| AtomicU64::new(u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i])));
        let nodes = core::array::from_fn(|cpu| AtomicU8::new(bytes[24 + cpu]));
        Vvar { start: word(0), scale: word(8), started_at: word(16), nodes }
    }

    #[test]
    fn a_clock_counts_from_the_start_at_the_counters_rate() {
        let page = page(&bytes(1000, 1 << 31, 5 * SECOND, [0, 1].into_iter()));
        assert_eq!(page.read(abi::CLOCK_MONOTONIC, 1000), 0);
        assert_eq!(page.read(abi::CLOCK_MONOTONIC, 3001), 1000);
        assert_eq!(page.read(abi::CLOCK_BOOTTIME, u64::MAX), (u64::MAX - 1000) / 2);
        for clock in [abi::CLOCK_REALTIME, abi::CLOCK_REALTIME_COARSE, abi::CLOCK_TAI] {
            assert_eq!(page.read(clock, 3000), 5 * SECOND + 1000);
        }
        assert_eq!(page.wall_clock(1000), 5 * SECOND);
        assert_eq!([0, 1, 2, CPUS].map(|cpu| page.node(cpu)), [0, 1, 0, 0]);
    }

    #[test]
    fn clocks_of_threads_and_files_are_not_the_machines() {
        let own = [abi::CLOCK_MONOTONIC_RAW, abi::CLOCK_MONOTONIC_COARSE, abi::CLOCK_TAI];
        assert!(own.into_iter().all(is_of_machine));
        let others = [abi::CLOCK_PROCESS_CPUTIME_ID, abi::CLOCK_THREAD_CPUTIME_ID, abi::CLOCK_REALTIME_ALARM, 12];
        assert!(!others.into_iter().any(is_of_machine) && !is_of_machine(-6i32 as u32));
    }

    #[test]
    fn the_fields_have_the_offsets_of_the_bytes() {
        assert_eq!(core::mem::offset_of!(Vvar, started_at), 16);
        assert_eq!(core::mem::offset_of!(Vvar, nodes), 24);
        assert_eq!(size_of::<Vvar>(), SIZE);
    }
}
