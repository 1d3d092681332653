//! Limits on the address space, the memory and the VMAs of a space.

use crate::frame::policy::LargeFolios;

/// The limits of a space, with the names of Linux's resource limits and `vm.*` settings.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest size of all VMAs, in bytes (`RLIMIT_AS`).
    pub address_space: u64,
    /// The largest size of all private writable VMAs except stacks, in bytes (`RLIMIT_DATA`).
    pub data: u64,
    /// The largest size of all locked VMAs, in bytes (`RLIMIT_MEMLOCK`).
    pub locked: u64,
    /// The size in bytes to which a stack may grow (`RLIMIT_STACK`).
    pub stack: u64,
    /// The largest number of VMAs (`vm.max_map_count`).
    pub vmas: usize,
    /// The lowest address that may be mapped (`vm.mmap_min_addr`).
    pub lowest: u64,
    /// The lowest address that a program may choose ([`MapFlags::FIXED`]): [`Limits::lowest`], or a
    /// lower one for a program with the right to that (`CAP_SYS_RAWIO`).
    ///
    /// [`MapFlags::FIXED`]: crate::space::MapFlags::FIXED
    pub lowest_fixed: u64,
    /// The address from which the search for free addresses goes down (`mmap_base`), or the end of
    /// user space if that is lower.
    pub mmap_base: u64,
    /// True if writable memory may be executable, and memory may be made executable later (false
    /// with `PR_SET_MDWE`).
    pub exec_gain: bool,
    /// The memory for which policy decides about large folios (`PR_SET_THP_DISABLE`). Large folios
    /// that there are stay.
    pub large_folios: LargeFolios,
}

impl Default for Limits {
    /// Linux's defaults, with no limit on address space, data and locked memory.
    fn default() -> Self {
        Limits {
            address_space: u64::MAX,
            data: u64::MAX,
            locked: u64::MAX,
            stack: 8 << 20,
            vmas: 65530,
            lowest: 0x10000,
            lowest_fixed: 0x10000,
            mmap_base: u64::MAX,
            exec_gain: true,
            large_folios: LargeFolios::All,
        }
    }
}

/// The limit that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::space) enum Excess {
    AddressSpace,
    Data,
    Locked,
}
