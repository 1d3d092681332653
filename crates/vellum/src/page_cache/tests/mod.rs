//! Compares page-cache objects with plain maps, on a machine without an MMU. Tests that need one
//! run on the strict simulated machine.

use std::collections::BTreeMap;
use std::vec::Vec;

use core::ops::Range;

use super::*;
use crate::arch::X86_64;
use crate::frame::BootOptions;
use crate::frame::policy::ShmemKnob;
use crate::platform::SpaceId;
use crate::stats::Counter;
use crate::testing::{Dice, Host};
use crate::vma::Sharing;

const ARCH: fn() -> X86_64 = X86_64::four_levels;

fn boot(host: &Host) -> Machine<'_, Host> {
    Machine::boot(host, BootOptions::default()).unwrap()
}

/// The last page of the largest object.
const LAST: u64 = (MAX_SIZE - 1) >> FRAME_SHIFT;

/// Pages are found where they were inserted, in order, with no page in between: pages far apart and
/// side by side, at both ends of the largest object, and where the index needs another level. After
/// their removal all memory is free, index nodes included.
#[test]
fn pages_are_found_at_the_index_where_they_were_inserted() {
    let host = Host::with_frames(6_000, 2);
    let machine = boot(&host);
    let free = machine.frames().free_frames();
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let object = Object::new(&machine, &ARCH(), MemcgId::ROOT, 0, 0).unwrap();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 0..400 {
            host.on_cpu(dice.roll(2) as usize);
            let around = [0, 511, 512, 1 << 18, (1 << 27) - 2, 1 << 36, 1 << 45, LAST - 4][dice.roll(8) as usize];
            let page = around + dice.roll(4);
            match dice.roll(6) {
                0..=2 => {
                    let page_ref = object.page_or_new(page, MemcgId::ROOT).unwrap();
                    let mut contents = [0; 8];
                    page_ref.read(0, &mut contents);
                    assert_eq!(u64::from_ne_bytes(contents), model.get(&page).copied().unwrap_or(0));
                    model.insert(page, step + 1);
                    page_ref.write(0, &model[&page].to_ne_bytes());
                }
                3 => {
                    let end = page + dice.roll(3);
                    let removed = object.punch_hole(page << FRAME_SHIFT..(end + 1) << FRAME_SHIFT).unwrap();
                    assert_eq!(
                        (removed.first, removed.end),
                        (page, (end + 1).min(LAST)),
                        "the last page is cut by the largest size"
                    );
                    model.retain(|at, _| !(page..=end).contains(at));
                }
                4 if dice.roll(10) == 0 => {
                    let removed = object.set_size(page << FRAME_SHIFT).unwrap();
                    // Pages that were preallocated beyond the object's end are removed only when
                    // the object is made smaller.
                    model.retain(|at, _| *at < removed.first || removed.is_empty());
                }
                _ => {
                    let mut word = [0; 8];
                    let found = object.page(page).unwrap().map(|page_ref| page_ref.read(0, &mut word));
                    assert_eq!(found.is_some().then(|| u64::from_ne_bytes(word)), model.get(&page).copied(), "{page}");
                }
            }
            assert_eq!(object.resident(), model.len() as u64);
            assert_eq!(object.next_data(page), model.range(page..).next().map(|(at, _)| *at));
            assert_eq!(Some(object.next_hole(page)), (page..).find(|at| !model.contains_key(at)));
        }
        assert_eq!(machine.counter(Counter::ShmemPages), model.len() as u64);
        drop(object);
        assert_eq!(machine.frames().free_frames(), free, "seed {seed}");
    }
    assert_eq!(machine.memcgs().usage(machine.frames(), MemcgId::ROOT).unwrap().charged, 0);
}

