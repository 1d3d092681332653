//! The interface of `bench tables`: contenders that walk over addresses, touching and discarding.

use super::contender::Skip;

/// The way in which each 2 MiB range is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The name in JSON.
    pub name: &'static str,
    /// Bytes discarded in one call.
    pub piece: u64,
}

/// The ways to discard 2 MiB: in one call, or in pieces in shuffled order.
pub const VARIANTS: [Variant; 3] = [
    Variant { name: "2m", piece: 2 << 20 },
    Variant { name: "1m", piece: 1 << 20 },
    Variant { name: "64k", piece: 64 << 10 },
];

/// Memory in page tables, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The KiB of page tables after the walk.
    pub end_kb: u64,
    /// The most KiB of page tables at any time during the walk.
    pub peak_kb: u64,
    /// The KiB of page tables before the walk, which the other two figures include.
    pub start_kb: u64,
}

/// A contender of `bench tables`.
pub trait Walker {
    /// Walks over `span` bytes of addresses: touches each 2 MiB in turn, in 4 KiB folios, and
    /// discards them in the way of `variant` before it goes on. Calls `progress` with the share
    /// done, 0 to 1.
    ///
    /// # Errors
    /// The contender can't do the walk.
    fn walk(&mut self, span: u64, variant: Variant, progress: &mut dyn FnMut(f64)) -> Result<Tables, Skip>;
}
