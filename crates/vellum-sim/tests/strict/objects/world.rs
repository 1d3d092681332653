//! Objects, spaces that map them, and a model of plain maps that says what each operation should answer and each program
//! should find. One operation at a time, on a CPU drawn by chance.

use std::collections::BTreeMap;

use vellum::addr::{FRAME_SHIFT, VirtRange};
use vellum::arch::X86_64;
use vellum::frame::policy::Knob;
use vellum::memcg::{LruList, MemcgId};
use vellum::page_cache::{Gone, Object, ObjectError};
use vellum::reclaim::reclaim;
use vellum::space::{
    Advise, AdviseError, FaultError, Limits, MapError, MapFlags, MapRequest, ProtectError, SharedKey, discard,
};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Disk, Fault, Refusal, Strict, Strictness};

use super::dice::{Dice, derive};

type Space<'m> = AddressSpace<'m, Strict, X86_64>;

const PAGE: u64 = 4096;
/// Where the looked-at addresses of a space begin, in pages: across a border of tables.
pub(super) const BASE: u64 = (0x5000 << 9) - 40;
pub(super) const PAGES: u64 = 90;
/// Pages of an object that are mapped and touched.
const REACH: u64 = 60;
/// Words of a page that are looked at.
const SLOTS: [u64; 3] = [0, 1024, 4088];
type Words = [u64; SLOTS.len()];

const READ: Prot = Prot::READ;
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// An object by the model.
struct Thing<'m> {
    /// `None`: only VMAs know it.
    handle: Option<Object<'m, Strict>>,
    tag: u64,
    serial: u64,
    size: u64,
    pages: BTreeMap<u64, Words>,
    sealed: bool,
}

/// A page of a space by the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mapped {
    pub(super) thing: usize,
    pub(super) page: u64,
    pub(super) shared: bool,
    /// A shared page may be made writable.
    pub(super) may_write: bool,
    pub(super) prot: Prot,
    pub(super) copy: Option<Words>,
}

pub(super) struct Inhabited<'m> {
    pub(super) space: Space<'m>,
    memcg: MemcgId,
    pub(super) pages: BTreeMap<u64, Mapped>,
}

pub struct World<'m> {
    sim: &'m Strict,
    machine: &'m Machine<'m, Strict>,
    pub(super) dice: Dice,
    things: Vec<Thing<'m>>,
    pub(super) spaces: Vec<Inhabited<'m>>,
    memcgs: [MemcgId; 2],
    /// Whether memory may run out, or be refused.
    pub(super) tight: bool,
    /// Whether there is a disk to swap to.
    swaps: bool,
    serial: u64,
}

/// Run a case: boot, operations, the end; then all memory is free.
pub fn run(seed: u64, steps: usize) {
    let mut dice = Dice::new(derive(seed, 0));
    let tight = dice.percent(40);
    let sim = Config::new(16 << 20).cpus(3).strict(Strictness::new(seed)).expect("memory on the host");
    let seat = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    if dice.percent(50) {
        machine.policy().set(2, Knob::Always);
    }
    let disk = Disk::new(seed);
    let swaps = dice.percent(60);
    if swaps {
        let slots = dice.one_of(&[40, 2000]) as u32;
        // SAFETY: nobody else uses it, and it outlives the machine's use of it.
        unsafe { machine.swaps().attach(machine.frames(), &disk, slots, 0) }.expect("memory");
    }
    let limit = if tight { 60 + dice.below(200) } else { u64::MAX };
    let memcg = machine.memcgs().create(machine.frames(), MemcgId::ROOT, limit).expect("a group");
    sim.baseline();
    let before = machine.frames().free_frames();
    let mut world = World {
        sim: &sim,
        machine: &machine,
        dice,
        things: Vec::new(),
        spaces: Vec::new(),
        memcgs: [MemcgId::ROOT, memcg],
        tight,
        swaps,
        serial: 0,
    };
    drop(seat);
    for step in 0..steps {
        let cpu = world.dice.below(3) as usize;
        let _seat = sim.cpu(cpu);
        if tight {
            sim.refuse(if world.dice.percent(20) { Refusal::Percent(20) } else { Refusal::Never });
        }
        world.step();
        if step % 16 == 0 {
            sim.refuse(Refusal::Never);
            world.count();
        }
    }
    let _seat = sim.cpu(0);
    sim.refuse(Refusal::Never);
    world.count();
    // In any order: whoever is last frees.
    let (things, spaces) = (std::mem::take(&mut world.things), std::mem::take(&mut world.spaces));
    if world.dice.percent(50) {
        drop(spaces);
        drop(things);
    } else {
        drop(things);
        drop(spaces);
    }
    assert_eq!((machine.counter(Counter::ShmemPages), disk.used()), (0, 0));
    assert_eq!(machine.memcgs().usage(machine.frames(), memcg).expect("it exists").charged, 0);
    assert_eq!(machine.frames().free_frames(), before, "all memory is free again");
    sim.finish();
}

