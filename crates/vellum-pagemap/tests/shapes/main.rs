//! Surveys address spaces of known shapes, each in a process of its own.

mod machine;
mod shape;

use std::process::Command;
use std::time::Duration;

use machine::{Pool, SwapFile};
use shape::{Shape, most_vmas};
use vellum_pagemap::{
    Categories, Detection, Kernel, Options, Pace, Pagemap, Query, Region, Survey, SurveyError, Target, Unreadable,
    Visitor, Vma, survey,
};

const PAGE: u64 = 4096;
const TABLE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
/// Far from anything that the system maps by itself, and at the start of a page table of every
/// level.
const PLACE: u64 = 8 << 40;

/// The pages and page tables found in the shape.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    resident: u64,
    used: u64,
    empty: u64,
}

fn found(survey: &Survey) -> Found {
    let there = survey.vmas.iter().filter(|one| (PLACE..PLACE + 100 * GIB).contains(&one.vma.start));
    there.fold(Found::default(), |sum, one| Found {
        resident: sum.resident + one.resident / PAGE,
        used: sum.used + one.used,
        empty: sum.empty + one.empty,
    })
}

/// Asserts that all page tables that Linux counts are accounted for.
fn assert_all_tables_are_accounted_for(survey: &Survey) {
    assert!(!survey.changed());
    let tables = &survey.tables;
    assert_eq!(
        survey.empty(),
        (tables.empty.unwrap() + tables.leading_nowhere().unwrap()) as i64,
        "{:?} of {:?}",
        tables,
        survey.after
    );
}

#[test]
fn reserved_memory_has_no_page_tables() {
    let survey = Shape::new("reserved").survey(|map| map, &mut ());
    assert_eq!(found(&survey), Found::default());
    assert_all_tables_are_accounted_for(&survey);
    assert!(survey.before.reserved >= 50 * GIB);
}

#[test]
fn tables_in_use_are_not_empty() {
    for (shape, resident, used) in [("sparse", 1024, 1024), ("dense", 16384, 32), ("alternating", 8192, 32)] {
        let survey = Shape::new(shape).survey(|map| map, &mut ());
        assert_eq!(found(&survey), Found { resident, used, empty: 0 }, "{shape}");
        assert_all_tables_are_accounted_for(&survey);
    }
}

#[test]
fn empty_tables_are_found_with_their_addresses() {
    let survey = Shape::new("emptied in pieces").survey(|map| map, &mut ());
    assert_eq!(found(&survey), Found { resident: 0, used: 0, empty: 1024 });
    assert_eq!(survey.tables.leading_nowhere(), Some(3), "one of a level above for each GiB, and one above those");
    assert_all_tables_are_accounted_for(&survey);

    #[derive(Clone, Default)]
    struct Empties(Vec<u64>);
    impl Visitor for Empties {
        fn table(&mut self, start: u64, entries: Option<u64>) {
            self.0.extend((entries == Some(0)).then_some(start));
        }
    }
    let mut empties = Empties::default();
    let survey = Shape::new("most emptied").survey(|map| map, &mut empties);
    assert_eq!(found(&survey), Found { resident: 64, used: 64, empty: 960 });
    let all = (PLACE..PLACE + 2 * GIB).step_by(TABLE as usize);
    let there: Vec<u64> = empties.0.into_iter().filter(|at| *at >= PLACE && *at < PLACE + 2 * GIB).collect();
    assert_eq!(there, all.filter(|at| at / TABLE % 16 != 3).collect::<Vec<_>>());
    assert_all_tables_are_accounted_for(&survey);
}

/// If Linux freed the last-level page tables (PT_RECLAIM, 6.14 and later), empty upper ones
/// remain, and their addresses are not reported.
#[test]
fn tables_that_linux_freed_are_not_reported() {
    let survey = Shape::new("emptied whole").survey(|map| map, &mut ());
    let Found { resident, used, empty } = found(&survey);
    assert_eq!((resident, used), (0, 0));
    let listed = (survey.tables.empty.unwrap() + survey.tables.leading_nowhere().unwrap()) as i64;
    let frees = Kernel::probe(&mut Pace::new(Duration::from_millis(1))).unwrap().frees_tables;
    match empty {
        1024 if frees == Some(false) => assert_eq!(survey.empty(), listed),
        0 if frees == Some(true) => assert_eq!(survey.empty(), listed + 3, "a table for each GiB, and one above those"),
        some => panic!("{some} of 1024 tables"),
    }
}

#[test]
fn huge_ptes_have_deposited_tables() {
    let survey = Shape::new("huge").survey(|map| map, &mut ());
    let huge = survey.vmas.iter().map(|one| one.huge).sum::<u64>();
    assert!(huge == 32 << 20 || huge == 0, "all of them, or this machine has none");
    assert_eq!(survey.tables.deposited, huge / TABLE);
    assert_eq!(found(&survey).used, 17 - huge / TABLE);
    assert_all_tables_are_accounted_for(&survey);
}

