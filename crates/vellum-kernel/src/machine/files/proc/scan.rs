//! Implements `PAGEMAP_SCAN`: reports pages by category, and write-protects them to detect writes.

use super::memory::space;
use super::process::Subject;
use crate::mem::thread::failed;
use crate::mem::uaccess;
use crate::task::Thread;
use linux_raw_sys::general::{page_region, pm_scan_arg};
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange, align_up};
use vellum::memcg::MayBeRefused;
use vellum::space::{Categories, Region, Scan};
use vellum_kernel::errno::Errno;

/// The request number, which the crate lacks.
const PAGEMAP_SCAN: u32 = 0xc060_6610;
const PROTECT: u64 = 1;
const ONLY_ASYNC: u64 = 2;
/// The number of regions collected at a time.
const AT_ONCE: usize = 64;

/// Handles an `ioctl` on `pagemap`.
///
/// # Errors
///
/// `ENOTTY`: unknown request. `ESRCH`: the process has exited. Those of the engine. `EINVAL`,
/// `EFAULT`.
pub fn request(subject: &Subject, request: u32, at: u64) -> Result<u64, Errno> {
    if request != PAGEMAP_SCAN {
        return Err(Errno::ENOTTY);
    }
    let thread = Thread::current().ok_or(Errno::ESRCH)?;
    let mine = thread.memory();
    let mut words = [0u64; size_of::<pm_scan_arg>() / 8];
    let mut bytes = [0; size_of::<pm_scan_arg>()];
    uaccess::read(&mine, at, &mut bytes)?;
    bytes.chunks_exact(8).zip(&mut words).for_each(|(bytes, word)| {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    });
    let [size, flags, start, end, _, to, room, pages, inverted, all, any, shown] = words;
    let known = [inverted, all, any, shown].iter().all(|set| Categories::from_bits(*set).is_some());
    if size != bytes.len() as u64 || flags & !(PROTECT | ONLY_ASYNC) != 0 || !known || (to == 0 && room != 0) {
        return Err(Errno::EINVAL);
    }
    let end = align_up(end, FRAME_SHIFT).filter(|end| *end <= crate::arch::paging::user_end()).ok_or(Errno::EFAULT)?;
    if !start.is_multiple_of(FRAME_SIZE) || end < start {
        return Err(Errno::EINVAL);
    }
    let memory = space(subject)?.ok_or(Errno::ESRCH)?;
    let select = |is: Categories| {
        let seen = is.bits() ^ inverted;
        let wanted = seen & all == all && (any == 0 || seen & any != 0);
        wanted.then_some(is & Categories::from_bits_retain(shown))
    };
    let mut left = if pages == 0 { u64::MAX } else { pages };
    let mut rest = VirtRange { start, end };
    let mut answer = Answer { to, told: 0, last: None };
    loop {
        let mut found = [Region::default(); AT_ONCE];
        let some = (room - answer.told()).min(AT_ONCE as u64) as usize;
        let scan =
            Scan { select, max_pages: left, write_protect: flags & PROTECT != 0, only_async: flags & ONLY_ASYNC != 0 };
        let out = if to == 0 { None } else { Some(&mut found[..some]) };
        let scanned = memory.engine.scan(rest, scan, out).map_err(|error| failed(error.refused(), error.errno()))?;
        found[..scanned.regions].iter().try_for_each(|region| answer.add(*region))?;
        rest.start = scanned.end;
        left -= scanned.pages;
        if rest.is_empty() || left == 0 || to == 0 || answer.told() >= room {
            break;
        }
    }
    answer.finish()?;
    const WALK_END: usize = core::mem::offset_of!(pm_scan_arg, walk_end);
    uaccess::write(&mine, at + WALK_END as u64, &rest.start.to_le_bytes())?;
    Ok(answer.told)
}

/// The regions reported to the program. The last one is kept back, as the next may extend it.
struct Answer {
    to: u64,
    told: u64,
    last: Option<Region>,
}

impl Answer {
    fn told(&self) -> u64 {
        self.told + u64::from(self.last.is_some())
    }

    fn add(&mut self, region: Region) -> Result<(), Errno> {
        match &mut self.last {
            Some(last) if last.categories == region.categories && last.range.end == region.range.start => {
                last.range.end = region.range.end;
                Ok(())
            }
            _ => {
                self.finish()?;
                self.last = Some(region);
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> Result<(), Errno> {
        let (Some(Region { range, categories }), Some(thread)) = (self.last.take(), Thread::current()) else {
            return Ok(());
        };
        let region = page_region { start: range.start, end: range.end, categories: categories.bits() };
        let to = self.to.wrapping_add(self.told * size_of::<page_region>() as u64);
        uaccess::write(&thread.memory(), to, uaccess::bytes_of(&region))?;
        self.told += 1;
        Ok(())
    }
}
