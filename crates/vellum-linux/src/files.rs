//! Times operations on a file of a disk in memory, which a helper makes.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Advice, Mode, OFlags, fadvise, fsync, ftruncate, open, unlink};
use rustix::io::{pread, pwrite};

use crate::region::{Region, evict_caches};
use crate::settings::disk::root_of;
use crate::settings::resource::{HeldResource, Resource};
use crate::time::{Stopwatch, Time};
use crate::workload::case::{Case, PAGE};
use crate::workload::files::{Contents, FileOp, READ, check, random_pages};
use crate::{Sample, Skip, memory};

/// Times operations on files.
#[derive(Default)]
pub struct FileTimer {
    disk: Option<HeldResource>,
    contents: Contents,
}

/// A file of the disk. Dropping it removes it.
struct DiskFile(PathBuf);

impl DiskFile {
    fn open(&self, flags: OFlags) -> Result<OwnedFd, Skip> {
        let mode = Mode::RUSR | Mode::WUSR;
        open(&self.0, OFlags::RDWR | OFlags::CLOEXEC | flags, mode).map_err(|error| Skip::system("open", error))
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        // Ignore an error: the disk goes with its files.
        let _ = unlink(&self.0);
    }
}

impl FileTimer {
    /// Provides a disk for a file of `bytes`, from the first call until this value is dropped.
    ///
    /// # Errors
    /// zram or mke2fs is missing, or this user may not set it up.
    pub fn prepare(&mut self, bytes: u64) -> Result<(), Skip> {
        memory::check_available(2 * bytes)?;
        if self.disk.is_none() {
            self.disk = Some(HeldResource::new(&Resource::Disk { bytes: 2 * bytes + (64 << 20) })?);
        }
        Ok(())
    }

    /// Writes a file of the case's length by calls with the bytes of a folio each, and times `op`
    /// on it. Afterwards its contents are checked.
    ///
    /// # Errors
    /// A system call failed, pages stayed, or the file has other contents.
    pub fn measure(&self, case: &Case, op: FileOp) -> Result<Sample, Skip> {
        let disk = self.disk.as_ref().ok_or(Skip::Missing("disk in memory"))?;
        let name = DiskFile(root_of(disk.helper()).join("file"));
        let file = name.open(OFlags::CREATE | OFlags::TRUNC)?;
        if matches!(op, FileOp::Write | FileOp::Fsync) {
            // Once before, so that the hypervisor has given the memory that is freed here.
            self.write(&file, case)?;
            fsync(&file).map_err(|error| Skip::system("fsync", error))?;
            ftruncate(&file, 0).map_err(|error| Skip::system("ftruncate", error))?;
        }
        evict_caches()?;
        let watch = Stopwatch::start();
        self.write(&file, case)?;
        let write = watch.time();
        evict_caches()?;
        let watch = Stopwatch::start();
        fsync(&file).map_err(|error| Skip::system("fsync", error))?;
        let back = watch.time();
        if op.is_cold() {
            // Read it once before, for the same reason.
            discard(&file)?;
            read(&name.open(OFlags::empty())?, case, FileOp::Read)?;
            discard(&file)?;
        }
        // The kernel keeps the state of readahead by descriptor.
        let file = name.open(OFlags::empty())?;
        let mut sample = match op {
            FileOp::Write | FileOp::Fsync => Sample { op: write, back: Some(back), ..Sample::default() },
            FileOp::Read | FileOp::ReadAgain | FileOp::ReadRandom => {
                Sample { op: read(&file, case, op)?, ..Sample::default() }
            }
            FileOp::Map | FileOp::MapAgain | FileOp::Pageout | FileOp::PageoutDirty => mapped(file, case, op)?,
        };
        if op.keeps_written_folios() {
            let region = Region::of_file(name.open(OFlags::empty())?, case.bytes)?;
            region.read(PAGE);
            sample.fallback = sample.fallback.max(region.in_other_folios(case)?);
        }
        let file = name.open(OFlags::empty())?;
        check(case.pages(), op, |number, page| read_all(&file, page.bytes_mut(), number * PAGE))?;
        Ok(sample)
    }

