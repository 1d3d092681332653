//! Who can walk over addresses, touching and discarding: what `bench tables` compares.

use super::contender::Skip;

/// How each 2 MiB are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The name in JSON.
    pub name: &'static str,
    /// Bytes discarded in one call.
    pub piece: u64,
}

/// In one call, and in pieces in shuffled order.
pub const VARIANTS: [Variant; 3] = [
    Variant { name: "2m", piece: 2 << 20 },
    Variant { name: "1m", piece: 1 << 20 },
    Variant { name: "64k", piece: 64 << 10 },
];

/// Memory in page tables, in KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// After the walk.
    pub end_kb: u64,
    /// The most on the way.
    pub peak_kb: u64,
    /// What was there before the walk and is no part of it; in both of the above.
    pub start_kb: u64,
}

/// Who walks.
pub trait Walker {
    /// Walks over `span` bytes: touches 2 MiB in folios of 4 KiB, discards them by `variant`, goes
    /// on. `progress` hears how far it is, 0 to 1.
    fn walk(&mut self, span: u64, variant: Variant, progress: &mut dyn FnMut(f64)) -> Result<Tables, Skip>;
}
