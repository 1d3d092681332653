use super::*;
use crate::fs::inode::{FIRST, Inode};
use crate::fs::io::NeverWaits;
use crate::fs::meta::FileCredentials;
use crate::fs::names::{Mount, Namespace, View};
use crate::fs::open::Open;
use crate::testing::{Machine, block_on};
use linux_raw_sys::general::*;
use std::string::String;
use std::vec::Vec;

/// A mount namespace with one tmpfs, and the credentials of its user.
struct World {
    names: Namespace,
    root: Arc<dyn Inode>,
    cred: FileCredentials,
}

impl World {
    fn new() -> World {
        World {
            names: Namespace::default(),
            root: Tree::root(Arc::new(Machine), 1, 0o755),
            cred: FileCredentials::root(),
        }
    }

    fn view(&self) -> View<'_> {
        View { names: &self.names, root: &self.root, current: &self.root, cred: &self.cred }
    }

    fn mkdir(&self, path: &str) -> Result<(), Errno> {
        self.view().make(path.as_bytes(), Kind::Directory, 0o755, Device::default(), &[])
    }

    fn symlink(&self, target: &str, path: &str) -> Result<(), Errno> {
        self.view().make(path.as_bytes(), Kind::Link, 0o777, Device::default(), target.as_bytes())
    }

    fn open(&self, path: &str, flags: u32) -> Result<Open, Errno> {
        self.view().open(path.as_bytes(), flags, 0o644)
    }

    fn write(&self, path: &str, contents: &str) {
        let file = self.open(path, O_CREAT | O_TRUNC | O_WRONLY).unwrap();
        assert_eq!(block_on(file.write(&mut contents.as_bytes(), &NeverWaits)), Ok(contents.len()));
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        let mut bytes = [0; 100];
        let count = block_on(self.open(path, O_RDONLY)?.read(&mut &mut bytes[..], &NeverWaits))?;
        Ok(String::from_utf8(bytes[..count].into()).unwrap())
    }

    fn rename(&self, from: &str, to: &str, flags: u32) -> Result<(), Errno> {
        self.view().rename(from.as_bytes(), &self.view(), to.as_bytes(), flags)
    }

    fn links(&self, path: &str) -> u32 {
        self.view().get(path.as_bytes(), false).unwrap().meta().links
    }

    fn exists(&self, path: &str) -> bool {
        self.view().get(path.as_bytes(), false).is_ok()
    }
}

/// Lists a directory by calls of `getdents64` with a buffer of `room` bytes.
fn names(open: &Open, room: usize) -> Vec<String> {
    let mut names = Vec::new();
    loop {
        let mut bytes = std::vec![0; room];
        let count = open.entries(&mut &mut bytes[..]).unwrap();
        if count == 0 {
            return names;
        }
        let mut at = 0;
        while at < count {
            let length = u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]) as usize;
            assert_eq!(length % 8, 0);
            let name = bytes[at + 19..].split(|&byte| byte == 0).next().unwrap();
            names.push(String::from_utf8(name.into()).unwrap());
            at += length;
        }
    }
}

#[test]
fn paths_skip_dots_and_slashes() {
    let world = World::new();
    world.mkdir("/a").unwrap();
    world.mkdir("a/b/").unwrap();
    world.write("/a/b/file", "hello");
    for path in ["/a/b/file", "a//b/./file", "/../a/b/../b/file", "a/../a/b/file"] {
        assert_eq!(world.read(path).unwrap(), "hello", "{path}");
    }
    assert_eq!(world.read("a/none/file"), Err(Errno::ENOENT));
    assert_eq!(world.read("a/b/file/x"), Err(Errno::ENOTDIR));
    assert_eq!(world.read("a/b/file/"), Err(Errno::ENOTDIR));
    assert_eq!(world.read("a/b/file/."), Err(Errno::ENOTDIR));
    assert_eq!(world.read(""), Err(Errno::ENOENT));
    assert_eq!(world.read("a/b"), Err(Errno::EISDIR));
    assert_eq!(world.read(&"x".repeat(256)), Err(Errno::ENAMETOOLONG));
    assert_eq!(world.read(&"x".repeat(255)), Err(Errno::ENOENT));
    assert_eq!(world.read(&"/".repeat(4096)), Err(Errno::ENAMETOOLONG));
    assert_eq!(world.open("new/", O_CREAT | O_RDWR).err(), Some(Errno::EISDIR));
    assert_eq!(world.mkdir("a"), Err(Errno::EEXIST));
}

