//! Linux's error numbers, which system calls return instead of a result.

use alloc::collections::TryReserveError;
use core::fmt;
use linux_raw_sys::errno;

/// An error number of Linux.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// Returns the number as programs see it, above zero.
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Returns the error with a number of Linux; `None`: no error has it.
    pub const fn of_linux(number: i32) -> Option<Errno> {
        if 0 < number && number < 4096 { Some(Errno(number)) } else { None }
    }

    /// Returns the return value of a system call that failed with this error: the negated number.
    pub const fn returned(self) -> isize {
        -(self.0 as isize)
    }
}

macro_rules! numbers {
    ($($name:ident)*) => {
        #[allow(missing_docs)]
        impl Errno {
            $(pub const $name: Errno = Errno(errno::$name as i32);)*
        }

        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Errno::$name => f.write_str(stringify!($name)),)*
                    Errno(number) => write!(f, "Errno({number})"),
                }
            }
        }
    };
}

numbers! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
    ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
    ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP
    ENODATA ETIME EOVERFLOW ELIBBAD EUSERS ENOTSOCK EOPNOTSUPP EAFNOSUPPORT ETIMEDOUT EALREADY
    EUCLEAN ECANCELED EPROTONOSUPPORT EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT ESOCKTNOSUPPORT
    EADDRINUSE EADDRNOTAVAIL ENETUNREACH ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN
    ETOOMANYREFS ECONNREFUSED EHOSTUNREACH EINPROGRESS
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl core::error::Error for Errno {}

impl From<vellum::errno::Errno> for Errno {
    fn from(engine: vellum::errno::Errno) -> Self {
        Errno(engine.number())
    }
}

/// Converts a failed allocation on the kernel's heap to `ENOMEM`.
impl From<TryReserveError> for Errno {
    fn from(_: TryReserveError) -> Self {
        Errno::ENOMEM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_and_linux_agree_on_numbers() {
        assert_eq!(Errno::from(vellum::errno::Errno::EINVAL), Errno::EINVAL);
        assert_eq!(Errno::from(vellum::errno::Errno::ENOMEM), Errno::ENOMEM);
        assert_eq!(Errno::ENOMEM.returned(), -12);
        assert_eq!(std::format!("{}", Errno::ELOOP), "ELOOP");
    }
}