/// Whole pages, and the parts of pages at both ends of a hole, read as zeros; all other bytes are
/// unchanged.
#[test]
fn punched_holes_and_truncated_ranges_read_as_zeros() {
    let host = Host::with_frames(2_000, 1);
    let machine = boot(&host);
    let mut dice = Dice(9);
    const PAGES: usize = 4;
    for _ in 0..300 {
        let object = Object::new(&machine, &ARCH(), MemcgId::ROOT, 0, (PAGES as u64) << FRAME_SHIFT).unwrap();
        let mut model: Vec<u8> = (0..PAGES << FRAME_SHIFT).map(|i| i as u8 | 1).collect();
        for page in 0..PAGES {
            let page_ref = object.page_or_new(page as u64, MemcgId::ROOT).unwrap();
            assert_eq!(page_ref.write(0, &model[page << FRAME_SHIFT..]), page_ref.len());
        }
        let (start, end) = (dice.roll(model.len() as u64), dice.roll(model.len() as u64 + 5000));
        let shrink = dice.roll(3) == 0;
        let removed = if shrink {
            model[start as usize..].fill(0);
            object.set_size(start).unwrap()
        } else {
            let end = end.min(model.len() as u64);
            if start < end {
                model[start as usize..end as usize].fill(0);
            }
            object.punch_hole(start..end).unwrap()
        };
        assert_eq!(removed.even_cows, shrink);
        for page in 0..PAGES as u64 {
            let mut bytes = [0; 4096];
            let page_ref = object.page(page).unwrap();
            assert_eq!(page_ref.is_none(), (removed.first..removed.end).contains(&page), "{removed:?}, {start}..{end}");
            if let Some(page_ref) = page_ref {
                // Read in parts of odd lengths, so that words and single bytes are both used.
                let half = dice.roll(4096) as usize;
                assert_eq!(page_ref.read(half, &mut bytes[half..]), 4096 - half);
                assert_eq!(page_ref.read(0, &mut bytes[..half]), half);
            }
            let at = (page as usize) << FRAME_SHIFT;
            assert!(bytes == model[at..at + 4096], "page {page}");
        }
    }
}

/// A page with a reference outlives its object, and all other memory of the object is freed.
#[test]
fn a_referenced_page_outlives_its_object() {
    let host = Host::with_frames(2_000, 1);
    let machine = boot(&host);
    let free = machine.frames().free_frames();
    let object = Object::new(&machine, &ARCH(), MemcgId::ROOT, 0, 0).unwrap();
    let other = object.clone();
    let page_ref = object.page_or_new(3, MemcgId::ROOT).unwrap();
    page_ref.write(40, b"still here");
    assert!(object == other);
    drop(object);
    assert!(other.has_page(3));
    drop(other);
    let mut word = [0; 10];
    page_ref.read(40, &mut word);
    assert_eq!(&word, b"still here");
    assert_eq!(machine.frames().free_frames(), free - 1);
    drop(page_ref);
    assert_eq!(machine.frames().free_frames(), free);
}

/// A memcg at its limit gets no more pages, and a failed insertion frees what it had allocated.
/// Pages are charged to the memcg that the caller names, index nodes to the object's memcg.
#[test]
fn pages_are_charged_to_the_caller_and_nodes_to_the_object() {
    let host = Host::with_frames(3_000, 1);
    let machine = boot(&host);
    let frames = machine.frames();
    let free = frames.free_frames();
    let [object_memcg, user_memcg] =
        [4, 10].map(|limit| machine.memcgs().create(frames, MemcgId::ROOT, limit).unwrap());
    let charged = |memcg| machine.memcgs().usage(frames, memcg).unwrap().charged;
    let before = frames.free_frames();
    let object = Object::new(&machine, &ARCH(), object_memcg, 0, 0).unwrap();
    // The object's memcg is charged for the object's head and three levels of nodes.
    assert!(object.page_or_new(1 << 18, user_memcg).is_ok());
    assert_eq!((charged(object_memcg), charged(user_memcg)), (4, 1));
    // The object's memcg has no room for another node.
    assert_eq!(object.page_or_new(5, user_memcg).err(), Some(ObjectError::NoMemory(Refused::OverLimit(object_memcg))));
    assert_eq!(
        object.allocate(1 << 30..(1 << 30) + 20 * 4096, user_memcg),
        Err(ObjectError::NoMemory(Refused::OverLimit(user_memcg)))
    );
    assert_eq!((charged(object_memcg), charged(user_memcg), object.resident()), (4, 10, 10));
    assert_eq!(object.page_or_new(LAST + 1, user_memcg).err(), Some(ObjectError::TooLarge));
    drop(object);
    assert_eq!((charged(object_memcg), charged(user_memcg)), (0, 0));
    assert_eq!(frames.free_frames(), before);
    assert!(before <= free);
}