#[test]
fn lookups_follow_up_to_forty_symbolic_links() {
    let world = World::new();
    world.mkdir("/dir").unwrap();
    world.write("/dir/file", "x");
    world.symlink("dir", "/relative").unwrap();
    world.symlink("/dir/file", "/absolute").unwrap();
    world.symlink("../absolute", "/dir/up").unwrap();
    assert_eq!(world.read("relative/file").unwrap(), "x");
    assert_eq!(world.read("relative/up").unwrap(), "x");
    assert_eq!(world.open("absolute", O_NOFOLLOW).err(), Some(Errno::ELOOP));
    assert!(world.open("absolute", O_NOFOLLOW | O_PATH).is_ok());
    assert_eq!(world.open("absolute", O_CREAT | O_EXCL | O_RDWR).err(), Some(Errno::EEXIST));
    // `O_CREAT` on a dangling link creates the link's target.
    world.symlink("/dir/new", "/dangling").unwrap();
    assert_eq!(world.read("dangling"), Err(Errno::ENOENT));
    world.write("/dangling", "y");
    assert_eq!(world.read("/dir/new").unwrap(), "y");
    world.symlink("loop", "/loop").unwrap();
    assert_eq!(world.read("loop"), Err(Errno::ELOOP));
    world.symlink("dir/file", "/l0").unwrap();
    for n in 1..41 {
        world.symlink(&std::format!("l{}", n - 1), &std::format!("/l{n}")).unwrap();
    }
    assert_eq!((world.read("l39").unwrap(), world.read("l40")), ("x".into(), Err(Errno::ELOOP)));
    assert_eq!(world.symlink("", "/empty"), Err(Errno::ENOENT));
}

#[test]
fn link_counts_follow_links_and_removals() {
    let world = World::new();
    world.write("/one", "1");
    let inode = world.view().get(b"one", false).unwrap();
    world.view().link(&inode, b"two").unwrap();
    assert_eq!((world.links("one"), world.links("/")), (2, 2));
    world.mkdir("/dir").unwrap();
    assert_eq!((world.links("dir"), world.links("/")), (2, 3));
    assert_eq!(world.view().link(&world.view().get(b"dir", false).unwrap(), b"x"), Err(Errno::EPERM));
    // An open file stays usable after its last name was removed.
    let open = world.open("one", O_RDWR).unwrap();
    world.view().remove(b"one", false).unwrap();
    world.view().remove(b"two", false).unwrap();
    assert_eq!(inode.meta().links, 0);
    assert_eq!(block_on(open.write_at(1, &mut &b"2"[..], &NeverWaits)), Ok(1));
    assert_eq!(world.view().link(&inode, b"again"), Err(Errno::ENOENT));
    assert_eq!(world.view().remove(b"dir", false), Err(Errno::EISDIR));
    assert_eq!(world.view().remove(b"dir/.", true), Err(Errno::EINVAL));
    world.write("/dir/x", "");
    assert_eq!(world.view().remove(b"dir", true), Err(Errno::ENOTEMPTY));
    world.view().remove(b"dir/x", false).unwrap();
    let removed = world.view().get(b"dir", false).unwrap();
    world.view().remove(b"dir", true).unwrap();
    assert_eq!((world.links("/"), removed.meta().links), (2, 0));
    let inside = View { current: &removed, ..world.view() };
    assert_eq!(inside.open(b"x", O_CREAT | O_RDWR, 0o644).err(), Some(Errno::ENOENT));
}

