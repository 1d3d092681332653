//! Pageout in which a part can't be swapped out: there are no slots, the device refuses it or has
//! no memory, a page is pinned, or was written meanwhile. That part keeps its PTEs, bits included,
//! and so do the later parts that the same cause stops; the parts before it are swapped out.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};

use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Attrs, Kind};
use vellum::frame::Frames;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::platform::{FailPoint, Platform};
use vellum::space::{Access, Advise, Limits, MapFlags, MapRequest};
use vellum::swap::{ReadError, Slots, SwapDevice, WriteError};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Disk, Hostility, Refusal, Silicon, Strict, Strictness};

use crate::fixtures::bench::{BASE, in_every_format};

/// Adjacent VMAs, of one folio each, which is written as one block.
const PARTS: u64 = 6;
/// Pages in each.
const EACH: u64 = 4;
const ALL: u64 = PARTS * EACH;

/// A disk that waits for an event while it writes one of the blocks, and may then fail.
struct Hooked {
    disk: Disk,
    /// Blocks until then.
    left: AtomicU64,
    meanwhile: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    fails: Mutex<Option<WriteError>>,
}

impl<P: Platform> SwapDevice<P> for Hooked {
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        if self.left.fetch_sub(1, SeqCst) == 0 {
            if let Some((now, done)) = &*self.meanwhile.lock().unwrap() {
                now.send(()).unwrap();
                done.recv().unwrap();
            }
            if let Some(error) = *self.fails.lock().unwrap() {
                return Err(error);
            }
        }
        // SAFETY: the same contract.
        unsafe { self.disk.write(frames, slots, from) }
    }

    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        // SAFETY: the same contract.
        unsafe { self.disk.read(frames, slots, to) }
    }

    unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots) {
        // SAFETY: the same contract.
        unsafe { SwapDevice::forget(&self.disk, frames, slots) }
    }
}

struct Bench<'m, A: Silicon> {
    sim: &'m Strict<A>,
    cpu: &'m Cpu<'m, Strict<A>>,
    device: &'m Hooked,
    space: AddressSpace<'m, Strict<A>>,
    page: u64,
}

/// A PTE: a frame and all attributes, or `None` if the page is not mapped.
type Entry = Option<(Pfn, Attrs)>;

impl<A: Silicon> Bench<'_, A> {
    fn at(&self, page: u64) -> u64 {
        BASE + page * self.page
    }

    fn entries(&self) -> Vec<Entry> {
        let (mut entries, arch) = (Vec::new(), self.space.arch());
        self.space.runs(VirtRange { start: BASE, end: self.at(ALL) }, |run| {
            let frames = (self.page >> 12) as u32;
            let entry = |n: u32| (run.kind == Kind::Leaf).then(|| (run.pfn(arch).add(n * frames), run.attrs(arch)));
            entries.extend((0..run.len as u32).map(entry));
        });
        entries
    }

    fn out(&self) {
        self.space.advise(BASE, self.at(ALL) - BASE, Advise::PageOut).unwrap();
    }

    fn load(&self, page: u64) -> u64 {
        self.cpu.enter(&self.space).load_u64(self.at(page)).unwrap()
    }

    /// Makes the device send a message when it is about to write this part, and wait for one.
    fn hook(&self, part: u64) -> (Receiver<()>, Sender<()>) {
        let ((now, told), (go, done)) = (channel(), channel());
        *self.device.meanwhile.lock().unwrap() = Some((now, done));
        self.device.left.store(part, SeqCst);
        (told, go)
    }
}

