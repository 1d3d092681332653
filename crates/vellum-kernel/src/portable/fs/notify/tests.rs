use super::hooks;
use super::watch::Instance;
use crate::errno::Errno;
use crate::fs::inode::{File, Inode};
use crate::fs::meta::{Device, FileCredentials, Kind};
use crate::fs::names::{Mount, Namespace, View};
use crate::fs::open::Open;
use crate::fs::tree::Tree;
use crate::testing::Machine;
use linux_raw_sys::general::*;
use std::string::String;
use std::sync::Arc;
use std::vec::Vec;

/// A mount namespace with one tmpfs, and an instance of its user.
struct World {
    names: Namespace,
    root: Arc<dyn Inode>,
    cred: FileCredentials,
    instance: Arc<Instance>,
}

impl World {
    /// Each test has a user of its own, for whom nothing else counts.
    fn new(user: u32) -> World {
        World {
            names: Namespace::default(),
            root: Tree::root(Arc::new(Machine), user, 0o755),
            cred: FileCredentials::root(),
            instance: Instance::new(user).unwrap(),
        }
    }

    fn view(&self) -> View<'_> {
        View { names: &self.names, root: &self.root, current: &self.root, cred: &self.cred }
    }

    fn make(&self, path: &str, kind: Kind) {
        self.view().make(path.as_bytes(), kind, 0o755, Device::default(), &[]).unwrap();
    }

    fn open(&self, path: &str, flags: u32) -> Open {
        self.view().open(path.as_bytes(), flags, 0o644).unwrap()
    }

    fn rename(&self, from: &str, to: &str) {
        self.view().rename(from.as_bytes(), &self.view(), to.as_bytes(), 0).unwrap();
    }

    fn remove(&self, path: &str, is_directory: bool) {
        self.view().remove(path.as_bytes(), is_directory).unwrap();
    }

    fn watch(&self, path: &str, wanted: u32) -> Result<i32, Errno> {
        let inode = self.view().get(path.as_bytes(), true).unwrap();
        self.instance.add(inode.watches(true).unwrap(), [0; 2], wanted)
    }

    /// Takes all events out of the queue: the numbers of the watches, the bits and the names.
    fn events(&self) -> Vec<(i32, u32, String)> {
        let mut bytes = [0; 4096];
        let count = match self.instance.read(0, &mut &mut bytes[..]) {
            Err(Errno::EAGAIN) => 0,
            count => count.unwrap(),
        };
        let (mut left, mut events) = (&bytes[..count], Vec::new());
        while !left.is_empty() {
            let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| left[at + i]));
            let (name, rest) = left[16..].split_at(word(12) as usize);
            let name: Vec<u8> = name.iter().copied().take_while(|byte| *byte != 0).collect();
            events.push((word(0) as i32, word(4), String::from_utf8(name).unwrap()));
            left = rest;
        }
        events
    }

    fn expect(&self, wanted: &[(i32, u32, &str)]) {
        let wanted: Vec<_> = wanted.iter().map(|&(watch, mask, name)| (watch, mask, String::from(name))).collect();
        assert_eq!(self.events(), wanted);
    }
}

#[test]
fn opening_and_closing_report_to_the_directory_and_to_the_file() {
    let world = World::new(70_100);
    world.make("d", Kind::Directory);
    assert_eq!(world.watch("d", IN_ALL_EVENTS), Ok(1));
    let file = world.open("d/a", O_CREAT | O_RDWR);
    world.expect(&[(1, IN_CREATE, "a"), (1, IN_OPEN, "a")]);
    assert_eq!(world.watch("d/a", IN_MODIFY | IN_CLOSE), Ok(2));
    file.notify(IN_MODIFY);
    file.notify(IN_MODIFY);
    drop(file);
    world.expect(&[
        (1, IN_MODIFY, "a"),
        (2, IN_MODIFY, ""),
        (1, IN_MODIFY, "a"),
        (2, IN_MODIFY, ""),
        (1, IN_CLOSE_WRITE, "a"),
        (2, IN_CLOSE_WRITE, ""),
    ]);
    drop(world.open("d/a", O_PATH));
    world.expect(&[]);
    drop(world.open("d/a", O_TRUNC));
    world.expect(&[
        (1, IN_OPEN, "a"),
        (1, IN_MODIFY, "a"),
        (2, IN_MODIFY, ""),
        (1, IN_CLOSE_NOWRITE, "a"),
        (2, IN_CLOSE_NOWRITE, ""),
    ]);
}

#[test]
fn the_end_of_an_open_file_is_reported_when_it_is_closed() {
    let world = World::new(70_101);
    let file = world.open("a", O_CREAT | O_RDONLY);
    assert_eq!(world.watch("a", IN_DELETE_SELF | IN_ATTRIB), Ok(1));
    world.remove("a", false);
    world.expect(&[(1, IN_ATTRIB, "")]);
    drop(file);
    world.expect(&[(1, IN_DELETE_SELF, ""), (1, IN_IGNORED, "")]);
    assert_eq!(world.instance.remove(1), Err(Errno::EINVAL));
}