pub(super) fn at(page: u64) -> u64 {
    page * PAGE
}

impl<'m> World<'m> {
    fn step(&mut self) {
        match self.dice.below(100) {
            _ if self.things.is_empty() => self.create(),
            _ if self.spaces.is_empty() => self.new_space(),
            0..=2 => self.create(),
            3..=4 if self.spaces.len() < 3 => self.new_space(),
            3..=4 => self.fork(),
            5 => {
                let space = self.a_space();
                self.spaces.swap_remove(space);
            }
            6..=7 => self.forget_handle(),
            8..=17 => self.map(),
            18..=20 => self.map_anonymous(),
            21..=23 => self.unmap(),
            24..=25 => self.remap(),
            26..=31 => self.protect(),
            32..=36 => self.dont_need(),
            37..=41 => self.resize(),
            42..=44 => self.punch(),
            45 if self.swaps => self.reclaim(),
            45 => self.punch(),
            46..=48 => self.remove(),
            49..=51 => self.allocate(),
            52 => self.seal(),
            53..=58 => self.host_writes(),
            59..=62 => self.host_reads(),
            63..=65 => self.ask(),
            66..=77 => {
                let touch = self.a_touch();
                self.load(touch);
            }
            78..=88 => {
                let touch = self.a_touch();
                self.store(touch);
            }
            _ => {
                // Mapped first, then written, then looked at in another place.
                let (space, page, slot) = self.a_touch();
                self.load((space, page, slot));
                self.store((space, page, slot));
                self.load((space, page, (slot + 1) % SLOTS.len()));
            }
        }
    }

    pub(super) fn a_space(&mut self) -> usize {
        self.dice.below(self.spaces.len() as u64) as usize
    }

    pub(super) fn a_span(&mut self) -> std::ops::Range<u64> {
        let start = self.dice.below(PAGES);
        let most = self.dice.one_of(&[2, 20, PAGES]);
        let end = start + 1 + self.dice.below(most);
        BASE + start..BASE + end.min(PAGES)
    }

    /// An object that somebody has a handle to, with the handle.
    fn a_handle(&mut self) -> Option<(usize, Object<'m, Strict>)> {
        let with: Vec<usize> = (0..self.things.len()).filter(|i| self.things[*i].handle.is_some()).collect();
        let thing = *with.get(self.dice.below(with.len() as u64) as usize)?;
        Some((thing, self.things[thing].handle.clone()?))
    }

    fn may_fail(&self, error: ObjectError) {
        let scarce = matches!(error, ObjectError::NoMemory(_));
        assert!(self.tight && scarce, "{error:?} in ample memory");
    }

