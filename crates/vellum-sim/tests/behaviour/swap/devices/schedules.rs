//! Swap slots and devices with several CPUs at work: under a deterministic scheduler, and on
//! threads of the host.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use vellum::addr::Pfn;
use vellum::frame::{BootOptions, Frames, HUGE_ORDER, Use};
use vellum::platform::{Cpus, Event, Memory, Platform, Trace};
use vellum::swap::{
    Compressed, DetachError, NoSlots, ReadError, SlotAllocator, Slots, SwapDevice, SwapRun, Swaps, Unreadable,
    WriteError,
};
use vellum_sim::{Config, Disk, Hostility, Refusal, Schedule, Strict, Strictness};

const CPUS: usize = 3;

fn machine(schedule: Schedule, bytes: u64) -> Strict {
    let strictness = Strictness::new(1).schedule(schedule).hostility(Hostility::NONE);
    Config::new(bytes).cpus(CPUS).strict(strictness).unwrap()
}

/// Runs `work` on every CPU at once.
fn on_all_cpus(schedule: Schedule, host: &Strict, work: impl Fn(usize) + Sync) {
    let at = |cpu: usize| {
        let _cpu = host.cpu(cpu);
        work(cpu);
    };
    match schedule {
        Schedule::Host => std::thread::scope(|s| {
            (1..CPUS).for_each(|cpu| _ = s.spawn(move || at(cpu)));
            at(0);
        }),
        _ => shuttle::thread::scope(|s| {
            (1..CPUS).for_each(|cpu| _ = s.spawn(move || at(cpu)));
            at(0);
        }),
    }
}

/// Runs `work` in random schedules, in schedules that switch seldom, and on threads.
fn in_many_schedules(work: impl Fn(Schedule) + Send + Sync + Copy + 'static) {
    shuttle::check_random(move || work(Schedule::Shuttle), 400);
    shuttle::check_pct(move || work(Schedule::Shuttle), 400, 3);
    (0..40).for_each(|_| work(Schedule::Host));
}

/// The owner of each slot, as its users believe.
struct Owners(Vec<AtomicUsize>);

impl Owners {
    fn of(&self, slots: Slots) -> &[AtomicUsize] {
        &self.0[slots.first as usize..][..slots.count as usize]
    }

    fn hand_over(&self, slots: Slots, from: usize, to: usize) {
        for owner in self.of(slots) {
            assert_eq!(owner.compare_exchange(from, to, SeqCst, SeqCst), Ok(from), "{slots:?}");
        }
    }
}

/// A slot is allocated only after its last user has forgotten it; only its last user forgets it;
/// and all slots are free in the end.
fn slots_have_one_owner(schedule: Schedule) {
    let host = machine(schedule, 4 << 20);
    let boot = host.cpu(0);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let slots = SlotAllocator::new(&frames, 1536).unwrap();
    let owners = Owners((0..1536).map(|_| AtomicUsize::new(0)).collect());
    let shared = slots.allocate(&host, 3).unwrap();
    (1..CPUS).for_each(|_| slots.duplicate(&host, shared).unwrap());
    let whole = slots.allocate(&host, HUGE_ORDER).unwrap();
    slots.release(&host, Slots { first: whole.first + 384, count: 128 }, drop);
    drop(boot);

    const NOBODY: usize = 0;
    const SHARED: usize = 100;
    owners.hand_over(shared, NOBODY, SHARED);
    on_all_cpus(schedule, &host, |cpu| {
        let me = cpu + 1;
        if cpu == 0 {
            // Slots in a cluster that another CPU uses.
            slots.release(&host, Slots { first: whole.first, count: 384 }, drop);
        }
        for order in [[0, 6, 5, 2], [0, 8, 9, 2], [0, 6, 9, 3]][cpu] {
            let Some(run) = slots.allocate(&host, order) else { continue };
            owners.hand_over(run, NOBODY, me);
            let part = Slots { count: run.count.div_ceil(2), ..run };
            slots.duplicate(&host, part).unwrap();
            slots.release(&host, run, |dead| owners.hand_over(dead, me, NOBODY));
            slots.release(&host, part, |dead| owners.hand_over(dead, me, NOBODY));
        }
        slots.release(&host, shared, |dead| owners.hand_over(dead, SHARED, NOBODY));
    });
    let _cpu = host.cpu(0);
    assert!(owners.0.iter().all(|owner| owner.load(SeqCst) == NOBODY));
    assert_eq!(slots.free_slots(), 1536);
    assert!((0..3).all(|_| slots.allocate(&host, HUGE_ORDER).is_some()), "free slots are not merged again");
    slots.free(&frames);
}

