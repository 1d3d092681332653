//! Decodes page-table entries after Intel's manual, independently of the engine's code (Intel SDM,
//! volume 3A, "4-Level Paging and 5-Level Paging").

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The meaning of an entry through which user mode may write.
pub enum Entry {
    /// Links the page table at this physical address.
    Table(u64),
    /// A leaf PTE: the entry without its accessed and dirty bits.
    Page(u64),
}

/// Decodes an entry at `level`, where 0 is the last. Returns `None` if user mode may not write
/// through it.
pub fn read(raw: u64, level: u32) -> Option<Entry> {
    let rights = PRESENT | WRITABLE | USER;
    (raw & rights == rights).then_some(match level == 0 || raw & LARGE != 0 {
        true => Entry::Page(raw & !(ACCESSED | DIRTY)),
        false => Entry::Table(raw & ADDRESS),
    })
}
