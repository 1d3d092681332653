//! Whatever can fail while memory is swapped out or in fails, one at a time: the n-th allocation, block of slots, reference,
//! look for pins, write or read of a device, for n = 1, 2, … until a scenario runs through. Each time programs find what a model
//! of plain maps says, slots are in use exactly as entries name them, and nothing is left in the end.

use std::collections::BTreeMap;

use vellum::addr::VirtRange;
use vellum::arch::{Aarch64, Kind, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::group::GroupId;
use vellum::platform::Wanted;
use vellum::space::{Access, Advise, FaultError, Limits, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Disk, Fault, Hostility, Refusal, Silicon, Strict, Strictness};

const BASE: u64 = 0x20_0000_0000;
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// What can be refused.
#[derive(Clone, Copy, Debug)]
enum Point {
    Engine(Wanted),
    Write,
    Read,
}

const POINTS: [Point; 6] = [
    Point::Engine(Wanted::Frames),
    Point::Engine(Wanted::Slots),
    Point::Engine(Wanted::References),
    Point::Engine(Wanted::Unpinned),
    Point::Write,
    Point::Read,
];

/// A space, and what programs have in its pages; pages that are not mapped are not there.
struct Member<'m, A: Silicon> {
    space: AddressSpace<'m, Strict<A>, A>,
    pages: BTreeMap<u64, u64>,
}

/// A machine with two disks, of which the second is the larger one and used last, and a family of spaces.
struct World<'m, A: Silicon> {
    sim: &'m Strict<A>,
    cpu: &'m Cpu<'m, Strict<A>>,
    machine: &'m Machine<'m, Strict<A>>,
    disks: [&'m Disk; 2],
    family: Vec<Member<'m, A>>,
    /// In a block that scenarios are about, two of which are mapped.
    pages: u64,
    group: GroupId,
}