#[test]
fn a_slot_has_one_owner_at_a_time() {
    in_many_schedules(slots_have_one_owner);
}

/// A CPU gives up its cluster for one with more room while another releases slots in it.
fn giving_up(schedule: Schedule) {
    let host = machine(schedule, 4 << 20);
    let boot = host.cpu(0);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let slots = SlotAllocator::new(&frames, 1024).unwrap();
    let most = Slots { count: 384, ..slots.allocate(&host, HUGE_ORDER).unwrap() };
    slots.release(&host, Slots { first: most.first + 384, count: 128 }, drop);
    drop(boot);
    on_all_cpus(schedule, &host, |cpu| match cpu {
        0 => slots.release(&host, most, drop),
        1 => {
            [0, 8].map(|order| slots.release(&host, slots.allocate(&host, order).unwrap(), drop)).into_iter().collect()
        }
        _ => {}
    });
    let _cpu = host.cpu(2);
    assert!(
        (0..2).all(|_| slots.allocate(&host, HUGE_ORDER).is_some()),
        "a cluster has more free slots than are counted"
    );
    slots.free(&frames);
}

#[test]
fn freed_slots_are_filed_by_their_references() {
    in_many_schedules(giving_up);
}

/// Once a device is closed, every allocation under way has ended.
fn closing(schedule: Schedule) {
    let host = machine(schedule, 4 << 20);
    let boot = host.cpu(0);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let slots = SlotAllocator::new(&frames, 512).unwrap();
    drop(boot);
    let in_use = || (0..512).filter(|slot| slots.max_references(&host, Slots { first: *slot, count: 1 }) > 0).count();
    let seen = AtomicUsize::new(0);
    let closed = AtomicBool::new(false);
    on_all_cpus(schedule, &host, |cpu| {
        if cpu == 0 {
            slots.close(&host);
            seen.store(in_use(), SeqCst);
            closed.store(true, SeqCst);
        } else {
            for order in [0, 2, 1] {
                let late = closed.load(SeqCst);
                assert!(slots.allocate(&host, order).is_none() || !late, "from a closed device");
            }
        }
    });
    let _cpu = host.cpu(0);
    assert_eq!(in_use(), seen.load(SeqCst), "something was allocated later");
    slots.free(&frames);
}

#[test]
fn closed_devices_allocate_no_slots() {
    in_many_schedules(closing);
}

/// Returns the words of a frame.
fn frame_words(host: &Strict, pfn: Pfn) -> *mut [u64; 512] {
    host.direct_map().wrapping_add(pfn.addr().0 as usize).cast()
}

/// Returns contents that identify their owner, some of one word only.
fn contents(cpu: usize, round: usize, page: u32) -> [u64; 512] {
    let seed = (cpu * 1000 + round * 100) as u64 + u64::from(page);
    std::array::from_fn(|i| seed + if page.is_multiple_of(3) { 0 } else { (i / 2) as u64 * 7919 })
}

