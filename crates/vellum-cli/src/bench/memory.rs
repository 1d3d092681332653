//! Memory for a contender's page tables and descriptors: mapped by huge pages and resident, as a
//! kernel's own memory is.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Zeroable;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use vellum_linux::workload::case::TABLE_SPAN;

/// A slice of zeroes in a mapping of its own, aligned to 2 MiB, on huge pages where the machine has
/// them.
///
/// A kernel reaches its page tables and descriptors through a direct map of huge pages. Small pages
/// here would charge the contender for TLB misses that a kernel doesn't have.
pub struct Mapped<T: Zeroable> {
    reserved: NonNull<T>,
    reserved_bytes: usize,
    start: NonNull<T>,
    len: usize,
}

impl<T: Zeroable> Mapped<T> {
    /// Maps `len` zero values, all resident.
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn zeroed(len: usize) -> rustix::io::Result<Mapped<T>> {
        assert!(align_of::<T>() <= TABLE_SPAN as usize && size_of::<T>() > 0);
        let align = TABLE_SPAN as usize;
        let bytes = len * size_of::<T>();
        let reserved_bytes = bytes.next_multiple_of(align) + align;
        // SAFETY: the kernel chooses the address, so no mapping is replaced.
        let reserved = unsafe {
            mmap_anonymous(std::ptr::null_mut(), reserved_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        };
        let start = reserved.wrapping_byte_add(reserved.align_offset(align));
        // SAFETY: the range lies in the mapping just made: at most `align - 1` bytes are skipped in
        // front, and `align` bytes were added. The advice changes no contents, and may fail.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        let (Some(reserved), Some(start)) = (NonNull::new(reserved.cast()), NonNull::new(start.cast::<T>())) else {
            return Err(rustix::io::Errno::NOMEM);
        };
        let mut mapped = Mapped { reserved, reserved_bytes, start, len };
        // Written once, so that the measurement has no page faults.
        mapped.fill_with(T::zeroed);
        Ok(mapped)
    }
}

// SAFETY: the mapping is this value's own, and any thread may use and unmap it.
unsafe impl<T: Zeroable + Send> Send for Mapped<T> {}

impl<T: Zeroable> Deref for Mapped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned and has `len` values in a mapping that only `drop` removes. A
        // fresh mapping is all zeroes, which `Zeroable` makes a value of T.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> DerefMut for Mapped<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; and `&mut self` makes this the only slice of it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no slice of it outlives the value.
        let _ = unsafe { munmap(self.reserved.as_ptr().cast(), self.reserved_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_zero_aligned_and_all_writable() {
        for len in [1, 512, 300_000] {
            let mut mapped = Mapped::<u64>::zeroed(len).unwrap();
            assert_eq!(mapped.len(), len);
            assert_eq!(mapped.as_ptr() as usize % TABLE_SPAN as usize, 0);
            assert!(mapped.iter().all(|&v| v == 0));
            mapped.fill(u64::MAX);
        }
    }
}