#[test]
fn hugetlbfs_pages_have_no_deposited_tables() {
    for (shape, size) in [("hugetlb 2 MiB", TABLE), ("hugetlb 1 GiB", GIB)] {
        let Some(_pool) = Pool::more(size, 2) else {
            println!("{shape}: not tried, as there are no such pages (that needs root, and memory in one piece)");
            continue;
        };
        let shape = Shape::new(shape);
        let survey = shape.survey(|map| map, &mut ());
        assert_eq!(found(&survey), Found { resident: 2 * size / PAGE, used: 0, empty: 0 });
        let vmas: Vec<_> = survey.vmas.iter().filter(|one| one.huge > 0).collect();
        assert_eq!(vmas.iter().map(|one| (one.vma.page, one.huge)).collect::<Vec<_>>(), [(size, 2 * size)]);
        assert_eq!(survey.tables.deposited, 0);
        assert_all_tables_are_accounted_for(&survey);
        let read = shape.survey(Pagemap::only_read, &mut ());
        assert_eq!((read.tables.used, read.empty()), (survey.tables.used, survey.empty()));
    }
}

#[test]
fn tables_of_swap_entries_are_in_use() {
    let _file = match SwapFile::new(64 << 20) {
        Ok(file) => file,
        Err(why) => return println!("not tried, as there is nowhere to swap to (that needs root): {why}"),
    };
    let shape = Shape::new("swapped");
    let survey = shape.survey(|map| map, &mut ());
    let swapped: u64 = survey.vmas.iter().map(|one| one.swapped).sum();
    // Some page tables have no present PTE.
    assert!(swapped > 31 << 20, "{swapped} bytes are swapped out");
    assert_eq!(swapped, survey.after.swapped);
    assert_eq!(found(&survey), Found { resident: 16384 - swapped / PAGE, used: 32, empty: 0 });
    assert_eq!(survey.tables.occupancy[7], 32, "all of them full");
    assert_all_tables_are_accounted_for(&survey);
    let read = shape.survey(Pagemap::only_read, &mut ());
    assert_eq!((read.tables.used, read.after.swapped), (survey.tables.used, swapped));
}

#[test]
fn shared_memory_is_like_any() {
    let survey = Shape::new("shared").survey(|map| map, &mut ());
    assert_eq!(found(&survey), Found { resident: 4096, used: 8, empty: 0 });
    assert_all_tables_are_accounted_for(&survey);
}

#[test]
fn vmas_that_share_a_table_have_one() {
    let survey = Shape::new("neighbours").survey(|map| map, &mut ());
    assert_eq!(found(&survey), Found { resident: 2, used: 1, empty: 0 });
    assert_all_tables_are_accounted_for(&survey);
}

/// 65,000 VMAs, unless a process may have fewer: each gets its pages and page tables.
#[test]
fn pages_and_tables_are_attributed_to_each_of_many_vmas() {
    let survey = Shape::new("many").survey(|map| map, &mut ());
    let vmas: Vec<_> = survey.vmas.iter().filter(|one| one.vma.start >= PLACE && one.vma.start < PLACE + GIB).collect();
    assert_eq!(vmas.len() as u64, most_vmas());
    assert!(vmas.iter().enumerate().all(|(n, one)| one.resident == if n % 4 == 0 { PAGE } else { 0 }));
    let used = (most_vmas() * PAGE).div_ceil(TABLE);
    assert_eq!(found(&survey), Found { resident: most_vmas() / 4, used, empty: 0 });
    assert_all_tables_are_accounted_for(&survey);
}

/// Checks that reading entry by entry finds the same, except for what only the ioctl reports.
#[test]
fn reading_and_scanning_agree() {
    for name in ["sparse", "dense", "shared", "most emptied", "alternating"] {
        let shape = Shape::new(name);
        let (scanned, read) = (shape.survey(|map| map, &mut ()), shape.survey(Pagemap::only_read, &mut ()));
        assert!(!read.scanned && read.tables.empty.is_none());
        assert_eq!(
            (scanned.tables.used, scanned.tables.occupancy),
            (read.tables.used, read.tables.occupancy),
            "{name}"
        );
        assert_eq!(scanned.empty(), read.empty());
        let resident = |survey: &Survey| survey.vmas.iter().map(|one| (one.resident, one.swapped)).collect::<Vec<_>>();
        assert_eq!(resident(&scanned), resident(&read), "{name}");
    }
}

