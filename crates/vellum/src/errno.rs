//! What Linux's system calls answer, for hosts that speak its language.

/// The errors of Linux that the engine's errors map to.
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
    EOVERFLOW = 75,
    EHWPOISON = 133,
}

impl Errno {
    /// The number.
    pub const fn number(self) -> i32 {
        self as i32
    }
}
