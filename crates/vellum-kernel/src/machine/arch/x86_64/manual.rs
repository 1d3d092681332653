//! Entries of page tables by Intel's manual, and not by the engine's code (Intel SDM, volume 3A, "4-Level Paging and 5-Level
//! Paging").

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// What an entry says, at a level of which 0 is the last, if user mode may write by way of it.
pub enum Entry {
    /// It leads to the table at this physical address.
    Table(u64),
    /// It maps a page. This is the same without accessed and dirty.
    Page(u64),
}

/// Reads an entry; `None` if user mode may not write by way of it.
pub fn read(raw: u64, level: u32) -> Option<Entry> {
    let rights = PRESENT | WRITABLE | USER;
    (raw & rights == rights).then_some(match level == 0 || raw & LARGE != 0 {
        true => Entry::Page(raw & !(ACCESSED | DIRTY)),
        false => Entry::Table(raw & ADDRESS),
    })
}