    fn create(&mut self) {
        let memcg = self.memcgs[self.dice.below(2) as usize];
        let size = self.dice.below(at(REACH + 10));
        self.serial += 1;
        let tag = self.serial;
        match Object::new(self.machine, &X86_64::four_levels(), memcg, tag, size) {
            Ok(object) => {
                let serial = object.serial();
                assert!(self.things.iter().all(|thing| thing.serial != serial));
                let (pages, sealed) = (BTreeMap::new(), false);
                self.things.push(Thing { handle: Some(object), tag, serial, size, pages, sealed });
                // Something to lose, and to find copied.
                (0..30).for_each(|_| self.host_writes());
            }
            Err(error) => self.may_fail(error),
        }
    }

    fn new_space(&mut self) {
        let memcg = self.memcgs[self.dice.below(2) as usize];
        match AddressSpace::new(self.machine, X86_64::four_levels(), memcg, Limits::default()) {
            Ok(space) => self.spaces.push(Inhabited { space, memcg, pages: BTreeMap::new() }),
            Err(_) => assert!(self.tight),
        }
    }

    /// A child has the VMAs of its parent and what was copied there; it goes its own way from then on.
    fn fork(&mut self) {
        let parent = self.a_space();
        match self.spaces[parent].space.fork() {
            Ok(space) => {
                let Inhabited { memcg, pages, .. } = &self.spaces[parent];
                self.spaces.push(Inhabited { space, memcg: *memcg, pages: pages.clone() });
            }
            Err(_) => assert!(self.tight),
        }
        if self.spaces.len() > 4 {
            let space = self.a_space();
            self.spaces.swap_remove(space);
        }
    }

    /// VMAs may go on with the object, and somebody who has a VMA can have a handle again.
    fn forget_handle(&mut self) {
        let Some((thing, handle)) = self.a_handle() else { return };
        drop(handle);
        self.things[thing].handle = None;
        let mapping = self.spaces.iter().find_map(|inhabited| {
            let (page, mapped) = inhabited.pages.iter().find(|(_, mapped)| mapped.thing == thing)?;
            Some((inhabited, *page, mapped.page))
        });
        if let Some((inhabited, page, offset)) = mapping
            && self.dice.percent(70)
        {
            let (object, byte) = inhabited.space.object_at(at(page)).expect("it is mapped");
            assert_eq!((object.serial(), byte), (self.things[thing].serial, at(offset)));
            self.things[thing].handle = Some(object);
        }
    }

    fn map(&mut self) {
        let Some((thing, object)) = self.a_handle() else { return };
        let (space, span) = (self.a_space(), self.a_span());
        let first = self.dice.below(REACH);
        let (shared, read_only) = (self.dice.percent(55), self.dice.percent(15));
        let prot = if self.dice.percent(75) { RW } else { READ };
        let mut flags = MapFlags::FIXED;
        flags.set(MapFlags::SHARED, shared);
        flags.set(MapFlags::READ_ONLY, read_only);
        let request = MapRequest { addr: at(span.start), len: at(span.end - span.start), prot, flags };
        let sealed = self.things[thing].sealed;
        let expected = match shared && prot == RW {
            true if read_only => Err(MapError::Denied),
            true if sealed => Err(MapError::Sealed),
            _ => Ok(at(span.start)),
        };
        let inhabited = &mut self.spaces[space];
        let got = inhabited.space.map_object(request, &object, at(first));
        match got {
            Err(MapError::NoMemory(_)) if self.tight && expected.is_ok() => return,
            got => assert_eq!(got, expected),
        }
        if got.is_ok() {
            let may_write = !shared || !read_only && !sealed;
            for page in span.clone() {
                let mapped = Mapped { thing, page: first + page - span.start, shared, may_write, prot, copy: None };
                inhabited.pages.insert(page, mapped);
            }
        }
    }

