//! The cgroup2 file system: a directory for each cgroup, with its control files. `mkdir` creates a
//! cgroup, and `rmdir` removes it. The kernel implements the control files ([`Groups`]).
//!
//! The memory controller is the only one. Unlike on Linux, its files exist whether the parent's
//! `cgroup.subtree_control` enables the controller or not; a write to `cgroup.subtree_control` only
//! changes what a read of it returns.

use super::inode::{Entry, Inode};
use super::meta::Kind;
use super::pseudo::{DynamicEntries, PseudoDirectory};
use super::text::{PseudoFs, Show, Store, Text};
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use spin::Mutex;

/// A control file that the kernel implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Control {
    Procs,
    Current,
    Peak,
    Max,
    Stat,
    /// `memory.stat` for each NUMA node.
    NodeStat,
    Events,
    Reclaim,
    SwapCurrent,
    SwapMax,
    Populated,
    Kill,
}

/// A control file of a cgroup's directory.
struct ControlFile {
    name: &'static str,
    control: Control,
    /// The permission bits. A file without any read bit cannot be read, and one without any write
    /// bit cannot be written, even by root.
    mode: u32,
    in_root: bool,
}

const fn file(name: &'static str, control: Control, mode: u32) -> ControlFile {
    ControlFile { name, control, mode, in_root: false }
}

const fn root_file(name: &'static str, control: Control, mode: u32) -> ControlFile {
    ControlFile { name, control, mode, in_root: true }
}

/// The control files. The root cgroup has only those that `root_file` makes.
const FILES: [ControlFile; 12] = [
    root_file("cgroup.procs", Control::Procs, 0o644),
    file("memory.current", Control::Current, 0o444),
    file("memory.peak", Control::Peak, 0o444),
    file("memory.max", Control::Max, 0o644),
    root_file("memory.stat", Control::Stat, 0o444),
    root_file("memory.numa_stat", Control::NodeStat, 0o444),
    file("memory.events", Control::Events, 0o444),
    file("cgroup.events", Control::Populated, 0o444),
    file("cgroup.kill", Control::Kill, 0o200),
    root_file("memory.reclaim", Control::Reclaim, 0o200),
    file("memory.swap.current", Control::SwapCurrent, 0o444),
    file("memory.swap.max", Control::SwapMax, 0o644),
];

/// The kernel's cgroups, by numbers that the kernel chooses.
pub trait Groups: Send + Sync {
    /// Creates a cgroup below `parent`, and returns its number.
    ///
    /// # Errors
    /// `EAGAIN`: there are too many cgroups; `ENOMEM`; `ENOENT`: the parent was removed.
    fn make(&self, parent: u32, name: &[u8]) -> Result<u32, Errno>;

    /// Removes a cgroup.
    ///
    /// # Errors
    /// `EBUSY`: it has processes or children.
    fn remove(&self, group: u32) -> Result<(), Errno>;

    /// Returns the contents of a control file.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn read(&self, group: u32, control: Control) -> Result<Vec<u8>, Errno>;

    /// Applies a write to a control file. `cgroup.procs` takes a process ID; zero is the writer's
    /// own process.
    ///
    /// # Errors
    /// `EINVAL`: an invalid value; `ESRCH`; `EBUSY`; `EAGAIN`: less was reclaimed than requested.
    fn write(&self, group: u32, control: Control, value: &[u8]) -> Result<(), Errno>;
}

/// Returns the root directory of a cgroup file system, for the existing cgroup `group`.
///
/// # Errors
/// `ENOMEM`.
pub fn root(system: PseudoFs, groups: Arc<dyn Groups>, group: u32) -> Result<Arc<PseudoDirectory>, Errno> {
    directory(system, groups, group, None)
}

/// Parses an amount as written to `memory.max` and `memory.reclaim`: bytes, with an optional suffix
/// `K`, `M`, `G` or `T`. Returns `None` for `max`.
///
/// # Errors
/// `EINVAL`.
pub fn parse_amount(value: &[u8]) -> Result<Option<u64>, Errno> {
    let value = core::str::from_utf8(value).map_err(|_| Errno::EINVAL)?.trim();
    if value == "max" {
        return Ok(None);
    }
    let digits = value.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match &value[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "t" | "T" => 40,
        _ => return Err(Errno::EINVAL),
    };
    let number: u64 = digits.parse().map_err(|_| Errno::EINVAL)?;
    number.checked_mul(1 << shift).map(Some).ok_or(Errno::EINVAL)
}

/// Formats an amount as a read of a control file returns it: in bytes, or `max` for `None`.
pub fn format_amount(amount: Option<u64>) -> Vec<u8> {
    match amount {
        Some(bytes) => format!("{bytes}\n").into_bytes(),
        None => b"max\n".to_vec(),
    }
}

