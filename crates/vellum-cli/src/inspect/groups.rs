//! Many processes that map the same: what tables for that cost together.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::look::Look;
use super::text::{align, grouped, new_table};
use crate::size::about;

/// A file or shared memory that several processes map shared.
struct Shared<'a> {
    name: &'a str,
    /// The most that one of them maps.
    len: u64,
    resident: u64,
    processes: u64,
    /// Bytes of tables of the lowest level, empty ones too.
    tables: u64,
}

/// Write the dearest of them, if there are any.
pub fn write(looks: &[Look], top: usize, out: &mut impl Write) -> io::Result<()> {
    let mut all: BTreeMap<(i32, i32, u64), Shared<'_>> = BTreeMap::new();
    for look in looks {
        // Of one process, all areas of it together.
        let mut own: BTreeMap<(i32, i32, u64), Shared<'_>> = BTreeMap::new();
        for one in look.survey.areas.iter().filter(|one| one.area.file && one.area.is_shared()) {
            let none = Shared { name: &one.area.name, len: 0, resident: 0, processes: 1, tables: 0 };
            let shared = own.entry(one.area.inode).or_insert(none);
            shared.len += one.area.len();
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
    writeln!(out, "\n{shown}\nIn huge pages, none of these tables is needed.")
}
