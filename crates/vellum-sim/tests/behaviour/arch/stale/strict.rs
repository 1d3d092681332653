//! PTEs that come to allow more, beside TLBs that cache what they allowed before
//! ([`vellum::arch::stale`]): the CPU that faulted goes on, in every format, and another CPU goes
//! on after one more fault. Programs stay on their CPUs, so that only the architecture and the
//! engine drop translations (INV-20).

use std::num::NonZeroU16;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Aarch64, Arch, Attrs, Riscv64, Stale, X86_64};
use vellum::frame::Frames;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::platform::Platform;
use vellum::space::{Advise, FaultError, Limits, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::stats::Counter;
use vellum::swap::{ReadError, Slots, SwapDevice, WriteError};
use vellum::vma::{Prot, UffdId, VmaFlags};
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Disk, Fault, Hostility, Program, Silicon, Strict, Strictness};

use crate::fixtures::bench::BASE;

const RW: Prot = Prot::READ.union(Prot::WRITE);
const RX: Prot = Prot::READ.union(Prot::EXEC);
const UFFD: UffdId = UffdId(NonZeroU16::new(7).unwrap());
/// Pages of each test.
const PAGES: u64 = 64;

type Space<'m, A> = AddressSpace<'m, Strict<A>>;

/// Two CPUs (and a spare one), a swap device, and a space with memory.
struct Bench<'m, A: Silicon> {
    sim: &'m Strict<A>,
    cpus: [&'m Cpu<'m, Strict<A>>; 2],
    machine: &'m Machine<'m, Strict<A>>,
    device: &'m Hooked,
    space: Space<'m, A>,
    arch: A,
    page: u64,
    order: u8,
    /// True if hardware does only what programs ask for, so that the number of faults can be
    /// predicted.
    exact: bool,
    /// True if accessed and dirty are left to software.
    software_ad_bits: bool,
}

