//! The system calls themselves.

use std::ffi::c_void;
use std::os::fd::AsFd;

use linux_raw_sys::general::{page_region, pm_scan_arg, procmap_query};
use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use crate::{Categories, Query, Region};

/// `PAGEMAP_SCAN` (Linux, `include/uapi/linux/fs.h`; from 6.7).
struct Scan(pm_scan_arg);

// SAFETY: the opcode is this structure's, as Linux has it, and the result is the number of regions
// that were written.
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

/// Where regions are put: as Linux writes them.
#[derive(Debug)]
pub(crate) struct Regions(Vec<page_region>);

impl Regions {
    pub(crate) fn new(most: usize) -> Self {
        Regions(vec![page_region { start: 0, end: 0, categories: 0 }; most])
    }

    pub(crate) fn most(&self) -> usize {
        self.0.len()
    }

    /// Returns the first `count`, which [`Regions::fill`] found in `range`.
    ///
    /// # Errors
    /// [`told`].
    pub(crate) fn get(&self, count: usize, range: (u64, u64)) -> std::io::Result<impl Iterator<Item = Region> + '_> {
        told(self.0.get(..count).ok_or_else(senseless)?, range)
    }

    /// Ask once, of whole pages: how many regions there are, of no more than so many pages together
    /// (0: of any number).
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
            return_mask: query.told.bits(),
        });
        // SAFETY: Linux writes to the vector no more than its length, which is told, and changes
        // nothing else that we have: without flags it only reads.
        unsafe { ioctl(pagemap, scan) }
    }
}

/// Returns regions that Linux wrote for a `range`. Callers go on from the last one's end, and need
/// to get further by that.
///
/// # Errors
/// One is empty, outside the range, or not behind the one before it.
pub(crate) fn told(regions: &[page_region], range: (u64, u64)) -> std::io::Result<impl Iterator<Item = Region> + '_> {
    let mut end = range.0;
    for region in regions {
        if region.start < end || region.end <= region.start || region.end > range.1 {
            return Err(senseless());
        }
        end = region.end;
    }
    Ok(regions.iter().map(|region| Region {
        start: region.start,
        end: region.end,
        categories: Categories::from_bits_retain(region.categories),
    }))
}

fn senseless() -> std::io::Error {
    std::io::Error::new(
        std::io::ErrorKind::InvalidData,
        "PAGEMAP_SCAN returned regions that are not in order, or not in the range",
    )
}

/// `PROCMAP_QUERY` (Linux, `include/uapi/linux/fs.h`; from 6.11).
struct Ask(procmap_query);

// SAFETY: the opcode is this structure's, as Linux has it, which has written to it what is told.
unsafe impl Ioctl for Ask {
    type Output = procmap_query;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<procmap_query>(b'f', 17)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, query: *mut c_void) -> io::Result<procmap_query> {
        // SAFETY: it is what `as_ptr` gave.
        Ok(unsafe { query.cast::<procmap_query>().read() })
    }
}

/// The size of the pages of which a VMA is, that an address is in: the system's, or that of its
/// hugetlbfs. `maps`: of `/proc/PID`.
pub(crate) fn page_size_at(maps: impl AsFd, address: u64) -> io::Result<u64> {
    let ask = Ask(procmap_query {
        size: size_of::<procmap_query>() as u64,
        // The VMA that is there, of any kind, and neither its name nor its build's.
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
    // SAFETY: Linux writes to this structure alone, as there is room for no name, and changes
    // nothing else that we have.
    unsafe { ioctl(maps, ask) }.map(|told| told.vma_page_size)
}