impl<A: Silicon> World<'_, A> {
    fn at(&self, page: u64) -> u64 {
        BASE + page * self.page()
    }

    fn page(&self) -> u64 {
        1 << self.family[0].space.arch().page_shift()
    }

    fn all(&self) -> VirtRange {
        VirtRange { start: BASE, end: self.at(8 * self.pages) }
    }

    fn map(&mut self, who: usize, page: u64, pages: u64) {
        let request = MapRequest { addr: self.at(page), len: pages * self.page(), prot: RW, flags: MapFlags::FIXED };
        if self.family[who].space.map(request).is_ok() {
            self.family[who].pages.extend((page..page + pages).map(|page| (page, 0)));
        }
    }

    fn store(&mut self, who: usize, page: u64, value: u64) {
        let va = self.at(page);
        let stored = self.cpu.enter(&self.family[who].space).store_u64(va, value);
        match stored {
            Ok(()) => _ = self.family[who].pages.insert(page, value),
            Err(error) => self.excuses(page, error),
        }
    }

    fn load(&self, who: usize, page: u64) {
        match self.cpu.enter(&self.family[who].space).load_u64(self.at(page)) {
            Ok(found) => assert_eq!(Some(&found), self.family[who].pages.get(&page), "page {page} of {who}"),
            Err(error) => self.excuses(page, error),
        }
    }

    /// What may be refused a program whose memory was swapped out.
    fn excuses(&self, page: u64, error: Fault<FaultError>) {
        match error {
            Fault::Handler(FaultError::OutOfMemory | FaultError::OverLimit(_)) => {}
            Fault::Handler(FaultError::Poisoned(va)) => {
                assert_eq!((va - BASE) / self.page(), page, "another page is lost")
            }
            error => panic!("page {page}: {error:?}"),
        }
    }

    fn write_all(&mut self, who: usize, value: u64) {
        let pages: Vec<u64> = self.family[who].pages.keys().copied().collect();
        pages.into_iter().for_each(|page| self.store(who, page, value + page));
    }

    fn read_all(&self, who: usize) {
        self.family[who].pages.keys().for_each(|page| self.load(who, *page));
    }

    fn advise(&self, who: usize, page: u64, pages: u64, advise: Advise) -> bool {
        self.family[who].space.advise(self.at(page), pages * self.page(), advise).is_ok()
    }

    fn out(&self, who: usize) {
        assert!(self.advise(who, 0, 2 * self.pages, Advise::PageOut), "pages that can't go stay");
    }

    fn fork(&mut self, who: usize) {
        let Ok(space) = self.family[who].space.fork() else { return };
        let pages = self.family[who].pages.clone();
        self.family.push(Member { space, pages });
    }

    /// The last of the family ends.
    fn ends(&mut self) {
        if self.family.len() > 1 {
            self.family.pop();
        }
    }

    fn swap_off(&self, who: usize) {
        for device in 0..2 {
            self.machine.swaps().close(self.sim, device).unwrap();
            let back = self.family[who].space.swap_off(device);
            let may = matches!(
                back,
                Ok(()) | Err(FaultError::OutOfMemory | FaultError::Poisoned(_) | FaultError::OverLimit(_))
            );
            assert!(may, "{back:?}");
            if back.is_ok() {
                let on_it = |slots: &BTreeMap<(u8, u64), u32>| slots.keys().filter(|slot| slot.0 == device).count();
                assert_eq!(on_it(&self.slots(who)), 0, "some are left on device {device}");
            }
            self.machine.swaps().open(self.sim, device).unwrap();
        }
    }

    /// The slots that entries of a space name, by device.
    fn slots(&self, who: usize) -> BTreeMap<(u8, u64), u32> {
        let (space, mut slots) = (&self.family[who].space, BTreeMap::new());
        let arch = space.arch();
        space.runs(self.all(), |run| {
            if run.kind == Kind::Swap {
                let swapped = arch.swapped(run.raw);
                let count = run.range(arch).len() >> arch.page_shift();
                (0..count).for_each(|n| *slots.entry((swapped.device, swapped.slot + n)).or_default() += 1);
            }
        });
        slots
    }

    /// Slots are in use as entries say; programs find what the model says, and so again after all was brought back.
    fn check(&self) {
        let order = self.family[0].space.arch().page_order();
        let mut named: BTreeMap<(u8, u64), u32> = BTreeMap::new();
        for who in 0..self.family.len() {
            let slots = self.slots(who);
            let frames = (slots.len() as u64) << order << 12;
            assert_eq!(self.family[who].space.stats().swap, frames, "swapped bytes of {who}");
            slots.into_iter().for_each(|(slot, entries)| *named.entry(slot).or_default() += entries);
        }
        for (device, disk) in (0..).zip(self.disks) {
            let used = self.machine.swaps().usage(self.sim, device).unwrap().used as usize;
            let on_it = named.keys().filter(|slot| slot.0 == device).count() << order;
            assert_eq!((used, disk.used()), (on_it, on_it), "slots of device {device} in use, and with contents");
        }
        for ((device, slot), entries) in named {
            // SAFETY: an entry has one.
            let found = unsafe { self.machine.swaps().references(self.sim, device, (slot << order) as u32) };
            assert_eq!(u32::from(found), entries, "references to slot {slot} of device {device}");
        }
        (0..self.family.len()).for_each(|who| {
            let program = self.cpu.enter(&self.family[who].space);
            for (page, value) in &self.family[who].pages {
                assert_eq!(program.load_u64(self.at(*page)), Ok(*value), "page {page} of {who}");
            }
        });
    }
}

