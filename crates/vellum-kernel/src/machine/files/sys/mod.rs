//! Implements `/sys`: CPUs, NUMA nodes, and the settings of large folios.
//!
//! | file | subject |
//! |---|---|
//! | [`audit`] | the engine's audit of the machine |
//! | [`folios`] | folio sizes that faults may use, and their statistics |

mod audit;
mod folios;

use crate::files::huge::{add_pool_settings, shown};
use crate::files::proc::meminfo_of_node;
use crate::mem::machine;
use crate::mem::reclaim::{Reason, reclaim};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt::{self, Write};
use linux_raw_sys::general::SYSFS_MAGIC;
use spin::Once;
use vellum::addr::FRAME_SIZE;
use vellum::frame::HUGE_ORDER;
use vellum::memcg::MemcgId;
use vellum::platform::{Cpus, Memory};
use vellum::reclaim::ReclaimScope;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::cgroup::parse_amount;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::text::{PseudoFs, Text};
use vellum_kernel::proc::{Text as Words, processors};

/// Returns the root directory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn root() -> Result<Arc<PseudoDirectory>, Errno> {
    /// The one root directory, shared by all mounts.
    static ROOT: Once<Arc<PseudoDirectory>> = Once::new();
    let made = ROOT.try_call_once(|| {
        let system = PseudoFs { device: Device { major: 0, minor: 20 }, magic: SYSFS_MAGIC, owner: None, number: None };
        let root = PseudoDirectory::new(system, None, None);
        let memory = root.add_directory("kernel")?.add_directory("mm")?;
        folios::fill(&memory.add_directory("transparent_hugepage")?)?;
        merging(&memory.add_directory("ksm")?)?;
        let size = alloc::format!("hugepages-{}kB", (FRAME_SIZE >> 10) << HUGE_ORDER);
        pool(&memory.add_directory("hugepages")?.add_directory(&size)?)?;
        audit::fill(&memory)?;
        #[cfg(feature = "holds")]
        holds(&memory)?;
        let machine = root.add_directory("devices")?.add_directory("system")?;
        fill_processors(&machine.add_directory("cpu")?)?;
        fill_nodes(&machine.add_directory("node")?)?;
        // The mount point of the cgroup file system.
        root.add_directory("fs")?.add_directory("cgroup")?;
        Ok(root)
    });
    made.cloned()
}

/// Adds a read-only file.
fn file(
    directory: &Arc<PseudoDirectory>,
    name: &str,
    make: impl Fn(&mut Words) -> fmt::Result + Send + Sync + 'static,
) -> Result<(), Errno> {
    directory.add(name, Text::read_only(directory.system(), move || Words::of(&make)))
}

/// Adds the file of the longest times for which a CPU could not be preempted. A write of any value
/// resets them.
#[cfg(feature = "holds")]
fn holds(directory: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    let make = || Words::of(|text| write!(text, "{}", crate::mem::holds::Longest));
    let take = |_: &[u8]| {
        crate::mem::holds::forget();
        Ok(())
    };
    directory.add("holds", Text::new(directory.system(), 0o644, Some(Box::new(make)), Some(Box::new(take))))
}

fn cpus() -> usize {
    machine().platform().count()
}

fn fill_processors(directory: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    for name in ["online", "possible", "present"] {
        file(directory, name, |text| processors::list(text, 0..cpus()))?;
    }
    file(directory, "offline", |text| text.write_str("\n"))?;
    file(directory, "kernel_max", |text| writeln!(text, "{}", crate::arch::percpu::MAX_CPUS - 1))?;
    for cpu in 0..cpus() {
        let own = directory.add_directory(&alloc::format!("cpu{cpu}"))?;
        file(&own, "online", |text| text.write_str("1\n"))?;
        let topology = own.add_directory("topology")?;
        for (name, place) in processors::topology(cpu as u32) {
            file(&topology, name, move |text| place.show(text, cpu, cpus()))?;
        }
    }
    Ok(())
}

/// Adds the NUMA nodes, each with its memory and its CPUs.
fn fill_nodes(directory: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    let frames = machine().frames();
    let all = move || 0..frames.nodes();
    let of = |node: usize| (0..cpus()).filter(move |cpu| machine().platform().node(*cpu) == node);
    for name in ["online", "possible"] {
        file(directory, name, move |text| processors::list(text, all()))?;
    }
    file(directory, "has_cpu", move |text| processors::list(text, all().filter(|node| of(*node).next().is_some())))?;
    for name in ["has_memory", "has_normal_memory"] {
        file(directory, name, move |text| processors::list(text, all().filter(|node| frames.total_on(*node) > 0)))?;
    }
    for node in all() {
        let own = directory.add_directory(&alloc::format!("node{node}"))?;
        file(&own, "cpulist", move |text| processors::list(text, of(node)))?;
        file(&own, "cpumap", move |text| processors::mask(text, of(node), cpus()))?;
        file(&own, "distance", move |text| {
            for other in all() {
                let distance = machine().platform().distance(node, other);
                write!(text, "{}{distance}", if other == 0 { "" } else { " " })?;
            }
            text.write_str("\n")
        })?;
        file(&own, "meminfo", move |text| meminfo_of_node(text, node))?;
        let take = move |wanted: &[u8]| reclaim_from(node, wanted);
        own.add("reclaim", Text::new(own.system(), 0o200, None, Some(Box::new(take))))?;
    }
    Ok(())
}

/// Reclaims a number of bytes from a node.
fn reclaim_from(node: usize, wanted: &[u8]) -> Result<(), Errno> {
    let pages = parse_amount(wanted)?.ok_or(Errno::EINVAL)? / FRAME_SIZE;
    let part = ReclaimScope { memcg: MemcgId::ROOT, node: Some(node) };
    if reclaim(Reason::Requested, part, pages) < pages { Err(Errno::EAGAIN) } else { Ok(()) }
}

/// Adds the files of the pool of huge pages.
fn pool(directory: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    add_pool_settings(directory, |pool| pool.total)?;
    type Count = fn(vellum::HugePages) -> u64;
    let counts: [(&str, Count); 3] = [
        ("free_hugepages", |pool| pool.free),
        ("resv_hugepages", |pool| pool.reserved),
        ("surplus_hugepages", |pool| pool.surplus),
    ];
    counts
        .into_iter()
        .try_for_each(|(name, count)| directory.add(name, Text::read_only(directory.system(), shown(count))))
}

/// Adds the files of KSM, which is not implemented: a write can't switch it on.
fn merging(directory: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    let zero = || Ok(b"0\n".to_vec());
    let take = |value: &[u8]| if matches!(value.trim_ascii(), b"0" | b"2") { Ok(()) } else { Err(Errno::EINVAL) };
    let run = Text::new(directory.system(), 0o644, Some(Box::new(zero)), Some(Box::new(take)));
    directory.add("run", run)?;
    for name in ["full_scans", "pages_shared", "pages_sharing", "pages_unshared", "pages_volatile"] {
        directory.add(name, Text::read_only(directory.system(), zero))?;
    }
    Ok(())
}
