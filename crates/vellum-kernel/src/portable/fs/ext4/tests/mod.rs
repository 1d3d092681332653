//! Tests on images that Linux's `mke2fs` made, checked by Linux's `e2fsck`.

use super::BlockDevice;
use super::contents::Place;
use crate::errno::Errno;
use crate::fs::inode::{Inode, NewInode};
use crate::fs::meta::{Device, Kind};
use crate::fs::tree::disk::Disk;
use alloc::sync::{Arc, Weak};
use linux_raw_sys::general::{
    FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_KEEP_SIZE, O_RDWR, RENAME_EXCHANGE,
};
use oorandom::Rand64;
use std::string::ToString;
use std::vec::Vec;
use std::{format, vec};

mod fixture;
mod power;

use fixture::*;

/// Names, attributes and contents of all kinds are there after an unmount and a mount, for Linux
/// too, whatever the size of blocks.
#[test]
fn all_that_a_tree_has_survives_an_unmount() {
    for block in ["1024", "4096"] {
        let name = format!("survives-{block}");
        let device = Recorder::new(image(&name, &["-b", block]));
        let (mounted, root) = Mounted::mount(&device).unwrap();
        let above: Arc<dyn Inode> = root.clone();
        for kind in [Kind::Regular, Kind::Link, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block] {
            make(&above, &format!("{kind:?}"), kind).unwrap();
        }
        let inner = make(&above, "inner", Kind::Directory).unwrap();
        let file = make(&inner, "file", Kind::Regular).unwrap();
        write(&file, 3000, &[1; 10_000]).unwrap();
        write(&file, 100_000, b"behind a hole").unwrap();
        inner.directory().unwrap().link(b"other", &file).unwrap();
        assert_eq!(make(&inner, "file", Kind::Regular).err(), Some(Errno::EEXIST));
        assert_eq!(above.directory().unwrap().remove(b"inner", true), Err(Errno::ENOTEMPTY));
        let to = above.directory().unwrap();
        to.rename(b"Fifo", &*inner, b"pipe", 0).unwrap();
        to.rename(b"Regular", &*inner, b"other", RENAME_EXCHANGE).unwrap();
        let before = everything(&root);
        assert_eq!(before["/Regular"].4[3000..13_000], [1; 10_000]);
        drop((above, inner, file));
        mounted.unmount(root);
        drop(mounted);
        check(&name, &device.bytes(), false);
        let (mounted, root) = Mounted::mount(&device).unwrap();
        assert_eq!(everything(&root), before);
        let [a, b] =
            [b"Char", b"Sock"].map(|name| root.clone().directory().unwrap().find(name).map(|node| node.meta()));
        assert_eq!((a.unwrap().special, b.err()), (Device { major: 1, minor: 3 }, Some(Errno::ENOENT)));
        mounted.unmount(root);
        check(&name, &device.bytes(), false);
    }
}