#[test]
fn a_renamed_file_reports_by_its_new_name() {
    let world = World::new(70_102);
    world.make("d", Kind::Directory);
    world.make("e", Kind::Directory);
    let file = world.open("d/a", O_CREAT | O_RDWR);
    assert_eq!([world.watch("d", IN_MODIFY), world.watch("e", IN_MODIFY)], [Ok(1), Ok(2)]);
    world.rename("d/a", "e/b");
    file.notify(IN_MODIFY);
    world.expect(&[(2, IN_MODIFY, "b")]);
    world.rename("e/b", "d/a");
    file.notify(IN_MODIFY);
    world.expect(&[(1, IN_MODIFY, "a")]);
}

#[test]
fn a_replaced_file_and_a_removed_directory_end_their_watches() {
    let world = World::new(70_103);
    world.make("d", Kind::Directory);
    world.make("a", Kind::Regular);
    world.make("b", Kind::Regular);
    let watched = ["d", "a", "b"].map(|path| world.watch(path, IN_ALL_EVENTS).unwrap());
    assert_eq!(watched, [1, 2, 3]);
    world.rename("a", "b");
    world.expect(&[(3, IN_ATTRIB, ""), (2, IN_MOVE_SELF, ""), (3, IN_DELETE_SELF, ""), (3, IN_IGNORED, "")]);
    world.remove("d", true);
    world.expect(&[(1, IN_DELETE_SELF, ""), (1, IN_IGNORED, "")]);
}

#[test]
fn a_directory_reports_to_its_parent_by_the_name_that_it_has_now() {
    let world = World::new(70_104);
    world.make("d", Kind::Directory);
    let open = world.open("d", O_DIRECTORY);
    assert_eq!(world.watch("/", IN_ALL_EVENTS), Ok(1));
    world.rename("d", "e");
    open.notify(IN_ACCESS);
    world.expect(&[
        (1, IN_MOVED_FROM | IN_ISDIR, "d"),
        (1, IN_MOVED_TO | IN_ISDIR, "e"),
        (1, IN_ACCESS | IN_ISDIR, "e"),
    ]);
}

#[test]
fn a_watch_of_one_shot_ends_with_its_event() {
    let world = World::new(70_105);
    world.make("a", Kind::Regular);
    assert_eq!(world.watch("a", IN_OPEN | IN_ONESHOT), Ok(1));
    drop(world.open("a", O_RDONLY));
    drop(world.open("a", O_RDONLY));
    world.expect(&[(1, IN_OPEN, ""), (1, IN_IGNORED, "")]);
    assert_eq!(world.watch("a", IN_OPEN | IN_MASK_CREATE), Ok(2));
    assert_eq!(world.watch("a", IN_OPEN | IN_MASK_CREATE), Err(Errno::EEXIST));
}

#[test]
fn events_of_files_without_a_name_can_be_excluded() {
    let world = World::new(70_106);
    let file = world.open("a", O_CREAT | O_RDWR);
    assert_eq!(world.watch("/", IN_MODIFY | IN_EXCL_UNLINK), Ok(1));
    file.notify(IN_MODIFY);
    world.expect(&[(1, IN_MODIFY, "a")]);
    world.remove("a", false);
    file.notify(IN_MODIFY);
    world.expect(&[]);
    assert_eq!(world.watch("/", IN_MODIFY), Ok(1));
    file.notify(IN_MODIFY);
    world.expect(&[(1, IN_MODIFY, "a")]);
}

#[test]
fn an_unmounted_file_system_ends_its_watches() {
    let mut world = World::new(70_107);
    world.make("m", Kind::Directory);
    let on = world.view().get(b"m", true).unwrap();
    let mount = Mount {
        on,
        root: Tree::root(Arc::new(Machine), 70_999, 0o755),
        kind: "tmpfs",
        source: Arc::from(&b""[..]),
        read_only: false,
    };
    world.names.mount(mount).unwrap();
    world.make("m/a", Kind::Regular);
    assert_eq!([world.watch("m", IN_OPEN), world.watch("m/a", IN_OPEN)], [Ok(1), Ok(2)]);
    world.names = Namespace::default();
    let mut events = world.events();
    events.sort_by_key(|event| event.0);
    let mask = |event: &(i32, u32, String)| (event.0, event.1);
    assert_eq!(
        events.iter().map(mask).collect::<Vec<_>>(),
        [(1, IN_UNMOUNT | IN_ISDIR), (1, IN_IGNORED), (2, IN_UNMOUNT), (2, IN_IGNORED)]
    );
}

/// Two threads change and remove watches of one file while another reports events.
#[test]
fn watches_come_and_go_beside_events() {
    let world = Arc::new(World::new(70_108));
    world.make("a", Kind::Regular);
    let inode = world.view().get(b"a", true).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let number = world.watch("a", IN_MODIFY).unwrap();
                    // The other thread may have removed it.
                    let _ = world.instance.remove(number);
                    world.events();
                }
            });
        }
        for _ in 0..1000 {
            hooks::event(&inode, None, IN_MODIFY);
        }
    });
    world.events();
    assert!(!inode.watches(false).unwrap().wants(IN_MODIFY));
    assert!(world.instance.facts().is_empty());
}