    /// Writes the file in the order of the case's arm.
    fn write(&self, file: &OwnedFd, case: &Case) -> Result<(), Skip> {
        let folio = case.folio_bytes();
        let mut offsets = case.arm.order(case.folios()).into_iter().map(|n| n * folio);
        offsets.try_for_each(|at| write_all(file, self.contents.bytes(at, folio), at))
    }
}

/// Removes the file's pages, which are clean, from memory.
fn discard(file: &OwnedFd) -> Result<(), Skip> {
    fadvise(file, 0, None, Advice::DontNeed).map_err(|error| Skip::system("posix_fadvise", error))
}

/// Reads the file as `op` says. Returns the time.
fn read(file: &OwnedFd, case: &Case, op: FileOp) -> Result<Time, Skip> {
    let mut buffer = vec![0; READ as usize];
    let pages = if op == FileOp::ReadRandom { random_pages(case) } else { Vec::new() };
    evict_caches()?;
    let watch = Stopwatch::start();
    if op == FileOp::ReadRandom {
        pages.iter().try_for_each(|page| read_all(file, &mut buffer[..PAGE as usize], page * PAGE))?;
    } else {
        (0..case.bytes).step_by(READ as usize).try_for_each(|at| read_all(file, &mut buffer, at))?;
    }
    Ok(watch.time())
}

/// Maps the file, and times `op`.
fn mapped(file: OwnedFd, case: &Case, op: FileOp) -> Result<Sample, Skip> {
    let region = Region::of_file(file, case.bytes)?;
    evict_caches()?;
    let mut time = region.read(op.step(case));
    if not_mapped(&region, case, op)? > 0.0 {
        // Faults for the pages that those at the steps left out are a part of the operation.
        time += region.read(PAGE);
    }
    if matches!(op, FileOp::Map | FileOp::MapAgain) {
        return Ok(Sample { op: time, fallback: not_mapped(&region, case, op)?, ..Sample::default() });
    }
    if op == FileOp::PageoutDirty {
        region.fill(|number| op.page_after(number));
    }
    let fallback = not_mapped(&region, case, op)?;
    evict_caches()?;
    let sync = if op == FileOp::PageoutDirty { region.sync()? } else { Time::default() };
    let (reclaim, left) = region.page_out_all()?;
    // A few pages may stay because another context holds a reference.
    if left > case.pages() / 1000 {
        return Err(Skip::NotReclaimed(left));
    }
    Ok(Sample { op: sync + reclaim, fallback, ..Sample::default() })
}

/// Returns the share of the region that is not mapped, or not by huge PTEs where the case asks for
/// them.
fn not_mapped(region: &Region, case: &Case, op: FileOp) -> Result<f64, Skip> {
    let mapped = if op.maps_huge(case) { region.huge_bytes() } else { region.resident_bytes() };
    let mapped = mapped.map_err(|error| Skip::system("/proc/self/smaps", error))?;
    Ok(case.bytes.saturating_sub(mapped) as f64 / case.bytes as f64)
}

fn write_all(file: &OwnedFd, bytes: &[u8], at: u64) -> Result<(), Skip> {
    let written = pwrite(file, bytes, at).map_err(|error| Skip::system("pwrite", error))?;
    if written == bytes.len() { Ok(()) } else { Err(Skip::system("pwrite", "wrote a part only")) }
}

fn read_all(file: &OwnedFd, bytes: &mut [u8], at: u64) -> Result<(), Skip> {
    let wanted = bytes.len();
    let read = pread(file, bytes, at).map_err(|error| Skip::system("pread", error))?;
    if read == wanted { Ok(()) } else { Err(Skip::system("pread", "read a part only")) }
}
