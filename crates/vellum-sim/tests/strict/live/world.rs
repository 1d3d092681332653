//! Where victim and others meet: a space, its children, an object, and a disk to swap to.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};

use vellum::addr::VirtRange;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::platform::SpaceId;
use vellum::space::{Access, Advise, Limits, MapFlags, MapRequest, Spaces};
use vellum::vma::{Prot, VmaFlags, Watcher};
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Disk, Hostility, Schedule, Silicon, Strict, Strictness};

use super::board::Shared;

/// The victim's, and three more.
pub const CPUS: usize = 4;
pub const RW: Prot = Prot::READ.union(Prot::WRITE);

const BASE: u64 = 0x20_0000_0000;
/// More than a table of any format maps.
const FAR: u64 = 1 << 30;
/// Pages that belong to one CPU.
pub const OWN: u64 = 4;

pub type Space<'m, A> = AddressSpace<'m, Strict<A>, A>;

/// All that there is. The space's memory, in pages of its first table: `OWN` of each CPU, then
/// `OWN` of all; the object's, in as many places; and as many that are watched, none of which is
/// mapped. Far from there is a place where nothing is but what operations map.
pub struct World<'m, A: Silicon> {
    pub sim: &'m Strict<A>,
    pub machine: &'m Machine<'m, Strict<A>>,
    pub space: Arc<Space<'m, A>>,
    pub object: Object<'m, Strict<A>>,
    pub children: Mutex<Vec<Arc<Space<'m, A>>>>,
    pub page: u64,
    pub huge: u64,
}

impl<'m, A: Silicon> Spaces<'m, Strict<A>, A> for World<'m, A> {
    fn each(&self, visit: &mut dyn FnMut(&Space<'m, A>)) {
        self.all().iter().for_each(|space| visit(space));
    }

    fn find(&self, id: SpaceId, visit: &mut dyn FnMut(&Space<'m, A>)) -> bool {
        let found = self.all().into_iter().find(|space| space.id() == id);
        found.inspect(|space| visit(space)).is_some()
    }
}

impl<'m, A: Silicon> World<'m, A> {
    fn all(&self) -> Vec<Arc<Space<'m, A>>> {
        let children = self.children.lock().unwrap().clone();
        [self.space.clone()].into_iter().chain(children).collect()
    }

    /// What belongs to a CPU.
    pub fn own(&self, cpu: usize) -> u64 {
        BASE + cpu as u64 * OWN * self.page
    }

    /// What belongs to all.
    pub fn common(&self) -> u64 {
        self.own(CPUS)
    }

    /// A page each in a table of its own, if somebody maps something there.
    pub fn far(&self, cpu: usize) -> u64 {
        BASE + FAR + cpu as u64 * self.page
    }

    /// Where the object is mapped, shared.
    pub fn shared(&self) -> u64 {
        self.own(CPUS + 1)
    }

    /// And private.
    pub fn private(&self) -> u64 {
        self.own(CPUS + 2)
    }

    /// Memory that is watched for missing pages and for writes.
    pub fn watched(&self) -> u64 {
        self.own(CPUS + 3)
    }

    /// Watched as well, a page each, in a table of its own that is there while one of them is.
    pub fn watched_far(&self, cpu: usize) -> u64 {
        BASE + 6 * FAR + cpu as u64 * self.page
    }

    /// Memory of one table, all of it resident, for what makes it huge.
    pub fn block(&self) -> u64 {
        BASE + 4 * FAR
    }

    pub fn bytes(&self) -> u64 {
        OWN * self.page
    }

    pub fn map(&self, addr: u64, len: u64) {
        let _ = self.space.map(MapRequest { addr, len, prot: RW, flags: MapFlags::FIXED });
    }

    /// Writes to each page.
    pub fn write(&self, addr: u64, len: u64) {
        (addr..addr + len).step_by(self.page as usize).for_each(|at| _ = self.space.fault(at, Access::Write));
    }

    pub fn read(&self, addr: u64, len: u64) {
        (addr..addr + len).step_by(self.page as usize).for_each(|at| _ = self.space.fault(at, Access::Read));
    }

    pub fn advise(&self, addr: u64, len: u64, advice: Advise) {
        let _ = self.space.advise(addr, len, advice);
    }

    /// Fills a page that is watched, if it is missing.
    pub fn fill(&self, addr: u64) {
        let contents = |_, bytes: &mut [u8]| {
            bytes.fill(0x55);
            Ok(())
        };
        let _ = self.space.fill(self.range(addr, self.page), false, contents);
    }

    /// A child that the host knows.
    pub fn fork(&self) -> Option<Arc<Space<'m, A>>> {
        let child = Arc::new(self.space.fork().ok()?);
        self.children.lock().unwrap().push(child.clone());
        Some(child)
    }

    /// The host forgets a child, which ends.
    pub fn end(&self, child: Arc<Space<'m, A>>) {
        self.children.lock().unwrap().retain(|known| known.id() != child.id());
        child.unmap_all();
    }

    pub fn range(&self, addr: u64, len: u64) -> VirtRange {
        VirtRange { start: addr, end: addr + len }
    }
}

/// Sets a world up, on CPU 0, and has `run` use it.
pub fn with_world<A: Silicon>(arch: A, board: &Shared, run: impl FnOnce(&World<'_, A>)) {
    board.clear();
    let strictness = Strictness::new(1).schedule(Schedule::Shuttle).hostility(Hostility::NONE);
    let sim = Config::with_arch(arch, 32 << 20).cpus(CPUS).strict(strictness).unwrap();
    let shared = board.clone();
    sim.observe(move |cpu, event| shared.get().note(&arch, cpu, event));
    let boot = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let page = 1 << arch.page_shift();
    let huge = 1 << arch.level_shift(2);
    machine.policy().set(0, Knob::Always);
    let disk = Disk::new(1);
    // SAFETY: nobody else uses it, and it outlives the machine's use of it.
    unsafe { machine.swaps().attach(machine.frames(), &disk, 1024, 0) }.unwrap();
    let object = Object::new(&machine, &arch, MemcgId::ROOT, 0, OWN * page).unwrap();
    let children = Mutex::new(Vec::new());
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
    let world = World { sim: &sim, machine: &machine, space: Arc::new(space), object, children, page, huge };
    world.map(world.own(0), (CPUS as u64 + 1) * world.bytes());
    world.write(world.own(0), (CPUS as u64 + 1) * world.bytes());
    for (addr, flags) in [(world.shared(), MapFlags::SHARED), (world.private(), MapFlags::empty())] {
        let request = MapRequest { addr, len: world.bytes(), prot: RW, flags: MapFlags::FIXED | flags };
        world.space.map_object(request, &world.object, 0).unwrap();
    }
    world.write(world.shared(), world.bytes());
    for (addr, len) in [(world.watched(), world.bytes()), (world.watched_far(0), CPUS as u64 * page)] {
        world.map(addr, len);
        let range = world.range(addr, len);
        world.space.watch(range, Watcher(NonZeroU16::MIN), VmaFlags::MISSING | VmaFlags::WRITES).unwrap();
    }
    drop(boot);
    run(&world);
    let boot: Cpu<'_, _> = sim.cpu(0);
    let left = core::mem::take(&mut *world.children.lock().unwrap());
    left.into_iter().for_each(|child| child.unmap_all());
    world.space.unmap_all();
    drop(world);
    drop(boot);
}
