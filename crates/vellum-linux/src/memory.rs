//! The check that the machine has enough memory for a workload.

use procfs::Current;

use crate::Skip;

/// Checks that `needed` bytes are available. Without the check, the OOM killer may end any process.
///
/// # Errors
/// [`Skip::Memory`].
pub fn check_available(needed: u64) -> Result<(), Skip> {
    let available = procfs::Meminfo::current().ok().and_then(|info| info.mem_available);
    match available {
        Some(available) if available < needed => Err(Skip::Memory { needed: needed >> 20, available: available >> 20 }),
        _ => Ok(()),
    }
}
