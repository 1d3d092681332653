//! What a scenario is about: a machine, a family of spaces, and a model of plain maps.

use std::collections::{BTreeMap, BTreeSet};

use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Attrs, Kind};
use vellum::frame::flag;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::{Advise, FaultError, MapFlags, MapRequest};
use vellum::swap::{Slots, SwapRun};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Cpu, Disk, Fault, Silicon, Strict};

const BASE: u64 = 0x20_0000_0000;
pub const RW: Prot = Prot::READ.union(Prot::WRITE);

/// A space, and what programs have in its pages; pages that are not mapped are not there.
pub struct Member<'m, A: Silicon> {
    pub space: AddressSpace<'m, Strict<A>, A>,
    pub pages: BTreeMap<u64, u64>,
    /// Those that were freed lazily, and not written since: they may hold nothing.
    pub free: BTreeSet<u64>,
}

impl<A: Silicon> Member<'_, A> {
    pub fn could_hold(&self, page: u64, found: u64) -> bool {
        self.pages.get(&page) == Some(&found) || found == 0 && self.free.contains(&page)
    }
}

/// A machine with two disks, of which the second is the larger one and used last, and a family of spaces.
pub struct World<'m, A: Silicon> {
    pub sim: &'m Strict<A>,
    pub cpu: &'m Cpu<'m, Strict<A>>,
    pub machine: &'m Machine<'m, Strict<A>>,
    pub disks: [&'m Disk; 2],
    pub family: Vec<Member<'m, A>>,
    /// In a block that scenarios are about, two of which are mapped.
    pub pages: u64,
    pub memcg: MemcgId,
}