/// Returns the directory of a cgroup, with its control files.
fn directory(
    system: PseudoFs,
    groups: Arc<dyn Groups>,
    group: u32,
    parent: Option<Weak<PseudoDirectory>>,
) -> Result<Arc<PseudoDirectory>, Errno> {
    let is_root = parent.is_none();
    let children = ChildGroups { system, groups: groups.clone(), group, children: Mutex::default() };
    let directory = PseudoDirectory::with_weak_parent(system, parent, Some(Box::new(children)));
    for ControlFile { name, control, mode, in_root } in FILES {
        if is_root && !in_root {
            continue;
        }
        let (reader, writer) = (groups.clone(), groups.clone());
        let make: Show = Box::new(move || reader.read(group, control));
        let take: Store = Box::new(move |value| writer.write(group, control, value));
        directory.add(
            name,
            Text::new(system, mode, (mode & 0o400 != 0).then_some(make), (mode & 0o200 != 0).then_some(take)),
        )?;
    }
    directory.add("cgroup.controllers", Text::read_only(system, || Ok(b"memory\n".to_vec())))?;
    let enabled = Arc::new(AtomicBool::new(false));
    let written = enabled.clone();
    let make: Show = Box::new(move || Ok(if enabled.load(Relaxed) { b"memory\n".to_vec() } else { Vec::new() }));
    let take: Store = Box::new(move |value| {
        written.store(parse_subtree_control(value, written.load(Relaxed))?, Relaxed);
        Ok(())
    });
    directory.add("cgroup.subtree_control", Text::new(system, 0o644, Some(make), Some(take)))?;
    Ok(directory)
}

/// Returns true if the controller is enabled after a write of `value` to `cgroup.subtree_control`:
/// names of controllers, each with a plus or a minus. `on`: it was enabled before.
///
/// # Errors
/// `EINVAL`: an unknown word, for which the whole write fails.
pub fn parse_subtree_control(value: &[u8], mut on: bool) -> Result<bool, Errno> {
    for word in core::str::from_utf8(value).map_err(|_| Errno::EINVAL)?.split_whitespace() {
        on = match word {
            "+memory" => true,
            "-memory" => false,
            _ => return Err(Errno::EINVAL),
        };
    }
    Ok(on)
}

/// Returns the number of the cgroup of a directory; `None` for any other inode.
pub fn group_of(directory: &dyn Inode) -> Option<u32> {
    let directory = directory.as_any().downcast_ref::<PseudoDirectory>()?;
    directory.dynamic()?.as_any()?.downcast_ref::<ChildGroups>().map(|children| children.group)
}

/// The children of a cgroup: the dynamic entries (see [`DynamicEntries`]) of its directory.
struct ChildGroups {
    system: PseudoFs,
    groups: Arc<dyn Groups>,
    group: u32,
    children: Mutex<Children>,
}

#[derive(Default)]
struct Children {
    next_position: u64,
    /// The children, in ascending order of their positions.
    all: Vec<Child>,
}

struct Child {
    position: u64,
    name: Box<[u8]>,
    group: u32,
    directory: Arc<PseudoDirectory>,
}

