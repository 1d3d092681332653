//! A file whose pages come from the storage of a simulated machine, mapped by one space or by two.

use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::page_cache::{Changes, Object, ObjectError};
use vellum::platform::{Cpus, PendingPage};
use vellum::space::{FaultError, Limits, MapFlags, MapRequest, collapse_object};
use vellum::stats::Counter;
use vellum::swap::Compressed;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Fault, Files, Hostility, Schedule, Silicon, Simulated, Strict, Strictness};

use crate::fixtures::bench::{BASE, Bench, Setup, Space, USUAL};

/// The tag of the file.
pub const TAG: u64 = 7;
/// The number of whole pages of the file of [`with_file`].
pub const PAGES: u64 = 40;
pub const RW: Prot = Prot::READ.union(Prot::WRITE);

/// A file of [`PAGES`] pages and 100 bytes, mapped at [`BASE`].
pub struct File<'b, 'm, A: Silicon> {
    pub on: &'b Bench<'m, A>,
    pub files: &'b Files,
    pub object: Object<'m, Strict<A>>,
    pub space: Space<'m, A>,
}

/// Runs a test with a file that is mapped with these flags. In the end no request is under way, and
/// no page of the file is in memory.
pub fn with_file<A: Silicon>(arch: A, flags: MapFlags, test: impl FnOnce(File<'_, '_, A>)) {
    with_file_on(arch, 0, (flags, Changes::ToStore), test);
}

/// Runs a test as [`with_file`] does, on a machine with `slots` slots of swap, with a file whose
/// changes go where `changes` says.
pub fn with_file_on<A: Silicon>(
    arch: A,
    slots: u32,
    (flags, changes): (MapFlags, Changes),
    test: impl FnOnce(File<'_, '_, A>),
) {
    let setup = Setup { hostility: Hostility::NONE, slots, ..USUAL };
    crate::fixtures::bench::on(arch, setup, |on| {
        let size = PAGES * on.page + 100;
        let object = Object::with_store(on.machine, &on.arch, on.memcg, TAG, size, changes).unwrap();
        let space = on.space();
        map(on, &space, &object, flags);
        let files = on.sim.hardware().files();
        test(File { on, files, object, space });
        assert_eq!((files.under_way(), files.writes_under_way()), (0, 0));
        let counters = on.machine.memcgs().counters(MemcgId::ROOT).unwrap();
        let pages = [Counter::FilePages, Counter::FileHugePages].map(|pages| on.count(pages));
        assert_eq!((pages, counters.dirty, counters.writing), ([0; 2], 0, 0));
    });
}

/// Runs a test as [`with_file`] does, with a shared mapping.
pub fn with_shared_file<A: Silicon>(arch: A, test: impl FnOnce(File<'_, '_, A>)) {
    with_file(arch, MapFlags::SHARED, test);
}

/// Maps a file at [`BASE`].
pub fn map<'m, A: Silicon>(on: &Bench<'m, A>, space: &Space<'m, A>, object: &Object<'m, Strict<A>>, flags: MapFlags) {
    let request = MapRequest { addr: BASE, len: 64 * on.page, prot: RW, flags: MapFlags::FIXED | flags };
    space.map_object(request, object, 0).unwrap();
}

impl<A: Silicon> File<'_, '_, A> {
    pub fn pending(&self, page: u64) -> PendingPage {
        PendingPage { object: self.object.serial(), page }
    }
}

/// The slots of swap of [`with_two_spaces`], for changes that stay in memory.
const SLOTS: u32 = 256;
/// The size of a frame and page of [`with_two_spaces`].
pub const PAGE: u64 = 4096;

/// The size of a case.
#[derive(Clone, Copy)]
pub struct Load {
    pub pages: u64,
    pub rounds: u64,
}

/// A file that two spaces map at [`BASE`], on a machine of three CPUs.
#[derive(Clone, Copy)]
pub struct Context<'s, 'm> {
    pub sim: &'m Strict,
    pub machine: &'m Machine<'m, Strict>,
    pub object: &'s Object<'m, Strict>,
    pub spaces: [&'s AddressSpace<'m, Strict>; 2],
    pub load: Load,
    pub changes: Changes,
}

/// Runs a case with a file of `pages` pages, mapped with these flags. In the end all memory is
/// free.
pub fn with_two_spaces(
    (seed, schedule): (u64, Schedule),
    (pages, flags, changes): (u64, MapFlags, Changes),
    load: Load,
    case: impl FnOnce(Context<'_, '_>),
) {
    let sim = Config::new(8 << 20).cpus(3).strict(Strictness::new(seed).schedule(schedule)).expect("memory");
    let seat = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    let store = Compressed::new(machine.frames(), SLOTS).unwrap();
    if changes == Changes::InMemory {
        // SAFETY: no other code uses it, and it outlives the machine.
        unsafe { machine.swaps().attach(machine.frames(), &store, SLOTS, 0) }.unwrap();
    }
    sim.baseline();
    let arch = X86_64::four_levels();
    let spaces = [(); 2].map(|()| AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory"));
    let object = Object::with_store(&machine, &arch, MemcgId::ROOT, TAG, pages * PAGE, changes).expect("memory");
    for space in &spaces {
        let request = MapRequest { addr: BASE, len: pages * PAGE, prot: RW, flags: MapFlags::FIXED | flags };
        assert_eq!(space.map_object(request, &object, 0), Ok(BASE));
    }
    drop(seat);
    case(Context { sim: &sim, machine: &machine, object: &object, spaces: [&spaces[0], &spaces[1]], load, changes });
    let _seat = sim.cpu(0);
    drop(object);
    drop(spaces);
    sim.finish();
}

impl Context<'_, '_> {
    /// Ends the request with a page, or lets another CPU end it that has taken it.
    pub fn wait(&self, page: PendingPage) {
        let files = self.sim.hardware().files();
        if files.finish_with(self.machine, page).is_none() && files.finish_write_with(self.machine, page).is_none() {
            self.sim.relax();
        }
    }

    /// Repeats an access of a program until no page has to be waited for.
    pub fn access<T>(&self, access: impl Fn() -> Result<T, Fault<FaultError>>) -> Result<T, FaultError> {
        loop {
            match access() {
                Ok(done) => return Ok(done),
                Err(Fault::Handler(FaultError::Pending(page))) => self.wait(page),
                Err(Fault::Handler(error)) => return Err(error),
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Collapses the first pages of the file, once the pages that are missing have been read.
    /// Returns whether one huge folio has them. Reads may fail.
    pub fn collapse(&self) -> bool {
        match collapse_object(&self.spaces[..], self.object, 0, MemcgId::ROOT) {
            Ok(is_huge) => is_huge,
            Err(ObjectError::Pending(page)) => {
                self.wait(page);
                false
            }
            Err(ObjectError::InUse | ObjectError::NoMemory(_)) => false,
            Err(error) => panic!("{error}"),
        }
    }
}
