//! Entries of page tables by Arm's manual, and not by the engine's code (Arm ARM, DDI 0487, D8.3.1, 4 KiB granule).

const VALID: u64 = 1 << 0;
const TABLE_OR_PAGE: u64 = 1 << 1;
/// AP\[1\]: EL0 may access.
const USER: u64 = 1 << 6;
/// AP\[2\]: nobody may write; the processor clears it at a write if DBM is set.
const READ_ONLY: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 10;
/// Dirty Bit Modifier.
const DIRTY_MODIFIER: u64 = 1 << 51;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// What an entry says, at a level of which 0 is the last, if user mode may write by way of it.
pub enum Entry {
    /// It leads to the table at this physical address.
    Table(u64),
    /// It maps a page. This is the same without accessed and dirty.
    Page(u64),
}

/// Reads an entry; `None` if user mode may not write by way of it.
pub fn read(raw: u64, level: u32) -> Option<Entry> {
    let table = level > 0 && raw & TABLE_OR_PAGE != 0;
    match raw & VALID != 0 {
        true if table => Some(Entry::Table(raw & ADDRESS)),
        true if raw & (USER | DIRTY_MODIFIER) == USER | DIRTY_MODIFIER => {
            Some(Entry::Page(raw & !ACCESSED | READ_ONLY))
        }
        _ => None,
    }
}
