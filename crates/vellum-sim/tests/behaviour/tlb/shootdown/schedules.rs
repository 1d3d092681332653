//! Stale translations of a third CPU, whose TLB caches what two others change.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;
use vellum::Machine;
use vellum::frame::policy::Knob;
use vellum::space::{Advise, CollapseLimits, FaultError, MapFlags};
use vellum_sim::{Cpu, Disk, Fault, Strict};

use crate::fixtures::schedules::{PAGE, Space, at, check, every, fixed, space, strict};

/// The page that the third CPU has a translation of.
#[derive(Clone, Copy)]
enum Had {
    /// Two pages of zeros that one fault will replace together.
    Zeros,
    Written,
    /// A written page that was shared with a child, so that it can't be written in place.
    Shared,
    /// A lazyfree page in a folio of its own.
    Lazy,
}

/// CPU 2 caches a translation of page 1, and uses it after CPU 1 has done `then`. Meanwhile CPU 0
/// does `first`. Whatever `first` is in the middle of, CPU 2 must see what `see` expects.
fn seen_by_a_third(
    had: Had,
    first: impl Fn(&Space<'_>, &Ran<'_>) + Clone + Send + Sync + 'static,
    then: impl Fn(&Space<'_>, &Ran<'_>) + Clone + Send + Sync + 'static,
    see: impl Fn(Result<u64, Fault<FaultError>>) -> bool + Clone + Send + Sync + 'static,
) {
    let run = move || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(2, Knob::Always);
        let disk = Disk::new(1);
        // SAFETY: no other code uses the disk, and it outlives the machine's use of it.
        unsafe { machine.swaps().attach(machine.frames(), &disk, 64, 0) }.unwrap();
        let space = space(&machine);
        space.map(fixed(0, 4, MapFlags::empty())).unwrap();
        // Keeps the page table hooked.
        space.map(fixed(40, 1, MapFlags::POPULATE)).unwrap();
        let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let wait = |flag: &AtomicBool| {
            while !flag.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        };
        thread::scope(|s| {
            s.spawn(|| {
                let cpu = sim.cpu(2);
                let program = cpu.enter(&space);
                match had {
                    Had::Zeros => assert_eq!((program.load_u64(at(1)), program.load_u64(at(2))), (Ok(0), Ok(0))),
                    Had::Written => program.store_u64(at(1), 1).unwrap(),
                    Had::Shared => {
                        program.store_u64(at(1), 1).unwrap();
                        drop(space.fork().unwrap());
                        assert_eq!(program.load_u64(at(1)), Ok(1));
                    }
                    Had::Lazy => {
                        machine.policy().set(2, Knob::Never);
                        [0, 1].iter().for_each(|page| program.store_u64(at(*page), 1).unwrap());
                        machine.policy().set(2, Knob::Always);
                        space.advise(at(1), PAGE, Advise::Free).unwrap();
                        assert_eq!(program.load_u64(at(1)), Ok(1));
                    }
                }
                ready.store(true, Ordering::SeqCst);
                wait(&done);
                let seen = program.load_u64(at(1));
                assert!(see(seen), "CPU 2 sees {seen:?}");
            });
            s.spawn(|| {
                let cpu = sim.cpu(1);
                wait(&ready);
                then(&space, &Ran(&cpu));
                done.store(true, Ordering::SeqCst);
            });
            wait(&ready);
            first(&space, &Ran(&boot));
        });
        check(&space);
        drop(space);
        drop(boot);
    };
    every(run);
}

/// The CPU that a function runs on.
struct Ran<'c>(&'c Cpu<'c, Strict>);

/// After `MADV_DONTNEED` no CPU sees the old contents, even if another CPU was dropping the same
/// page and had cleared its PTE before.
#[test]
fn dontneed_races_dontneed() {
    let forget = |space: &Space<'_>, _: &Ran<'_>| space.advise(at(1), PAGE, Advise::DontNeed).unwrap();
    seen_by_a_third(Had::Written, forget, forget, |seen| seen == Ok(0));
}

/// After `munmap` no CPU accesses the page.
#[test]
fn munmap_races_dontneed() {
    seen_by_a_third(
        Had::Written,
        |space, _| {
            // The page may be unmapped already.
            let _ = space.advise(at(1), PAGE, Advise::DontNeed);
        },
        |space, _| space.unmap(at(1), PAGE).unwrap(),
        |seen| seen == Err(Fault::Handler(FaultError::Unmapped(at(1)))),
    );
}

/// A store is seen by each CPU that knows of it, although another CPU is about to replace the zeros
/// there.
#[test]
fn stores_race_replacement_of_zeros() {
    seen_by_a_third(
        Had::Zeros,
        |space, cpu| cpu.0.enter(space).store_u64(at(2), 5).unwrap(),
        |space, cpu| cpu.0.enter(space).store_u64(at(1), 7).unwrap(),
        |seen| seen == Ok(7),
    );
}

/// The same if the page was swapped out and in meanwhile.
#[test]
fn stores_race_swap_out_by_another_cpu() {
    seen_by_a_third(
        Had::Shared,
        |space, _| space.advise(at(0), 4 * PAGE, Advise::PageOut).unwrap(),
        |space, cpu| cpu.0.enter(space).store_u64(at(1), 7).unwrap(),
        |seen| seen == Ok(7),
    );
}

/// The same if the page is dropped by reclaim, and collapsed as zeros into a folio.
#[test]
fn collapse_and_write_race_zap() {
    seen_by_a_third(
        Had::Lazy,
        |space, _| space.advise(at(1), PAGE, Advise::PageOut).unwrap(),
        |space, cpu| {
            space.collapse_some(0, 4096, &CollapseLimits::default(), |_, _| Ok(false)).unwrap();
            cpu.0.enter(space).store_u64(at(1), 7).unwrap();
        },
        |seen| seen == Ok(7),
    );
}
