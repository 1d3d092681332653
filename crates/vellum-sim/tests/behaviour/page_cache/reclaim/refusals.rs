//! Refusals while pages of an object are swapped out and in. Two spaces map it shared, and a third
//! privately (INV-16).

use std::collections::BTreeMap;

use vellum::arch::{Aarch64, X86_64};
use vellum::frame::policy::ShmemKnob;
use vellum::memcg::MemcgId;
use vellum::page_cache::{Object, ObjectError};
use vellum::reclaim::reclaim;
use vellum::space::{FaultError, Limits, MapFlags, MapRequest, unmap_removed};
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Disk, Fault, Hostility, Refusal, Silicon, Strict, Strictness};

use crate::fixtures::refusals::family::RW;
use crate::fixtures::refusals::{POINTS, Point, in_formats, refuse, refused};

const BASE: u64 = 0x30_0000_0000;

struct Shared<'m, A: Silicon> {
    machine: &'m Machine<'m, Strict<A>>,
    cpu: &'m Cpu<'m, Strict<A>>,
    object: Object<'m, Strict<A>>,
    spaces: Vec<AddressSpace<'m, Strict<A>>>,
    /// The contents of its pages.
    model: BTreeMap<u64, u64>,
    pages: u64,
}

impl<A: Silicon> Shared<'_, A> {
    fn at(&self, page: u64) -> u64 {
        BASE + (page << self.object.page_shift())
    }

    fn store(&mut self, who: usize, page: u64, value: u64) {
        match self.cpu.enter(&self.spaces[who]).store_u64(self.at(page), value) {
            Ok(()) => _ = self.model.insert(page, value),
            Err(error) => self.excuses(page, error),
        }
    }

    fn load(&self, who: usize, page: u64) {
        match self.cpu.enter(&self.spaces[who]).load_u64(self.at(page)) {
            Ok(found) => assert_eq!(found, self.model.get(&page).copied().unwrap_or(0), "page {page} of {who}"),
            Err(error) => self.excuses(page, error),
        }
    }

    fn excuses(&self, page: u64, error: Fault<FaultError>) {
        let Fault::Handler(error) = error else { panic!("page {page}: {error:?}") };
        assert!(matches!(error, FaultError::NoMemory(_)) || error == FaultError::Poisoned(self.at(page)), "{error:?}");
    }

    fn may<T>(result: Result<T, ObjectError>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(ObjectError::NoMemory(_) | ObjectError::Lost) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&self, page: u64) {
        let Some(found) = Self::may(self.object.page(page)) else { return };
        let mut word = [0; 8];
        found.iter().for_each(|held| _ = held.read(0, &mut word));
        assert_eq!(u64::from_ne_bytes(word), self.model.get(&page).copied().unwrap_or(0), "page {page}");
    }

    fn reclaim(&self) {
        let spaces: Vec<_> = self.spaces.iter().collect();
        reclaim(self.machine, &spaces[..], MemcgId::ROOT, u64::MAX).unwrap();
    }

    fn forget(&mut self, gone: Option<vellum::page_cache::RemovedPages>) {
        if let Some(gone) = gone {
            let spaces: Vec<_> = self.spaces.iter().collect();
            unmap_removed(&spaces[..], &self.object, &gone);
            self.model.retain(|page, _| !(gone.first..gone.end).contains(page));
        }
    }

    /// Checks that the slots in use are those of the object and of private copies, and that the
    /// contents are the model's, also after swap-in.
    fn check(&self, disks: [&Disk; 2]) {
        let frames = |pages: u64| pages << (self.object.page_shift() - 12);
        let used: usize = disks.iter().map(|disk| disk.used()).sum();
        let anonymous: u64 = self.spaces.iter().map(|space| space.stats().swap >> 12).sum();
        assert_eq!(used as u64, frames(self.object.swapped()) + anonymous, "slots in use");
        (0..self.pages).for_each(|page| self.read(page));
        (0..self.pages).for_each(|page| self.load(1, page));
        assert_eq!((self.object.swapped(), self.object.resident()), (0, self.pages));
    }
}

