//! Linux's error numbers, for hosts that offer Linux's system calls.

/// The Linux error numbers to which the engine's errors map. Each value is the number of
/// `asm-generic/errno.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Errno {
    EPERM = 1,
    ENOENT = 2,
    EIO = 5,
    EAGAIN = 11,
    ENOMEM = 12,
    EACCES = 13,
    EFAULT = 14,
    EBUSY = 16,
    EEXIST = 17,
    EINVAL = 22,
    EFBIG = 27,
    ENOSPC = 28,
    EOVERFLOW = 75,
    EHWPOISON = 133,
}

impl Errno {
    /// Returns the positive error number.
    pub const fn number(self) -> i32 {
        self as i32
    }
}
