//! Losses of power.

use super::fixture::*;
use crate::errno::Errno;
use crate::fs::inode::Inode;
use crate::fs::meta::Kind;
use alloc::sync::Arc;
use linux_raw_sys::general::{FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, O_RDWR};
use oorandom::Rand64;
use std::string::String;
use std::vec::Vec;
use std::{format, fs, vec};

/// Changes the tree at random, and notes the paths that were touched, and as `#` with its number
/// the inode of a file, which may have other paths.
fn change(root: &Arc<dyn Inode>, random: &mut Rand64, touched: &mut Vec<String>) {
    let name = |random: &mut Rand64| format!("{}", random.rand_range(0..24));
    let pick = |random: &mut Rand64, touched: &mut Vec<String>| {
        let own = format!("d{}", random.rand_range(0..3));
        match root.directory().unwrap().find(own.as_bytes()) {
            Ok(directory) if random.rand_range(0..3) > 0 => (directory, format!("/{own}")),
            _ => {
                let _ = make(root, &own, Kind::Directory).map(|_| touched.push(format!("/{own}")));
                (root.clone(), String::new())
            }
        }
    };
    let (directory, prefix) = pick(random, touched);
    let name_of = name(random);
    touched.push(format!("{prefix}/{name_of}"));
    let entries = directory.directory().unwrap();
    if let Ok(file) = entries.find(name_of.as_bytes()) {
        touched.push(format!("#{}", file.meta().inode));
    }
    match random.rand_range(0..10) {
        0..4 => {
            let file = match make(&directory, &name_of, Kind::Regular) {
                Ok(file) => file,
                Err(_) => entries.find(name_of.as_bytes()).unwrap(),
            };
            let (at, len) = (random.rand_range(0..200_000), random.rand_range(1..60_000) as usize);
            let byte = random.rand_range(1..256) as u8;
            let _ = write(&file, at, &vec![byte; len]);
        }
        4 => {
            let _ = entries.find(name_of.as_bytes()).map(|file| file.truncate(random.rand_range(0..100_000)));
        }
        5 => {
            let at = random.rand_range(0..100_000);
            let mode = [PUNCH, ZERO, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE][(at % 4) as usize];
            let bytes = if at % 4 < 2 { at..at + 50_000 } else { at / 4096 * 4096..(at / 4096 + 1 + at % 7) * 4096 };
            let _ = entries
                .find(name_of.as_bytes())
                .and_then(|file| file.open(O_RDWR))
                .and_then(|file| file.allocate(mode, bytes, 0));
        }
        6 | 7 => {
            let _ = entries.remove(name_of.as_bytes(), false);
        }
        8 => {
            let (to, to_prefix) = pick(random, touched);
            let to_name = name(random);
            touched.push(format!("{to_prefix}/{to_name}"));
            let _ = entries.rename(name_of.as_bytes(), &*to, to_name.as_bytes(), 0);
        }
        _ => {
            let (to, to_prefix) = pick(random, touched);
            let to_name = name(random);
            touched.push(format!("{to_prefix}/{to_name}"));
            let found = entries.find(name_of.as_bytes());
            let _ = found.and_then(|file| to.directory().unwrap().link(to_name.as_bytes(), &file));
        }
    }
}

/// After a loss of power at any moment, `e2fsck` and the next mount find an intact file system,
/// with all that was synchronised and not changed since. Of what the disk was told after its last
/// flush, any part may be lost.
#[test]
fn a_loss_of_power_loses_nothing_that_was_synchronised() {
    let points = std::env::var("VELLUM_CRASH_POINTS").ok().and_then(|points| points.parse().ok()).unwrap_or(30);
    let mut random = Rand64::new(std::env::var("VELLUM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1));
    for (block, points) in [("4096", points), ("1024", points / 3)] {
        let name = format!("power-{block}");
        let start = image(&name, &["-b", block, "-J", "size=4"]);
        let device = Recorder::new(start.clone());
        let (mounted, root) = Mounted::mount(&device).unwrap();
        let above: Arc<dyn Inode> = root.clone();
        // The tree at each synchronisation, with the position in the log.
        let mut synced = vec![(0, everything(&root))];
        let mut touched: Vec<(usize, String)> = vec![];
        let position = || device.0.lock().unwrap().log.len();
        for _ in 0..40 * points {
            let (before, mut paths) = (position(), vec![]);
            change(&above, &mut random, &mut paths);
            touched.extend(paths.into_iter().map(|path| (before, path)));
            if random.rand_range(0..20) == 0 {
                match mounted.sync(&root) {
                    Ok(()) => synced.push((position(), everything(&root))),
                    Err(error) => assert_eq!(error, Errno::ENOSPC),
                }
            }
        }
        let log = device.0.lock().unwrap().log.clone();
        drop((above, root, mounted));
        for point in 0..points {
            let cut = random.rand_range(synced[0].0 as u64..log.len() as u64) as usize;
            let mut bytes = start.clone();
            let flushed = log[..cut].iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
            for (index, event) in log[..cut].iter().enumerate() {
                if let Event::Write(at, written) = event
                    && (index < flushed || random.rand_range(0..2) == 0)
                {
                    bytes[*at..*at + written.len()].copy_from_slice(written);
                }
            }
            check(&name, &bytes, true);
            fs::write("/tmp/crash.img", &bytes).unwrap();
            let device = Recorder::new(bytes);
            let (mounted, root) = Mounted::mount(&device).unwrap();
            let (at, expected) = synced.iter().rfind(|(at, _)| *at <= cut).unwrap();
            let found = everything(&root);
            let lost = expected.iter().filter(|(path, entry)| {
                let changed = |path: &str| {
                    touched.iter().any(|(when, other)| {
                        when >= at && *when <= cut && (other == path || path.starts_with(&format!("{other}/")))
                    })
                };
                !changed(path) && !changed(&format!("#{}", entry.3)) && found.get(*path) != Some(entry)
            });
            let lost: Vec<_> = lost.map(|(path, _)| path).collect();
            assert!(lost.is_empty(), "point {point}, cut at {cut} of {}: {lost:?}", log.len());
            mounted.unmount(root);
            check(&name, &device.bytes(), false);
        }
    }
}
