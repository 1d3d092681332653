//! The system call itself.

use std::ffi::c_void;
use std::os::fd::AsFd;

use linux_raw_sys::general::{page_region, pm_scan_arg};
use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use crate::{Categories, Query, Region};

/// `PAGEMAP_SCAN` (Linux, `include/uapi/linux/fs.h`; from 6.7).
struct Scan(pm_scan_arg);

// SAFETY: the opcode is this structure's, as Linux has it, and the result is the number of regions that were written.
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

    /// The first so many.
    pub(crate) fn get(&self, count: usize) -> impl Iterator<Item = Region> + '_ {
        let region = |r: &page_region| Region {
            start: r.start,
            end: r.end,
            categories: Categories::from_bits_retain(r.categories),
        };
        self.0[..count].iter().map(region)
    }

    /// Ask once, of whole pages: how many regions there are, of no more than so many pages together (0: of any number).
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
        // SAFETY: Linux writes to the vector no more than its length, which is told, and changes nothing else that we have: without
        // flags it only reads.
        unsafe { ioctl(pagemap, scan) }
    }
}
