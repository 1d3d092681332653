//! Sums up many processes: their order by needless page tables, and the page tables of memory that
//! several processes map.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::inspection::Inspection;
use super::report::table::{align, grouped, new_table};
use crate::size::about;

/// A file or shared memory that several processes map shared.
pub struct Shared<'a> {
    pub name: &'a str,
    /// The most bytes that one process maps.
    pub len: u64,
    pub resident: u64,
    pub processes: u64,
    /// Bytes of last-level page tables in all these processes, empty ones included.
    pub tables: u64,
}

/// Returns the processes, those with most needless page tables first.
pub fn by_waste(inspections: &[Inspection]) -> Vec<&Inspection> {
    let mut order: Vec<&Inspection> = inspections.iter().collect();
    order.sort_by_key(|inspection| std::cmp::Reverse((inspection.empty(), inspection.survey.after.tables)));
    order
}

/// Returns a sentence with the sums over all processes.
pub fn sum(inspections: &[Inspection]) -> String {
    let sum = |what: fn(&Inspection) -> u64| inspections.iter().map(what).sum::<u64>();
    let (tables, empty) = (sum(|inspection| inspection.survey.after.tables), sum(Inspection::empty));
    format!(
        "{} processes: page tables {}, of which {} ({}) are needless",
        inspections.len(),
        about(tables),
        about(empty),
        percent(empty, tables)
    )
}

/// Returns `part` as a percentage of `all`.
pub fn percent(part: u64, all: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / all.max(1) as f64)
}

/// Returns the shared mappings whose page tables take most memory, at most `top`.
pub fn shared(inspections: &[Inspection], top: usize) -> Vec<Shared<'_>> {
    let mut all: BTreeMap<(i32, i32, u64), Shared<'_>> = BTreeMap::new();
    for inspection in inspections {
        // First sum all VMAs of the process that map the same file, so that the process counts
        // once.
        let mut own: BTreeMap<(i32, i32, u64), Shared<'_>> = BTreeMap::new();
        for one in inspection.survey.vmas.iter().filter(|one| one.vma.file && one.vma.is_shared()) {
            let none = Shared { name: &one.vma.name, len: 0, resident: 0, processes: 1, tables: 0 };
            let shared = own.entry(one.vma.inode).or_insert(none);
            shared.len += one.vma.len();
            shared.resident += one.resident;
            shared.tables += (one.used + one.empty) * inspection.survey.geometry.page();
        }
        for (inode, one) in own {
            let none = Shared { processes: 0, tables: 0, ..Shared { name: one.name, ..one } };
            let shared = all.entry(inode).or_insert(none);
            shared.len = shared.len.max(one.len);
            shared.resident = shared.resident.max(one.resident);
            shared.processes += 1;
            shared.tables += one.tables;
        }
    }
    let mut costly: Vec<_> = all.into_values().filter(|shared| shared.processes > 1 && shared.tables > 0).collect();
    costly.sort_by_key(|shared| std::cmp::Reverse(shared.tables));
    costly.truncate(top);
    costly
}

/// The advice for shared mappings.
pub const SHARED: &str = "With huge pages, none of these tables is needed.";

/// Writes the table of shared mappings, if there are any.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(inspections: &[Inspection], top: usize, out: &mut impl Write) -> io::Result<()> {
    let costly = shared(inspections, top);
    if costly.is_empty() {
        return Ok(());
    }
    let mut shown = new_table(["SHARED MAPPING", "size", "in memory", "processes", "tables together"]);
    for shared in &costly {
        shown.add_row([
            shared.name.to_owned(),
            about(shared.len),
            about(shared.resident),
            grouped(shared.processes),
            about(shared.tables),
        ]);
    }
    align(&mut shown, [1, 2, 3, 4]);
    writeln!(out, "\n{shown}\n{SHARED}")
}
