//! Evicts the region's PTEs and descriptors from the caches before an operation, and has the
//! hypervisor give the memory for it.

use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::Region;
use crate::workload::case::PAGE;
use crate::{Skip, memory};

/// The bytes whose cache lines are written before an operation, so that the caches have no PTE or
/// descriptor of it: several times the size of a CPU's caches. The largest last-level cache that a
/// virtual machine is known to report is 260 MiB (Intel Xeon, family 6, model 207).
pub const EVICTING: u64 = 1 << 30;
/// The bytes of a cache line.
pub const LINE: u64 = 64;

/// The memory that [`evict_caches`] writes; `None` before the first call.
static ELSEWHERE: Mutex<Option<Elsewhere>> = Mutex::new(None);

/// A region that no operation is measured on.
struct Elsewhere(Region);

// SAFETY: the mapping is the region's own, and any thread may use and unmap it.
unsafe impl Send for Elsewhere {}

impl Elsewhere {
    fn map() -> Result<Elsewhere, Skip> {
        memory::check_available(EVICTING + EVICTING / 8)?;
        let region = Region::map(EVICTING)?;
        // SAFETY: the advice changes no contents. It may fail: small pages only make the writes
        // slower.
        let _ = unsafe { madvise(region.start, region.len, Advice::LinuxHugepage) };
        Ok(Elsewhere(region))
    }

    /// Writes a byte in each cache line. A plain loop: builds of tests do not optimise iterators.
    fn write(&self) {
        let (start, step) = (self.0.start.cast::<u8>(), LINE as usize);
        let mut at = 0;
        while at < self.0.len {
            // SAFETY: the byte is in the region, which is mapped and writable. Volatile, as the
            // value is never read.
            unsafe { start.wrapping_add(at).write_volatile(1) };
            at += step;
        }
    }
}

/// Writes [`EVICTING`] bytes of memory that this process keeps for it, so that the operation that
/// comes next finds nothing in the caches of this CPU, whatever the size of its region. The first
/// call maps the memory.
///
/// # Errors
/// There is too little memory.
pub fn evict_caches() -> Result<(), Skip> {
    let mut elsewhere = ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner);
    let memory = match &mut *elsewhere {
        Some(memory) => memory,
        none => none.insert(Elsewhere::map()?),
    };
    memory.write();
    Ok(())
}

/// Allocates and frees `bytes` of memory, in folios of the sizes that are enabled, so that the
/// operation that comes next finds as much free memory that the hypervisor did not take back: its
/// work for memory that the kernel reported as free would be in the time of the operation. The
/// caller calls [`evict_caches`] afterwards.
///
/// # Errors
/// There is too little memory, or a system call failed.
pub fn warm_memory(bytes: u64) -> Result<(), Skip> {
    memory::check_available(bytes)?;
    let bytes = bytes.next_multiple_of(PAGE) as usize;
    if bytes == 0 {
        return Ok(());
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::POPULATE;
    // SAFETY: the kernel chooses the address, so no mapping is replaced.
    let mapped = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let mapped = mapped.map_err(|error| Skip::system("mmap", error))?;
    // SAFETY: the mapping was just made, and no reference to it exists.
    unsafe { munmap(mapped, bytes) }.map_err(|error| Skip::system("munmap", error))
}

#[cfg(test)]
mod tests {
    use procfs::process::Process;

    use super::super::minor_faults;
    use super::*;
    use crate::workload::case::TABLE_SPAN;

    /// Returns the bytes in memory of the region that the caches are evicted with.
    fn resident() -> u64 {
        let start = ELSEWHERE.lock().unwrap().as_ref().unwrap().0.start();
        let vmas = Process::myself().unwrap().smaps().unwrap();
        vmas.iter().find(|vma| vma.address.0 == start).unwrap().extension.map["Rss"]
    }

    #[test]
    fn as_much_memory_is_allocated_as_is_warmed() {
        let before = minor_faults();
        warm_memory(64 * TABLE_SPAN).unwrap();
        assert!(minor_faults() - before >= 64, "a fault for each huge page at least");
        warm_memory(0).unwrap();
        assert!(matches!(warm_memory(1 << 60), Err(Skip::Memory { .. })));
    }

    #[test]
    fn several_times_the_largest_cache_is_written_and_kept() {
        for _ in 0..2 {
            evict_caches().unwrap();
            assert_eq!(resident(), EVICTING);
        }
        const { assert!(EVICTING >= 3 * (260 << 20)) };
    }
}