/// CPUs that store their compressed pages in the same records and spans don't mix them up.
fn pages_beside_each_other(schedule: Schedule) {
    let host = machine(schedule, 8 << 20);
    let boot = host.cpu(0);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let free = frames.free_frames();
    let device = Compressed::new(&frames, 64).unwrap();
    let buffers: Vec<Pfn> = (0..CPUS).map(|_| frames.alloc(2, false, Use::Kernel).unwrap()).collect();
    drop(boot);
    on_all_cpus(schedule, &host, |cpu| {
        let buffer = buffers[cpu];
        for round in 0..2 {
            let slots = Slots { first: (cpu * 4) as u32, count: 4 };
            for page in 0..4 {
                // SAFETY: the frame belongs to this CPU.
                unsafe { frame_words(&host, buffer.add(page)).write(contents(cpu, round, page)) };
            }
            // SAFETY: slots and frames belong to this CPU.
            unsafe {
                device.write(&frames, slots, buffer).unwrap();
                frame_words(&host, buffer).cast::<u8>().write_bytes(0xee, 4 * 4096);
                device.read(&frames, slots, buffer).unwrap();
            }
            for page in 0..4 {
                // SAFETY: as above.
                let words = unsafe { frame_words(&host, buffer.add(page)).read() };
                assert!(words == contents(cpu, round, page), "page {page} of CPU {cpu}");
            }
            // SAFETY: as above.
            unsafe { device.forget(&frames, slots) };
        }
    });
    let _cpu = host.cpu(0);
    assert_eq!(device.stats(), Default::default());
    device.free(&frames);
    // SAFETY: nothing uses them any more.
    buffers.into_iter().for_each(|pfn| unsafe { frames.free(pfn, 4, false, Use::Kernel) });
    assert_eq!(frames.free_frames(), free);
}

#[test]
fn adjacent_pages_do_not_mix() {
    in_many_schedules(pages_beside_each_other);
}

/// Devices are attached and detached while others are used.
fn coming_and_going(schedule: Schedule) {
    let host = machine(schedule, 8 << 20);
    let boot = host.cpu(0);
    let disks = [Disk::new(1), Disk::new(2)];
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let swaps = Swaps::new(&frames).unwrap();
    // SAFETY: no other code uses the disk.
    let stays = unsafe { swaps.attach(&frames, &disks[0], 512, 0).unwrap() };
    let held = Mutex::new(Vec::new());
    let buffer = frames.alloc(2, true, Use::Kernel).unwrap();
    drop(boot);
    on_all_cpus(schedule, &host, |cpu| {
        if cpu == 0 {
            // SAFETY: as above.
            let goes = unsafe { swaps.attach(&frames, &disks[1], 512, 5).unwrap() };
            (0..10).for_each(|_| host.event(Event::Step));
            swaps.close(&host, goes).unwrap();
            while let Err(error) = swaps.detach(&frames, goes) {
                // Here the owner of the slots releases them.
                assert!(matches!(error, DetachError::InUse(_)));
                host.relax();
            }
            assert_eq!(disks[1].used(), 0);
        } else {
            for order in [1, 2, 0] {
                let run = swaps.allocate(&host, order).unwrap();
                // SAFETY: the slots are this CPU's, and the frames are zero for all.
                unsafe { swaps.write(&frames, run, buffer).unwrap() };
                if run.device == stays {
                    held.lock().unwrap().push(run);
                } else {
                    // SAFETY: as above.
                    unsafe { swaps.release(&frames, run) };
                }
            }
        }
    });
    let _cpu = host.cpu(0);
    let held = held.into_inner().unwrap();
    assert_eq!(disks[0].used(), held.iter().map(|run| run.slots.count as usize).sum::<usize>());
    // SAFETY: only this test has the runs.
    held.into_iter().for_each(|run| unsafe { swaps.release(&frames, run) });
    assert_eq!(disks[0].used(), 0);
}

#[test]
fn devices_come_and_go() {
    in_many_schedules(coming_and_going);
}