#[test]
fn renames_replace_exchange_and_refuse_cycles() {
    let world = World::new();
    for path in ["/a", "/a/b", "/c", "/full", "/full/x"] {
        world.mkdir(path).unwrap();
    }
    world.write("/f", "f");
    world.write("/g", "g");
    assert_eq!(world.rename("a", "a/b/c", 0), Err(Errno::EINVAL));
    assert_eq!(world.rename("a", "a/b", 0), Err(Errno::EINVAL));
    assert_eq!(world.rename("a/b", "a", 0), Err(Errno::ENOTEMPTY));
    assert_eq!(world.rename("a", "full", 0), Err(Errno::ENOTEMPTY));
    assert_eq!(world.rename("a", "f", 0), Err(Errno::ENOTDIR));
    assert_eq!(world.rename("f", "a", 0), Err(Errno::EISDIR));
    assert_eq!(world.rename("f", "g", RENAME_NOREPLACE), Err(Errno::EEXIST));
    assert_eq!(world.rename("f", "none", RENAME_EXCHANGE), Err(Errno::ENOENT));
    assert_eq!(world.rename("none", "g", 0), Err(Errno::ENOENT));
    assert_eq!(world.rename("none", "g", RENAME_NOREPLACE | RENAME_EXCHANGE), Err(Errno::EINVAL));
    world.rename("f", "f", 0).unwrap();
    world.rename("f", "g", 0).unwrap();
    assert_eq!((world.read("g").unwrap(), world.exists("f")), ("f".into(), false));
    // A directory moves over an empty one in another directory: its `..` leads to the new parent.
    world.mkdir("/c/b").unwrap();
    world.rename("a/b", "c/b", 0).unwrap();
    assert_eq!((world.links("a"), world.links("c")), (2, 3));
    assert!(world.view().get(b"c/b/../b", false).is_ok());
    let inner = world.view().get(b"c/b", false).unwrap();
    assert_eq!(world.names.path_of(&inner, &world.root).unwrap(), b"/c/b");
    world.rename("c/b", "g", RENAME_EXCHANGE).unwrap();
    assert_eq!((world.links("c"), world.links("g"), world.read("c/b").unwrap()), (2, 2, "f".into()));
    assert_eq!(world.names.path_of(&inner, &world.root).unwrap(), b"/g");
}

#[test]
fn listings_resume_while_entries_come_and_go() {
    let world = World::new();
    let name = |n: usize| std::format!("/file{n}");
    (0..100).for_each(|n| world.write(&name(n), ""));
    let open = world.open("/", O_DIRECTORY).unwrap();
    let mut all = names(&open, 1000);
    assert_eq!(all.len(), 102);
    assert_eq!(all[..3], [".", "..", "file0"]);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 102);
    // Entries that exist from the first to the last call are listed exactly once.
    open.seek(0, SEEK_SET).unwrap();
    let mut bytes = [0; 100];
    open.entries(&mut &mut bytes[..]).unwrap();
    (0..90).for_each(|n| world.view().remove(name(n).as_bytes(), false).unwrap());
    (0..50).for_each(|n| world.write(&std::format!("/new{n}"), ""));
    let rest = names(&open, 64);
    for n in 90..100 {
        assert_eq!(rest.iter().filter(|own| **own == name(n)[1..]).count(), 1);
    }
    assert_eq!(open.seek(0, SEEK_SET), Ok(0));
    assert_eq!(open.entries(&mut &mut [0; 20][..]), Err(Errno::EINVAL));
}

/// Creates and removes random entries, and compares lookups and the listing with a list of names.
#[test]
fn random_creations_and_removals_match_a_list() {
    let root = Tree::root(Arc::new(Machine), 1, 0o755);
    let mut random = oorandom::Rand32::new(9);
    let mut model: Vec<String> = Vec::new();
    let new = NewInode { kind: Kind::Fifo, mode: 0, uid: 0, gid: 0, special: Device::default(), target: &[] };
    let directory = root.directory().unwrap();
    for _ in 0..20_000 {
        let name = std::format!("{}", random.rand_range(0..300));
        let there = model.iter().position(|own| *own == name);
        if random.rand_range(0..2) == 0 {
            assert_eq!(directory.make(name.as_bytes(), &new).is_ok(), there.is_none());
            model.extend(there.is_none().then_some(name));
        } else {
            assert_eq!(directory.remove(name.as_bytes(), false).is_ok(), there.is_some());
            there.map(|at| model.remove(at));
        }
        assert_eq!(root.meta().size, 20 * model.len() as u64);
    }
    let mut listed = Vec::new();
    directory
        .list(FIRST, &mut |entry| {
            listed.push(String::from_utf8(entry.name.into()).unwrap());
            true
        })
        .unwrap();
    assert_eq!(listed, model, "in the order of creation");
}