impl<A: Silicon> World<'_, A> {
    pub fn at(&self, page: u64) -> u64 {
        BASE + page * self.page()
    }

    pub fn page(&self) -> u64 {
        1 << self.family[0].space.arch().page_shift()
    }

    pub fn all(&self) -> VirtRange {
        VirtRange { start: BASE, end: self.at(8 * self.pages) }
    }

    pub fn map(&mut self, who: usize, page: u64, pages: u64) {
        let request = MapRequest { addr: self.at(page), len: pages * self.page(), prot: RW, flags: MapFlags::FIXED };
        if self.family[who].space.map(request).is_ok() {
            self.family[who].pages.extend((page..page + pages).map(|page| (page, 0)));
        }
    }

    pub fn store(&mut self, who: usize, page: u64, value: u64) {
        let va = self.at(page);
        let stored = self.cpu.enter(&self.family[who].space).store_u64(va, value);
        match stored {
            Ok(()) => {
                self.family[who].pages.insert(page, value);
                self.family[who].free.remove(&page);
            }
            Err(error) => self.excuses(page, error),
        }
    }

    pub fn load(&self, who: usize, page: u64) {
        match self.cpu.enter(&self.family[who].space).load_u64(self.at(page)) {
            Ok(found) => assert!(self.family[who].could_hold(page, found), "page {page} of {who} holds {found}"),
            Err(error) => self.excuses(page, error),
        }
    }

    /// What may be refused a program whose memory was swapped out.
    pub fn excuses(&self, page: u64, error: Fault<FaultError>) {
        match error {
            Fault::Handler(FaultError::NoMemory(_)) => {}
            Fault::Handler(FaultError::Poisoned(va)) => {
                assert_eq!((va - BASE) / self.page(), page, "another page is lost")
            }
            error => panic!("page {page}: {error:?}"),
        }
    }

    pub fn write_all(&mut self, who: usize, value: u64) {
        let pages: Vec<u64> = self.family[who].pages.keys().copied().collect();
        pages.into_iter().for_each(|page| self.store(who, page, value + page));
    }

    pub fn read_all(&self, who: usize) {
        self.family[who].pages.keys().for_each(|page| self.load(who, *page));
    }

    pub fn advise(&self, who: usize, page: u64, pages: u64, advise: Advise) -> bool {
        self.family[who].space.advise(self.at(page), pages * self.page(), advise).is_ok()
    }

    pub fn out(&self, who: usize) {
        assert!(self.advise(who, 0, 2 * self.pages, Advise::PageOut), "pages that can't go stay");
    }

    /// All of the block is freed lazily.
    pub fn free(&mut self, who: usize) {
        assert!(self.advise(who, 0, 2 * self.pages, Advise::Free), "it needs nothing");
        let all = self.family[who].pages.keys().copied().collect();
        self.family[who].free = all;
    }

    /// The family gives what it can.
    pub fn reclaim(&self) {
        let spaces: Vec<_> = self.family.iter().map(|member| &member.space).collect();
        reclaim::<_, A>(self.machine, &spaces[..], self.memcg, u64::MAX).unwrap();
    }

    /// Every third page is written, once or until it can be.
    pub fn write_some(&mut self, who: usize, value: u64) {
        (0..2 * self.pages).step_by(3).for_each(|page| self.store(who, page, value + page));
    }

    pub fn fork(&mut self, who: usize) {
        let Ok(space) = self.family[who].space.fork() else { return };
        let Member { pages, free, .. } = &self.family[who];
        let (pages, free) = (pages.clone(), free.clone());
        self.family.push(Member { space, pages, free });
    }

    /// The last of the family ends.
    pub fn ends(&mut self) {
        if self.family.len() > 1 {
            self.family.pop();
        }
    }

    pub fn swap_off(&self, who: usize) {
        for device in 0..2 {
            self.machine.swaps().close(self.sim, device).unwrap();
            let back = self.family[who].space.swap_off(device);
            let may = matches!(back, Ok(()) | Err(FaultError::NoMemory(_) | FaultError::Poisoned(_)));
            assert!(may, "{back:?}");
            if back.is_ok() {
                let on_it = |slots: &BTreeMap<(u8, u64), u32>| slots.keys().filter(|slot| slot.0 == device).count();
                assert_eq!(on_it(&self.slots(who)), 0, "some are left on device {device}");
            }
            self.machine.swaps().open(self.sim, device).unwrap();
        }
    }

    /// The slots that entries of a space name, by device.
    pub fn slots(&self, who: usize) -> BTreeMap<(u8, u64), u32> {
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

    /// The slots whose contents are in memory too, and the memory, which nobody may write to.
    fn cached(&self) -> BTreeMap<(u8, u64), Pfn> {
        let mut cached = BTreeMap::new();
        for Member { space, .. } in &self.family {
            let arch = space.arch();
            space.runs(self.all(), |run| {
                if run.kind != Kind::Leaf {
                    return;
                }
                let frames = self.machine.frames();
                let mapped = run.pfn(arch).0..run.pfn(arch).0 + (run.range(arch).len() >> 12) as u32;
                let mut at = mapped.start;
                while at < mapped.end {
                    let (head, frame) = frames.head(Pfn(at));
                    let folio = head.0..head.0 + (1 << frame.order());
                    at = folio.end;
                    // A part that nobody maps any more may have slots too.
                    for pfn in folio.step_by(1 << arch.page_order()).filter(|_| frame.has(flag::SWAP_CACHED)) {
                        let Some(SwapRun { device, slots }) = self.machine.swaps().slot_of(self.sim, Pfn(pfn)) else {
                            continue;
                        };
                        let own = mapped.contains(&pfn) && run.attrs(arch).intersects(Attrs::EXCLUSIVE | Attrs::WRITE);
                        assert!(!own, "INV-15: {run:?}");
                        let slot = (device, u64::from(slots.first >> arch.page_order()));
                        assert_eq!(*cached.entry(slot).or_insert(Pfn(pfn)), Pfn(pfn), "{slot:?} has two copies");
                    }
                }
            });
        }
        cached
    }

    /// Slots are in use as entries say, and as copies; programs find what the model says, and so again after all was brought back.
    pub fn check(&self) {
        let order = self.family[0].space.arch().page_order();
        let mut named: BTreeMap<(u8, u64), u32> = BTreeMap::new();
        for who in 0..self.family.len() {
            let slots = self.slots(who);
            let frames = (slots.len() as u64) << order << 12;
            assert_eq!(self.family[who].space.stats().swap, frames, "swapped bytes of {who}");
            slots.into_iter().for_each(|(slot, entries)| *named.entry(slot).or_default() += entries);
        }
        let cached = self.cached();
        cached.keys().for_each(|slot| *named.entry(*slot).or_default() += 1);
        for (device, disk) in (0..).zip(self.disks) {
            let usage = self.machine.swaps().usage(self.sim, device).unwrap();
            let of = |all: usize, slot: &(u8, u64)| all + (usize::from(slot.0 == device) << order);
            let expected = (named.keys().fold(0, of), named.keys().fold(0, of), cached.keys().fold(0, of));
            let found = (usage.used as usize, disk.used(), usage.cached as usize);
            assert_eq!(found, expected, "slots of device {device} in use, with contents, in memory too");
        }
        for ((device, slot), expected) in named {
            let slots = Slots { first: (slot << order) as u32, count: 1 << order };
            // SAFETY: an entry has one, or a copy.
            let found = unsafe { self.machine.swaps().references(self.sim, SwapRun { device, slots }) };
            assert_eq!(found, expected, "references to {slots:?} of device {device}");
        }
        (0..self.family.len()).for_each(|who| {
            let program = self.cpu.enter(&self.family[who].space);
            for page in self.family[who].pages.keys() {
                let found = program.load_u64(self.at(*page)).unwrap();
                assert!(self.family[who].could_hold(*page, found), "page {page} of {who} holds {found}");
            }
        });
    }
}