/// A writable shared VMA keeps shared writes from being denied, and a denial keeps such VMAs from
/// being created.
#[test]
fn writable_shared_mappings_and_write_seals_exclude_each_other() {
    let host = Host::with_frames(2_000, 1);
    let machine = boot(&host);
    let object = Object::new(&machine, &ARCH(), MemcgId::ROOT, 0, 0).unwrap();
    assert!(object.map_writable());
    let space = SpaceId(1);
    let backing = object.new_backing(Sharing::Shared, space, MemcgId::ROOT).unwrap();
    get_backing(&machine, &backing, space);
    let mut orphans = Orphans::default();
    for _ in 0..2 {
        assert_eq!(object.deny_shared_write(), Err(ObjectError::Busy));
        put_backing(&machine, &backing, space, &mut orphans);
    }
    assert_eq!(object.deny_shared_write(), Ok(()));
    assert_eq!(object.deny_shared_write(), Ok(()), "denying shared writes again is no error");
    assert!(!object.map_writable());
    orphans.free(&machine);
}

/// Preallocation inserts the largest folios that fit in, where no page exists and policy permits;
/// pages are removed one by one, and a folio's memory is freed with its last page.
#[test]
fn large_folios_are_inserted_whole_and_removed_page_by_page() {
    let host = Host::with_frames(4_000, 1);
    let machine = boot(&host);
    let frames = machine.frames();
    let free = frames.free_frames();
    let object = Object::new(&machine, &ARCH(), MemcgId::ROOT, 0, 0).unwrap();
    let bytes = |pages: Range<u64>| pages.start << FRAME_SHIFT..pages.end << FRAME_SHIFT;
    let order = |page: u64| frames.head(object.page(page).unwrap().unwrap().pfn()).1.order();
    drop(object.page_or_new(40, MemcgId::ROOT).unwrap());
    object.allocate(bytes(3..70), MemcgId::ROOT).unwrap();
    let orders: Vec<u8> = (3..70).map(order).collect();
    let expected = |page: u64| if matches!(page, 16..32 | 48..64) { 4 } else { 0 };
    assert_eq!(orders, (3..70).map(expected).collect::<Vec<u8>>());
    assert_eq!(object.resident(), 67);
    let folio = object.page(16).unwrap().unwrap().pfn();
    for page in 16..32 {
        assert_eq!(object.page(page).unwrap().unwrap().pfn(), folio.add(page as u32 - 16));
    }
    // A fault inserts a folio that policy permits within the object and the window, and nothing
    // beyond the object's end.
    [3, 5].into_iter().for_each(|order| machine.policy().shmem().set(order, ShmemKnob::WithinSize));
    let _ = object.set_size((100 << FRAME_SHIFT) + 1).unwrap();
    let mapped = |page: u64| {
        object.pages_to_map(page, (0..1000, page..page + 1), Hints::default(), MemcgId::ROOT, true).unwrap().unwrap()
    };
    for (page, first, pages) in [(85, 80, 8), (77, 72, 8), (100, 100, 1), (99, 96, 4)] {
        let mapped = mapped(page);
        let fits = if (96..104).contains(&page) { (page, 1) } else { (first, pages) };
        assert_eq!((mapped.first, mapped.count()), fits, "page {page}");
        mapped.put_back(&object);
    }
    // Removes a part of a folio, and then the rest of the folio.
    let before = frames.free_frames();
    assert!(!object.punch_hole(bytes(16..31)).unwrap().is_empty());
    assert_eq!((frames.free_frames(), object.has_page(30), object.has_page(31)), (before, false, true));
    assert!(!object.punch_hole(bytes(31..32)).unwrap().is_empty());
    assert_eq!(frames.free_frames(), before + 16);
    drop(object);
    assert_eq!(frames.free_frames(), free);
}