#[test]
fn reads_writes_and_seeks_keep_the_offset() {
    let world = World::new();
    world.write("/f", "0123456789");
    let file = world.open("f", O_RDWR).unwrap();
    assert_eq!((file.seek(4, SEEK_SET), file.seek(-1, SEEK_CUR), file.seek(-1, SEEK_END)), (Ok(4), Ok(3), Ok(9)));
    assert_eq!((file.seek(-1, SEEK_SET), file.seek(0, 9)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
    assert_eq!(block_on(file.write(&mut &b"ab"[..], &NeverWaits)), Ok(2));
    assert_eq!(world.read("f").unwrap(), "012345678ab");
    let append = world.open("f", O_WRONLY | O_APPEND).unwrap();
    assert_eq!(block_on(append.write(&mut &b"!"[..], &NeverWaits)), Ok(1));
    assert_eq!((append.seek(0, SEEK_CUR), world.read("f").unwrap()), (Ok(12), "012345678ab!".into()));
    assert_eq!(block_on(append.read(&mut &mut [0][..], &NeverWaits)), Err(Errno::EBADF));
    assert_eq!(block_on(world.open("f", 0).unwrap().write(&mut &[0][..], &NeverWaits)), Err(Errno::EBADF));
    assert_eq!(world.open("f", 0).unwrap().truncate(0), Err(Errno::EINVAL));
    file.truncate(100 << 20).unwrap();
    assert_eq!((file.seek(0, SEEK_DATA), file.seek(0, SEEK_HOLE)), (Ok(0), Ok(4096)));
    assert_eq!((file.seek(4096, SEEK_DATA), file.seek(100 << 20, SEEK_HOLE)), (Err(Errno::ENXIO), Err(Errno::ENXIO)));
    let allocate = |mode, offset, length| fallocate(&file, mode, offset, length);
    allocate(0, 8192, 4096).unwrap();
    assert_eq!(file.seek(4096, SEEK_DATA), Ok(8192));
    allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096).unwrap();
    assert_eq!(file.seek(0, SEEK_DATA), Ok(8192));
    assert_eq!(allocate(0, 0, 5000 << 12), Err(Errno::ENOSPC));
    assert_eq!((allocate(0, 0, 0), allocate(0, i64::MAX, 1)), (Err(Errno::EINVAL), Err(Errno::EFBIG)));
    for unsupported in [FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE] {
        assert_eq!(allocate(unsupported, 0, 1), Err(Errno::EOPNOTSUPP));
    }
}

/// Calls [`Open::allocate`] until the range is done.
fn fallocate(file: &Open, mode: u32, offset: i64, length: i64) -> Result<(), Errno> {
    let mut done = 0;
    while !file.allocate(mode, offset, length, &mut done)? {}
    Ok(())
}

#[test]
fn fallocate_sets_the_size_with_its_last_step() {
    let world = World::new();
    let file = world.open("f", O_CREAT | O_RDWR).unwrap();
    let (mut done, mut pieces) = (0, Vec::new());
    while !file.allocate(0, 4096, 3 << 20, &mut done).unwrap() {
        pieces.push(done);
        assert_eq!((file.inode().meta().size, file.seek(0, SEEK_DATA)), (0, Err(Errno::ENXIO)));
    }
    assert_eq!(pieces, [(2 << 20) - 4096], "a step ends at a folio's end");
    assert_eq!((done, file.inode().meta().size), (3 << 20, (3 << 20) + 4096));
    assert_eq!((file.seek(0, SEEK_DATA), file.seek(4096, SEEK_HOLE)), (Ok(4096), Ok((3 << 20) + 4096)));
}

#[test]
fn long_writes_take_several_steps() {
    let world = World::new();
    let file = world.open("f", O_CREAT | O_RDWR).unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n / 1000) as u8).collect();
    assert_eq!(block_on(file.write(&mut &bytes[..], &NeverWaits)), Ok(bytes.len()));
    let mut read = std::vec![0; bytes.len()];
    assert_eq!(block_on(file.read_at(0, &mut &mut read[..], &NeverWaits)), Ok(bytes.len()));
    assert!(read == bytes);
}