/// The disk fails as configured: a failed write leaves no contents, a failed read names the slot.
#[test]
fn the_disk_fails_as_configured() {
    let host = machine(Schedule::Host, 4 << 20);
    let _cpu = host.cpu(0);
    let disk = Disk::new(1);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let swaps = Swaps::new(&frames).unwrap();
    // SAFETY: no other code uses the disk.
    unsafe { swaps.attach(&frames, &disk, 8, 0).unwrap() };
    let buffer = frames.alloc(2, true, Use::Kernel).unwrap();
    let run = swaps.allocate(&host, 2).unwrap();
    // SAFETY: slots and frames belong to the test.
    let write = || unsafe { swaps.write(&frames, run, buffer) };
    disk.refuse_writes(Refusal::Nth(3));
    assert_eq!(write(), Err(WriteError::Failed));
    assert_eq!((disk.used(), disk.writes()), (0, (3, 1)));
    assert_eq!(write(), Ok(()));
    disk.refuse_reads(Refusal::Nth(2));
    // SAFETY: as above.
    let read = || unsafe { swaps.read(&frames, run, buffer) };
    assert_eq!(read(), Err(ReadError { slot: run.slots.first + 1, reason: Unreadable::Failed }));
    assert_eq!(read(), Ok(()));
    assert!(swaps.allocate(&host, 2).is_ok());
    assert_eq!(swaps.allocate(&host, 0), Err(NoSlots::Full));
    let half = SwapRun { slots: Slots { count: 2, ..run.slots }, ..run };
    // SAFETY: as above.
    unsafe { swaps.release(&frames, half) };
    assert_eq!(disk.used(), 2);
    assert_eq!(read(), Err(ReadError { slot: run.slots.first, reason: Unreadable::Empty }));
}

/// A disk without checksums.
struct Trusted(Disk);

impl<P: Platform> SwapDevice<P> for Trusted {
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: the same contract.
        unsafe { self.0.write(frames, slots, from) }
    }

    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        // SAFETY: the same contract.
        unsafe { self.0.read(frames, slots, to) }
    }

    unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots) {
        // SAFETY: the same contract.
        unsafe { SwapDevice::forget(&self.0, frames, slots) }
    }

    fn has_checksums(&self) -> bool {
        false
    }
}

/// Any changed bit of any page is noticed, until the page is written again; without checksums it is
/// not, and they take no memory.
#[test]
fn checksums_detect_changed_bits() {
    let host = machine(Schedule::Host, 4 << 20);
    let _cpu = host.cpu(0);
    let (checked, trusted) = (Disk::new(1), Trusted(Disk::new(2)));
    let devices: [(&dyn SwapDevice<_>, &Disk); 2] = [(&checked, &checked), (&trusted, &trusted.0)];
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let buffer = frames.alloc(2, true, Use::Kernel).unwrap();
    let taken = devices.map(|(device, disk)| {
        let swaps = Swaps::new(&frames).unwrap();
        let before = frames.free_frames();
        // SAFETY: no other code uses the disk.
        let id = unsafe { swaps.attach(&frames, device, 1024, 0).unwrap() };
        let taken = before - frames.free_frames();
        let run = swaps.allocate(&host, 2).unwrap();
        // SAFETY: slots and frames belong to the test.
        let (write, read) = unsafe { (|| swaps.write(&frames, run, buffer), || swaps.read(&frames, run, buffer)) };
        for n in 0..4 {
            assert_eq!((write(), read()), (Ok(()), Ok(())));
            for bit in [0, 7000 + n, 32767] {
                disk.flip(run.slots.first + n, bit);
                let told = ReadError { slot: run.slots.first + n, reason: Unreadable::Damaged };
                assert_eq!(read(), if device.has_checksums() { Err(told) } else { Ok(()) });
                disk.flip(run.slots.first + n, bit);
                assert_eq!(read(), Ok(()));
            }
            disk.flip(run.slots.first + n, 0);
        }
        // SAFETY: as above.
        unsafe { swaps.release(&frames, run) };
        swaps.close(&host, id).unwrap();
        swaps.detach(&frames, id).unwrap();
        assert_eq!(frames.free_frames(), before);
        taken
    });
    assert!(taken[0] > taken[1], "{taken:?}");
}
