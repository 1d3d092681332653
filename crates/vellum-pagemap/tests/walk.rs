//! Tests page tables read by BPF, on a process with known page tables. They need root and x86-64,
//! and print NOT TESTED elsewhere.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{ptr, thread};

use procfs::process::Process;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use vellum_pagemap::{
    Kernel, Options, Pace, Pagemap, Survey, Table, Target, Visitor, WalkedTables, Walker, WalkerError, survey,
};

const PAGE: u64 = 4096;
const TABLE: u64 = 2 << 20;
const GIB: u64 = 1 << 30;
/// The span of a third-level page table. Each shape has one of its own, far from anything that the
/// system maps by itself.
const APART: u64 = 512 << 30;
const PLACE: u64 = 8 << 40;

/// Opens a walker, or prints why there is none. An unsupported kernel fails the test.
fn walker() -> Option<Walker> {
    match Walker::open() {
        Ok(walker) => Some(walker),
        Err(refused) => {
            assert!(!matches!(refused, WalkerError::Unknown), "{refused}");
            println!("NOT TESTED: page tables can't be read here: {refused}");
            None
        }
    }
}

/// This program started again as one of the helpers below, which waits until it is killed.
struct Helper(Child);

impl Helper {
    fn new(name: &str) -> Helper {
        let mut child = helper(name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(output.any(|line| line.unwrap().ends_with("ready")), "{name} has failed");
        Helper(child)
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn pagemap(&self) -> Pagemap {
        Pagemap::open(&Process::new(self.pid()).unwrap()).unwrap()
    }

    /// Returns once all threads of the helper sleep.
    fn quiet(self) -> Helper {
        let process = Process::new(self.pid()).unwrap();
        while process.tasks().unwrap().any(|task| task.unwrap().stat().unwrap().state != 'S') {
            thread::sleep(Duration::from_millis(1));
        }
        self
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn helper(name: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).arg0(name);
    command
}

fn map(at: u64, len: u64) -> u64 {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping replaces nothing, or fails.
    unsafe { mmap_anonymous(ptr::without_provenance_mut(at as usize), len as usize, prot, flags) }.unwrap();
    advise(at, len, Advice::LinuxNoHugepage);
    at
}

fn advise(at: u64, len: u64, advice: Advice) {
    // SAFETY: the memory was mapped here, and no reference to its contents exists.
    let _ = unsafe { madvise(ptr::without_provenance_mut(at as usize), len as usize, advice) };
}

fn touch(start: u64, len: u64, step: u64) {
    for at in (start..start + len).step_by(step as usize) {
        // SAFETY: as above.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(at as usize).write_volatile(1) };
    }
}

/// Makes the memory inaccessible (`PROT_NONE`); its PTEs stay.
fn make_inaccessible(at: u64, len: u64) {
    // SAFETY: as above, and nothing accesses it any more.
    unsafe { mprotect(ptr::without_provenance_mut(at as usize), len as usize, MprotectFlags::empty()) }.unwrap();
}

const SPARSE: u64 = PLACE;
const DENSE: u64 = PLACE + APART;
const EMPTIED: u64 = PLACE + 2 * APART;
const WHOLE: u64 = PLACE + 3 * APART;
const HUGE: u64 = PLACE + 4 * APART;
const SHARED: u64 = PLACE + 5 * APART;
const CLOSED: u64 = PLACE + 6 * APART;
const MIXED: u64 = PLACE + 7 * APART;

/// Not a test: a process with known page tables.
#[test]
#[ignore = "a helper of the other tests"]
fn shapes() {
    touch(map(SPARSE, 2 * GIB), 2 * GIB, TABLE);
    touch(map(DENSE, 64 << 20), 64 << 20, PAGE);
    for at in (map(EMPTIED, 2 * GIB)..EMPTIED + 2 * GIB).step_by(64 << 10) {
        touch(at, 64 << 10, 16 << 10);
        advise(at, 64 << 10, Advice::LinuxDontNeed);
    }
    touch(map(WHOLE, 2 * GIB), 2 * GIB, TABLE);
    advise(WHOLE, 2 * GIB, Advice::LinuxDontNeed);
    advise(map(HUGE, 64 << 20), 64 << 20, Advice::LinuxHugepage);
    touch(HUGE, 64 << 20, TABLE);
    make_inaccessible(HUGE + (32 << 20), 32 << 20);
    let file = memfd_create("shape", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 64 << 20).unwrap();
    let (flags, prot) = (MapFlags::SHARED | MapFlags::FIXED_NOREPLACE, ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: the mapping replaces nothing, or fails.
    unsafe { mmap(ptr::without_provenance_mut(SHARED as usize), 64 << 20, prot, flags, &file, 0) }.unwrap();
    touch(SHARED, 16 << 20, PAGE);
    touch(map(CLOSED, GIB), 3 * PAGE, PAGE);
    make_inaccessible(CLOSED, GIB);
    touch(map(MIXED, 4 * GIB), GIB, TABLE);
    for n in (0..512).filter(|n| n % 16 != 3) {
        advise(MIXED + n * TABLE, PAGE, Advice::LinuxDontNeed);
    }
    touch(MIXED + 3 * GIB, PAGE, PAGE);
    advise(MIXED + 3 * GIB, PAGE, Advice::LinuxDontNeed);
    wait();
}

fn wait() {
    println!("\nready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Returns the page tables of a level in the span of one third-level page table.
fn of(walked: &WalkedTables, level: usize, place: u64) -> Vec<Table> {
    let within = |table: &&Table| (place..place + APART).contains(&table.start);
    walked.levels[level].iter().filter(within).copied().collect()
}

#[test]
fn page_tables_of_all_levels_are_read() {
    let Some(mut walker) = walker() else { return };
    let helper = Helper::new("shapes").quiet();
    let walked = walker.tables(&helper.pagemap()).unwrap();
    assert!(!walked.changed);
    let below = |place| [of(&walked, 0, place), of(&walked, 1, place), of(&walked, 2, place)];
    let tables = |start: u64, span: u64, entries: &[u16], bare| -> Vec<Table> {
        (0..).zip(entries).map(|(n, entries)| Table { start: start + n * span, entries: *entries, bare }).collect()
    };
    let top = |place, entries, bare| tables(place, APART, &[entries], bare);
    let two = |place, entries, bare| tables(place, GIB, &[entries; 2], bare);
    assert_eq!(
        below(SPARSE),
        [tables(SPARSE, TABLE, &[1; 1024], false), two(SPARSE, 512, false), top(SPARSE, 2, false)]
    );
    let dense = tables(DENSE, TABLE, &[512; 32], false);
    assert_eq!(below(DENSE), [dense, tables(DENSE, GIB, &[32], false), top(DENSE, 1, false)]);
    let emptied = tables(EMPTIED, TABLE, &[0; 1024], true);
    assert_eq!(below(EMPTIED), [emptied, two(EMPTIED, 512, true), top(EMPTIED, 2, true)]);
    let shared = tables(SHARED, TABLE, &[512; 8], false);
    assert_eq!(below(SHARED), [shared, tables(SHARED, GIB, &[8], false), top(SHARED, 1, false)]);
    // PROT_NONE PTEs are not present to the processor, but they are not none.
    let closed = tables(CLOSED, TABLE, &[3], false);
    assert_eq!(below(CLOSED), [closed, tables(CLOSED, GIB, &[1], false), top(CLOSED, 1, false)]);
    // An empty page table below one that is not, and an upper one that leads only to empty ones.
    let [lowest, second, third] = below(MIXED);
    let empty: Vec<u64> = lowest.iter().filter(|table| table.is_empty()).map(|table| table.start).collect();
    let expected = (0..512).filter(|n| n % 16 != 3).map(|n| MIXED + n * TABLE).chain([MIXED + 3 * GIB]);
    assert_eq!(empty, expected.collect::<Vec<_>>());
    assert!(lowest.iter().all(|table| table.bare == table.is_empty()));
    let nowhere = Table { start: MIXED + 3 * GIB, entries: 1, bare: true };
    assert_eq!(second, [Table { start: MIXED, entries: 512, bare: false }, nowhere]);
    assert_eq!(third, top(MIXED, 2, false));
}

/// `MADV_DONTNEED` of whole page tables frees the last level, where Linux does so (PT_RECLAIM, 6.14
/// and later). Then those above are empty, which nothing else reports.
#[test]
fn empty_upper_tables_are_found() {
    let Some(mut walker) = walker() else { return };
    let helper = Helper::new("shapes").quiet();
    let walked = walker.tables(&helper.pagemap()).unwrap();
    let frees = Kernel::probe(&mut Pace::new(Duration::from_millis(1))).unwrap().frees_tables.unwrap();
    let entries = if frees { 0 } else { 512 };
    assert_eq!(of(&walked, 0, WHOLE).len(), if frees { 0 } else { 1024 });
    let upper = [WHOLE, WHOLE + GIB].map(|start| Table { start, entries, bare: true });
    assert_eq!(of(&walked, 1, WHOLE), upper);
    assert_eq!(of(&walked, 2, WHOLE), [Table { start: WHOLE, entries: 2, bare: true }]);
}

/// There is no page table below a huge PTE, not even below a PROT_NONE one; the deposited one is
/// counted.
#[test]
fn huge_ptes_have_deposited_tables_only() {
    let Some(mut walker) = walker() else { return };
    let helper = Helper::new("shapes").quiet();
    let walked = walker.tables(&helper.pagemap()).unwrap();
    let (lowest, second) = (of(&walked, 0, HUGE), of(&walked, 1, HUGE));
    assert_eq!(second, [Table { start: HUGE, entries: 32, bare: false }]);
    let huge = 32 - lowest.len() as i64;
    assert!(huge == 32 || huge == 0, "{huge} of 32 pages are huge: all of them, or this machine has none");
    assert_eq!(walked.deposited(), huge);
    if huge == 0 {
        println!("NOT TESTED: there are no huge pages on this machine");
    }
}

/// Last-level page tables as a survey reports them: start, and number of PTEs.
#[derive(Default)]
struct Reported(Vec<(u64, u64)>);

impl Visitor for Reported {
    fn table(&mut self, start: u64, entries: Option<u64>) {
        self.0.extend(entries.map(|entries| (start, entries)));
    }
}

fn surveyed(helper: &Helper) -> (Survey, Vec<(u64, u64)>) {
    let target = Target::open(helper.pid()).unwrap();
    let mut pace = Pace::new(Duration::from_millis(1));
    let options = Options { detection: Kernel::probe(&mut pace).unwrap().detection, sample: None };
    let mut reported = Reported::default();
    let survey = survey(&target, &mut helper.pagemap(), &mut pace, &options, &mut reported).unwrap();
    (survey, reported.0)
}

/// Checks that the walk and the scan find the same page tables, and that Linux's count is their
/// sum.
#[test]
fn the_walk_and_the_scan_agree() {
    let Some(mut walker) = walker() else { return };
    let helper = Helper::new("shapes").quiet();
    let (survey, reported) = surveyed(&helper);
    let walked = walker.tables(&helper.pagemap()).unwrap();
    let mut read: Vec<(u64, u64)> =
        walked.levels[0].iter().map(|table| (table.start, u64::from(table.entries))).collect();
    // Linux does not report PTEs of device memory. Each process has some (`[vvar]`).
    let devices = survey.vmas.iter().filter(|one| one.vma.name.starts_with("[vvar"));
    let devices: Vec<u64> = devices.map(|one| one.vma.start / TABLE * TABLE).collect();
    read.retain(|(start, _)| !devices.contains(start));
    let reported: Vec<_> = reported.into_iter().filter(|(start, _)| !devices.contains(start)).collect();
    assert_eq!(read, reported);
    assert_eq!(walked.counted, survey.after.tables / PAGE);
    let counted: usize = walked.levels.iter().take(3).map(Vec::len).sum();
    assert_eq!(walked.counted, counted as u64 + survey.tables.deposited);
    let bare = walked.levels.iter().take(3).flatten().filter(|table| table.bare).count();
    assert_eq!(bare as i64, survey.empty());
}

/// Not a test: a process whose page tables come and go.
#[test]
#[ignore = "a helper of the other tests"]
fn restless() {
    thread::spawn(wait);
    for n in 0.. {
        let at = map(PLACE + n % 7 * APART, 8 * GIB);
        touch(at, 8 * GIB, 256 << 20);
        // SAFETY: the memory was mapped here, and no reference to its contents exists.
        unsafe { munmap(ptr::without_provenance_mut(at as usize), 8 << 30) }.unwrap();
    }
}

/// Checks that a walk of a running process is consistent: each page table has one above it, is
/// reported once, and is aligned. The end of the process is no error.
#[test]
fn a_running_process_is_walked_consistently() {
    let Some(mut walker) = walker() else { return };
    let mut helper = Helper::new("restless");
    let pagemap = helper.pagemap();
    let mut changed = 0;
    for _ in 0..2000 {
        let walked = walker.tables(&pagemap).unwrap();
        changed += u32::from(walked.changed);
        for (level, tables) in walked.levels.iter().enumerate() {
            let span = TABLE << (9 * level);
            assert!(tables.windows(2).all(|pair| pair[0].start < pair[1].start), "{tables:x?}");
            for table in tables {
                assert!(
                    table.start % span == 0 && table.entries <= 512 && (table.bare || !table.is_empty()),
                    "{table:x?}"
                );
                let above = walked.levels.get(level + 1).is_none_or(|above| {
                    above.binary_search_by_key(&(table.start / (span * 512)), |up| up.start / (span * 512)).is_ok()
                });
                assert!(above, "{table:x?} of level {level} in {:x?}", walked.levels);
            }
        }
    }
    assert!(changed > 0, "it has done nothing in the meantime");
    helper.0.kill().unwrap();
    helper.0.wait().unwrap();
    let walked = walker.tables(&pagemap).unwrap();
    assert_eq!((walked.counted, walked.levels.concat()), (0, Vec::new()));
}

/// Not a test: a process without privileges.
#[test]
#[ignore = "a helper of the other tests"]
fn unprivileged() {
    // SAFETY: changes this process's user, which nothing in it relies on.
    unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
    println!("\n{}", Walker::open().unwrap_err());
}

#[test]
fn unprivileged_users_get_the_reason() {
    if !cfg!(target_arch = "x86_64") {
        return println!("NOT TESTED: only x86-64 is known");
    }
    let output = helper("unprivileged").output().unwrap();
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(message.contains("that needs root (CAP_SYS_ADMIN)"), "{message}");
}