    /// Shared anonymous memory, whose object becomes known by its VMA.
    fn map_anonymous(&mut self) {
        let (space, span) = (self.a_space(), self.a_span());
        let flags = MapFlags::FIXED | MapFlags::SHARED;
        let pages = span.end - span.start;
        let request = MapRequest { addr: at(span.start), len: at(pages), prot: RW, flags };
        let inhabited = &mut self.spaces[space];
        match inhabited.space.map(request) {
            Ok(_) => {}
            Err(MapError::NoMemory(_)) if self.tight => return,
            Err(error) => panic!("{error:?}"),
        }
        let (object, byte) = inhabited.space.object_at(at(span.start)).expect("it was just mapped");
        assert_eq!((byte, object.tag(), object.size()), (0, 0, at(pages)));
        let thing = self.things.len();
        for page in span.clone() {
            let page_there = page - span.start;
            let mapped = Mapped { thing, page: page_there, shared: true, may_write: true, prot: RW, copy: None };
            inhabited.pages.insert(page, mapped);
        }
        let serial = object.serial();
        let pages_there = BTreeMap::new();
        let handle = self.dice.percent(70).then_some(object);
        self.things.push(Thing { handle, tag: 0, serial, size: at(pages), pages: pages_there, sealed: false });
    }

    fn unmap(&mut self) {
        let (space, span) = (self.a_space(), self.a_span());
        let inhabited = &mut self.spaces[space];
        match inhabited.space.unmap(at(span.start), at(span.end - span.start)) {
            Ok(()) => inhabited.pages.retain(|page, _| !span.contains(page)),
            Err(error) => assert!(self.tight, "{error:?}"),
        }
    }

    fn protect(&mut self) {
        let (space, span) = (self.a_space(), self.a_span());
        let prot = [READ, RW, Prot::empty()][self.dice.below(3) as usize];
        let inhabited = &mut self.spaces[space];
        let all: Vec<_> = span.clone().map(|page| inhabited.pages.get(&page)).collect();
        let denied = prot == RW && all.iter().flatten().any(|mapped| !mapped.may_write);
        match inhabited.space.protect(at(span.start), at(span.end - span.start), prot) {
            Err(ProtectError::NotMapped) => assert!(all.contains(&None)),
            // What comes first: the hole, or what may not be written.
            Err(ProtectError::Denied(_)) => assert!(denied),
            Err(error) => assert!(self.tight, "{error:?}"),
            Ok(()) => {
                assert!(!denied && !all.contains(&None));
                inhabited.pages.range_mut(span).for_each(|(_, mapped)| mapped.prot = prot);
            }
        }
    }

    fn dont_need(&mut self) {
        let (space, span) = (self.a_space(), self.a_span());
        let inhabited = &mut self.spaces[space];
        let got = inhabited.space.advise(at(span.start), at(span.end - span.start), Advise::DontNeed);
        let covered = span.clone().all(|page| inhabited.pages.contains_key(&page));
        assert_eq!(got, if covered { Ok(()) } else { Err(AdviseError::NotMapped) });
        inhabited.pages.range_mut(span).for_each(|(_, mapped)| mapped.copy = None);
    }

    /// Everybody hears of what an object has lost.
    fn discard(&mut self, thing: usize, object: &Object<'m, Strict>, gone: Gone) {
        let spaces: Vec<_> = self.spaces.iter().map(|inhabited| &inhabited.space).collect();
        discard(&spaces[..], object, &gone);
        for inhabited in &mut self.spaces {
            let lost = |mapped: &&mut Mapped| mapped.thing == thing && (gone.first..gone.end).contains(&mapped.page);
            if gone.copies {
                inhabited.pages.values_mut().filter(lost).for_each(|mapped| mapped.copy = None);
            }
        }
    }

    fn resize(&mut self) {
        let Some((thing, object)) = self.a_handle() else { return };
        let size = if self.dice.percent(30) { at(self.dice.below(REACH)) } else { self.dice.below(at(REACH + 10)) };
        let gone = match object.set_size(size) {
            Ok(gone) => gone,
            Err(error) => return self.may_fail(error),
        };
        self.discard(thing, &object, gone);
        let model = &mut self.things[thing];
        if size <= model.size {
            model.pages.retain(|page, _| at(*page) < size);
            model.forget(size..u64::MAX);
        }
        model.size = size;
        assert_eq!(object.size(), size);
    }

