//! Decodes page-table entries after Arm's manual, independently of the engine's code (Arm ARM, DDI
//! 0487, D8.3.1, 4 KiB granule).

const VALID: u64 = 1 << 0;
const TABLE_OR_PAGE: u64 = 1 << 1;
/// AP\[1\]: EL0 may access.
const USER: u64 = 1 << 6;
/// AP\[2\]: the page is read-only; with DBM set, the CPU clears it at a write.
const READ_ONLY: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 10;
/// Dirty Bit Modifier.
const DIRTY_MODIFIER: u64 = 1 << 51;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// The meaning of an entry through which user mode may write.
pub enum Entry {
    /// Links the page table at this physical address.
    Table(u64),
    /// A leaf PTE: the entry without its accessed and dirty state.
    Page(u64),
}

/// Decodes an entry at `level`, where 0 is the last. Returns `None` if user mode may not write
/// through it.
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
