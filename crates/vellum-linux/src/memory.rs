//! The check that the machine has enough memory for a workload.

use procfs::Current;

use crate::Skip;

/// Whether so many bytes can be had. Asked beforehand: a machine that runs out of memory ends whom
/// it likes.
pub fn enough(needed: u64) -> Result<(), Skip> {
    let available = procfs::Meminfo::current().ok().and_then(|info| info.mem_available);
    match available {
        Some(available) if available < needed => Err(Skip::Memory { needed: needed >> 20, available: available >> 20 }),
        _ => Ok(()),
    }
}