    fn punch(&mut self) {
        let Some((thing, object)) = self.a_handle() else { return };
        let start = self.dice.below(at(REACH));
        let end = start + self.dice.below(at(10));
        let gone = match object.punch_hole(start..end) {
            Ok(gone) => gone,
            Err(error) => return self.may_fail(error),
        };
        self.discard(thing, &object, gone);
        self.things[thing].forget(start..end);
    }

    /// `MADV_REMOVE`.
    fn remove(&mut self) {
        let (space, span) = (self.a_space(), self.a_span());
        let mut holes = Vec::new();
        let got = self.spaces[space].space.remove(at(span.start), at(span.end - span.start), |object, bytes| {
            holes.push((object.clone(), bytes));
            Ok(())
        });
        let pages = &self.spaces[space].pages;
        let fine = |page: &u64| pages.get(page).is_none_or(|mapped| mapped.shared && mapped.may_write);
        let removed: Vec<(usize, u64)> =
            span.clone().take_while(fine).filter_map(|page| pages.get(&page).map(|m| (m.thing, m.page))).collect();
        match got {
            Ok(()) => assert!(span.clone().all(|page| pages.contains_key(&page) && fine(&page))),
            Err(AdviseError::NotMapped) => assert!(span.clone().any(|page| !pages.contains_key(&page))),
            Err(AdviseError::Denied(_)) => assert!(!span.clone().all(|page| fine(&page))),
            Err(error) => panic!("{error:?}"),
        }
        let told: u64 = holes.iter().map(|(_, bytes)| bytes.end - bytes.start).sum();
        assert_eq!(told, at(removed.len() as u64));
        for (object, bytes) in holes {
            let thing = self.things.iter().position(|thing| thing.serial == object.serial()).expect("a known object");
            let gone = object.punch_hole(bytes.clone()).expect("whole pages need no memory");
            self.discard(thing, &object, gone);
            self.things[thing].forget(bytes);
        }
    }

    /// What somebody has goes to swap: some of it, or all that can.
    fn reclaim(&mut self) {
        let (memcg, pages) = (self.memcgs[self.dice.below(2) as usize], self.dice.one_of(&[8, 64, u64::MAX]));
        let spaces: Vec<_> = self.spaces.iter().map(|inhabited| &inhabited.space).collect();
        reclaim::<_, X86_64>(self.machine, &spaces[..], memcg, pages).expect("the group exists");
    }

    fn allocate(&mut self) {
        let Some((thing, object)) = self.a_handle() else { return };
        let start = self.dice.below(at(REACH));
        let end = start + 1 + self.dice.below(at(8));
        let memcg = self.memcgs[self.dice.below(2) as usize];
        let got = object.allocate(start..end, memcg);
        if let Err(error) = got {
            self.may_fail(error);
        }
        for page in start / PAGE..end.div_ceil(PAGE) {
            if got.is_ok() || object.has(page) {
                self.things[thing].pages.entry(page).or_default();
            }
        }
    }

    fn seal(&mut self) {
        let Some((thing, object)) = self.a_handle() else { return };
        let writer = |mapped: &Mapped| mapped.thing == thing && mapped.shared && mapped.may_write;
        let busy = self.spaces.iter().any(|inhabited| inhabited.pages.values().any(writer));
        let expected = if busy { Err(ObjectError::Busy) } else { Ok(()) };
        assert_eq!(object.deny_shared_write(), expected);
        self.things[thing].sealed |= !busy;
    }