/// A disk whose first write waits for an event, and fails.
struct Hooked {
    disk: Disk,
    meanwhile: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl<P: Platform> SwapDevice<P> for Hooked {
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        if let Some((now, done)) = self.meanwhile.lock().unwrap().take() {
            now.send(()).unwrap();
            done.recv().unwrap();
            return Err(WriteError::Failed);
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

/// Runs a test on one machine, with folios of `order`.
fn on<A: Silicon>(arch: A, order: u8, software_ad_bits: bool, hostility: Hostility, test: impl FnOnce(&Bench<'_, A>)) {
    let config = Config::with_arch(arch, 64 << 20).cpus(3);
    let config = if software_ad_bits { config.software_ad_bits() } else { config };
    let sim = config.strict(Strictness::new(7).hostility(hostility)).unwrap();
    let (one, two) = (sim.cpu(1), sim.cpu(0));
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let device = Hooked { disk: Disk::new(1), meanwhile: Mutex::new(None) };
    // SAFETY: only this machine uses the device, which outlives it.
    unsafe { machine.swaps().attach(machine.frames(), &device, 4096, 0) }.unwrap();
    if order > 0 {
        machine.policy().set(order, Knob::Always);
    }
    sim.baseline();
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
    let page = 1 << arch.page_shift();
    space.map(MapRequest { addr: BASE, len: len(page, order), prot: RW, flags: MapFlags::FIXED }).unwrap();
    let (cpus, exact) = ([&two, &one], hostility == Hostility::NONE);
    test(&Bench {
        sim: &sim,
        cpus,
        machine: &machine,
        device: &device,
        space,
        arch,
        page,
        order,
        exact,
        software_ad_bits,
    });
    if !arch.tlb_rules().any_lasts() {
        assert_eq!(sim.stats().local_invalidations, 0, "for nothing");
    }
    sim.finish();
}

/// Returns the bytes that a test maps: one huge page, if the order is that of one.
fn len(page: u64, order: u8) -> u64 {
    (PAGES * page).max(4096 << order)
}

impl<A: Silicon> Bench<'_, A> {
    fn at(&self, page: u64) -> u64 {
        BASE + page * self.page
    }

    fn len(&self) -> u64 {
        len(self.page, self.order)
    }

    fn all(&self) -> VirtRange {
        VirtRange { start: BASE, end: BASE + self.len() }
    }

    fn enter(&self, cpu: usize) -> Program<'_, Strict<A>, Space<'_, A>> {
        self.cpus[cpu].enter(&self.space)
    }

    /// Checks that `what` takes at most this many faults, where that can be predicted.
    fn takes<R>(&self, faults: u64, what: impl FnOnce() -> R) -> R {
        let before = self.sim.stats().faults;
        let done = what();
        let taken = self.sim.stats().faults - before;
        assert!(!self.exact || taken <= faults, "{taken} faults instead of {faults}");
        done
    }

    /// Loads pages on both CPUs, so that they cache the PTEs; then `add` makes the PTEs allow more,
    /// and both CPUs store.
    fn stores_after(&self, programs: &[Program<'_, Strict<A>, Space<'_, A>>], pages: &[u64], add: impl FnOnce()) {
        for program in programs {
            pages.iter().for_each(|page| _ = program.load_u64(self.at(*page)).unwrap());
        }
        add();
        for (n, program) in programs.iter().enumerate() {
            for page in pages {
                // A copy-on-write or write-protected PTE: one fault for the write, and perhaps one
                // for the cached PTE.
                self.takes(2, || program.store_u64(self.at(*page), 10 * page + n as u64)).unwrap();
                assert_eq!(program.load_u64(self.at(*page)), Ok(10 * page + n as u64));
            }
        }
    }

    fn both(&self) -> [Program<'_, Strict<A>, Space<'_, A>>; 2] {
        [self.enter(0), self.enter(1)]
    }

    /// Returns some of all pages.
    fn some(&self) -> [u64; 4] {
        [0, 5, 17, self.len() / self.page - 1]
    }
}

/// Once the child has exited, a write goes ahead in place (copy-on-write reuse).
fn cow_reuse_needs_no_shootdown<A: Silicon>(on: &Bench<'_, A>) {
    let programs = on.both();
    programs[0].touch(on.all(), on.page, vellum_sim::Access::Write).unwrap();
    for _ in 0..2 {
        drop(on.space.fork().unwrap());
        let before = on.machine.counter(Counter::CowCopies);
        on.stores_after(&programs, &on.some(), || ());
        assert_eq!(on.machine.counter(Counter::CowCopies), before);
    }
}

/// `mprotect` takes write permission, or all permissions, and gives them back; it gives execute
/// permission.
fn mprotect_takes_and_gives_permissions<A: Silicon>(on: &Bench<'_, A>) {
    let programs = on.both();
    programs[0].touch(on.all(), on.page, vellum_sim::Access::Write).unwrap();
    for prot in [Prot::READ, Prot::READ, RX] {
        on.space.protect(BASE, on.len(), prot).unwrap();
        on.stores_after(&programs, &on.some(), || on.space.protect(BASE, on.len(), RW).unwrap());
    }
    // One page of a cont block: a TLB may cache the old entry of the whole block.
    on.space.protect(BASE, on.len(), Prot::READ).unwrap();
    on.stores_after(&programs, &[5], || on.space.protect(on.at(5), on.page, RW).unwrap());
    assert_eq!(programs[0].store(on.at(6), 1), Err(Fault::Handler(FaultError::Denied(on.at(6)))));
    // PROT_NONE, and back.
    on.space.protect(BASE, on.len(), Prot::empty()).unwrap();
    for program in &programs {
        assert_eq!(program.load(on.at(5)), Err(Fault::Handler(FaultError::Denied(on.at(5)))));
    }
    on.space.protect(BASE, on.len(), RW).unwrap();
    programs.iter().for_each(|program| on.takes(1, || program.store(on.at(5), 1)).unwrap());
    // PROT_EXEC.
    for program in &programs {
        assert_eq!(program.execute(on.at(5)), Err(Fault::Handler(FaultError::Denied(on.at(5)))));
    }
    on.space.protect(BASE, on.len(), RX).unwrap();
    programs.iter().for_each(|program| _ = on.takes(1, || program.execute(on.at(5))).unwrap());
}

/// uffd-wp is removed: by `UFFDIO_WRITEPROTECT` without the mode, by `UFFDIO_UNREGISTER`, and by an
/// asynchronous write fault.
fn removing_uffd_wp_takes_one_fault_per_cpu<A: Silicon>(on: &Bench<'_, A>) {
    let programs = on.both();
    programs[0].touch(on.all(), on.page, vellum_sim::Access::Write).unwrap();
    on.space.uffd_register(on.all(), UFFD, VmaFlags::UFFD_WP).unwrap();
    on.space.uffd_write_protect(on.all(), false).unwrap();
    for program in &programs {
        assert!(matches!(program.store(on.at(5), 1), Err(Fault::Handler(FaultError::Uffd(_)))));
    }
    on.stores_after(&programs, &on.some(), || on.space.uffd_write_unprotect(on.all()).unwrap());
    on.space.uffd_write_protect(on.all(), false).unwrap();
    on.stores_after(&programs, &on.some(), || on.space.uffd_unregister(on.all(), UFFD).unwrap());
    // Asynchronous write protection: the write goes on, and is recorded.
    on.space.uffd_register(on.all(), UFFD, VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC).unwrap();
    on.space.uffd_write_protect(on.all(), false).unwrap();
    let huge = on.len() > PAGES * on.page;
    // A huge PTE is split first.
    programs.iter().for_each(|program| _ = program.load(on.at(5)).unwrap());
    on.takes(if huge { 4 } else { 2 }, || programs[0].store(on.at(5), 1)).unwrap();
    on.takes(1, || programs[1].store(on.at(5), 2)).unwrap();
}

/// The first write to a page since soft-dirty was cleared.
fn first_write_after_clearing_soft_dirty_faults<A: Silicon>(on: &Bench<'_, A>) {
    if !on.arch.supported().contains(Attrs::SOFT_DIRTY) {
        return;
    }
    let programs = on.both();
    programs[0].touch(on.all(), on.page, vellum_sim::Access::Write).unwrap();
    for _ in 0..2 {
        on.space.clear_soft_dirty().unwrap();
        on.stores_after(&programs, &on.some(), || ());
    }
}

/// Pageout write-protects pages and writes them to the device; the write fails, and the pages are
/// writable again.
fn failed_pageout_makes_pages_writable_again<A: Silicon>(on: &Bench<'_, A>) {
    std::thread::scope(|scope| {
        let ((now, told), (go, done)) = (channel(), channel());
        let (stored, wait) = channel();
        *on.device.meanwhile.lock().unwrap() = Some((now, done));
        let program = on.enter(0);
        program.touch(on.all(), on.page, vellum_sim::Access::Write).unwrap();
        let (sim, space, exact) = (on.sim, &on.space, on.exact);
        scope.spawn(move || {
            let cpu = sim.cpu(2);
            let program = cpu.enter(space);
            // By now the page is write-protected.
            told.recv().unwrap();
            let loaded = program.load_u64(BASE);
            go.send(()).unwrap();
            loaded.unwrap();
            wait.recv().unwrap();
            let before = sim.stats().faults;
            program.store_u64(BASE, 7).unwrap();
            assert!(!exact || sim.stats().faults - before <= 1);
            assert_eq!(program.load_u64(BASE), Ok(7));
        });
        on.space.advise(BASE, on.page.max(4096), Advise::PageOut).unwrap();
        stored.send(()).unwrap();
    });
}

/// Small pages are collapsed into one folio; `mremap` moves PTEs to an address where a TLB may
/// cache that there are none.
fn collapsed_and_moved_ptes_are_seen<A: Silicon>(on: &Bench<'_, A>) {
    let programs = on.both();
    programs[0].touch(on.all(), on.page, vellum_sim::Access::Write).unwrap();
    on.space.protect(BASE, on.len(), Prot::READ).unwrap();
    on.stores_after(&programs, &on.some(), || {
        on.space.protect(BASE, on.len(), RW).unwrap();
        // If the format has folios of this size.
        let _ = on.space.advise(BASE, on.len(), Advise::Collapse);
    });
    let to = BASE + (1 << 32);
    programs.iter().for_each(|program| _ = program.load(to).unwrap_err());
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let len = on.len();
    on.space.remap(RemapRequest { addr: BASE, old_len: len, new_len: len, flags, new_addr: to }).unwrap();
    for program in &programs {
        on.takes(1, || program.store(to, 9)).unwrap();
    }
    assert_eq!(programs[0].load(BASE), Err(Fault::Handler(FaultError::Unmapped(BASE))));
    on.space.remap(RemapRequest { addr: to, old_len: len, new_len: len, flags, new_addr: BASE }).unwrap();
    programs.iter().for_each(|program| on.takes(1, || program.store(BASE, 9)).unwrap());
}

/// PTEs become present: by a fault or by `MAP_POPULATE`, from a swap device, in old and new page
/// tables. The CPU that makes them present needs no further fault; each other CPU takes at most one
/// for each page.
fn present_ptes_take_at_most_one_fault_per_cpu<A: Silicon>(on: &Bench<'_, A>) {
    let programs = on.both();
    let far = BASE + (1 << 36);
    let len = 16 * on.page;
    // A page that stays keeps the page table of the first two ranges hooked; the third range has
    // none.
    let stays = far + 64 * on.page;
    on.space.map(MapRequest { addr: stays, len: on.page, prot: RW, flags: MapFlags::FIXED }).unwrap();
    programs[0].store(stays, 1).unwrap();
    for at in [far, far + 32 * on.page, far + (1 << 32)] {
        for program in &programs {
            for page in 0..16 {
                let va = at + page * on.page;
                assert_eq!(program.load(va), Err(Fault::Handler(FaultError::Unmapped(va))));
            }
        }
        let flags = MapFlags::FIXED | MapFlags::POPULATE;
        on.space.map(MapRequest { addr: at, len, prot: RW, flags }).unwrap();
        // This is CPU 0.
        let _seat = on.sim.cpu(0);
        // None, unless the format guarantees that the CPU sees the PTEs in bounded time, or
        // software sets accessed and dirty.
        let waits = on.arch.tlb_rules().not_present == Stale::Bounded;
        let faults = if waits || on.software_ad_bits { 16 } else { 0 };
        let range = VirtRange { start: at, end: at + len };
        on.takes(faults, || programs[0].touch(range, on.page, vellum_sim::Access::Write).unwrap());
        on.takes(16, || programs[1].touch(range, on.page, vellum_sim::Access::Write).unwrap());
        on.space.unmap(at, len).unwrap();
    }
    let flags = MapFlags::FIXED;
    on.space.map(MapRequest { addr: far, len, prot: RW, flags }).unwrap();
    on.takes(2, || programs[0].store(far, 1)).unwrap();
    on.space.advise(far, on.page, Advise::PageOut).unwrap();
    programs.iter().for_each(|program| _ = on.takes(2, || program.load(far)).unwrap());
    on.takes(2, || programs[1].store(far, 2)).unwrap();
    on.takes(1, || programs[0].store(far, 3)).unwrap();
}

/// Accessed and dirty are set by a fault where software sets them, on each CPU that caches a PTE
/// without them. No other CPU is interrupted for that.
fn software_ad_bits_interrupt_no_other_cpu<A: Silicon>(on: &Bench<'_, A>) {
    let programs = on.both();
    let shared = BASE + (1 << 36);
    let flags = MapFlags::FIXED | MapFlags::SHARED;
    on.space.map(MapRequest { addr: shared, len: on.page, prot: RW, flags }).unwrap();
    // Shared memory is clean until it is written.
    programs.iter().for_each(|program| _ = on.takes(2, || program.load(shared)).unwrap());
    on.space.advise(shared, on.page, Advise::Cold).unwrap();
    programs.iter().for_each(|program| _ = on.takes(1, || program.load(shared)).unwrap());
    let before = on.sim.stats().invalidations;
    programs.iter().for_each(|program| on.takes(1, || program.store(shared, 1)).unwrap());
    assert_eq!(on.sim.stats().invalidations, before);
}

/// Runs the tests in one format: on CPUs that set accessed and dirty, and on CPUs that leave them
/// to software; with pages, cont blocks, and huge pages.
macro_rules! rights {
    ($($format:ident: $arch:expr, $huge:expr;)*) => {$(
        mod $format {
            use super::*;
            rights!(@each $arch, $huge;
                cow_reuse_needs_no_shootdown,
                mprotect_takes_and_gives_permissions,
                removing_uffd_wp_takes_one_fault_per_cpu,
                first_write_after_clearing_soft_dirty_faults,
                collapsed_and_moved_ptes_are_seen,
                software_ad_bits_interrupt_no_other_cpu
            );
            rights!(@pages $arch;
                present_ptes_take_at_most_one_fault_per_cpu,
                failed_pageout_makes_pages_writable_again
            );
        }
    )*};
    (@each $arch:expr, $huge:expr; $($check:ident),*) => {$(
        #[test]
        fn $check() {
            for order in [0, 4, 9].into_iter().filter(|order| *order <= $huge) {
                each($arch, order, super::$check);
            }
        }
    )*};
    (@pages $arch:expr; $($check:ident),*) => {$(
        #[test]
        fn $check() {
            each($arch, 0, super::$check);
        }
    )*};
}

fn each<A: Silicon>(arch: A, order: u8, test: fn(&Bench<'_, A>)) {
    let software = A::CONT != 0;
    for hostility in [Hostility::NONE, Hostility::USUAL, Hostility::WORST] {
        on(arch, order, false, hostility, test);
        if software {
            on(arch, order, true, hostility, test);
        }
    }
}

rights! {
    x86_64: X86_64::four_levels(), 9;
    x86_64_five_levels: X86_64::five_levels(), 0;
    aarch64: Aarch64::granule_4k(), 9;
    aarch64_in_place: Aarch64::granule_4k().wide().with_bbm2(), 4;
    aarch64_16k: Aarch64::granule_16k(), 4;
    aarch64_64k: Aarch64::granule_64k().wide(), 4;
    riscv64: Riscv64::sv39().with_napot(), 9;
    riscv64_vvptc: Riscv64::sv48().with_napot().with_rsw60t59b().with_vvptc(), 9;
    riscv64_without: Riscv64::sv57().with_rsw60t59b(), 0;
}

/// The rules are those of the manuals.
#[test]
fn formats_declare_which_unusable_ptes_tlbs_cache() {
    use vellum::arch::Stale::*;
    let of = |arch: vellum::arch::TlbRules| [arch.not_present, arch.denied, arch.not_accessed, arch.not_dirty];
    assert_eq!(of(X86_64::five_levels().tlb_rules()), [NotCached, UntilFault, NotCached, NotCached]);
    let aarch64 = of(Aarch64::granule_16k().tlb_rules());
    assert_eq!(aarch64, [NotCached, UntilInvalidated, NotCached, UntilInvalidated]);
    assert_eq!(of(Riscv64::sv39().tlb_rules()), [UntilInvalidated; 4]);
    let bounded = of(Riscv64::sv39().with_vvptc().tlb_rules());
    assert_eq!(bounded, [Bounded, UntilInvalidated, UntilInvalidated, UntilInvalidated]);
}