/// 8,192 regions, and steps that end among them: no region is reported twice, and none is left out.
#[test]
fn no_region_is_reported_twice() {
    let shape = Shape::new("alternating");
    let target = Target::open(shape.pid()).unwrap();
    let mut pagemap = Pagemap::open(&target.process).unwrap();
    let mut pace = Pace::new(Duration::from_millis(1));
    let mut reported: Vec<Region> = Vec::new();
    let query = Query::nonempty(Categories::PRESENT);
    pagemap.scan((PLACE, PLACE + (64 << 20)), &query, &mut pace, |region| reported.push(region)).unwrap();
    let expected = (PLACE..PLACE + (64 << 20)).step_by(2 * PAGE as usize);
    let expected = expected.map(|start| Region { start, end: start + PAGE, categories: Categories::PRESENT });
    assert_eq!(reported, expected.collect::<Vec<_>>());
}

/// 64 GiB, half of whose page tables are empty, in a random pattern.
#[test]
fn a_sample_is_within_its_error() {
    let shape = Shape::new("half");
    let target = Target::open(shape.pid()).unwrap();
    let all = shape.survey(|map| map, &mut ());
    let used = all.tables.used[0] as f64;
    let mut right = 0;
    for seed in 0..20 {
        let mut pagemap = Pagemap::open(&target.process).unwrap();
        let mut pace = Pace::new(Duration::from_millis(1));
        let options = Options { detection: Detection::Exact, sample: Some((0.5, seed)) };
        let survey = survey(&target, &mut pagemap, &mut pace, &options, &mut ()).unwrap();
        let sample = survey.sample.unwrap();
        assert_eq!((sample.stretches, sample.seen), (64, 32));
        assert!(sample.error > 0 && (sample.error as f64) < used / 4.0, "{sample:?} of {used}");
        right += u32::from((survey.tables.used[0] as f64 - used).abs() <= sample.error as f64);
    }
    assert!(right >= 16, "{right} of 20, where 19 are to be expected");
}

/// Checks that nearly all empty page tables are found by time; their number is exact all the same.
#[test]
#[ignore = "by the clock: for a quiet machine"]
fn tables_are_found_by_time() {
    let Detection::ByTime(timing) = Kernel::by_time().unwrap().detection else { panic!("no difference in time here") };
    for (shape, empty) in [("most emptied", 960), ("sparse", 0), ("reserved", 0), ("emptied in pieces", 1024)] {
        let shape = Shape::new(shape);
        let target = Target::open(shape.pid()).unwrap();
        let mut pagemap = Pagemap::open(&target.process).unwrap();
        let options = Options { detection: Detection::ByTime(timing), sample: None };
        let mut pace = Pace::new(Duration::from_millis(1));
        let survey = survey(&target, &mut pagemap, &mut pace, &options, &mut ()).unwrap();
        let found = found(&survey).empty;
        assert!(found.abs_diff(empty) <= 10, "{found} of {empty}");
    }
}

#[test]
fn a_dead_process_is_reported_as_gone() {
    let mut child = Command::new("true").spawn().unwrap();
    let pid = child.id() as i32;
    while Target::open(pid).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        Target::open(pid).unwrap_err().to_string().split(':').next().unwrap(),
        format!("process {pid} has ended and is a zombie")
    );
    child.wait().unwrap();
    assert_eq!(Target::open(pid).unwrap_err().to_string(), format!("there is no process {pid}"));
    // A kernel thread.
    if let Err(error) = Target::open(2) {
        assert!(error.to_string().contains("kernel thread") || error.to_string().contains("no process"), "{error}");
    }
}

/// Kills the process while VMAs and pages are still to be scanned.
#[test]
fn a_process_that_dies_during_the_survey_is_reported() {
    struct Killer(i32);
    impl Visitor for Killer {
        fn region(&mut self, region: &Region, _: &Vma) {
            if region.start >= PLACE {
                // SAFETY: signals a child that was not waited for.
                unsafe { libc::kill(self.0, libc::SIGKILL) };
                while Target::open(self.0).is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
    for how in [|map| map, Pagemap::only_read] {
        let shape = Shape::new("alternating");
        let target = Target::open(shape.pid()).unwrap();
        let mut pagemap = how(Pagemap::open(&target.process).unwrap());
        let mut pace = Pace::new(Duration::from_millis(1));
        let survey = survey(&target, &mut pagemap, &mut pace, &Options::default(), &mut Killer(shape.pid()));
        let error = survey.unwrap_err();
        assert!(matches!(error, SurveyError::Unreadable(Unreadable::Zombie(_) | Unreadable::Gone(_))), "{error}");
    }
}

#[test]
fn a_survey_can_be_interrupted() {
    let shape = Shape::new("dense");
    let target = Target::open(shape.pid()).unwrap();
    let mut pagemap = Pagemap::open(&target.process).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(true);
    let mut pace = Pace::new(Duration::from_millis(1)).until(&stop);
    let error = survey(&target, &mut pagemap, &mut pace, &Options::default(), &mut ()).unwrap_err();
    assert!(error.to_string().contains("interrupted"), "{error}");
}