#[test]
fn times_follow_relatime() {
    let world = World::new();
    world.write("/f", "x");
    let meta = || world.view().get(b"f", false).unwrap().meta();
    let before = meta();
    world.read("f").unwrap();
    let read = meta();
    assert!(read.accessed > before.accessed && read.modified == before.modified && read.changed == before.changed);
    world.read("f").unwrap();
    assert_eq!(meta().accessed, read.accessed, "already later than the last change");
    world.write("f", "y");
    assert!(meta().modified > read.modified && meta().changed > read.changed && meta().born == before.born);
    let written = meta();
    world.open("f", O_RDWR).unwrap().file().unwrap().mappable();
    assert!(meta().accessed > written.accessed, "a mapping counts as an access");
}

#[test]
fn lookups_and_changes_check_permissions() {
    let mut world = World::new();
    for path in ["/closed", "/open", "/sticky"] {
        world.mkdir(path).unwrap();
    }
    let mode = |path: &[u8], mode| {
        let change = crate::fs::inode::Change { mode: Some(mode), ..Default::default() };
        world.view().get(path, false).unwrap().change(&change).unwrap();
    };
    world.write("/closed/f", "");
    world.write("/sticky/f", "");
    mode(b"closed", 0o700);
    mode(b"open", 0o777);
    mode(b"sticky", 0o1777);
    mode(b"sticky/f", 0o666);
    world.cred = FileCredentials { uid: 10, gid: 10, groups: Arc::default(), caps: 0 };
    assert_eq!(world.read("closed/f"), Err(Errno::EACCES));
    assert_eq!(world.mkdir("/x"), Err(Errno::EACCES));
    assert!(world.mkdir("/open/x").is_ok() && world.open("sticky/f", O_RDWR).is_ok());
    assert_eq!(world.view().remove(b"sticky/f", false), Err(Errno::EPERM));
    assert_eq!(world.rename("sticky/f", "open/f", 0), Err(Errno::EPERM));
    world.write("/sticky/own", "");
    assert_eq!(world.view().remove(b"sticky/own", false), Ok(()));
    let node = world.view().make(b"open/null", Kind::Char, 0o666, Device { major: 1, minor: 3 }, &[]);
    assert_eq!(node, Err(Errno::EPERM));
    // The creator gets the access it asked for, whatever the new file's mode.
    assert!(world.view().open(b"open/mine", O_CREAT | O_WRONLY, 0o400).is_ok());
    assert_eq!(world.view().open(b"open/mine", O_WRONLY, 0).err(), Some(Errno::EACCES));
}

