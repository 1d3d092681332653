//! The file system of control groups: a directory a group, with its control files; `mkdir` makes a
//! group, `rmdir` removes it. What the files say and do is the kernel's part ([`Groups`]).
//!
//! The memory controller is the only one. Partial: its files are there whether
//! `cgroup.subtree_control` of the group above has it or not, and what is switched there is only
//! remembered.

use super::folder::{Folder, More};
use super::inode::{Entry, Inode};
use super::meta::Kind;
use super::text::{PseudoFs, Show, Store, Text};
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use spin::Mutex;

/// A control file whose contents are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Control {
    Procs,
    Current,
    Peak,
    Max,
    Stat,
    /// What of that is on which node.
    NodeStat,
    Events,
    Reclaim,
    SwapCurrent,
    SwapMax,
    Populated,
    Kill,
}

/// Name, what it is, whether it can be read and written, and whether the root has it.
const CONTROLS: [(&str, Control, bool, bool, bool); 12] = [
    ("cgroup.procs", Control::Procs, true, true, true),
    ("memory.current", Control::Current, true, false, false),
    ("memory.peak", Control::Peak, true, false, false),
    ("memory.max", Control::Max, true, true, false),
    ("memory.stat", Control::Stat, true, false, true),
    ("memory.numa_stat", Control::NodeStat, true, false, true),
    ("memory.events", Control::Events, true, false, false),
    ("cgroup.events", Control::Populated, true, false, false),
    ("cgroup.kill", Control::Kill, false, true, false),
    ("memory.reclaim", Control::Reclaim, false, true, true),
    ("memory.swap.current", Control::SwapCurrent, true, false, false),
    ("memory.swap.max", Control::SwapMax, true, true, false),
];

/// The kernel's groups, by numbers of its choice.
pub trait Groups: Send + Sync {
    /// A new group below one, with a name.
    ///
    /// # Errors
    /// `EAGAIN`: too many; `ENOMEM`; `ENOENT`: that one is gone.
    fn make(&self, parent: u32, name: &[u8]) -> Result<u32, Errno>;

    /// A group goes.
    ///
    /// # Errors
    /// `EBUSY`: it has processes, or groups below it.
    fn remove(&self, group: u32) -> Result<(), Errno>;

    /// What a control file says.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn read(&self, group: u32, control: Control) -> Result<Vec<u8>, Errno>;

    /// Applies a write to a control file. `cgroup.procs` takes a process ID, of which zero is the
    /// writer's own process.
    ///
    /// # Errors
    /// `EINVAL`: it makes no sense; `ESRCH`, `EBUSY`, `EAGAIN` (not as much was reclaimed).
    fn write(&self, group: u32, control: Control, value: &[u8]) -> Result<(), Errno>;
}

/// The root directory, of a group that is there already.
///
/// # Errors
/// `ENOMEM`.
pub fn root(system: PseudoFs, groups: Arc<dyn Groups>, group: u32) -> Result<Arc<Folder>, Errno> {
    directory(system, groups, group, None)
}

