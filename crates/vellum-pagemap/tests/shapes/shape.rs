//! Helper processes that map address spaces of known shapes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::ptr;
use std::time::Duration;

use procfs::process::Process;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect};
use vellum_pagemap::{Detection, Kernel, Options, Pace, Pagemap, Survey, Target, Visitor, survey};

use crate::{GIB, PAGE, PLACE, TABLE};

/// A process with a shape, which it keeps until this value is dropped.
pub struct Shape {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Kept open, as the process writes more when it ends.
    _stdout: BufReader<ChildStdout>,
}

impl Shape {
    pub fn new(name: &str) -> Shape {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shape::make_a_shape", "--ignored", "--nocapture", "--test-threads=1"])
            .env("SHAPE", name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let ready = stdout.by_ref().lines().any(|line| line.unwrap().ends_with("ready"));
        let shape = Shape { child, stdin, _stdout: stdout };
        assert!(ready, "{name} could not be made");
        // The process is about to wait.
        while !shape.waits() {
            std::thread::sleep(Duration::from_millis(1));
        }
        shape
    }

    fn waits(&self) -> bool {
        let process = Process::new(self.pid()).unwrap();
        process.tasks().unwrap().all(|task| task.unwrap().stat().unwrap().state == 'S')
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Returns the survey of the process while it doesn't change. The process itself is idle, but
    /// the host's reclaim or khugepaged may change it: then the survey is repeated.
    pub fn survey(&self, how: impl Fn(Pagemap) -> Pagemap, visitor: &mut (impl Visitor + Clone)) -> Survey {
        const TRIES: usize = 20;
        let fresh = visitor.clone();
        let mut tries = (0..TRIES).map(|_| {
            *visitor = fresh.clone();
            self.survey_once(&how, visitor)
        });
        let last = tries.find(|survey| !survey.changed());
        last.expect("the host leaves a quiet process alone for once")
    }

    fn survey_once(&self, how: &impl Fn(Pagemap) -> Pagemap, visitor: &mut impl Visitor) -> Survey {
        let target = Target::open(self.pid()).unwrap();
        let mut pagemap = how(Pagemap::open(&target.process).unwrap());
        let mut pace = Pace::new(Duration::from_millis(1));
        let detection = if pagemap.scans() { Kernel::probe(&mut pace).unwrap().detection } else { Detection::None };
        let options = Options { detection, sample: None };
        survey(&target, &mut pagemap, &mut pace, &options, visitor).unwrap()
    }
}

impl Drop for Shape {
    fn drop(&mut self) {
        drop(self.stdin.take());
        self.child.wait().unwrap();
    }
}

/// The operations that shapes are made of.
struct Maker;

impl Maker {
    fn map(&self, len: u64) -> u64 {
        self.map_at(PLACE, len)
    }

    fn map_at(&self, at: u64, len: u64) -> u64 {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the mapping replaces nothing, or fails.
        unsafe { mmap_anonymous(ptr::without_provenance_mut(at as usize), len as usize, prot, flags) }.unwrap();
        self.advise(at, len, Advice::LinuxNoHugepage);
        at
    }

    fn file(&self, len: u64) -> u64 {
        let file = memfd_create("shape", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        let (flags, prot) = (MapFlags::SHARED | MapFlags::FIXED_NOREPLACE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the mapping replaces nothing, or fails.
        unsafe { mmap(ptr::without_provenance_mut(PLACE as usize), len as usize, prot, flags, &file, 0) }.unwrap();
        PLACE
    }

    /// Maps room for four hugetlbfs pages and touches two.
    fn hugetlb(&self, size: u64, which: MapFlags) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE | MapFlags::HUGETLB | which;
        let (at, prot) = (ptr::without_provenance_mut(PLACE as usize), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the mapping replaces nothing, or fails.
        unsafe { mmap_anonymous(at, 4 * size as usize, prot, flags) }.unwrap();
        self.touch_each(PLACE, 4 * size, 2 * size);
    }

    fn advise(&self, at: u64, len: u64, advice: Advice) {
        // SAFETY: the memory was mapped here, and no reference to its contents exists.
        let _ = unsafe { madvise(ptr::without_provenance_mut(at as usize), len as usize, advice) };
    }

    fn protect(&self, at: u64) {
        // SAFETY: as above, and nothing writes there any more.
        unsafe { mprotect(ptr::without_provenance_mut(at as usize), PAGE as usize, MprotectFlags::READ) }.unwrap();
    }

    fn touch(&self, at: u64) {
        // SAFETY: as above.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(at as usize).write_volatile(1) };
    }

    fn touch_each(&self, start: u64, len: u64, step: u64) {
        (start..start + len).step_by(step as usize).for_each(|at| self.touch(at));
    }
}

/// Not a test: the process that [`Shape::new`] starts.
#[test]
#[ignore = "makes a shape for the other tests"]
fn make_a_shape() {
    let make = Maker;
    match std::env::var("SHAPE").unwrap_or_default().as_str() {
        "reserved" => _ = make.map(50 * GIB),
        "sparse" => make.touch_each(make.map(2 * GIB), 2 * GIB, TABLE),
        "dense" => make.touch_each(make.map(64 << 20), 64 << 20, PAGE),
        "emptied in pieces" => {
            let start = make.map(2 * GIB);
            for at in (start..start + 2 * GIB).step_by(TABLE as usize) {
                make.touch_each(at, 1 << 20, 64 << 10);
                (0..16).for_each(|i| make.advise(at + (i << 16), 64 << 10, Advice::LinuxDontNeed));
            }
        }
        "most emptied" => {
            let start = make.map(2 * GIB);
            make.touch_each(start, 2 * GIB, TABLE);
            for at in (start..start + 2 * GIB).step_by(TABLE as usize).filter(|at| at / TABLE % 16 != 3) {
                make.advise(at, PAGE, Advice::LinuxDontNeed);
            }
        }
        "emptied whole" => {
            let start = make.map(2 * GIB);
            make.touch_each(start, 2 * GIB, TABLE);
            make.advise(start, 2 * GIB, Advice::LinuxDontNeed);
        }
        "huge" => {
            let start = make.map(64 << 20);
            make.advise(start, 32 << 20, Advice::LinuxHugepage);
            make.touch_each(start, 33 << 20, TABLE);
        }
        "shared" => make.touch_each(make.file(64 << 20), 16 << 20, PAGE),
        "swapped" => {
            let start = make.map(64 << 20);
            make.touch_each(start, 64 << 20, PAGE);
            // New pages are in a per-CPU batch for a while, and are not paged out.
            (0..10).for_each(|_| make.advise(start, 32 << 20, Advice::LinuxPageOut));
        }
        "hugetlb 2 MiB" => make.hugetlb(TABLE, MapFlags::HUGE_2MB),
        "hugetlb 1 GiB" => make.hugetlb(GIB, MapFlags::HUGE_1GB),
        "half" => {
            // With a page on either side, outside the sampled spans.
            let start = make.map_at(PLACE - PAGE, 64 * GIB + 2 * PAGE) + PAGE;
            let mut random = fastrand::Rng::with_seed(7);
            for gib in 0..64 {
                // Some GiB have many page tables in use, some few.
                let share = random.f64();
                for table in 0..16 {
                    let at = start + gib * GIB + table * TABLE;
                    make.touch(at);
                    if random.f64() < share {
                        make.advise(at, PAGE, Advice::LinuxDontNeed);
                    }
                }
            }
        }
        "many" => {
            let start = make.map(most_vmas() * PAGE);
            make.touch_each(start, most_vmas() * PAGE, 4 * PAGE);
            for page in (0..most_vmas()).step_by(2) {
                make.protect(start + page * PAGE);
            }
        }
        "neighbours" => {
            // Two VMAs and a hole in the span of one page table.
            make.touch(make.map_at(PLACE, 4 * PAGE));
            make.touch(make.map_at(PLACE + 8 * PAGE, 4 * PAGE));
        }
        "alternating" => {
            let start = make.map(64 << 20);
            make.touch_each(start, 64 << 20, 2 * PAGE);
        }
        other => panic!("there is no shape {other:?}"),
    }
    println!("\nready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Returns nearly the largest number of VMAs that a process may have. The program itself needs
/// some, and VMAs are made two at a time.
pub fn most_vmas() -> u64 {
    let most: u64 = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    (most.min(65_530) - 530) / 4 * 4
}