    fn host_writes(&mut self) {
        let Some((thing, object)) = self.a_handle() else { return };
        let (page, slot) = (self.dice.below(REACH), self.dice.below(SLOTS.len() as u64) as usize);
        let (value, memcg) = (self.dice.any(), self.memcgs[self.dice.below(2) as usize]);
        match object.page_or_new(page, memcg) {
            Ok(held) => {
                assert_eq!(held.write(SLOTS[slot] as usize, &value.to_ne_bytes()), 8);
                self.things[thing].pages.entry(page).or_default()[slot] = value;
            }
            Err(error) => self.may_fail(error),
        }
    }

    fn host_reads(&mut self) {
        let Some((thing, object)) = self.a_handle() else { return };
        let page = self.dice.below(REACH);
        let expected = self.things[thing].pages.get(&page);
        match object.page(page) {
            Ok(found) => assert_eq!(found.map(|held| words_of(&held)), expected.copied(), "page {page}"),
            Err(error) => self.may_fail(error),
        }
        let from = self.dice.below(REACH);
        let pages = &self.things[thing].pages;
        assert_eq!(object.next_data(from), pages.range(from..).next().map(|(page, _)| *page));
        assert_eq!(Some(object.next_hole(from)), (from..).find(|page| !pages.contains_key(page)));
        assert_eq!(object.resident() + object.swapped(), pages.len() as u64);
    }

    /// Questions: what is resident, who waits where, what is behind a VMA.
    fn ask(&mut self) {
        let (space, span) = (self.a_space(), self.a_span());
        let inhabited = &self.spaces[space];
        let mut answer = vec![false; (span.end - span.start) as usize];
        let got = inhabited.space.resident(at(span.start), at(span.end - span.start), &mut answer);
        assert_eq!(got.is_ok(), span.clone().all(|page| inhabited.pages.contains_key(&page)));
        for page in span.clone() {
            let mapped = inhabited.pages.get(&page);
            if let (Ok(()), Some(mapped)) = (got, mapped) {
                let there = self.things[mapped.thing].pages.contains_key(&mapped.page) || mapped.copy.is_some();
                let answer = answer[(page - span.start) as usize];
                assert!(answer == there || there && self.swaps, "page {page:#x}: {mapped:x?}");
            }
            let key = mapped
                .filter(|mapped| mapped.shared)
                .map(|mapped| SharedKey { object: self.things[mapped.thing].serial, offset: at(mapped.page) + 24 });
            assert_eq!(inhabited.space.shared_key(at(page) + 24), key);
        }
        inhabited.space.vmas(0, |vma| {
            let mapped = inhabited.pages[&(vma.range.start / PAGE)];
            let expected = (self.things[mapped.thing].tag, at(mapped.page), mapped.shared);
            let backing = vma.backing;
            assert_eq!((backing.tag(), backing.offset(vma.range.start), backing.is_shared()), expected);
            true
        });
    }

    fn a_touch(&mut self) -> (usize, u64, usize) {
        let space = self.a_space();
        let pages = &self.spaces[space].pages;
        // Mostly where something is mapped.
        let page = match pages.len() as u64 {
            0 => BASE + self.dice.below(PAGES),
            some => match self.dice.below(some + some / 16 + 1) {
                n if n < some => *pages.keys().nth(n as usize).expect("there are so many"),
                _ => BASE + self.dice.below(PAGES),
            },
        };
        (space, page, self.dice.below(SLOTS.len() as u64) as usize)
    }

    /// What a touch meets that may not be.
    fn refusal(&self, space: usize, page: u64, slot: usize, write: bool) -> Option<FaultError> {
        let addr = at(page) + SLOTS[slot];
        let Some(mapped) = self.spaces[space].pages.get(&page) else { return Some(FaultError::Unmapped(addr)) };
        if mapped.prot.is_empty() || write && mapped.prot != RW {
            return Some(FaultError::Denied(addr));
        }
        let beyond = at(mapped.page) >= self.things[mapped.thing].size && mapped.copy.is_none();
        beyond.then_some(FaultError::BeyondEnd(addr))
    }

