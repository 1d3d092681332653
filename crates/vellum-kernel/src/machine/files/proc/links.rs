//! Serves the links of `/proc/PID` to open files and to the executable. They lead to the file
//! itself, whatever its path names now.

use super::process::Subject;
use crate::files::{Files, from_root};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::pseudo::{DynamicEntries, PseudoDirectory};
use vellum_kernel::fs::text::{Jump, Link, PseudoFs, Show, Text};
use vellum_kernel::fs::{Inode, Kind, Open, inode::Entry};
use vellum_kernel::parse::numeric_name;

/// The inode that a link leads to, and the path shown.
type Target = Result<(Arc<dyn Inode>, Vec<u8>), Errno>;

/// Returns a link whose target and path `target` returns.
fn link(system: PseudoFs, subject: &Subject, target: fn(&Subject) -> Target) -> Arc<dyn Inode> {
    let (names, leads) = (subject.clone(), subject.clone());
    let make: Show = Box::new(move || target(&names).map(|(_, path)| path));
    let jump: Jump = Box::new(move || target(&leads).ok().map(|(inode, _)| inode));
    Link::new(system, make, Some(jump))
}

/// Returns the link to the working directory.
pub fn cwd(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    link(system, subject, |subject| {
        let current = files(subject)?.current.lock().clone();
        let path = from_root(|view| view.names.path_of(&current, view.root));
        Ok((current, path.unwrap_or_else(|| b"(deleted)".to_vec())))
    })
}

/// Returns the link to the executable.
pub fn exe(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    link(system, subject, |subject| {
        let memory = subject.process()?.memory().ok_or(Errno::ENOENT)?;
        let (program, mapped) = memory.image.lock().program.clone().ok_or(Errno::ENOENT)?;
        let path = from_root(|view| view.names.path_of_mapped(&mapped, view.root));
        Ok((program.inode().clone(), path))
    })
}

/// Returns the link to the root directory.
pub fn root(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    link(system, subject, |_| from_root(|view| Ok((view.root.clone(), b"/".to_vec()))))
}

/// Returns the directory of the links to open files.
pub fn fd(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    descriptors(system, subject, Of::Files)
}

/// Returns the directory of the offsets and flags of open files.
pub fn fdinfo(system: PseudoFs, subject: &Subject) -> Arc<dyn Inode> {
    descriptors(system, subject, Of::Facts)
}

fn descriptors(system: PseudoFs, subject: &Subject, of: Of) -> Arc<dyn Inode> {
    let entries = Descriptors { system: PseudoFs { number: None, ..system }, subject: subject.clone(), of };
    PseudoDirectory::with_weak_parent(system, subject.directory(), Some(Box::new(entries)))
}

fn files(subject: &Subject) -> Result<Arc<Files>, Errno> {
    subject.process()?.files.lock().clone().ok_or(Errno::ENOENT)
}

/// The content of an entry in a directory of descriptors.
#[derive(Clone, Copy)]
enum Of {
    /// `fd`: a link to the open file.
    Files,
    /// `fdinfo`: offset and flags.
    Facts,
}

/// A directory of descriptors.
struct Descriptors {
    system: PseudoFs,
    subject: Subject,
    of: Of,
}

fn open(subject: &Subject, number: u32) -> Result<Arc<Open>, Errno> {
    files(subject)?.open(number.into()).map_err(|_| Errno::ENOENT)
}

impl DynamicEntries for Descriptors {
    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let number = numeric_name(name)?;
        open(&self.subject, number).ok()?;
        let (subject, system) = (self.subject.clone(), self.system);
        Some(match self.of {
            Of::Files => {
                let leads = self.subject.clone();
                let make: Show = Box::new(move || {
                    let open = open(&subject, number)?;
                    from_root(|view| view.names.path_of_open(&open, view.root)).ok_or(Errno::ENOENT)
                });
                let jump: Jump = Box::new(move || open(&leads, number).ok().map(|open| open.inode().clone()));
                Link::new(system, make, Some(jump))
            }
            Of::Facts => Text::read_only(system, move || {
                let open = open(&subject, number)?;
                let (offset, flags, inode) = (open.offset(), open.flags(), open.inode().meta().inode);
                let mut facts = format!("pos:\t{offset}\nflags:\t0{flags:o}\nmnt_id:\t0\nino:\t{inode}\n").into_bytes();
                if let Ok(file) = open.file() {
                    facts.append(&mut file.facts());
                }
                Ok(facts)
            }),
        })
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) {
        let Ok(files) = files(&self.subject) else { return };
        let kind = match self.of {
            Of::Files => Kind::Link,
            Of::Facts => Kind::Regular,
        };
        let mut at = from as u32;
        loop {
            let Some(number) = files.table.lock().next(at).map(|(number, _)| number) else { return };
            let (inode, next) = (1 << 33 | u64::from(number), u64::from(number) + 1);
            if !each(Entry { name: format!("{number}").as_bytes(), inode, kind, next }) {
                return;
            }
            at = number + 1;
        }
    }
}
