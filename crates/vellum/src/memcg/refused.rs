//! The reasons why an allocation fails: the machine is out of memory, or a memcg is at its limit.

use super::MemcgId;
use crate::frame::OutOfMemory;

/// The memcg whose limit a charge would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit(pub MemcgId);

/// The reason why memory was refused. Every error of an operation that allocates carries it to the
/// host, which reclaims from exactly that scope (the whole machine, or one memcg and its
/// descendants) and retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The machine has no free block of the size.
    OutOfMemory,
    /// The charge would exceed the limit of this memcg, which is the charged memcg or an ancestor
    /// of it.
    OverLimit(MemcgId),
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refused::OutOfMemory => OutOfMemory.fmt(f),
            Refused::OverLimit(memcg) => {
                write!(f, "memcg {} is at its limit: reclaim from it or raise the limit, and retry", memcg.0)
            }
        }
    }
}

impl core::error::Error for Refused {}

impl From<OutOfMemory> for Refused {
    #[inline]
    fn from(_: OutOfMemory) -> Self {
        Refused::OutOfMemory
    }
}

impl From<OverLimit> for Refused {
    #[inline]
    fn from(over: OverLimit) -> Self {
        Refused::OverLimit(over.0)
    }
}

/// An error of an operation that allocates memory, and so may fail for lack of it.
pub trait MayBeRefused {
    /// Returns the scope in which memory was refused. The host may reclaim there and retry. `None`:
    /// the operation failed for another reason.
    fn refused(&self) -> Option<Refused>;
}

impl MayBeRefused for Refused {
    fn refused(&self) -> Option<Refused> {
        Some(*self)
    }
}

/// Implements `From<Refused>` and [`MayBeRefused`] for an error with a variant `NoMemory(Refused)`.
/// `nested` are variants that hold errors which implement [`MayBeRefused`] themselves.
macro_rules! may_be_refused {
    ($error:ident $(, $nested:ident)*) => {
        impl From<$crate::memcg::Refused> for $error {
            #[inline]
            fn from(refused: $crate::memcg::Refused) -> Self {
                $error::NoMemory(refused)
            }
        }

        impl $crate::memcg::MayBeRefused for $error {
            fn refused(&self) -> Option<$crate::memcg::Refused> {
                match self {
                    $error::NoMemory(refused) => Some(*refused),
                    $($error::$nested(error) => error.refused(),)*
                    #[allow(unreachable_patterns)] // Some errors have only these variants.
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use may_be_refused;