    fn scarce<T: std::fmt::Debug>(&self, got: &Result<T, Fault<FaultError>>) -> bool {
        self.tight && matches!(got, Err(Fault::Handler(FaultError::NoMemory(_))))
    }

    /// There was memory for the object's page, but not for what maps it: what the object says is the same.
    fn may_have_come(&mut self, space: usize, page: u64) {
        if let Some(mapped) = self.spaces[space].pages.get(&page)
            && let Some((object, _)) = self.spaces[space].space.object_at(at(page))
            && object.has(mapped.page)
        {
            self.things[mapped.thing].pages.entry(mapped.page).or_default();
        }
    }

    fn load(&mut self, (space, page, slot): (usize, u64, usize)) {
        let cpu = self.sim.cpu(self.dice.below(3) as usize);
        let got = cpu.enter(&self.spaces[space].space).load_u64(at(page) + SLOTS[slot]);
        if self.scarce(&got) {
            return self.may_have_come(space, page);
        }
        match self.refusal(space, page, slot, false) {
            Some(error) => assert_eq!(got, Err(Fault::Handler(error))),
            None => {
                let mapped = self.spaces[space].pages[&page];
                // Whoever reads a hole has the object get a page.
                let found = match mapped.copy {
                    Some(copy) => copy,
                    None => *self.things[mapped.thing].pages.entry(mapped.page).or_default(),
                };
                assert_eq!(got, Ok(found[slot]), "page {page:#x}: {mapped:x?}");
            }
        }
    }

    fn store(&mut self, (space, page, slot): (usize, u64, usize)) {
        let value = self.dice.any();
        let cpu = self.sim.cpu(self.dice.below(3) as usize);
        let got = cpu.enter(&self.spaces[space].space).store_u64(at(page) + SLOTS[slot], value);
        if self.scarce(&got) {
            return self.may_have_come(space, page);
        }
        match self.refusal(space, page, slot, true) {
            Some(error) => assert_eq!(got, Err(Fault::Handler(error))),
            None => {
                assert_eq!(got, Ok(()));
                let Some(mapped) = self.spaces[space].pages.get_mut(&page) else { return };
                let pages = &mut self.things[mapped.thing].pages;
                if mapped.shared {
                    pages.entry(mapped.page).or_default()[slot] = value;
                } else {
                    // The copy is made of what is there then, and goes its own way.
                    let copy = mapped.copy.get_or_insert(pages.get(&mapped.page).copied().unwrap_or_default());
                    copy[slot] = value;
                }
            }
        }
    }

