//! Models of a CPU's translation caches, as data.

use std::borrow::Cow;

use crate::program::Access;

/// Accesses that a unified bank serves.
pub(crate) const ALL: &[Access] = &[Access::Read, Access::Write, Access::Execute];
/// Accesses that a data bank serves.
pub(crate) const DATA: &[Access] = &[Access::Read, Access::Write];
/// Accesses that an instruction bank serves.
pub(crate) const CODE: &[Access] = &[Access::Execute];

/// Entries of one kind: `sets` × `ways`, with least-recently-used replacement.
///
/// In each tier, a translation is cached in those banks that can hold the most of it in one entry.
/// A translation that no bank can hold as a whole is held in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bank {
    /// Lookup order, from 1. Banks of one tier are looked up together; a hit in a later tier fills
    /// the earlier ones.
    pub tier: u8,
    /// The accesses that it serves.
    pub serves: Cow<'static, [Access]>,
    /// log2 of the sizes that one entry can hold: pages, huge pages, and cont blocks of either.
    pub shifts: Cow<'static, [u32]>,
    /// log2 of how many pages one entry coalesces although nothing marks them as contiguous: they
    /// must be aligned in both address spaces, all present, consecutive, and alike in all other
    /// bits. 0: no coalescing.
    pub coalesces: u32,
    /// Number of sets, a power of two. Low bits of the page number choose the set.
    pub sets: u32,
    /// Entries in each set.
    pub ways: u32,
}

/// A paging-structure cache: it holds the pointers to page tables that the entries of one level
/// contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagingCache {
    /// The level of the entries that hold the pointers, 2 or more.
    pub level: u8,
    /// The number of entries, in one set.
    pub entries: u32,
}

/// The translation caches of a CPU, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlbModel {
    /// The name in reports.
    pub name: Cow<'static, str>,
    /// The source of the numbers, and the list of the assumed ones.
    pub source: Cow<'static, str>,
    /// The banks.
    pub banks: Cow<'static, [Bank]>,
    /// The paging-structure caches.
    pub paging: Cow<'static, [PagingCache]>,
}

pub(crate) const fn bank(
    tier: u8,
    serves: &'static [Access],
    shifts: &'static [u32],
    coalesces: u32,
    (sets, ways): (u32, u32),
) -> Bank {
    Bank { tier, serves: Cow::Borrowed(serves), shifts: Cow::Borrowed(shifts), coalesces, sets, ways }
}

pub(crate) const fn paging(level: u8, entries: u32) -> PagingCache {
    PagingCache { level, entries }
}

impl TlbModel {
    pub(crate) const fn fixed(
        name: &'static str,
        source: &'static str,
        banks: &'static [Bank],
        paging: &'static [PagingCache],
    ) -> Self {
        let (name, source) = (Cow::Borrowed(name), Cow::Borrowed(source));
        TlbModel { name, source, banks: Cow::Borrowed(banks), paging: Cow::Borrowed(paging) }
    }

    /// No cache at all: every access walks from the root.
    pub const NONE: TlbModel = TlbModel::fixed("none", "", &[], &[]);

    /// Sized like a server's CPU of about 2020, and like none in particular.
    pub const GENERIC: TlbModel = TlbModel::fixed(
        "generic",
        "none: round numbers",
        const {
            &[
                bank(1, ALL, &[12, 14, 16], 0, (16, 4)),
                bank(1, ALL, &[21, 25], 0, (8, 4)),
                bank(1, ALL, &[30, 34, 36], 0, (1, 4)),
                bank(2, ALL, &[12, 14, 16, 21, 25], 0, (128, 12)),
                bank(2, ALL, &[30, 34, 36], 0, (4, 4)),
            ]
        },
        const { &[paging(2, 32), paging(3, 8), paging(4, 4), paging(5, 2)] },
    );

    /// For strict machines: few entries, one set, any size. The adversary evicts and speculates by
    /// itself, so more entries would only cost time.
    pub const SMALL: TlbModel = TlbModel::fixed(
        "small",
        "none: made to be hostile",
        const { &[bank(1, ALL, &[12, 14, 16, 21, 25, 29, 30, 34, 36, 39, 42], 0, (1, 24))] },
        const { &[paging(2, 4), paging(3, 3), paging(4, 2), paging(5, 2)] },
    );

    /// Returns the model of [`TlbModel::CORES`] with this name.
    pub fn core(name: &str) -> Option<&'static TlbModel> {
        TlbModel::CORES.iter().find(|model| model.name == name)
    }
}
