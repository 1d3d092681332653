//! Times processes that touch regions of their own at the same moment, and then unmap them at the
//! same moment, each on its own CPU.
//!
//! The processes meet in a page that they share, spinning: a process that slept would have to be
//! woken, which costs more than some of the steps.

use std::fs::File;
use std::hint::spin_loop;
use std::io::Read;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Helper, Message, path_for_helper, send};
use crate::Skip;
use crate::cpu::{now_ns, pin_to};
use crate::region::{Region, minor_faults};
use crate::settings::knobs::Scope;
use crate::time::Time;
use crate::workload::case::{Case, PAGE};

/// The nanoseconds after which a process no longer waits for the others, one of which failed.
const PATIENCE_NS: u64 = 60_000_000_000;

/// The times of all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Together {
    /// Nanoseconds from the common start to the moment when the last process has touched its
    /// region.
    pub touch_ns: u64,
    /// Nanoseconds from the common start to the moment when the last process has unmapped its
    /// region.
    pub unmap_ns: u64,
    /// The largest share of a region that was not mapped as the case asks.
    pub fallback: f64,
}

/// Times a process on each of `cpus`, each with a region of the case. Restores the settings once
/// all regions are touched.
///
/// # Errors
/// A setting can't be restored, or a process failed.
pub fn measure(case: &Case, cpus: &[usize], settings: Scope<'_>) -> Result<Together, Skip> {
    let (_meetings, file) = Meetings::new().map_err(|error| Skip::system("memfd_create", error))?;
    let start = |cpu: &usize| {
        Helper::start(&[
            "together".to_owned(),
            format!("--meetings={}", path_for_helper(&file).display()),
            format!("--members={}", cpus.len()),
            format!("--cpu={cpu}"),
            format!("--bytes={}", case.bytes),
            format!("--folio-kib={}", case.folio_kib),
        ])
    };
    let mut helpers = cpus.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let mut all = Together::default();
    for helper in &mut helpers {
        match helper.receive()? {
            Message::Touched { time, fallback } => {
                all.touch_ns = all.touch_ns.max(time.wall_ns);
                all.fallback = all.fallback.max(fallback);
            }
            other => return Err(Skip::Child(format!("unexpected message {other:?}"))),
        }
    }
    settings.restore()?;
    helpers.iter_mut().try_for_each(Helper::resume)?;
    for helper in &mut helpers {
        all.unmap_ns = all.unmap_ns.max(helper.took()?.wall_ns);
    }
    helpers.iter_mut().try_for_each(Helper::finish)?;
    Ok(all)
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The file with the page that the processes share.
    #[arg(long)]
    meetings: PathBuf,
    /// The number of processes.
    #[arg(long)]
    members: u64,
    /// The CPU of this one.
    #[arg(long)]
    cpu: usize,
    /// The length of its region in bytes.
    #[arg(long)]
    bytes: u64,
    /// The folio size.
    #[arg(long)]
    folio_kib: u32,
}

/// Runs the helper.
///
/// # Errors
/// A system call or another process failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let meetings = Meetings::open(&File::options().read(true).write(true).open(&args.meetings)?)?;
    let case = Case::of(args.bytes, args.folio_kib);
    pin_to(args.cpu);
    let mut region = Region::map(case.bytes)?;
    let faults = minor_faults();
    let start = meetings.meet(Meeting::Touch, args.members)?;
    region.write(0, case.bytes as usize, PAGE);
    let touch = since(start);
    let fallback = region.shape(&case, minor_faults() - faults)?;
    // A message wakes the benchmark, which needs a CPU: not before all are done.
    meetings.meet(Meeting::Touched, args.members)?;
    send(Message::Touched { time: touch, fallback })?;
    if std::io::stdin().read(&mut [0])? != 1 {
        return Ok(());
    }
    let start = meetings.meet(Meeting::Unmap, args.members)?;
    region.unmap_in_place()?;
    let unmap = since(start);
    meetings.meet(Meeting::Unmapped, args.members)?;
    send(Message::Took { time: unmap })
}

fn since(start_ns: u64) -> Time {
    let wall_ns = now_ns().saturating_sub(start_ns);
    Time { wall_ns, cpu_ns: wall_ns }
}

/// A moment for which all processes wait.
#[derive(Clone, Copy)]
enum Meeting {
    /// All regions are mapped.
    Touch,
    /// All regions are touched.
    Touched,
    /// The settings are restored.
    Unmap,
    /// All regions are unmapped.
    Unmapped,
}

/// The moments at which the processes meet, in a page that they share.
struct Meetings(&'static [Shared; 4]);

/// One of the moments.
#[repr(C)]
struct Shared {
    /// The processes that wait for it or have gone on.
    arrived: AtomicU64,
    /// The time at which the last one arrived; 0 before that.
    opened_ns: AtomicU64,
}

impl Meetings {
    fn new() -> rustix::io::Result<(Meetings, File)> {
        let file = memfd_create("vellum-meetings", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, PAGE)?;
        let file = File::from(file);
        Ok((Meetings::open(&file)?, file))
    }

    fn open(file: &File) -> rustix::io::Result<Meetings> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no mapping is replaced.
        let page = unsafe { mmap(null_mut(), PAGE as usize, access, MapFlags::SHARED, file, 0)? };
        let page = NonNull::new(page.cast::<[Shared; 4]>()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: a page of zeroes, aligned, mapped until `drop`; the reference does not leave this
        // value. The other processes access it as atomics, too.
        Ok(Meetings(unsafe { page.as_ref() }))
    }

    /// Waits until all of `members` processes wait. Returns the time at which the last one arrived.
    ///
    /// # Errors
    /// The others did not come.
    fn meet(&self, meeting: Meeting, members: u64) -> anyhow::Result<u64> {
        let shared = &self.0[meeting as usize];
        if shared.arrived.fetch_add(1, Ordering::AcqRel) + 1 == members {
            shared.opened_ns.store(now_ns(), Ordering::Release);
        }
        let began = now_ns();
        loop {
            let opened_ns = shared.opened_ns.load(Ordering::Acquire);
            if opened_ns != 0 {
                return Ok(opened_ns);
            }
            anyhow::ensure!(now_ns() - began < PATIENCE_NS, "another process of {members} did not come");
            spin_loop();
        }
    }
}

impl Drop for Meetings {
    fn drop(&mut self) {
        // SAFETY: unmaps the page that `open` mapped; the only reference to it is in this value,
        // which is being dropped.
        let _ = unsafe { munmap(std::ptr::from_ref(self.0).cast_mut().cast(), PAGE as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_go_on_when_the_last_one_has_come() {
        let (meetings, file) = Meetings::new().unwrap();
        let other = Meetings::open(&file).unwrap();
        let (first, last) = std::thread::scope(|scope| {
            let first = scope.spawn(|| meetings.meet(Meeting::Unmap, 2).unwrap());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!first.is_finished(), "one of two waits");
            let before = now_ns();
            let last = other.meet(Meeting::Unmap, 2).unwrap();
            assert!(last >= before);
            (first.join().unwrap(), last)
        });
        assert_eq!(first, last);
    }
}
