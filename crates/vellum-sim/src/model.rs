//! What a CPU's translation caches are like, as data.

use std::borrow::Cow;

/// Entries of one kind: `sets` × `ways`, least recently used goes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bank {
    /// 1 is asked first. Banks of one tier are asked together; a hit in a later tier fills the earlier ones.
    pub tier: u8,
    /// log2 of the page sizes that it can hold.
    pub shifts: Cow<'static, [u32]>,
    /// Number of sets, a power of two: low bits of the page number choose among them.
    pub sets: u32,
    /// Entries in each.
    pub ways: u32,
}

/// Room for pointers to tables that stand at one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagingCache {
    /// The level where the pointer stands, 2 or more.
    pub level: u8,
    /// How many, in one set.
    pub entries: u32,
}

/// The translation caches of a CPU, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlbModel {
    /// What it is called in reports.
    pub name: Cow<'static, str>,
    /// The banks.
    pub banks: Cow<'static, [Bank]>,
    /// The paging-structure caches.
    pub paging: Cow<'static, [PagingCache]>,
}

const fn bank(tier: u8, shifts: &'static [u32], sets: u32, ways: u32) -> Bank {
    Bank { tier, shifts: Cow::Borrowed(shifts), sets, ways }
}

impl TlbModel {
    /// No cache at all: every access walks from the root.
    pub const NONE: TlbModel =
        TlbModel { name: Cow::Borrowed("none"), banks: Cow::Borrowed(&[]), paging: Cow::Borrowed(&[]) };

    /// Sized like a server's CPU of about 2020, and like none in particular.
    pub const GENERIC: TlbModel = TlbModel {
        name: Cow::Borrowed("generic"),
        banks: Cow::Borrowed(
            const {
                &[
                    bank(1, &[12, 14, 16], 16, 4),
                    bank(1, &[21, 25], 8, 4),
                    bank(1, &[30, 36], 1, 4),
                    bank(2, &[12, 14, 16, 21, 25], 128, 12),
                    bank(2, &[30, 36], 4, 4),
                ]
            },
        ),
        paging: Cow::Borrowed(
            const {
                &[
                    PagingCache { level: 2, entries: 32 },
                    PagingCache { level: 3, entries: 8 },
                    PagingCache { level: 4, entries: 4 },
                    PagingCache { level: 5, entries: 2 },
                ]
            },
        ),
    };

    /// For strict machines: few entries, one set, any size; so much happens by design of the adversary that more would
    /// only cost time.
    pub const SMALL: TlbModel = TlbModel {
        name: Cow::Borrowed("small"),
        banks: Cow::Borrowed(const { &[bank(1, &[12, 14, 16, 21, 25, 29, 30, 36, 39, 42], 1, 24)] }),
        paging: Cow::Borrowed(
            const {
                &[
                    PagingCache { level: 2, entries: 4 },
                    PagingCache { level: 3, entries: 3 },
                    PagingCache { level: 4, entries: 2 },
                    PagingCache { level: 5, entries: 2 },
                ]
            },
        ),
    };
}