/// For a memcg without room for a large folio, a smaller folio is inserted; a memcg at its limit is
/// an error.
#[test]
fn smaller_folios_are_used_near_a_memcg_limit() {
    let host = Host::with_frames(4_000, 1);
    let machine = boot(&host);
    let frames = machine.frames();
    let memcg = machine.memcgs().create(frames, MemcgId::ROOT, 20).unwrap();
    let object = Object::new(&machine, &ARCH(), MemcgId::ROOT, 0, 0).unwrap();
    let all = 0..32u64 << FRAME_SHIFT;
    assert_eq!(object.allocate(all, memcg), Err(ObjectError::NoMemory(Refused::OverLimit(memcg))));
    assert_eq!(object.resident(), 20);
    let orders: Vec<u8> =
        (0..20).map(|page| frames.head(object.page(page).unwrap().unwrap().pfn()).1.order()).collect();
    assert_eq!(orders, [[4; 16].as_slice(), &[0; 4]].concat());
}

/// The spaces that map an object are found in ascending order of their numbers, in whatever order
/// they are added and removed. Few spaces need few list frames, even if the object had many spaces
/// before.
#[test]
fn mappers_are_found_in_ascending_order_of_space_numbers() {
    let host = Host::with_frames(2_000, 1);
    let machine = boot(&host);
    let frames = machine.frames();
    let object = Object::new(&machine, &ARCH(), MemcgId::ROOT, 0, 0).unwrap();
    let free = frames.free_frames();
    let backing = Backing { object: object.at, sharing: Sharing::Private, delta: 0, tag: 0 };
    let mut orphans = Orphans::default();
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let check = |model: &BTreeMap<u64, u64>, from: u64| {
        let found = object.next_mapper(SpaceId(from)).map(|space| space.0);
        assert_eq!(found, model.range(from..).next().map(|(space, _)| *space), "from {from}");
    };
    for seed in 0..20 {
        let mut dice = Dice(seed);
        // Spaces are added in ascending order, as the children of a server are, or in any order.
        let (spaces, ordered) = ([10, 300, 3_000][dice.roll(3) as usize], dice.roll(2) == 0);
        for step in 0..6_000 {
            let space = 1 + if ordered { step % spaces } else { dice.roll(spaces) };
            if dice.roll(5) < if step < 3_000 { 4 } else { 1 } {
                get_backing_in(&machine, &backing, SpaceId(space), MemcgId::ROOT).unwrap();
                *model.entry(space).or_default() += 1;
            } else if let Some(vmas) = model.get_mut(&space) {
                put_backing(&machine, &backing, SpaceId(space), &mut orphans);
                *vmas -= 1;
                if *vmas == 0 {
                    model.remove(&space);
                }
            }
            check(&model, dice.roll(spaces + 2));
            // Two neighbouring list frames together are more than half full. So there are at most
            // two list frames for each half-frame of mappers, and one at each end.
            let list_frames = 2 + 2 * model.len() as u64 / (mappers::CAPACITY as u64 / 2);
            let taken = free - frames.free_frames();
            assert!(taken < list_frames, "{taken} list frames for {} spaces", model.len());
        }
        let mut from = 0;
        for (space, vmas) in core::mem::take(&mut model) {
            let found = object.next_mapper(SpaceId(from));
            assert_eq!(found, Some(SpaceId(space)));
            (0..vmas).for_each(|_| put_backing(&machine, &backing, SpaceId(space), &mut orphans));
            from = space + 1;
        }
        assert_eq!(object.next_mapper(SpaceId(0)), None);
        assert_eq!(frames.free_frames(), free);
    }
    orphans.free(&machine);
}