impl DynamicEntries for ChildGroups {
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn mode(&self) -> u32 {
        0o755
    }

    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let children = self.children.lock();
        children.all.iter().find(|child| *child.name == *name).map(|child| child.directory.clone() as Arc<dyn Inode>)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) {
        for child in self.children.lock().all.iter().filter(|child| child.position >= from) {
            let (inode, kind) = (child.directory.meta().inode, Kind::Directory);
            if !each(Entry { name: &child.name, inode, kind, next: child.position + 1 }) {
                return;
            }
        }
    }

    fn make(&self, name: &[u8], _mode: u32, parent: Weak<PseudoDirectory>) -> Result<Arc<dyn Inode>, Errno> {
        // The lock is held while the kernel creates the cgroup, so that no two children get the
        // same name.
        let mut children = self.children.lock();
        if name.contains(&b'\n') {
            return Err(Errno::EINVAL);
        }
        let taken = FILES.iter().any(|file| file.name.as_bytes() == name)
            || name.starts_with(b"cgroup.")
            || children.all.iter().any(|child| *child.name == *name);
        if taken {
            return Err(Errno::EEXIST);
        }
        children.all.try_reserve(1)?;
        let group = self.groups.make(self.group, name)?;
        let directory = match directory(self.system, self.groups.clone(), group, Some(parent)) {
            Ok(directory) => directory,
            Err(error) => {
                let _ = self.groups.remove(group);
                return Err(error);
            }
        };
        let position = children.next_position;
        children.next_position += 1;
        children.all.push(Child { position, name: name.into(), group, directory: directory.clone() });
        Ok(directory)
    }

    fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        let mut children = self.children.lock();
        let at = children.all.iter().position(|child| *child.name == *name).ok_or(Errno::ENOENT)?;
        self.groups.remove(children.all[at].group)?;
        let removed = children.all.remove(at);
        drop(children);
        drop(removed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::inode::{Directory, File, NewInode};
    use crate::fs::meta::Device;
    use std::string::String;
    use std::vec;

    /// Cgroups that have limits only: parent and limit by number.
    #[derive(Default)]
    struct Machine(Mutex<Vec<Option<Group>>>);

    type Group = (u32, Option<u64>);

    impl Groups for Machine {
        fn make(&self, parent: u32, _name: &[u8]) -> Result<u32, Errno> {
            let mut all = self.0.lock();
            all.push(Some((parent, None)));
            Ok(all.len() as u32)
        }

        fn remove(&self, group: u32) -> Result<(), Errno> {
            let mut all = self.0.lock();
            if all.iter().flatten().any(|&(parent, _)| parent == group) {
                return Err(Errno::EBUSY);
            }
            all[group as usize - 1] = None;
            Ok(())
        }

        fn read(&self, group: u32, control: Control) -> Result<Vec<u8>, Errno> {
            match control {
                Control::Max => Ok(format_amount(self.0.lock()[group as usize - 1].unwrap().1)),
                _ => Ok(vec![]),
            }
        }

        fn write(&self, group: u32, control: Control, value: &[u8]) -> Result<(), Errno> {
            assert_eq!(control, Control::Max);
            self.0.lock()[group as usize - 1].as_mut().unwrap().1 = parse_amount(value)?;
            Ok(())
        }
    }

    fn open(directory: &dyn Directory, name: &str) -> Arc<dyn File> {
        directory.find(name.as_bytes()).unwrap().open(0).unwrap()
    }

    fn read(directory: &dyn Directory, name: &str) -> Result<String, Errno> {
        let mut bytes = [0; 50];
        let count = open(directory, name).read(0, &mut &mut bytes[..])?;
        Ok(String::from_utf8(bytes[..count].into()).unwrap())
    }

    const NEW: NewInode<'_> = NewInode {
        kind: Kind::Directory,
        mode: 0o755,
        uid: 0,
        gid: 0,
        special: Device { major: 0, minor: 0 },
        target: &[],
    };

    #[test]
    fn directories_create_and_remove_cgroups() {
        let root = root(PseudoFs::default(), Arc::new(Machine::default()), 0).unwrap();
        assert!(root.find(b"memory.max").is_err() && root.find(b"memory.stat").is_ok());
        let a = root.make(b"a", &NEW).unwrap();
        assert_eq!(root.make(b"a", &NEW).err(), Some(Errno::EEXIST));
        assert_eq!(root.make(b"cgroup.procs", &NEW).err(), Some(Errno::EEXIST));
        assert_eq!(root.make(b"f", &NewInode { kind: Kind::Regular, ..NEW }).err(), Some(Errno::EPERM));
        let a = a.directory().unwrap();
        assert_eq!(read(a, "memory.max").unwrap(), "max\n");
        assert_eq!(open(a, "memory.max").write(0, &mut &b"1M\n"[..]), Ok(3));
        assert_eq!(read(a, "memory.max").unwrap(), "1048576\n");
        assert_eq!(open(a, "memory.max").write(0, &mut &b"x"[..]), Err(Errno::EINVAL));
        assert_eq!(open(a, "memory.current").write(0, &mut &b"x"[..]), Err(Errno::EINVAL));
        assert_eq!(read(a, "memory.reclaim"), Err(Errno::EINVAL));
        let b = a.make(b"b", &NEW).unwrap();
        assert_eq!(b.directory().unwrap().parent().unwrap().meta().inode, root.find(b"a").unwrap().meta().inode);
        assert_eq!((root.remove(b"a", true), root.remove(b"none", true)), (Err(Errno::EBUSY), Err(Errno::ENOENT)));
        a.remove(b"b", true).unwrap();
        root.remove(b"a", true).unwrap();
        assert!(root.find(b"a").is_err());
    }

    #[test]
    fn subtree_control_is_written_all_or_nothing() {
        let root = root(PseudoFs::default(), Arc::new(Machine::default()), 0).unwrap();
        let name = "cgroup.subtree_control";
        assert_eq!(read(&*root, name).unwrap(), "");
        assert_eq!(open(&*root, name).write(0, &mut &b"+memory -cpu"[..]), Err(Errno::EINVAL));
        assert_eq!(read(&*root, name).unwrap(), "");
        open(&*root, name).write(0, &mut &b"+memory\n"[..]).unwrap();
        assert_eq!(read(&*root, name).unwrap(), "memory\n");
    }

    #[test]
    fn amounts_are_bytes_with_a_suffix_or_max() {
        assert_eq!(
            (parse_amount(b"4096\n"), parse_amount(b"2G"), parse_amount(b"max\n")),
            (Ok(Some(4096)), Ok(Some(2 << 30)), Ok(None))
        );
        for bad in [&b""[..], b"-1", b"1x", b"K", b"1 K", b"99999999999999999999", b"99999999999T", b"\xff"] {
            assert_eq!(parse_amount(bad), Err(Errno::EINVAL));
        }
    }
}
