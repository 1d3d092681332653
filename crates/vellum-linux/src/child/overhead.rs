//! Reads the memory that this kernel takes to describe and to map a region.
//!
//! A helper holds the region, so that its page tables are the only ones that change.

use super::holder::{self, RegionHolder};
use super::tables::{PageTables, page_tables_kb};
use super::{Message, send};
use crate::Skip;
use crate::settings::knobs::Scope;
use crate::workload::case::{Case, PAGE};

/// Page tables of a touched region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionTables {
    /// Bytes of the page tables, those included that the kernel keeps for a split of huge PTEs.
    pub bytes: u64,
    /// Share of the region, 0 to 1, that is not mapped as the case asks.
    pub fallback: f64,
}

/// Has a helper touch the case's region. Restores the settings once it is touched.
///
/// # Errors
/// A setting can't be restored, or the helper failed.
pub fn page_tables(case: &Case, settings: Scope<'_>) -> Result<RegionTables, Skip> {
    let mut holder = RegionHolder::start(vec!["overhead".to_owned()], Some((case, &[])))?;
    settings.restore()?;
    match holder.helper.receive()? {
        Message::Tables(tables) => {
            let bytes = tables.end_kb.saturating_sub(tables.start_kb) << 10;
            Ok(RegionTables { bytes, fallback: holder.fallback })
        }
        other => Err(Skip::Child(format!("unexpected message {other:?}"))),
    }
}

/// Runs the helper.
///
/// # Errors
/// A system call failed.
pub fn run(args: &holder::Args) -> anyhow::Result<()> {
    let start_kb = page_tables_kb()?;
    let _region = args.hold()?;
    let end_kb = page_tables_kb()?;
    send(Message::Tables(PageTables { start_kb, peak_kb: end_kb, end_kb }))
}

/// Returns the bytes of page descriptors (`struct page`) for a GiB of memory: those that the kernel
/// allocated, over the frames that it manages.
///
/// # Errors
/// The kernel doesn't report them: it does since Linux 6.9.
pub fn descriptors_a_gib() -> Result<u64, Skip> {
    let counts = procfs::vmstat().map_err(|error| Skip::system("/proc/vmstat", error))?;
    let count = |name: &str| counts.get(name).and_then(|&pages| u64::try_from(pages).ok());
    let boot = count("nr_memmap_boot_pages").ok_or(Skip::Missing("nr_memmap_boot_pages in /proc/vmstat"))?;
    let zones = std::fs::read_to_string("/proc/zoneinfo").map_err(|error| Skip::system("/proc/zoneinfo", error))?;
    let present = present_pages(&zones);
    let bytes = (boot + count("nr_memmap_pages").unwrap_or(0)) * PAGE;
    // Rounded to whole bytes a page: a section's descriptors are whole, its memory need not be.
    let each = bytes.checked_div(present).ok_or(Skip::Missing("pages in /proc/zoneinfo"))?;
    Ok(each * (1 << 30) / PAGE)
}

/// Returns the number of present pages of all zones in `/proc/zoneinfo`.
fn present_pages(zones: &str) -> u64 {
    let present = |line: &str| line.trim().strip_prefix("present")?.trim().parse::<u64>().ok();
    zones.lines().filter_map(present).sum()
}

/// The slabs of an anonymous VMA: itself, its reverse-map root, and the link between both.
const SLABS: [&str; 3] = ["vm_area_struct", "anon_vma", "anon_vma_chain"];

/// Returns the bytes of the kernel's structures for one VMA of anonymous memory, without the nodes
/// of the tree that finds it. `None` if this user may not read `/proc/slabinfo`.
pub fn vma_bytes() -> Option<u64> {
    slab_bytes(&std::fs::read_to_string("/proc/slabinfo").ok()?)
}

fn slab_bytes(slabs: &str) -> Option<u64> {
    let size = |name: &str| {
        let line = slabs.lines().find(|line| line.split_whitespace().next() == Some(name))?;
        line.split_whitespace().nth(3)?.parse::<u64>().ok()
    };
    SLABS.iter().map(|name| size(name)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_zones_count_once() {
        let zones = "Node 0, zone DMA\n  pages free 1\n        spanned  4095\n        present  3998\n        managed  \
                     3840\nNode 0, zone Normal\n        present  100\n      nr_present 7\n";
        assert_eq!(present_pages(zones), 4098);
    }

    #[test]
    fn a_vma_has_three_slabs() {
        let slabs = "# name <active_objs> <num_objs> <objsize>\nvm_area_struct 1 2 192 21 1\nanon_vma_chain 1 2 64 64 \
                     1\nanon_vma 5 6 104 39 1\n";
        assert_eq!(slab_bytes(slabs), Some(360));
        assert_eq!(slab_bytes("vm_area_struct 1 2 192 21 1\n"), None);
    }
}
