//! The files of `/sys` and `/proc/sys` that show and set the size of the pool of huge pages.

use crate::mem::machine;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use vellum::HugePages;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::text::Text;

/// Adds the files that set the size of the pool of huge pages, to a directory of `/sys` or
/// `/proc/sys`. `size` is what `nr_hugepages` shows.
///
/// # Errors
///
/// `ENOMEM`.
pub fn add_pool_settings(directory: &Arc<PseudoDirectory>, size: fn(HugePages) -> u64) -> Result<(), Errno> {
    for name in ["nr_hugepages", "nr_hugepages_mempolicy"] {
        let resize = |wanted: &[u8]| {
            machine().huge_pool().resize(vellum_kernel::parse::number::<u64>(wanted)?);
            Ok(())
        };
        directory
            .add(name, Text::new(directory.system(), 0o644, Some(Box::new(shown(size))), Some(Box::new(resize))))?;
    }
    let set = |wanted: &[u8]| {
        machine().huge_pool().set_overcommit(vellum_kernel::parse::number::<u64>(wanted)?);
        Ok(())
    };
    let show = shown(|pool| pool.overcommit);
    let name = "nr_overcommit_hugepages";
    directory.add(name, Text::new(directory.system(), 0o644, Some(Box::new(show)), Some(Box::new(set))))
}

/// Returns a function that shows a count of the pool of huge pages.
pub fn shown(count: fn(HugePages) -> u64) -> impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static {
    move || Ok(alloc::format!("{}\n", count(machine().huge_pool().counts())).into_bytes())
}