#[test]
fn mounts_stack_and_form_no_cycles() {
    let world = World::new();
    world.mkdir("/mnt").unwrap();
    world.mkdir("/mnt/hidden").unwrap();
    let other: Arc<dyn Inode> = Tree::root(Arc::new(Machine), 2, 0o755);
    let on = world.view().get(b"mnt", false).unwrap();
    let mount = |on: &Arc<dyn Inode>, root: &Arc<dyn Inode>| {
        let (on, root, source) = (on.clone(), root.clone(), b"none".as_slice().into());
        world.names.mount(Mount { on, root, kind: "tmpfs", source, read_only: false })
    };
    mount(&on, &other).unwrap();
    assert_eq!(mount(&on, &other), Err(Errno::EBUSY));
    // A file system mounted on itself: a lookup would never end.
    assert_eq!((mount(&other, &other), mount(&other, &on)), (Err(Errno::EBUSY), Err(Errno::EBUSY)));
    assert!(!world.exists("/mnt/hidden"));
    world.mkdir("/mnt/in").unwrap();
    world.write("/mnt/in/f", "x");
    assert_eq!(world.read("/mnt/in/../../mnt/in/f").unwrap(), "x");
    assert_eq!(world.view().get(b"/mnt/..", false).unwrap().identity(), world.root.identity());
    let inside = world.view().get(b"/mnt/in", false).unwrap();
    assert_eq!(world.names.path_of(&inside, &world.root).unwrap(), b"/mnt/in");
    assert_eq!(world.rename("/mnt/in/f", "/f", 0), Err(Errno::EXDEV));
    assert_eq!(world.view().remove(b"mnt", true), Err(Errno::EBUSY));
    let open = world.open("/mnt/in/f", 0).unwrap();
    assert_eq!(world.names.path_of_open(&open, &world.root).unwrap(), b"/mnt/in/f");
    world.view().remove(b"/mnt/in/f", false).unwrap();
    assert_eq!(world.names.path_of_open(&open, &world.root).unwrap(), b"/mnt/in/f (deleted)");
    // A third file system on the mount's root, and its removal.
    let third: Arc<dyn Inode> = Tree::root(Arc::new(Machine), 3, 0o755);
    mount(&other, &third).unwrap();
    assert!(!world.exists("/mnt/in"));
    assert_eq!(world.names.unmount(&third).map(|mount| mount.on.identity()), Ok(other.identity()));
    assert!(world.exists("/mnt/in"));
    world.names.unmount(&other).unwrap();
    assert!(world.exists("/mnt/hidden") && world.names.unmount(&other).is_err());
}

#[test]
fn read_only_mounts_refuse_all_changes() {
    let world = World::new();
    world.mkdir("/mnt").unwrap();
    let (on, root) = (world.view().get(b"mnt", false).unwrap(), Tree::root(Arc::new(Machine), 2, 0o755));
    let root: Arc<dyn Inode> = root;
    let source = b"none".as_slice().into();
    world.names.mount(Mount { on, root: root.clone(), kind: "tmpfs", source, read_only: false }).unwrap();
    world.write("/mnt/f", "x");
    world.mkdir("/mnt/d").unwrap();
    world.names.set_read_only(&root, true).unwrap();
    assert_eq!(world.read("/mnt/f").unwrap(), "x");
    let refused = Err(Errno::EROFS);
    let view = world.view();
    let file = view.get(b"/mnt/f", true).unwrap();
    assert_eq!(world.open("/mnt/f", O_RDWR).map(drop), refused);
    assert_eq!(world.open("/mnt/new", O_RDWR | O_CREAT).map(drop), refused);
    assert_eq!((world.mkdir("/mnt/e"), view.remove(b"/mnt/d", true)), (refused, refused));
    assert_eq!((view.remove(b"/mnt/f", false), world.rename("/mnt/f", "/mnt/g", 0)), (refused, refused));
    assert_eq!((view.link(&file, b"/mnt/g"), view.may_truncate(&*file)), (refused, refused));
    assert_eq!((view.set_mode(&*file, 0o600), view.set_owner(&*file, Some(1), None)), (refused, refused));
    assert_eq!(view.set_times(&*file, None, None, true), refused);
    world.names.set_read_only(&root, false).unwrap();
    view.remove(b"/mnt/f", false).unwrap();
}

#[test]
fn tmpfiles_can_be_linked() {
    let world = World::new();
    let file = world.open("/", O_TMPFILE | O_RDWR).unwrap();
    assert_eq!(file.inode().meta().links, 0);
    assert_eq!(block_on(file.write(&mut &b"x"[..], &NeverWaits)), Ok(1));
    world.view().link(file.inode(), b"/named").unwrap();
    assert_eq!((world.read("named").unwrap(), world.links("named")), ("x".into(), 1));
    assert_eq!(world.open("/", O_TMPFILE | O_RDONLY).err(), Some(Errno::EINVAL));
}