/// An amount as it is written to `memory.max` and `memory.reclaim`: bytes, perhaps with `K`, `M`,
/// `G` or `T`; or `max`, which is none.
///
/// # Errors
/// `EINVAL`.
pub fn amount(value: &[u8]) -> Result<Option<u64>, Errno> {
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

/// An amount as such files say it.
pub fn said(amount: Option<u64>) -> Vec<u8> {
    match amount {
        Some(bytes) => format!("{bytes}\n").into_bytes(),
        None => b"max\n".to_vec(),
    }
}

fn directory(
    system: PseudoFs,
    groups: Arc<dyn Groups>,
    group: u32,
    parent: Option<Weak<Folder>>,
) -> Result<Arc<Folder>, Errno> {
    let is_root = parent.is_none();
    let below = Below { system, groups: groups.clone(), group, children: Mutex::default() };
    let folder = Folder::below(system, parent, Some(Box::new(below)));
    for (name, control, reads, writes, on_root) in CONTROLS {
        if is_root && !on_root {
            continue;
        }
        let (reader, writer) = (groups.clone(), groups.clone());
        let make: Show = Box::new(move || reader.read(group, control));
        let take: Store = Box::new(move |value| writer.write(group, control, value));
        let mode = if reads { 0o444 } else { 0 } | if writes { 0o200 } else { 0 };
        folder.add(name, Text::new(system, mode, reads.then_some(make), writes.then_some(take)))?;
    }
    folder.add("cgroup.controllers", Text::read_only(system, || Ok(b"memory\n".to_vec())))?;
    let enabled = Arc::new(AtomicBool::new(false));
    let enables = enabled.clone();
    let make: Show = Box::new(move || Ok(if enabled.load(Relaxed) { b"memory\n".to_vec() } else { Vec::new() }));
    let take: Store = Box::new(move |value| {
        enables.store(switched(value, enables.load(Relaxed))?, Relaxed);
        Ok(())
    });
    folder.add("cgroup.subtree_control", Text::new(system, 0o644, Some(make), Some(take)))?;
    Ok(folder)
}

/// Returns whether the controller is on after `value` was written to `cgroup.subtree_control`:
/// names of controllers with a plus or a minus, all or nothing. `on`: whether it was before.
///
/// # Errors
/// `EINVAL`.
pub fn switched(value: &[u8], mut on: bool) -> Result<bool, Errno> {
    for word in core::str::from_utf8(value).map_err(|_| Errno::EINVAL)?.split_whitespace() {
        on = match word {
            "+memory" => true,
            "-memory" => false,
            _ => return Err(Errno::EINVAL),
        };
    }
    Ok(on)
}

/// The group whose directory this is.
pub fn group_of(directory: &dyn Inode) -> Option<u32> {
    let folder = directory.as_any().downcast_ref::<Folder>()?;
    folder.more()?.as_any()?.downcast_ref::<Below>().map(|below| below.group)
}

/// The groups below one.
struct Below {
    system: PseudoFs,
    groups: Arc<dyn Groups>,
    group: u32,
    children: Mutex<Children>,
}

#[derive(Default)]
struct Children {
    next: u64,
    /// Ascending by position.
    all: Vec<Child>,
}

struct Child {
    position: u64,
    name: Box<[u8]>,
    group: u32,
    folder: Arc<Folder>,
}

impl More for Below {
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn mode(&self) -> u32 {
        0o755
    }

    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let children = self.children.lock();
        children.all.iter().find(|child| *child.name == *name).map(|child| child.folder.clone() as Arc<dyn Inode>)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) {
        for child in self.children.lock().all.iter().filter(|child| child.position >= from) {
            let (inode, kind) = (child.folder.meta().inode, Kind::Directory);
            if !each(Entry { name: &child.name, inode, kind, next: child.position + 1 }) {
                return;
            }
        }
    }

    fn make(&self, name: &[u8], _mode: u32, parent: Weak<Folder>) -> Result<Arc<dyn Inode>, Errno> {
        // One at a time: the group is made under the lock, so that no two have a name.
        let mut children = self.children.lock();
        if name.contains(&b'\n') {
            return Err(Errno::EINVAL);
        }
        let taken = CONTROLS.iter().any(|(own, ..)| own.as_bytes() == name)
            || name.starts_with(b"cgroup.")
            || children.all.iter().any(|child| *child.name == *name);
        if taken {
            return Err(Errno::EEXIST);
        }
        children.all.try_reserve(1)?;
        let group = self.groups.make(self.group, name)?;
        let folder = match directory(self.system, self.groups.clone(), group, Some(parent)) {
            Ok(folder) => folder,
            Err(error) => {
                let _ = self.groups.remove(group);
                return Err(error);
            }
        };
        let position = children.next;
        children.next += 1;
        children.all.push(Child { position, name: name.into(), group, folder: folder.clone() });
        Ok(folder)
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
    use crate::fs::inode::{Directory, File, New};
    use crate::fs::meta::Device;
    use std::string::String;
    use std::vec;

    /// Groups that remember their limits: parent and limit by number.
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
                Control::Max => Ok(said(self.0.lock()[group as usize - 1].unwrap().1)),
                _ => Ok(vec![]),
            }
        }

        fn write(&self, group: u32, control: Control, value: &[u8]) -> Result<(), Errno> {
            assert_eq!(control, Control::Max);
            self.0.lock()[group as usize - 1].as_mut().unwrap().1 = amount(value)?;
            Ok(())
        }
    }

    fn open(folder: &dyn Directory, name: &str) -> Arc<dyn File> {
        folder.find(name.as_bytes()).unwrap().open(0).unwrap()
    }

    fn read(folder: &dyn Directory, name: &str) -> Result<String, Errno> {
        let mut bytes = [0; 50];
        let count = open(folder, name).read(0, &mut &mut bytes[..])?;
        Ok(String::from_utf8(bytes[..count].into()).unwrap())
    }

    const NEW: New<'_> =
        New { kind: Kind::Directory, mode: 0o755, uid: 0, gid: 0, special: Device { major: 0, minor: 0 }, target: &[] };

    #[test]
    fn groups_come_and_go() {
        let root = root(PseudoFs::default(), Arc::new(Machine::default()), 0).unwrap();
        assert!(root.find(b"memory.max").is_err() && root.find(b"memory.stat").is_ok());
        let a = root.make(b"a", &NEW).unwrap();
        assert_eq!(root.make(b"a", &NEW).err(), Some(Errno::EEXIST));
        assert_eq!(root.make(b"cgroup.procs", &NEW).err(), Some(Errno::EEXIST));
        assert_eq!(root.make(b"f", &New { kind: Kind::Regular, ..NEW }).err(), Some(Errno::EPERM));
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
    fn the_controller_is_switched() {
        let root = root(PseudoFs::default(), Arc::new(Machine::default()), 0).unwrap();
        let name = "cgroup.subtree_control";
        assert_eq!(read(&*root, name).unwrap(), "");
        assert_eq!(open(&*root, name).write(0, &mut &b"+memory -cpu"[..]), Err(Errno::EINVAL));
        assert_eq!(read(&*root, name).unwrap(), "");
        open(&*root, name).write(0, &mut &b"+memory\n"[..]).unwrap();
        assert_eq!(read(&*root, name).unwrap(), "memory\n");
    }

    #[test]
    fn amounts() {
        assert_eq!((amount(b"4096\n"), amount(b"2G"), amount(b"max\n")), (Ok(Some(4096)), Ok(Some(2 << 30)), Ok(None)));
        for bad in [&b""[..], b"-1", b"1x", b"K", b"1 K", b"99999999999999999999", b"99999999999T", b"\xff"] {
            assert_eq!(amount(bad), Err(Errno::EINVAL));
        }
    }
}
