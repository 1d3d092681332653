//! Many processes together: which waste most, and what tables for memory that several map cost.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::look::Look;
use super::report::table::{align, grouped, new_table};
use crate::size::about;

/// A file or shared memory that several processes map shared.
pub struct Shared<'a> {
    pub name: &'a str,
    /// The most that one of them maps.
    pub len: u64,
    pub resident: u64,
    pub processes: u64,
    /// Bytes of tables of the lowest level, empty ones too.
    pub tables: u64,
}

/// Whose tables hold nothing comes first.
pub fn by_waste(looks: &[Look]) -> Vec<&Look> {
    let mut order: Vec<&Look> = looks.iter().collect();
    order.sort_by_key(|look| std::cmp::Reverse((look.empty(), look.survey.after.tables)));
    order
}

/// What they have together.
pub fn sum(looks: &[Look]) -> String {
    let sum = |what: fn(&Look) -> u64| looks.iter().map(what).sum::<u64>();
    let (tables, empty) = (sum(|look| look.survey.after.tables), sum(Look::empty));
    format!(
        "{} processes: page tables {}, of which {} ({}) are needed for nothing",
        looks.len(),
        about(tables),
        about(empty),
        percent(empty, tables)
    )
}

pub fn percent(part: u64, all: u64) -> String {
    format!("{:.0} %", part as f64 * 100.0 / all.max(1) as f64)
}

/// The dearest that they share.
pub fn shared(looks: &[Look], top: usize) -> Vec<Shared<'_>> {
    let mut all: BTreeMap<(i32, i32, u64), Shared<'_>> = BTreeMap::new();
    for look in looks {
        // Of one process, all VMAs of it together.
        let mut own: BTreeMap<(i32, i32, u64), Shared<'_>> = BTreeMap::new();
        for one in look.survey.vmas.iter().filter(|one| one.vma.file && one.vma.is_shared()) {
            let none = Shared { name: &one.vma.name, len: 0, resident: 0, processes: 1, tables: 0 };
            let shared = own.entry(one.vma.inode).or_insert(none);
            shared.len += one.vma.len();
            shared.resident += one.resident;
            shared.tables += (one.used + one.empty) * look.survey.geometry.page();
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
    let mut dear: Vec<_> = all.into_values().filter(|shared| shared.processes > 1 && shared.tables > 0).collect();
    dear.sort_by_key(|shared| std::cmp::Reverse(shared.tables));
    dear.truncate(top);
    dear
}

/// Why those are told of.
pub const SHARED: &str = "In huge pages, none of these tables is needed.";

/// Write the dearest of them, if there are any.
pub fn write(looks: &[Look], top: usize, out: &mut impl Write) -> io::Result<()> {
    let dear = shared(looks, top);
    if dear.is_empty() {
        return Ok(());
    }
    let mut shown = new_table(["SHARED MAPPING", "size", "in memory", "processes", "tables together"]);
    for shared in &dear {
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