#[test]
fn seals_refuse_operations_and_further_seals() {
    let root = Tree::root(Arc::new(Machine), 1, 0o755);
    let open = |node: Arc<Node>| node.open(O_RDWR).unwrap();
    let sealed = open(memfd(&root, 0, 0, false).unwrap());
    assert_eq!((sealed.control(F_GET_SEALS, 0), sealed.control(F_ADD_SEALS, 2)), (Ok(1), Err(Errno::EPERM)));
    let node = memfd(&root, 0, 0, true).unwrap();
    let file = open(node.clone());
    file.write(0, &mut &b"hello"[..]).unwrap();
    file.control(F_ADD_SEALS, (F_SEAL_GROW | F_SEAL_SHRINK).into()).unwrap();
    assert_eq!((node.truncate(4), node.truncate(6), node.truncate(5)), (Err(Errno::EPERM), Err(Errno::EPERM), Ok(())));
    assert_eq!((file.write(3, &mut &b"abc"[..]), file.write(5, &mut &b"c"[..])), (Ok(2), Err(Errno::EPERM)));
    file.control(F_ADD_SEALS, (F_SEAL_WRITE | F_SEAL_SEAL).into()).unwrap();
    assert_eq!(file.write(0, &mut &b"c"[..]), Err(Errno::EPERM));
    assert_eq!(file.allocate(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0..1, 0), Err(Errno::EPERM));
    assert_eq!(file.control(F_ADD_SEALS, 0), Err(Errno::EPERM));
}