type Act<A> = fn(&mut Shared<'_, A>);

fn acts<A: Silicon>() -> [(&'static str, bool, Act<A>); 9] {
    [
        ("all pages are swapped out", false, |on| on.reclaim()),
        ("all mapped pages are swapped out", false, |on| {
            (0..on.pages).for_each(|page| on.load(1, page));
            on.reclaim();
        }),
        ("read pages are swapped in", true, |on| (0..on.pages).for_each(|page| on.read(page))),
        ("touched pages are swapped in, and out again", true, |on| {
            (0..on.pages).for_each(|page| on.load(0, page));
            (0..on.pages).for_each(|page| on.store(1, page, 50 + page));
            on.reclaim();
            (0..on.pages).for_each(|page| on.load(1, page));
        }),
        ("a private page is copied from a swapped-out page", true, |on| {
            for page in (0..on.pages).step_by(3) {
                let before = on.model.clone();
                on.store(2, page, 9000 + page);
                on.model = before;
            }
            on.reclaim();
        }),
        ("a swapped-out range is truncated in the middle of a page", true, |on| {
            let (page, shift) = (on.pages / 2, on.object.page_shift());
            let gone = Shared::<A>::may(on.object.set_size((page << shift) + 8));
            on.forget(gone);
            let _ = Shared::<A>::may(on.object.set_size(on.pages << shift));
            (0..on.pages).for_each(|page| on.load(0, page));
        }),
        ("a hole is punched in a swapped-out range", true, |on| {
            let shift = on.object.page_shift();
            let gone = Shared::<A>::may(on.object.punch_hole((1 << shift) + 8..3 << shift));
            on.forget(gone);
            (0..on.pages).for_each(|page| on.read(page));
        }),
        ("the devices are emptied", true, |on| {
            for device in 0..2 {
                on.machine.swaps().close(on.machine.platform(), device).unwrap();
                if Shared::<A>::may(Object::swap_off(on.machine, device)).is_some() {
                    assert_eq!(on.machine.swaps().usage(on.machine.platform(), device).unwrap().used, 0);
                }
                on.machine.swaps().open(on.machine.platform(), device).unwrap();
            }
        }),
        ("a part is in hand", false, |on| {
            let held = Shared::<A>::may(on.object.page(1)).flatten();
            on.reclaim();
            if let Some(held) = held {
                held.write(0, &77u64.to_ne_bytes());
                on.model.insert(1, 77);
            }
            on.reclaim();
            on.load(0, 1);
        }),
    ]
}

/// Runs one of these with one request refused. Returns whether any was.
fn run<A: Silicon>(arch: A, order: u8, (_, away, act): (&str, bool, Act<A>), point: Point, n: u64) -> bool {
    let page_order = arch.page_order();
    let pages = 2u64 << (order.max(page_order + 2) - page_order);
    let sim = Config::with_arch(arch, (24 << 20) + ((16 * pages) << arch.page_shift())).cpus(1);
    let sim = sim.strict(Strictness::new(n).hostility(Hostility::USUAL)).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    machine.policy().shmem().set(order, ShmemKnob::WithinSize);
    let disks = [Disk::new(n), Disk::new(n + 1)];
    for (disk, (slots, priority)) in
        disks.iter().zip([((pages / 2 + 1) << page_order, 1), ((8 * pages) << page_order, 0)])
    {
        // SAFETY: no other code uses it, and it outlives the machine's use of it.
        unsafe { machine.swaps().attach(machine.frames(), disk, slots as u32, priority) }.unwrap();
    }
    sim.baseline();
    let free = machine.frames().free_frames();
    let object = Object::new(&machine, &arch, MemcgId::ROOT, 0, pages << arch.page_shift()).unwrap();
    let spaces = [MapFlags::SHARED, MapFlags::SHARED, MapFlags::empty()].map(|flags| {
        let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
        let request =
            MapRequest { addr: BASE, len: pages << arch.page_shift(), prot: RW, flags: flags | MapFlags::FIXED };
        space.map_object(request, &object, 0).unwrap();
        space
    });
    let mut on = Shared { machine: &machine, cpu: &cpu, object, spaces: spaces.into(), model: BTreeMap::new(), pages };
    (0..pages).for_each(|page| on.store(0, page, 100 + page));
    if away {
        on.reclaim();
        assert_eq!(on.object.swapped(), pages);
    }
    refuse(&sim, disks.each_ref(), point, Refusal::Nth(n));
    act(&mut on);
    let refused = refused(&sim, disks.each_ref(), point);
    refuse(&sim, disks.each_ref(), point, Refusal::Never);
    on.check(disks.each_ref());
    drop(on);
    assert_eq!(disks.each_ref().map(Disk::used), [0, 0], "leaked slots");
    assert_eq!(machine.frames().free_frames(), free);
    sim.finish();
    refused > 0
}

fn all<A: Silicon + std::fmt::Debug>(arch: A, order: u8) {
    let mut points = 0;
    for act in acts::<A>() {
        for point in POINTS {
            let refuses = |n: &u64| {
                let result =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(arch, order, act, point, *n)));
                result.unwrap_or_else(|failure| {
                    eprintln!("{}, {arch:?}, order {order}: {point:?} refused the {n}-th time", act.0);
                    std::panic::resume_unwind(failure);
                })
            };
            points += (1..).take_while(refuses).count();
        }
    }
    println!("{arch:?}, folios of order {order}: {points} points");
    assert!(points > 80, "{points} points");
}

in_formats! {
    objects_pages: X86_64::four_levels(), 0;
    objects_folios: X86_64::four_levels(), 3;
    objects_of_16k: Aarch64::granule_16k(), 4;
}