    /// Everything, when nothing runs: contents, counts, charges, references, VMAs.
    fn count(&mut self) {
        // Objects that nobody knows are gone.
        let known = |thing: usize| self.spaces.iter().any(|i| i.pages.values().any(|m| m.thing == thing));
        let live: Vec<bool> = (0..self.things.len()).map(|i| self.things[i].handle.is_some() || known(i)).collect();
        let pages: u64 =
            self.things.iter().zip(&live).map(|(t, live)| if *live { t.pages.len() as u64 } else { 0 }).sum();
        let root = self.machine.memcgs().usage(self.machine.frames(), MemcgId::ROOT).expect("it exists");
        let pages = pages - root.swapped;
        assert_eq!(self.machine.counter(Counter::ShmemPages), pages, "pages of objects in memory");
        let mut listed = 0;
        for memcg in self.memcgs {
            listed += self.machine.memcgs().usage(self.machine.frames(), memcg).expect("it exists").lru
                [LruList::Shmem as usize];
        }
        assert_eq!(listed, pages, "listed pages of objects");
        let mut mappings: BTreeMap<u32, u32> = BTreeMap::new();
        for inhabited in &self.spaces {
            let (mut shmem, mut anon) = (0, 0);
            let arch = inhabited.space.arch();
            let whole = VirtRange { start: at(BASE), end: at(BASE + PAGES) };
            let mut leaves = Vec::new();
            inhabited.space.runs(whole, |run| {
                if run.kind == vellum::arch::Kind::Leaf {
                    leaves.extend((0..run.len as u64).map(|i| (run.va / PAGE + i, run.pfn(arch).add(i as u32))));
                }
            });
            for (page, pfn) in leaves {
                let mapped = inhabited.pages.get(&page).expect("mapped only where the model says");
                let frame = self.machine.frames().head(pfn).1;
                if frame.has(vellum::frame::flag::OBJECT) {
                    assert!(mapped.copy.is_none() && at(mapped.page) < self.things[mapped.thing].size, "{mapped:x?}");
                    *mappings.entry(pfn.0).or_default() += 1;
                    shmem += 1;
                } else {
                    assert!(!mapped.shared && mapped.copy.is_some(), "{mapped:x?}");
                    anon += 1;
                }
            }
            let copies = inhabited.pages.values().filter(|mapped| mapped.copy.is_some()).count() as u64;
            let stats = inhabited.space.stats();
            assert_eq!((stats.anon >> FRAME_SHIFT, stats.shmem >> FRAME_SHIFT), (anon, shmem));
            assert_eq!((anon + stats.swap / PAGE, stats.mapped / PAGE), (copies, inhabited.pages.len() as u64));
            // Neighbours that continue each other are one.
            let mut before: Option<(u64, Mapped)> = None;
            let mut vmas = 0;
            for (page, mapped) in &inhabited.pages {
                let same = |(at, m): (u64, Mapped)| {
                    at + 1 == *page
                        && m.page + 1 == mapped.page
                        && (m.thing, m.shared, m.may_write, m.prot)
                            == (mapped.thing, mapped.shared, mapped.may_write, mapped.prot)
                };
                vmas += usize::from(!before.is_some_and(same));
                before = Some((*page, *mapped));
            }
            assert_eq!(stats.vmas, vmas);
            let _ = inhabited.memcg;
        }
        for (thing, _) in self.things.iter().zip(&live).filter(|(_, live)| **live) {
            let Some(object) = &thing.handle else { continue };
            assert_eq!(object.size(), thing.size);
            assert_eq!(object.resident() + object.swapped(), thing.pages.len() as u64);
            for (page, words) in &thing.pages {
                let held = match object.page(*page) {
                    Ok(held) => held.expect("a page of the model"),
                    Err(error) => {
                        self.may_fail(error);
                        continue;
                    }
                };
                assert_eq!(words_of(&held), *words, "page {page} of {object:?}");
                let counts = self.machine.frames().frame(held.pfn()).counts();
                let maps = mappings.get(&held.pfn().0).copied().unwrap_or(0);
                // The object's own, and the one in hand.
                assert_eq!((counts.refs, counts.maps), (maps + 2, maps), "references and mappings");
            }
        }
    }
}

impl Thing<'_> {
    /// Bytes read as zeros: pages that lie among them are gone.
    fn forget(&mut self, bytes: std::ops::Range<u64>) {
        self.pages.retain(|page, words| {
            let (start, end) = (at(*page), at(*page + 1));
            for (slot, word) in SLOTS.iter().zip(words) {
                let mut all = word.to_ne_bytes();
                for (i, byte) in all.iter_mut().enumerate() {
                    if bytes.contains(&(start + slot + i as u64)) {
                        *byte = 0;
                    }
                }
                *word = u64::from_ne_bytes(all);
            }
            !(bytes.start <= start && end <= bytes.end)
        });
    }
}

fn words_of(page: &vellum::page_cache::ObjectPage<'_, Strict>) -> Words {
    SLOTS.map(|slot| {
        let mut word = [0; 8];
        assert_eq!(page.read(slot as usize, &mut word), 8);
        u64::from_ne_bytes(word)
    })
}
