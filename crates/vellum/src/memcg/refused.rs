//! Why memory was refused: the machine has none, or a memcg is at its limit.

use super::MemcgId;
use crate::frame::OutOfMemory;

/// A charge would exceed a limit: the memcg whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit(pub MemcgId);

/// Why memory was refused. Every error of an operation that allocates carries it to the host, which
/// reclaims from exactly that scope: the whole machine, or one memcg and its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The machine has no free block of that size.
    OutOfMemory,
    /// The charge would exceed the limit of this memcg, which may be an ancestor of the charged
    /// one.
    OverLimit(MemcgId),
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Refused::OutOfMemory => OutOfMemory.fmt(f),
            Refused::OverLimit(memcg) => write!(f, "group {} is at its limit", memcg.0),
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

/// An error of an operation that allocates.
pub trait MayBeRefused {
    /// Returns why memory was refused, if that is the reason: then the host may reclaim there, and
    /// try again.
    fn refused(&self) -> Option<Refused>;
}

impl MayBeRefused for Refused {
    fn refused(&self) -> Option<Refused> {
        Some(*self)
    }
}

/// Makes an error with a variant `NoMemory(Refused)` one that may come from [`Refused`] and says
/// so; `nested` variants hold errors that may say so as well.
macro_rules! may_be_refused {
    ($error:ident $(, $nested:ident)*) => {
        impl From<$crate::memcg::Refused> for $error {
            #[inline]
            fn from(why: $crate::memcg::Refused) -> Self {
                $error::NoMemory(why)
            }
        }

        impl $crate::memcg::MayBeRefused for $error {
            fn refused(&self) -> Option<$crate::memcg::Refused> {
                match self {
                    $error::NoMemory(why) => Some(*why),
                    $($error::$nested(error) => error.refused(),)*
                    #[allow(unreachable_patterns)] // Some errors have no other variant.
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use may_be_refused;