/// Keeps pages of each part in turn from being swapped out, as `force` does. Their PTEs must be
/// unchanged, and no other page resident.
fn stays<A: Silicon>(arch: A, force: impl Fn(&Bench<'_, A>, u64) -> Range<u64>) {
    for part in 0..PARTS {
        let strictness = Strictness::new(part).hostility(Hostility::NONE);
        let sim = Config::with_arch(arch, 16 << 20).cpus(2).strict(strictness).unwrap();
        let cpu = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let device = Hooked {
            disk: Disk::new(part),
            left: AtomicU64::new(u64::MAX),
            meanwhile: Mutex::new(None),
            fails: Mutex::new(None),
        };
        // SAFETY: no other code uses it, and it outlives the machine's use of it.
        unsafe { machine.swaps().attach(machine.frames(), &device, 4096, 0) }.unwrap();
        sim.baseline();
        let order = arch.page_order() + EACH.ilog2() as u8;
        machine.policy().set(order, Knob::Always);
        let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
        let on = Bench { sim: &sim, cpu: &cpu, device: &device, space, page: 1 << arch.page_shift() };
        let prot = Prot::READ | Prot::WRITE;
        let request = MapRequest { addr: BASE, len: on.at(ALL) - BASE, prot, flags: MapFlags::FIXED };
        on.space.map(request).unwrap();
        for odd in (1..PARTS).step_by(2) {
            on.space.advise(on.at(odd * EACH), EACH * on.page, Advise::DontDump).unwrap();
        }
        (0..ALL).for_each(|page| on.cpu.enter(&on.space).store_u64(on.at(page), 100 + page).unwrap());
        // Copies are of single pages.
        machine.policy().set(order, Knob::Never);
        let before = on.entries();
        let stay = force(&on, part);
        for (page, (was, is)) in (0..).zip(before.into_iter().zip(on.entries())) {
            assert_eq!(
                is,
                was.filter(|_| stay.contains(&page)),
                "page {page}; part {part} was to stay, which is {stay:?}"
            );
        }
        on.sim.refuse_wanted(FailPoint::Slots, Refusal::Never);
        *device.fails.lock().unwrap() = None;
        (0..ALL).for_each(|page| assert_eq!(on.load(page), 100 + page));
        on.out();
        assert!(on.entries().iter().all(Option::is_none), "now it can go");
        drop(on);
        assert_eq!((device.disk.used(), machine.swaps().usage(&sim, 0).unwrap().used), (0, 0));
        drop(cpu);
        sim.finish();
    }
}

in_every_format! {
    without_slots_the_rest_stays_resident => |arch| stays(arch, |on, part| {
        on.sim.refuse_wanted(FailPoint::Slots, Refusal::From(part + 1));
        on.out();
        part * EACH..ALL
    }),
    without_device_memory_the_rest_stays_resident => |arch| stays(arch, |on, part| {
        *on.device.fails.lock().unwrap() = Some(WriteError::NoMemory);
        on.device.left.store(part, SeqCst);
        on.out();
        part * EACH..ALL
    }),
    without_device_memory_the_rest_of_the_run_stays_resident => |arch| stays(arch, |on, _| {
        // All of it is one VMA, and so one run, which is written in two blocks or more.
        on.space.advise(BASE, on.at(ALL) - BASE, Advise::DoDump).unwrap();
        *on.device.fails.lock().unwrap() = Some(WriteError::NoMemory);
        on.device.left.store(0, SeqCst);
        on.out();
        0..ALL
    }),
    folios_whose_write_fails_stay_resident => |arch| stays(arch, |on, part| {
        *on.device.fails.lock().unwrap() = Some(WriteError::Failed);
        on.device.left.store(part, SeqCst);
        on.out();
        part * EACH..(part + 1) * EACH
    }),
    pinned_folios_stay_resident => |arch| stays(arch, |on, part| {
        let pin = on.space.pin(on.at(part * EACH + 1), Access::Read).unwrap();
        on.out();
        drop(pin);
        part * EACH..(part + 1) * EACH
    }),
    pages_written_during_writeback_stay_resident => |arch| stays(arch, |on, part| {
        let page = part * EACH + 2;
        let before = on.entries();
        written_meanwhile(on, part, page);
        let after = on.entries();
        let there = |(n, entry): (usize, &Entry)| entry.is_some() == (n as u64 == page);
        assert!(after.iter().enumerate().all(there), "only page {page} is in memory: {after:?}");
        assert_ne!(after[page as usize], before[page as usize], "a write to an isolated page copies it");
        // The page is swapped out for the comparison.
        on.out();
        0..0
    }),
    pages_written_before_their_writeback_stay_resident => |arch| stays(arch, |on, part| {
        written_meanwhile(on, part, ALL - 1);
        assert!((0..).zip(on.entries()).all(|(n, entry)| entry.is_some() == (n == ALL - 1)));
        on.out();
        0..0
    }),
}

/// Pages everything out while another CPU writes a page when this part is written.
fn written_meanwhile<A: Silicon>(on: &Bench<'_, A>, part: u64, page: u64) {
    let (told, go) = on.hook(part);
    let (sim, space, va) = (on.sim, &on.space, on.at(page) + 8);
    let barrier = &Barrier::new(2);
    std::thread::scope(|s| {
        s.spawn(move || {
            let cpu = sim.cpu(1);
            let program = cpu.enter(space);
            // Its TLB caches that the page is writable.
            program.store_u64(va, 6).unwrap();
            barrier.wait();
            told.recv().unwrap();
            program.store_u64(va, 7).unwrap();
            drop(program);
            drop(cpu);
            go.send(()).unwrap();
        });
        barrier.wait();
        on.out();
    });
    *on.device.meanwhile.lock().unwrap() = None;
    assert_eq!(on.cpu.enter(&on.space).load_u64(on.at(page) + 8), Ok(7));
}