/// What a scenario prepares, and what it does when things fail.
struct Scenario<A: Silicon> {
    name: &'static str,
    before: fn(&mut World<'_, A>),
    act: fn(&mut World<'_, A>),
}

fn scenarios<A: Silicon>() -> Vec<Scenario<A>> {
    fn nothing<A: Silicon>(_: &mut World<'_, A>) {}
    fn out<A: Silicon>(w: &mut World<'_, A>) {
        w.out(0);
    }
    fn family<A: Silicon>(w: &mut World<'_, A>) {
        w.out(0);
        w.fork(0);
    }
    let scenario = |name, before, act| Scenario { name, before, act };
    vec![
        scenario("all goes out", nothing, |w| w.out(0)),
        scenario("a part goes out that begins and ends anywhere", nothing, |w| {
            w.advise(0, 1, 2 * w.pages - 3, Advise::PageOut);
        }),
        scenario("what is read comes back", out, |w| w.read_all(0)),
        scenario("what is written comes back", out, |w| w.write_all(0, 1000)),
        scenario("one page in the middle comes back", out, |w| w.store(0, w.pages / 2 + 1, 7)),
        scenario("out, in, and out again", nothing, |w| {
            w.out(0);
            w.read_all(0);
            w.write_all(0, 2000);
            w.out(0);
        }),
        scenario("a child of what is swapped out", out, |w| w.fork(0)),
        scenario("a child of what is out in part", nothing, |w| {
            w.advise(0, 2, w.pages, Advise::PageOut);
            w.fork(0);
        }),
        scenario("parent and child bring back what both had", family, |w| {
            w.read_all(0);
            if w.family.len() > 1 {
                w.write_all(1, 3000);
            }
            w.write_all(0, 4000);
        }),
        scenario("a child swaps out what it copied", nothing, |w| {
            w.fork(0);
            if w.family.len() > 1 {
                w.write_all(1, 5000);
                w.out(1);
                w.read_all(1);
            }
            w.out(0);
        }),
        scenario("what a child leaves is its parent's alone", nothing, |w| {
            w.fork(0);
            w.out(0);
            w.ends();
            w.out(0);
            w.write_all(0, 6000);
        }),
        scenario("three generations with the same slots", family, |w| {
            w.fork(w.family.len() - 1);
            w.read_all(w.family.len() - 1);
            w.ends();
            w.write_all(0, 100);
        }),
        scenario("the devices are emptied", out, |w| w.swap_off(0)),
        scenario("the devices are emptied of a family", family, |w| {
            (0..w.family.len()).for_each(|who| w.swap_off(who));
        }),
        scenario("a part is unmapped", out, |w| {
            let (addr, len) = (w.at(3), (w.pages - 2) * w.page());
            if w.family[0].space.unmap(addr, len).is_ok() {
                (3..1 + w.pages).for_each(|page| _ = w.family[0].pages.remove(&page));
            }
        }),
        scenario("a part is forgotten", out, |w| {
            if w.advise(0, 5, w.pages, Advise::DontNeed) {
                (5..5 + w.pages).for_each(|page| _ = w.family[0].pages.insert(page, 0));
            }
        }),
        scenario("a part is guarded", out, |w| {
            let installed = w.advise(0, w.pages + 1, 2, Advise::GuardInstall);
            assert!(w.advise(0, w.pages + 1, 2, Advise::GuardRemove));
            for page in w.pages + 1..w.pages + 3 {
                // Otherwise it ended halfway, and the page holds what it held or nothing.
                let va = w.at(page);
                if installed || w.cpu.enter(&w.family[0].space).load_u64(va) == Ok(0) {
                    w.family[0].pages.insert(page, 0);
                }
            }
        }),
        scenario("all of it moves", out, |w| {
            let len = 2 * w.pages * w.page();
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let request =
                RemapRequest { addr: w.at(0), old_len: len, new_len: len, flags, new_addr: w.at(4 * w.pages) };
            if w.family[0].space.remap(request).is_ok() {
                let by = 4 * w.pages;
                w.family[0].pages = w.family[0].pages.iter().map(|(page, value)| (page + by, *value)).collect();
            }
        }),
        scenario("a part moves to where tables differ", out, |w| {
            let len = w.pages * w.page();
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let to = 4 * w.pages + 1;
            let request = RemapRequest { addr: w.at(3), old_len: len, new_len: len, flags, new_addr: w.at(to) };
            if w.family[0].space.remap(request).is_ok() {
                for page in 3..3 + w.pages {
                    let value = w.family[0].pages.remove(&page).unwrap();
                    w.family[0].pages.insert(page - 3 + to, value);
                }
            }
            w.read_all(0);
        }),
        scenario("a part is protected while it is away", out, |w| {
            let (addr, len) = (w.at(1), 2 * w.page());
            let _ = w.family[0].space.protect(addr, len, Prot::READ);
            w.load(0, 1);
            w.load(0, 2);
            w.family[0].space.protect(addr, len, RW).unwrap_or(());
        }),
        scenario("all is locked", out, |w| {
            let (addr, len) = (w.at(0), 2 * w.pages * w.page());
            let _ = w.family[0].space.lock(addr, len, false);
            w.advise(0, 0, 2 * w.pages, Advise::PageOut);
            w.family[0].space.unlock_all();
            w.out(0);
        }),
        scenario("what is pinned stays", nothing, |w| {
            let pin = w.family[0].space.pin(w.at(2), Access::Write);
            w.out(0);
            if let Ok(pin) = pin {
                pin.write(0, &77u64.to_ne_bytes());
                w.family[0].pages.insert(2, 77);
                w.load(0, 2);
            }
            w.out(0);
        }),
        scenario("what is away is pinned", out, |w| {
            if let Ok(pin) = w.family[0].space.pin(w.at(2), Access::Write) {
                pin.write(0, &78u64.to_ne_bytes());
                w.family[0].pages.insert(2, 78);
                w.out(0);
                w.load(0, 2);
            }
        }),
        scenario("memory is populated where it was away", out, |w| {
            w.advise(0, 0, 2 * w.pages, Advise::PopulateWrite);
            w.read_all(0);
        }),
        scenario("what was written is asked for meanwhile", out, |w| {
            if w.family[0].space.track_writes().is_ok() {
                w.store(0, 1, 9);
                w.out(0);
            }
            w.write_all(0, 7000);
        }),
        scenario("a group runs out of memory", out, |w| {
            let half = w.pages << w.family[0].space.arch().page_order();
            w.machine.groups().set_limit(w.group, half + 8).unwrap();
            w.write_all(0, 8000);
            w.out(0);
            w.read_all(0);
            w.machine.groups().set_limit(w.group, u64::MAX).unwrap();
        }),
        scenario("a family under pressure", nothing, |w| {
            w.fork(0);
            let all = (3 * w.pages) << w.family[0].space.arch().page_order();
            w.machine.groups().set_limit(w.group, all).unwrap();
            for round in 0..2 {
                for who in 0..w.family.len() {
                    w.write_all(who, 10_000 * (round + 1) + 500 * who as u64);
                    w.out(who);
                }
                w.fork(0);
            }
            w.machine.groups().set_limit(w.group, u64::MAX).unwrap();
        }),
    ]
}

/// Run a scenario with one thing refused; whether anything was.
fn run<A: Silicon>(arch: A, order: u8, scenario: &Scenario<A>, point: Point, n: u64) -> bool {
    let strictness = Strictness::new(n).hostility(Hostility::USUAL);
    let page_order = arch.page_order();
    let pages = 1 << (order.max(page_order + 3) - page_order);
    let bytes = (24 << 20) + ((48 * pages) << arch.page_shift());
    let sim = Config::with_arch(arch, bytes).cpus(1).strict(strictness).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    machine.policy().set(order, Knob::Always);
    let disks = [Disk::new(n), Disk::new(n + 1)];
    // The first has room for a block and a half.
    for (disk, (slots, priority)) in
        disks.iter().zip([((pages + pages / 2) << page_order, 1), ((16 * pages) << page_order, 0)])
    {
        // SAFETY: nobody else uses it, and it outlives the machine's use of it.
        unsafe { machine.swaps().attach(machine.frames(), disk, slots as u32, priority) }.unwrap();
    }
    let group = machine.groups().create(machine.frames(), GroupId::ROOT, u64::MAX).unwrap();
    sim.baseline();
    let free = machine.frames().free_frames();
    let space = AddressSpace::new(&machine, arch, group, Limits::default()).unwrap();
    let family = vec![Member { space, pages: BTreeMap::new() }];
    let mut world = World { sim: &sim, cpu: &cpu, machine: &machine, disks: disks.each_ref(), family, pages, group };
    world.map(0, 0, 2 * pages);
    world.write_all(0, 1);
    (scenario.before)(&mut world);
    match point {
        Point::Engine(wanted) => sim.refuse_wanted(wanted, Refusal::Nth(n)),
        Point::Write => disks.iter().for_each(|disk| disk.refuse_writes(Refusal::Nth(n))),
        Point::Read => disks.iter().for_each(|disk| disk.refuse_reads(Refusal::Nth(n))),
    }
    (scenario.act)(&mut world);
    let refused = match point {
        Point::Engine(wanted) => sim.wanted(wanted).1,
        Point::Write => disks.iter().map(|disk| disk.writes().1).sum(),
        Point::Read => disks.iter().map(|disk| disk.reads().1).sum(),
    };
    match point {
        Point::Engine(wanted) => sim.refuse_wanted(wanted, Refusal::Never),
        Point::Write => disks.iter().for_each(|disk| disk.refuse_writes(Refusal::Never)),
        Point::Read => disks.iter().for_each(|disk| disk.refuse_reads(Refusal::Never)),
    }
    world.check();
    drop(world);
    assert_eq!(disks.each_ref().map(Disk::used), [0, 0], "slots hold what nobody has");
    assert_eq!((0..2).map(|device| machine.swaps().usage(&sim, device).unwrap().used).sum::<u32>(), 0);
    assert_eq!(machine.groups().usage(machine.frames(), group).unwrap().charged, 0);
    assert_eq!(machine.frames().free_frames(), free);
    sim.finish();
    refused > 0
}

/// With each n.
const EACH: u64 = u64::MAX;

/// All scenarios. Where a folio alone has hundreds of points, n grows by a part of itself.
fn all<A: Silicon + std::fmt::Debug>(arch: A, order: u8, stride: u64) {
    let (mut points, mut count) = (0, 0);
    for scenario in &scenarios::<A>() {
        count += 1;
        for point in POINTS {
            let mut n = 1;
            loop {
                let result =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(arch, order, scenario, point, n)));
                match result {
                    Ok(true) => points += 1,
                    Ok(false) => break,
                    Err(failure) => {
                        eprintln!("{}, {arch:?}, order {order}: {point:?} refused the {n}-th time", scenario.name);
                        std::panic::resume_unwind(failure);
                    }
                }
                n += 1 + n / stride;
            }
        }
    }
    println!("{arch:?}, folios of order {order}: {points} points in {count} scenarios");
    assert!(count >= 24 && points > 500, "{points} points in {count} scenarios");
}

macro_rules! in_formats {
    ($($name:ident: $arch:expr, $order:expr, $stride:expr;)*) => {$(
        #[test]
        fn $name() {
            all($arch, $order, $stride);
        }
    )*};
}

in_formats! {
    x86_64_pages: X86_64::four_levels(), 0, EACH;
    x86_64_16k_folios: X86_64::four_levels(), 2, EACH;
    x86_64_huge_folios: X86_64::four_levels(), 9, 2;
    aarch64_64k_folios: Aarch64::granule_4k(), 4, EACH;
    aarch64_of_16k: Aarch64::granule_16k(), 4, 8;
    aarch64_of_64k: Aarch64::granule_64k(), 4, 8;
    riscv64_64k_folios: Riscv64::sv39().with_napot(), 4, EACH;
}
