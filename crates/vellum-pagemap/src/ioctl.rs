//! The ioctls `PAGEMAP_SCAN` and `PROCMAP_QUERY`.

use std::ffi::c_void;
use std::os::fd::AsFd;

use linux_raw_sys::general::{page_region, pm_scan_arg, procmap_query};
use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use crate::{Categories, Query, Region};

/// `PAGEMAP_SCAN` (Linux, `include/uapi/linux/fs.h`; from 6.7).
struct Scan(pm_scan_arg);

// SAFETY: the opcode belongs to this structure in Linux's ABI, and the result is the number of
// regions written.
unsafe impl Ioctl for Scan {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<pm_scan_arg>(b'f', 16)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> io::Result<usize> {
        Ok(out as usize)
    }
}

/// A buffer of regions in Linux's format.
#[derive(Debug)]
pub(crate) struct Regions(Vec<page_region>);

impl Regions {
    pub(crate) fn new(capacity: usize) -> Self {
        Regions(vec![page_region { start: 0, end: 0, categories: 0 }; capacity])
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.len()
    }

    /// Returns the first `count` regions, which [`Regions::fill`] found in `range`.
    ///
    /// # Errors
    /// The regions are not ascending, or not in the range ([`checked`]).
    pub(crate) fn get(&self, count: usize, range: (u64, u64)) -> std::io::Result<impl Iterator<Item = Region> + '_> {
        checked(self.0.get(..count).ok_or_else(invalid_regions)?, range)
    }

    /// Scans `range`, which is of whole pages, once. Returns the number of regions found. They have
    /// no more than `pages` pages together (0: no limit).
    pub(crate) fn fill(
        &mut self,
        pagemap: impl AsFd,
        range: (u64, u64),
        query: &Query,
        pages: u64,
    ) -> io::Result<usize> {
        let scan = Scan(pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: 0,
            start: range.0,
            end: range.1,
            walk_end: 0,
            vec: self.0.as_mut_ptr() as u64,
            vec_len: self.0.len() as u64,
            max_pages: pages,
            category_inverted: 0,
            category_mask: query.all.bits(),
            category_anyof_mask: query.any.bits(),
            return_mask: query.returned.bits(),
        });
        // SAFETY: Linux writes to the vector no more than its length. Without flags the call only
        // reads the address space.
        unsafe { ioctl(pagemap, scan) }
    }
}

/// Returns the regions that Linux wrote for `range`. Callers continue at the end of the last
/// region, and would never end if that were not beyond their last position.
///
/// # Errors
/// A region is empty, outside the range, or not behind the one before it.
pub(crate) fn checked(
    regions: &[page_region],
    range: (u64, u64),
) -> std::io::Result<impl Iterator<Item = Region> + '_> {
    let mut end = range.0;
    for region in regions {
        if region.start < end || region.end <= region.start || region.end > range.1 {
            return Err(invalid_regions());
        }
        end = region.end;
    }
    Ok(regions.iter().map(|region| Region {
        start: region.start,
        end: region.end,
        categories: Categories::from_bits_retain(region.categories),
    }))
}

fn invalid_regions() -> std::io::Error {
    std::io::Error::new(
        std::io::ErrorKind::InvalidData,
        "PAGEMAP_SCAN returned regions that are not in order, or not in the range",
    )
}

/// `PROCMAP_QUERY` (Linux, `include/uapi/linux/fs.h`; from 6.11).
struct ProcmapQuery(procmap_query);

// SAFETY: the opcode belongs to this structure in Linux's ABI, and Linux writes the result to it.
unsafe impl Ioctl for ProcmapQuery {
    type Output = procmap_query;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<procmap_query>(b'f', 17)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, query: *mut c_void) -> io::Result<procmap_query> {
        // SAFETY: `query` is the pointer that `as_ptr` returned.
        Ok(unsafe { query.cast::<procmap_query>().read() })
    }
}

/// Returns the page size of the VMA at `address`: the system's, or its hugetlbfs's. `maps` is an
/// open `/proc/PID/maps`.
pub(crate) fn page_size_at(maps: impl AsFd, address: u64) -> io::Result<u64> {
    let query = ProcmapQuery(procmap_query {
        size: size_of::<procmap_query>() as u64,
        // With no flags, Linux reports the VMA that covers the address, without its name and build
        // ID.
        query_flags: 0,
        query_addr: address,
        vma_start: 0,
        vma_end: 0,
        vma_flags: 0,
        vma_page_size: 0,
        vma_offset: 0,
        inode: 0,
        dev_major: 0,
        dev_minor: 0,
        vma_name_size: 0,
        build_id_size: 0,
        vma_name_addr: 0,
        build_id_addr: 0,
    });
    // SAFETY: Linux writes to this structure alone, as there is no room for a name.
    unsafe { ioctl(maps, query) }.map(|answer| answer.vma_page_size)
}