/// Several threads rename, remove and create at the same time: there is no deadlock, and the
/// directories stay a tree.
#[test]
fn concurrent_renames_keep_a_tree() {
    let world = Arc::new(World::new());
    for path in ["/a", "/b", "/a/c", "/b/d"] {
        world.mkdir(path).unwrap();
    }
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let world = world.clone();
            std::thread::spawn(move || {
                let mut random = oorandom::Rand32::new(seed);
                let places = ["/a/x", "/b/x", "/a/c/x", "/b/d/x", "/x", "/a/x/y", "/b/x/y", "/x/y"];
                for _ in 0..5_000 {
                    let mut place = || places[random.rand_range(0..8) as usize];
                    let (one, other) = (place(), place());
                    match random.rand_range(0..4) {
                        0 => drop(world.mkdir(one)),
                        1 => drop(world.view().remove(one.as_bytes(), true)),
                        2 => drop(world.rename(one, other, RENAME_EXCHANGE)),
                        _ => drop(world.rename(one, other, 0)),
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // Each directory is in the one that its `..` leads to, and counts its subdirectories as links.
    fn check(inode: &Arc<dyn Inode>) {
        let directory = inode.directory().unwrap();
        let mut below = Vec::new();
        let each = &mut |entry: crate::fs::inode::Entry<'_>| {
            below.push(entry.name.to_vec());
            true
        };
        directory.list(FIRST, each).unwrap();
        assert_eq!(inode.meta().links as usize, 2 + below.len());
        for name in below {
            let inner = directory.find(&name).unwrap();
            assert_eq!(inner.directory().unwrap().parent().unwrap().meta().inode, inode.meta().inode);
            check(&inner);
        }
    }
    check(&world.root);
}

#[test]
fn chmod_chown_and_utimens_check_owners() {
    let mut world = World::new();
    world.write("/f", "x");
    let file = world.view().get(b"f", false).unwrap();
    world.view().set_owner(&*file, Some(10), Some(20)).unwrap();
    world.view().set_mode(&*file, 0o6755).unwrap();
    let as_user = |world: &mut World, uid, gid, groups: &[u32]| {
        let caps = if uid == 0 { crate::capabilities::ALL } else { 0 };
        world.cred = FileCredentials { uid, gid, groups: Arc::new(groups.to_vec()), caps };
    };
    as_user(&mut world, 11, 20, &[]);
    assert_eq!(world.view().set_mode(&*file, 0o777), Err(Errno::EPERM));
    assert_eq!(world.view().set_owner(&*file, None, Some(20)), Err(Errno::EPERM));
    assert_eq!(world.view().set_times(&*file, None, None, false), Err(Errno::EPERM));
    assert_eq!(world.view().set_times(&*file, None, None, true), Err(Errno::EACCES));
    assert_eq!(world.view().may_truncate(&*file), Err(Errno::EACCES));
    as_user(&mut world, 10, 10, &[30]);
    assert_eq!(world.view().set_owner(&*file, Some(11), None), Err(Errno::EPERM));
    assert_eq!(world.view().set_owner(&*file, None, Some(40)), Err(Errno::EPERM));
    assert_eq!(file.meta().mode, 0o6755);
    world.view().set_owner(&*file, Some(10), Some(30)).unwrap();
    assert_eq!((file.meta().gid, file.meta().mode), (30, 0o755), "no longer privileged");
    world.view().set_mode(&*file, 0o2755).unwrap();
    assert_eq!(file.meta().mode, 0o2755);
    as_user(&mut world, 10, 10, &[]);
    world.view().set_mode(&*file, 0o2755).unwrap();
    assert_eq!(file.meta().mode, 0o755, "not in the file's group");
    world.view().may_truncate(&*file).and_then(|()| file.truncate(100)).unwrap();
    assert_eq!(file.meta().size, 100);
    let time = Time { seconds: -5, nanoseconds: 7 };
    world.view().set_times(&*file, None, Some(time), false).unwrap();
    assert_eq!((file.meta().modified, file.meta().statx().stx_mtime.tv_sec), (time, -5));
    assert_eq!(world.view().may_truncate(&*world.root), Err(Errno::EISDIR));
}

#[test]
fn devices_fifos_and_magic_links_open_other_files() {
    use crate::fs::{device, pseudo, text};
    let world = World::new();
    let node = |path: &str, kind, special| world.view().make(path.as_bytes(), kind, 0o666, special, &[]).unwrap();
    node("/null", Kind::Char, device::number::NULL);
    assert_eq!(world.open("null", O_RDWR).err(), Some(Errno::ENXIO), "no driver yet");
    world.names.add_device(device::number::NULL, Arc::new(device::Null)).unwrap();
    assert_eq!(world.read("null").unwrap(), "");
    assert_eq!(block_on(world.open("null", O_WRONLY | O_TRUNC).unwrap().write(&mut &b"x"[..], &NeverWaits)), Ok(1));

    node("/fifo", Kind::Fifo, Device::default());
    assert_eq!(world.open("fifo", O_WRONLY | O_NONBLOCK).err(), Some(Errno::ENXIO));
    let both = world.open("fifo", O_RDWR).unwrap();
    block_on(both.wait_until_connected());
    assert_eq!(block_on(both.write(&mut &b"hello"[..], &NeverWaits)), Ok(5));
    assert_eq!(world.read("fifo").unwrap(), "hello");

    // A magic link as `/proc/self/fd/3`, to a file without a name.
    world.write("/lost", "still there");
    let lost = world.view().get(b"lost", false).unwrap();
    world.view().remove(b"lost", false).unwrap();
    let system = text::PseudoFs { device: Device { major: 0, minor: 9 }, magic: 0, owner: None, number: None };
    let directory = pseudo::PseudoDirectory::new(system, None, None);
    let to = lost.clone();
    let link = text::Link::new(
        system,
        std::boxed::Box::new(|| Ok(b"/lost (deleted)".to_vec())),
        Some(std::boxed::Box::new(move || Some(to.clone()))),
    );
    directory.add("3", link).unwrap();
    world.mkdir("/fd").unwrap();
    let on = world.view().get(b"fd", false).unwrap();
    let source = b"proc".as_slice().into();
    world.names.mount(Mount { on, root: directory, kind: "proc", source, read_only: false }).unwrap();
    assert_eq!(world.read("/fd/3").unwrap(), "still there");
    assert_eq!(world.view().get(b"/fd/3", false).unwrap().target().unwrap(), b"/lost (deleted)");
    assert_eq!(world.mkdir("/fd/x"), Err(Errno::EPERM));
}
