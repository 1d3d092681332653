//! What tests of the engine on the strict machine share: the machine, and the formats of page tables.

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::{Advise, Limits, MapFlags, MapRequest};
use vellum::stats::Counter;
use vellum::swap::Compressed;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Hostility, Silicon, Strict, Strictness};

pub const BASE: u64 = 0x20_0000_0000;
pub const HUGE: u64 = 2 << 20;

/// All advice there is.
pub const ADVICE: [Advise; 20] = [
    Advise::DontNeed,
    Advise::DontNeedLocked,
    Advise::Huge,
    Advise::NoHuge,
    Advise::Free,
    Advise::DontFork,
    Advise::DoFork,
    Advise::WipeOnFork,
    Advise::KeepOnFork,
    Advise::DontDump,
    Advise::DoDump,
    Advise::Reading,
    Advise::WillNeed,
    Advise::Cold,
    Advise::PageOut,
    Advise::Collapse,
    Advise::PopulateRead,
    Advise::PopulateWrite,
    Advise::GuardInstall,
    Advise::GuardRemove,
];

pub type Space<'m, A> = AddressSpace<'m, Strict<A>, A>;

/// What a test asks of its machine.
#[derive(Clone, Copy)]
pub struct Setup {
    pub bytes: u64,
    pub cpus: usize,
    pub hostility: Hostility,
    /// Of a device of compressed memory; with none there is no device.
    pub slots: u32,
}

/// 64 MiB, one CPU, and no swap.
pub const USUAL: Setup = Setup { bytes: 64 << 20, cpus: 1, hostility: Hostility::USUAL, slots: 0 };

/// A machine, and the CPU that the test runs on.
pub struct Bench<'m, A: Silicon = X86_64> {
    pub sim: &'m Strict<A>,
    pub cpu: &'m Cpu<'m, Strict<A>>,
    pub machine: &'m Machine<'m, Strict<A>>,
    /// Of all spaces that are not to be another's.
    pub memcg: MemcgId,
    pub arch: A,
    /// Bytes of a page.
    pub page: u64,
}

/// A test that gives back all it takes, memory and slots.
pub fn on<A: Silicon>(arch: A, setup: Setup, test: impl FnOnce(&Bench<'_, A>)) {
    let Setup { bytes, cpus, hostility, slots } = setup;
    let sim = Config::with_arch(arch, bytes).cpus(cpus).strict(Strictness::new(7).hostility(hostility)).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let create = || machine.memcgs().create(machine.frames(), MemcgId::ROOT, u64::MAX).unwrap();
    // What a memcg takes is kept for the next, so it is no loss.
    let (memcg, others) = (create(), [0; 3].map(|_| create()));
    others.iter().for_each(|memcg| machine.memcgs().remove(machine.frames(), *memcg).unwrap());
    let store = Compressed::new(machine.frames(), slots).unwrap();
    if slots > 0 {
        // SAFETY: nobody else uses it, and it outlives the machine.
        unsafe { machine.swaps().attach(machine.frames(), &store, slots, 0) }.unwrap();
    }
    sim.baseline();
    let free = machine.frames().free_frames();
    let bench = Bench { sim: &sim, cpu: &cpu, machine: &machine, memcg, arch, page: 1 << arch.page_shift() };
    test(&bench);
    assert_eq!(machine.frames().free_frames(), free);
    assert_eq!(if slots > 0 { bench.used() } else { 0 }, 0, "slots that nobody has");
    sim.finish();
}

impl<'m, A: Silicon> Bench<'m, A> {
    pub fn space(&self) -> Space<'m, A> {
        self.space_of(self.memcg)
    }

    pub fn space_of(&self, memcg: MemcgId) -> Space<'m, A> {
        AddressSpace::new(self.machine, self.arch, memcg, Limits::default()).unwrap()
    }

    /// What a program in the space finds.
    pub fn load(&self, space: &Space<'_, A>, va: u64) -> u64 {
        self.cpu.enter(space).load_u64(va).unwrap()
    }

    pub fn store(&self, space: &Space<'_, A>, va: u64, value: u64) {
        self.cpu.enter(space).store_u64(va, value).unwrap();
    }

    /// Slots in use of the device of compressed memory.
    pub fn used(&self) -> u32 {
        self.machine.swaps().usage(self.sim, 0).unwrap().used
    }

    /// A memcg's memory is taken back, so many pages of it; how many were.
    pub fn reclaim(&self, spaces: &[&Space<'m, A>], memcg: MemcgId, pages: u64) -> u64 {
        reclaim::<_, A>(self.machine, spaces, memcg, pages).unwrap().freed
    }

    /// All that can be.
    pub fn reclaim_all(&self, spaces: &[&Space<'m, A>]) -> u64 {
        self.reclaim(spaces, self.memcg, u64::MAX)
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.machine.counter(counter)
    }
}

pub fn map<A: Silicon>(space: &Space<'_, A>, addr: u64, len: u64) {
    let prot = Prot::READ | Prot::WRITE;
    space.map(MapRequest { addr, len, prot, flags: MapFlags::FIXED }).unwrap();
}

pub fn range(start: u64, len: u64) -> VirtRange {
    VirtRange { start, end: start + len }
}

/// Tests that run in every format: each is called with it.
macro_rules! in_every_format {
    ($($name:ident => $check:expr,)*) => {$(
        #[test]
        fn $name() {
            use vellum::arch::{Aarch64, Riscv64, X86_64};
            $check(X86_64::four_levels());
            $check(Aarch64::granule_4k());
            $check(Aarch64::granule_16k());
            $check(Aarch64::granule_64k().wide());
            $check(Riscv64::sv39().with_napot());
            $check(Riscv64::sv48().with_napot().with_vvptc());
        }
    )*};
}
pub(crate) use in_every_format;