/// A directory has the size that it has on the disk, whatever was read of it, and grows there.
#[test]
fn the_size_of_a_directory_is_the_disks() {
    let device = Recorder::new(image("directory-size", &["-b", "1024"]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let above: Arc<dyn Inode> = root.clone();
    let inner = make(&above, "inner", Kind::Directory).unwrap();
    assert_eq!(inner.meta().size, 1024);
    for n in 0..100 {
        make(&inner, &format!("an entry of some length {n}"), Kind::Fifo).unwrap();
    }
    let grown = inner.meta().size;
    assert!(grown >= 4096 && grown.is_multiple_of(1024), "{grown}");
    drop((above, inner));
    mounted.unmount(root);
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let inner = root.directory().unwrap().find(b"inner").unwrap();
    assert_eq!(inner.meta().size, grown);
    inner.directory().unwrap().find(b"an entry of some length 7").unwrap();
    assert_eq!(inner.meta().size, grown, "after its entries were read");
    drop(inner);
    mounted.unmount(root);
}

/// Bytes of a file are written in any order, in the middle of what is there too, and read back
/// where they are.
#[test]
fn contents_are_written_in_any_order() {
    let device = Recorder::new(image("order", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let file = make(&(root.clone() as Arc<dyn Inode>), "file", Kind::Regular).unwrap();
    let cached = mounted.files.lock().unwrap().values().find_map(Weak::upgrade).unwrap();
    let contents = &cached.contents;
    let read_all = || {
        let mut found = vec![];
        let reached = contents.read(0..40 * 4096, &mut |place, part| {
            let mut bytes = vec![0; (part.end - part.start) as usize];
            if let Place::At(at) = place {
                assert!(device.read(at, &mut bytes));
            }
            found.append(&mut bytes);
            part.end
        });
        assert_eq!(reached, 40 * 4096);
        found
    };
    let mut expected = vec![0; 40 * 4096];
    for (round, pages) in [(1, 0..20), (2, 5..9), (3, 30..40), (4, 18..32), (5, 0..1), (6, 0..40), (7, 7..8)] {
        let bytes = pages.start * 4096..pages.end * 4096;
        expected[bytes.start as usize..bytes.end as usize].fill(round);
        let written = contents.write(bytes.clone(), &mut |to, part| {
            assert!(device.write(to, &vec![round; (part.end - part.start) as usize]));
            part.end
        });
        assert_eq!(written, Ok(bytes.end));
        assert_eq!(read_all(), expected, "round {round}");
        assert!(contents.used() >= 20 * 4096);
    }
    drop((cached, file));
    mounted.unmount(root);
    check("order", &device.bytes(), false);
}

/// If the device fails in the middle of a write, the file has the blocks before the failure, and
/// zeros in the others: not the bytes that the device had there.
#[test]
fn a_write_that_fails_leaves_whole_blocks() {
    let device = Recorder::new(image("fails", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let file = make(&(root.clone() as Arc<dyn Inode>), "file", Kind::Regular).unwrap();
    let cached = mounted.files.lock().unwrap().values().find_map(Weak::upgrade).unwrap();
    let written = cached.contents.write(0..8 * 4096, &mut |to, part| {
        assert!(device.write(to, &[7; 8 * 4096]), "the bytes behind the failure may get there too");
        part.start + 3 * 4096 + 512
    });
    assert_eq!((written, mounted.fs.inode(file.meta().inode, None).unwrap().size), (Ok(3 * 4096), 3 * 4096));
    let mut places = vec![];
    cached.contents.read(0..8 * 4096, &mut |place, part| {
        places.push((place == Place::Hole, part.clone()));
        part.end
    });
    assert_eq!(places, [(false, 0..3 * 4096), (true, 3 * 4096..8 * 4096)]);
    drop((cached, file));
    mounted.unmount(root);
    check("fails", &device.bytes(), false);
}

/// Nothing but the page cache writes the bytes of a file: a change of its size leaves the block
/// with the end alone, which the page cache may be writing.
#[test]
fn a_change_of_the_size_writes_no_bytes_of_the_file() {
    let device = Recorder::new(image("sized", &["-b", "4096"]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let file = make(&(root.clone() as Arc<dyn Inode>), "file", Kind::Regular).unwrap();
    let cached = mounted.files.lock().unwrap().values().find_map(Weak::upgrade).unwrap();
    let mut block = 0;
    let written = cached.contents.write(0..100, &mut |to, part| {
        block = to;
        if device.write(to, &[7; 4096]) { part.end } else { part.start }
    });
    assert_eq!(written, Ok(4096));
    mounted.fs.sync().unwrap();
    for size in [5000, 50, 9000, 4097] {
        cached.contents.set_size(size).unwrap();
        mounted.fs.sync().unwrap();
    }
    let log = device.0.lock().unwrap().log.clone();
    let to_block = log.iter().filter(|event| matches!(event, Event::Write(at, _) if *at as u64 == block));
    assert_eq!(to_block.count(), 1);
    drop((cached, file));
    mounted.unmount(root);
    check("sized", &device.bytes(), false);
}

/// An image with blocks larger than a page, and one without a file system, are refused.
#[test]
fn what_can_not_be_mounted_is_refused() {
    let refusal = |bytes| Mounted::mount(&Recorder::new(bytes)).err();
    assert_eq!(refusal(vec![0; SIZE << 20]), Some(Errno::EINVAL));
    assert!(refusal(image("large", &["-b", "8192", "-O", "^has_journal"])).is_some());
}

/// A file that is open when its last name goes keeps its contents, and its blocks are free after
/// its last use.
#[test]
fn a_file_without_a_name_lives_until_its_last_use() {
    let device = Recorder::new(image("unnamed", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let above: Arc<dyn Inode> = root.clone();
    let free = mounted.fs.space();
    let file = make(&above, "file", Kind::Regular).unwrap();
    write(&file, 0, &[5; 300_000]).unwrap();
    mounted.sync(&root).unwrap();
    above.directory().unwrap().remove(b"file", false).unwrap();
    assert_eq!(read(&file), [5; 300_000]);
    assert!(mounted.fs.space().free_pages < free.free_pages);
    drop(file);
    assert_eq!(mounted.fs.space().free_pages, free.free_pages);
    assert_eq!(mounted.fs.space().free_inodes, free.free_inodes);
    drop(above);
    mounted.unmount(root);
    check("unnamed", &device.bytes(), false);
}

/// Whatever number a device has, its inode has no blocks, and a block with that number stays with
/// the file that has it.
#[test]
fn a_device_owns_no_blocks() {
    let device = Recorder::new(image("devices", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let above: Arc<dyn Inode> = root.clone();
    let directory = above.directory().unwrap();
    let file = make(&above, "file", Kind::Regular).unwrap();
    write(&file, 0, &[5; 300_000]).unwrap();
    mounted.sync(&root).unwrap();
    let free = mounted.fs.space();
    for kind in [Kind::Char, Kind::Block, Kind::Fifo, Kind::Socket] {
        for major in 0..40 {
            let special = Device { major, minor: 3 };
            directory.make(b"special", &NewInode { special, ..new(kind, b"") }).unwrap();
            directory.remove(b"special", false).unwrap();
        }
    }
    mounted.sync(&root).unwrap();
    let left = mounted.fs.space();
    assert_eq!((left.free_pages, left.free_inodes), (free.free_pages, free.free_inodes));
    drop((file, above));
    mounted.unmount(root);
    check("devices", &device.bytes(), false);
}

/// Of many files that lost their names while they were open, each is freed with its last use, in
/// any order, and the next mount frees those that were in use when the power was lost.
#[test]
fn files_without_a_name_are_freed_in_any_order() {
    let device = Recorder::new(image("nameless", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let (above, free): (Arc<dyn Inode>, _) = (root.clone(), mounted.fs.space());
    let name = |nth| format!("file {nth}");
    let mut files: Vec<_> = (0..60).map(|nth| make(&above, &name(nth), Kind::Regular).unwrap()).collect();
    for (nth, file) in files.iter().enumerate() {
        write(file, 0, &[nth as u8; 5000]).unwrap();
    }
    mounted.sync(&root).unwrap();
    let mut random = Rand64::new(1);
    for nth in 0..files.len() {
        above.directory().unwrap().remove(name(nth).as_bytes(), false).unwrap();
        if nth % 3 == 2 {
            let doomed = random.rand_range(0..(nth - nth / 3) as u64) as usize;
            drop(files.remove(doomed));
            files.insert(0, make(&above, "another", Kind::Regular).unwrap());
            above.directory().unwrap().remove(b"another", false).unwrap();
        }
    }
    while files.len() > 20 {
        files.swap_remove(random.rand_range(0..files.len() as u64) as usize);
    }
    mounted.sync(&root).unwrap();
    let survivor = Recorder::new(device.bytes());
    let (again, root) = Mounted::mount(&survivor).unwrap();
    assert_eq!((again.fs.space().free_pages, again.fs.space().free_inodes), (free.free_pages, free.free_inodes));
    again.unmount(root);
    check("nameless", &survivor.bytes(), false);
}

/// Zeros take the place of a range's contents, which keeps its blocks, and a file grows to its end
/// unless it is to keep its size.
#[test]
fn a_range_of_zeros_keeps_its_blocks() {
    let device = Recorder::new(image("zeros", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let above: Arc<dyn Inode> = root.clone();
    let file = make(&above, "f", Kind::Regular).unwrap();
    write(&file, 0, &[9; 100_000]).unwrap();
    let blocks = || file.meta().used;
    mounted.sync(&root).unwrap();
    let before = blocks();
    let open = file.clone().open(O_RDWR).unwrap();
    open.allocate(ZERO, 10_000..50_000, 0).unwrap();
    let mut expected = vec![9; 100_000];
    expected[10_000..50_000].fill(0);
    assert_eq!((read(&file), blocks()), (expected.clone(), before));
    open.allocate(ZERO, 90_000..200_000, 0).unwrap();
    expected[90_000..].fill(0);
    assert_eq!((read(&file), file.meta().size), (expected.clone(), 100_000));
    assert!(blocks() > before, "what lies behind the end has blocks, too");
    open.allocate(ZERO & !FALLOC_FL_KEEP_SIZE, 150_000..200_000, 0).unwrap();
    expected.resize(200_000, 0);
    mounted.sync(&root).unwrap();
    assert_eq!(read(&file), expected);
    drop((open, file, above));
    mounted.unmount(root);
    check("zeros", &device.bytes(), false);
}

/// Bytes move in a file of many extents as in a vector, and Linux finds them there.
#[test]
fn bytes_move_as_in_a_vector() {
    for block in [1024u64, 4096] {
        let name = format!("moves-{block}");
        let device = Recorder::new(image(&name, &["-b", &block.to_string()]));
        let (mounted, root) = Mounted::mount(&device).unwrap();
        let above: Arc<dyn Inode> = root.clone();
        let file = make(&above, "f", Kind::Regular).unwrap();
        let open = file.clone().open(O_RDWR).unwrap();
        let (mut random, mut model) = (Rand64::new(block.into()), Vec::<u8>::new());
        // Every other block is a hole, so that the extents fill several nodes.
        for number in 0..400 {
            model.resize((number * 2 * block) as usize, 0);
            model.resize(model.len() + block as usize, number as u8 | 1);
            write(&file, number * 2 * block, &model[model.len() - block as usize..]).unwrap();
        }
        mounted.sync(&root).unwrap();
        for step in 0..120 {
            let blocks = model.len() as u64 / block;
            let (at, count) = (random.rand_range(0..blocks), random.rand_range(1..20));
            let (bytes, vector) = (at * block..(at + count) * block, (at * block) as usize);
            let len = (count * block) as usize;
            if step % 2 == 0 {
                open.allocate(FALLOC_FL_INSERT_RANGE, bytes, 0).unwrap();
                model.splice(vector..vector, vec![0; len]);
            } else if vector + len < model.len() {
                open.allocate(FALLOC_FL_COLLAPSE_RANGE, bytes, 0).unwrap();
                model.drain(vector..vector + len);
            } else {
                assert_eq!(open.allocate(FALLOC_FL_COLLAPSE_RANGE, bytes, 0), Err(Errno::EINVAL));
            }
            assert_eq!(file.meta().size, model.len() as u64);
            if step % 10 == 0 {
                write(&file, vector as u64 + 7, &[step as u8 | 1; 5000]).unwrap();
                let end = vector + 7 + 5000;
                model.resize(model.len().max(end), 0);
                model[vector + 7..end].fill(step as u8 | 1);
            }
            assert!(read(&file) == model, "step {step}");
        }
        for mode in [FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE] {
            assert_eq!(open.allocate(mode | FALLOC_FL_KEEP_SIZE, 0..block, 0), Err(Errno::EOPNOTSUPP));
        }
        let end = (model.len() as u64).next_multiple_of(block);
        assert_eq!(open.allocate(FALLOC_FL_INSERT_RANGE, end..end + block, 0), Err(Errno::EINVAL));
        drop((open, file, above));
        mounted.unmount(root);
        drop(mounted);
        check(&name, &device.bytes(), false);
        let (mounted, root) = Mounted::mount(&device).unwrap();
        let file = root.clone().directory().unwrap().find(b"f").unwrap();
        assert!(read(&file) == model);
        drop(file);
        mounted.unmount(root);
        check(&name, &device.bytes(), false);
    }
}

/// A full disk refuses, loses nothing that it has, and has room again once files are removed.
#[test]
fn a_full_disk_refuses_and_recovers() {
    let device = Recorder::new(image("full", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let above: Arc<dyn Inode> = root.clone();
    let kept = make(&above, "kept", Kind::Regular).unwrap();
    write(&kept, 0, &[9; 100_000]).unwrap();
    mounted.sync(&root).unwrap();
    for round in 0..3 {
        let mut count = 0;
        let error = loop {
            let filled = make(&above, &format!("{count}"), Kind::Regular).and_then(|file| {
                count += 1;
                file.open(O_RDWR)?.allocate(0, 0..1 << 20, 0)
            });
            if let Err(error) = filled {
                break error;
            }
        };
        assert_eq!(error, Errno::ENOSPC, "round {round}");
        assert!(count > 8, "round {round}: {count} files");
        for number in 0..count {
            above.directory().unwrap().remove(format!("{number}").as_bytes(), false).unwrap();
        }
        assert_eq!(read(&kept), [9; 100_000]);
    }
    drop((above, kept));
    mounted.unmount(root);
    check("full", &device.bytes(), false);
}
