//! Userfaultfd: missing pages, write protection, fills, poison, and scans for written pages.

use std::num::NonZeroU16;

use vellum::addr::VirtRange;
use vellum::arch::Kind;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{
    self, Access, Advise, Categories, FaultError, Limits, MapFlags, MapRequest, Region, RemapFlags, RemapRequest, Scan,
    ScanError, UffdError, UffdEvent, UffdFillError, UffdFillStopped, UffdMode,
};
use vellum::swap::Compressed;
use vellum::vma::{Prot, UffdId, VmaFlags};
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Fault, Hostility, Silicon, Strict, Strictness};

use crate::fixtures::bench::{BASE, Setup, Space, USUAL, in_every_format};

const UFFD: UffdId = UffdId(NonZeroU16::new(7).unwrap());
const OTHER: UffdId = UffdId(NonZeroU16::new(8).unwrap());
const RW: Prot = Prot::READ.union(Prot::WRITE);
const LATER: VmaFlags = VmaFlags::UFFD_WP.union(VmaFlags::UFFD_WP_ASYNC);

/// A space with 64 pages, on a machine with a swap device.
struct Bench<'m, A: Silicon> {
    cpu: &'m Cpu<'m, Strict<A>>,
    space: Space<'m, A>,
    page: u64,
    order: u8,
}

/// Runs a test that must free all its memory and slots.
fn on<A: Silicon>(arch: A, order: u8, test: impl FnOnce(&Bench<'_, A>)) {
    let sim = Config::with_arch(arch, 96 << 20).cpus(1).strict(Strictness::new(7).hostility(Hostility::USUAL)).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let store = Compressed::new(machine.frames(), 4096).unwrap();
    // SAFETY: no other code uses it, and it outlives the machine.
    let device = unsafe { machine.swaps().attach(machine.frames(), &store, 4096, 0) }.unwrap();
    machine.policy().set(order, Knob::Always);
    sim.baseline();
    let free = machine.frames().free_frames();
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
    let page = 1 << arch.page_shift();
    let request = MapRequest { addr: BASE, len: 64 * page, prot: RW, flags: MapFlags::FIXED };
    space.map(request).unwrap();
    test(&Bench { cpu: &cpu, space, page, order });
    assert_eq!(machine.frames().free_frames(), free);
    assert_eq!(machine.swaps().usage(&sim, device).unwrap().used, 0);
    sim.finish();
}

impl<A: Silicon> Bench<'_, A> {
    fn at(&self, page: u64) -> u64 {
        BASE + page * self.page
    }

    fn pages(&self, first: u64, count: u64) -> VirtRange {
        VirtRange { start: self.at(first), end: self.at(first + count) }
    }

    fn all(&self) -> VirtRange {
        self.pages(0, 64)
    }

    fn load(&self, page: u64) -> Result<u64, Fault<FaultError>> {
        self.cpu.enter(&self.space).load_u64(self.at(page))
    }

    fn store(&self, page: u64, value: u64) -> Result<(), Fault<FaultError>> {
        self.cpu.enter(&self.space).store_u64(self.at(page), value)
    }

    fn told(&self, page: u64, access: Access, what: UffdMode) -> Fault<FaultError> {
        self.told_at(self.at(page), access, what)
    }

    /// Returns the event of an access to an address.
    fn told_at(&self, addr: u64, access: Access, what: UffdMode) -> Fault<FaultError> {
        Fault::Handler(FaultError::Uffd(UffdEvent {
            uffd: UFFD,
            page: addr & !(self.page - 1),
            addr,
            access,
            mode: what,
        }))
    }

    /// Returns the result of a store that raises an event.
    fn no_store(&self, page: u64, what: UffdMode) -> Result<(), Fault<FaultError>> {
        Err(self.told(page, Access::Write, what))
    }

    /// Returns the result of a load of a missing page.
    fn no_load(&self, page: u64) -> Result<u64, Fault<FaultError>> {
        Err(self.told(page, Access::Read, UffdMode::Missing))
    }

    fn watch(&self, what: VmaFlags) {
        self.space.uffd_register(self.all(), UFFD, what).unwrap();
    }

    /// Fills pages, each with its number plus 1000 in its first word.
    fn fill(&self, first: u64, count: u64, protect: bool) -> Result<(), UffdFillStopped> {
        let page = self.page;
        self.space.uffd_copy(self.pages(first, count), protect, |at, bytes| {
            bytes.fill(0);
            for (i, bytes) in bytes.chunks_mut(page as usize).enumerate() {
                let number = 1000 + first + at / page + i as u64;
                bytes[..8].copy_from_slice(&number.to_ne_bytes());
            }
            Ok(())
        })
    }

    /// Returns the number of resident, swapped and marked pages.
    fn held(&self) -> [u64; 3] {
        let mut held = [0; 3];
        let arch = self.space.arch();
        self.space.runs(self.all(), |run| {
            let pages = run.range(arch).len() / self.page;
            match run.kind {
                Kind::Leaf => held[0] += pages,
                Kind::Swap => held[1] += pages,
                Kind::Marker => held[2] += pages,
                _ => {}
            }
        });
        held
    }

    /// Returns the written pages, as first page and count.
    fn written(&self, protect: bool) -> Vec<(u64, u64)> {
        let select = |is: Categories| (is & Categories::WRITTEN == Categories::WRITTEN).then_some(Categories::WRITTEN);
        let found = self.scan(self.all(), select, protect);
        found.iter().map(|r| ((r.range.start - BASE) / self.page, r.range.len() / self.page)).collect()
    }

    fn scan(&self, range: VirtRange, select: impl Fn(Categories) -> Option<Categories>, protect: bool) -> Vec<Region> {
        let mut out = [Region::default(); 64];
        let scan = Scan { select, max_pages: u64::MAX, write_protect: protect, only_async: false };
        let scanned = self.space.scan(range, scan, Some(&mut out)).unwrap();
        assert_eq!(scanned.end, range.end);
        out[..scanned.regions].to_vec()
    }
}

/// Runs a test with folios of a page, and with larger ones.
fn in_orders<A: Silicon>(arch: A, check: impl Fn(&Bench<'_, A>)) {
    [0, 4, 9].iter().for_each(|order| on(arch, *order, &check));
}

in_every_format! {
    missing_pages_are_reported_and_filled => |arch| in_orders(arch, missing),
    present_pages_are_not_filled_again => |arch| in_orders(arch, supplied),
    uffd_copy_falls_back_to_single_pages => |arch| in_orders(arch, narrowed),
    pages_copied_during_mremap_are_reclaimed => moved,
    writes_to_protected_pages_are_reported => |arch| in_orders(arch, protected),
    absent_pages_are_write_protected_by_markers => |arch| in_orders(arch, markers),
    uffd_wp_is_exact_beside_zeros_and_cow => |arch| in_orders(arch, exact),
    uffd_wp_survives_swap_and_mremap => |arch| in_orders(arch, along),
    children_are_not_registered => |arch| in_orders(arch, child),
    unregistering_removes_all_marks => |arch| in_orders(arch, unwatched),
    async_writes_are_found_once => |arch| in_orders(arch, later),
    poisoned_pages_fail_until_dropped => |arch| in_orders(arch, poisoned),
    unsuitable_registrations_are_refused => |arch| in_orders(arch, refused),
}

fn missing<A: Silicon>(on: &Bench<'_, A>) {
    on.watch(VmaFlags::UFFD_MISSING);
    for access in [Access::Read, Access::Write] {
        let told = on.space.fault(on.at(3) + 5, access).map_err(Fault::Handler);
        assert_eq!(told, Err(on.told_at(on.at(3) + 5, access, UffdMode::Missing)));
    }
    assert_eq!(on.held(), [0; 3], "nothing was changed");
    on.fill(3, 1, false).unwrap();
    assert_eq!((on.load(3), on.load(4)), (Ok(1003), on.no_load(4)));
    on.space.uffd_zeropage(on.pages(4, 2)).unwrap();
    assert_eq!((on.load(5), on.load(6)), (Ok(0), on.no_load(6)));
    on.store(4, 44).unwrap();
    assert_eq!((on.load(4), on.load(5), on.held()[0]), (Ok(44), Ok(0), 3));
    // Swapped pages are not missing; dropped pages are.
    on.space.advise(on.at(3), 2 * on.page, Advise::PageOut).unwrap();
    assert_eq!((on.load(3), on.load(4)), (Ok(1003), Ok(44)));
    on.space.advise(on.at(3), on.page, Advise::DontNeed).unwrap();
    assert_eq!(on.store(3, 1), on.no_store(3, UffdMode::Missing));
}

fn supplied<A: Silicon>(on: &Bench<'_, A>) {
    on.watch(VmaFlags::UFFD_MISSING);
    on.fill(20, 1, false).unwrap();
    let exists =
        |done: u64, page: u64| Err(UffdFillStopped { done: done * on.page, error: UffdFillError::Exists(on.at(page)) });
    assert_eq!(on.fill(16, 16, false), exists(4, 20));
    assert_eq!(on.space.uffd_zeropage(on.pages(18, 1)), exists(0, 18));
    assert_eq!(on.space.uffd_poison(on.pages(19, 1)), exists(0, 19));
    on.fill(32, 32, false).unwrap();
    assert_eq!((on.load(32), on.load(63)), (Ok(1032), Ok(1063)));
    assert_eq!(on.held(), [37, 0, 0]);
    // The caller can't provide contents.
    let lost = on.space.uffd_copy(on.pages(0, 2), false, |_, _| Err(()));
    assert_eq!(lost, Err(UffdFillStopped { done: 0, error: UffdFillError::NoContents(BASE) }));
    assert_eq!(on.held(), [37, 0, 0]);
    let folios = on.space.usage(on.pages(32, 16)).runs;
    let most = if on.order == 4 { ((16 * on.page) >> 16).max(1) } else { 16 };
    assert!(folios <= most, "not by the run: {folios}");
    let beyond = VirtRange { start: on.at(64), end: on.at(65) };
    assert_eq!(
        on.space.uffd_zeropage(beyond),
        Err(UffdFillStopped { done: 0, error: UffdFillError::NotRegistered(on.at(64)) })
    );
}

fn narrowed<A: Silicon>(on: &Bench<'_, A>) {
    on.watch(VmaFlags::UFFD_MISSING);
    let mut pieces = Vec::new();
    let filled = on.space.uffd_copy(on.pages(16, 16), false, |at, bytes| {
        if pieces.is_empty() {
            on.fill(17, 1, false).unwrap();
        }
        pieces.push((at / on.page, bytes.len() as u64 / on.page));
        bytes.fill(0x11);
        Ok(())
    });
    assert_eq!(filled, Err(UffdFillStopped { done: on.page, error: UffdFillError::Exists(on.at(17)) }));
    let (first, again) = pieces.split_first().unwrap();
    assert_eq!(first.0, 0);
    assert_eq!(again, if first.1 > 1 { &[(0, 1)][..] } else { &[] });
    assert_eq!((on.load(16), on.load(17)), (Ok(0x1111_1111_1111_1111), Ok(1017)));
    assert_eq!(on.held(), [2, 0, 0]);
}

fn moved<A: Silicon>(arch: A) {
    crate::fixtures::bench::on(arch, Setup { slots: 1024, ..USUAL }, |on| {
        let space = on.space();
        let at = |page: u64| BASE + page * on.page;
        let fill = |page: u64, before: &dyn Fn()| {
            let contents = |_, bytes: &mut [u8]| {
                before();
                bytes.fill(page as u8);
                Ok(())
            };
            space.uffd_copy(VirtRange { start: at(page), end: at(page + 1) }, false, contents).unwrap();
        };
        crate::fixtures::bench::map(&space, BASE, 64 * on.page);
        space.uffd_register(VirtRange { start: BASE, end: at(64) }, UFFD, VmaFlags::UFFD_MISSING).unwrap();
        let remap = |from: u64, to: u64| {
            let (flags, len) = (RemapFlags::MAYMOVE | RemapFlags::FIXED, 2 * on.page);
            let request = RemapRequest { addr: at(from), old_len: len, new_len: len, flags, new_addr: at(to) };
            space.remap(request).unwrap();
        };
        fill(40, &|| ());
        fill(0, &|| remap(39, 0));
        // Nothing is left at the address of the fill.
        remap(0, 6);
        assert_eq!(space.usage(VirtRange { start: BASE, end: at(64) }).resident, 2 * on.page);
        assert_eq!(on.reclaim_all(&[&space]), 2 * (on.page >> 12));
        assert_eq!((on.load(&space, at(6)), on.load(&space, at(7))), (0, 0x2828_2828_2828_2828));
    });
}

fn protected<A: Silicon>(on: &Bench<'_, A>) {
    (0..64).for_each(|i| on.store(i, i).unwrap());
    on.watch(VmaFlags::UFFD_WP);
    on.store(5, 55).unwrap();
    on.space.uffd_write_protect(on.pages(5, 20), false).unwrap();
    for i in 0..64 {
        assert_eq!(on.load(i), Ok(if i == 5 { 55 } else { i }));
        let stored = on.store(i, 100 + i);
        assert_eq!(stored, if (5..25).contains(&i) { on.no_store(i, UffdMode::Write) } else { Ok(()) }, "page {i}");
    }
    on.space.uffd_write_unprotect(on.pages(6, 2)).unwrap();
    assert_eq!(on.store(5, 0), on.no_store(5, UffdMode::Write));
    (6..8).for_each(|i| on.store(i, 0).unwrap());
    assert_eq!(on.store(8, 0), on.no_store(8, UffdMode::Write));
    on.space.uffd_write_unprotect(on.all()).unwrap();
    (0..64).for_each(|i| on.store(i, i).unwrap());
    // Filled and write-protected at once.
    on.watch(VmaFlags::UFFD_MISSING | VmaFlags::UFFD_WP);
    on.space.advise(BASE, 64 * on.page, Advise::DontNeed).unwrap();
    on.fill(0, 16, true).unwrap();
    assert_eq!((on.load(9), on.store(9, 1)), (Ok(1009), on.no_store(9, UffdMode::Write)));
}

fn markers<A: Silicon>(on: &Bench<'_, A>) {
    on.watch(VmaFlags::UFFD_WP);
    on.store(9, 99).unwrap();
    let before = on.held()[0];
    on.space.uffd_write_protect(on.all(), false).unwrap();
    assert_eq!(on.held(), [before, 0, 0], "only present pages");
    on.space.uffd_write_protect(on.all(), true).unwrap();
    assert_eq!(on.held(), [before, 0, 64 - before]);
    let empty = if before == 64 { return } else { 40 };
    assert_eq!(on.store(empty, 1), on.no_store(empty, UffdMode::Write));
    assert_eq!(on.load(empty), Ok(0));
    assert!(on.held()[0] > before);
    assert_eq!(on.store(empty, 1), on.no_store(empty, UffdMode::Write), "zeros are protected too");
    on.space.uffd_write_unprotect(on.pages(empty, 1)).unwrap();
    on.store(empty, 1).unwrap();
    assert_eq!(on.store(empty + 1, 1), on.no_store(empty + 1, UffdMode::Write));
    // Markers are missing pages, and can be filled.
    on.watch(VmaFlags::UFFD_WP | VmaFlags::UFFD_MISSING);
    assert_eq!(on.load(60), if on.held()[2] == 0 { Ok(0) } else { on.no_load(60) });
    if on.held()[2] > 0 {
        on.fill(60, 2, true).unwrap();
        assert_eq!((on.load(60), on.store(60, 1)), (Ok(1060), on.no_store(60, UffdMode::Write)));
        on.fill(62, 1, false).unwrap();
        on.store(62, 1).unwrap();
    }
    on.space.uffd_write_unprotect(on.all()).unwrap();
    assert_eq!(on.held()[2], 0);
}

fn exact<A: Silicon>(on: &Bench<'_, A>) {
    // Zeros, one of which is written.
    assert_eq!(on.load(0), Ok(0));
    on.watch(VmaFlags::UFFD_WP);
    on.space.uffd_write_protect(on.pages(1, 15), true).unwrap();
    on.store(0, 1).unwrap();
    assert_eq!(on.store(1, 1), on.no_store(1, UffdMode::Write));
    on.space.uffd_write_unprotect(on.all()).unwrap();
    // Memory that is shared with a child.
    (0..16).for_each(|i| on.store(i, i).unwrap());
    on.space.uffd_write_protect(on.pages(2, 3), false).unwrap();
    let child = on.space.fork().unwrap();
    on.store(0, 7).unwrap();
    on.store(6, 7).unwrap();
    (2..5).for_each(|i| assert_eq!(on.store(i, 7), on.no_store(i, UffdMode::Write), "page {i}"));
    on.space.uffd_write_unprotect(on.pages(2, 1)).unwrap();
    on.store(2, 7).unwrap();
    assert_eq!(on.store(3, 7), on.no_store(3, UffdMode::Write));
    assert_eq!(on.cpu.enter(&child).load_u64(on.at(2)), Ok(2));
}

fn along<A: Silicon>(on: &Bench<'_, A>) {
    (0..16).for_each(|i| on.store(i, i).unwrap());
    on.watch(VmaFlags::UFFD_WP);
    on.space.uffd_write_protect(on.pages(0, 40), true).unwrap();
    on.space.uffd_write_unprotect(on.pages(7, 1)).unwrap();
    let protected = |on: &Bench<'_, A>| {
        (0..40)
            .filter(|i| *i != 7)
            .for_each(|i| assert_eq!(on.store(i, 1), on.no_store(i, UffdMode::Write), "page {i}"));
        assert_eq!(on.load(3), Ok(3));
    };
    on.space.advise(BASE, 16 * on.page, Advise::PageOut).unwrap();
    assert_eq!(on.held()[1], 16);
    // The page is swapped in before the event.
    protected(on);
    on.store(7, 7).unwrap();
    on.space.advise(BASE, 16 * on.page, Advise::PageOut).unwrap();
    on.space.uffd_write_unprotect(on.pages(8, 1)).unwrap();
    on.store(8, 8).unwrap();
    on.space.uffd_write_protect(on.pages(8, 1), false).unwrap();
    on.space.protect(BASE, 64 * on.page, Prot::READ).unwrap();
    on.space.protect(BASE, 64 * on.page, RW).unwrap();
    protected(on);
    let to = BASE + 1024 * on.page;
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let len = 64 * on.page;
    on.space.remap(RemapRequest { addr: BASE, old_len: len, new_len: len, flags, new_addr: to }).unwrap();
    on.space.remap(RemapRequest { addr: to, old_len: len, new_len: len, flags, new_addr: BASE }).unwrap();
    protected(on);
    on.store(7, 7).unwrap();
}

fn child<A: Silicon>(on: &Bench<'_, A>) {
    (0..16).for_each(|i| on.store(i, i).unwrap());
    on.watch(VmaFlags::UFFD_WP | VmaFlags::UFFD_MISSING);
    on.space.uffd_write_protect(on.pages(0, 40), true).unwrap();
    on.space.advise(BASE, 4 * on.page, Advise::PageOut).unwrap();
    let child = on.space.fork().unwrap();
    let program = on.cpu.enter(&child);
    for i in 0..64 {
        assert_eq!(program.load_u64(on.at(i)), Ok(if i < 16 { i } else { 0 }));
        program.store_u64(on.at(i), 100).unwrap();
    }
    drop(program);
    child.vmas(0, |vma| {
        assert_eq!((vma.uffd, vma.flags & VmaFlags::UFFD_FLAGS), (None, VmaFlags::empty()));
        true
    });
    assert_eq!((on.store(8, 1), on.store(2, 1)), (on.no_store(8, UffdMode::Write), on.no_store(2, UffdMode::Write)));
}

fn unwatched<A: Silicon>(on: &Bench<'_, A>) {
    (0..16).for_each(|i| on.store(i, i).unwrap());
    on.watch(VmaFlags::UFFD_WP | VmaFlags::UFFD_MISSING);
    on.space.uffd_write_protect(on.all(), true).unwrap();
    on.space.uffd_unregister(on.all(), OTHER).unwrap();
    assert_eq!(on.store(0, 1), on.no_store(0, UffdMode::Write));
    on.space.uffd_unregister(on.pages(16, 16), UFFD).unwrap();
    (16..32).for_each(|i| on.store(i, i).unwrap());
    assert_eq!(on.store(15, 1), on.no_store(15, UffdMode::Write));
    on.space.uffd_unregister(VirtRange { start: 0, end: on.at(64) }, UFFD).unwrap();
    (0..64).for_each(|i| on.store(i, i).unwrap());
    assert_eq!(on.held()[2], 0);
    assert_eq!(on.space.stats().vmas, 1);
}

fn later<A: Silicon>(on: &Bench<'_, A>) {
    (0..16).for_each(|i| on.store(i, i).unwrap());
    on.watch(LATER);
    on.written(true);
    assert_eq!(on.written(false), []);
    on.space.advise(BASE, 8 * on.page, Advise::PageOut).unwrap();
    for i in [3, 4, 12, 40] {
        on.store(i, 100).unwrap();
    }
    // Empty pages are protected as well.
    on.scan(on.all(), Some, true);
    for i in [3, 5, 41] {
        on.store(i, 100).unwrap();
    }
    assert_eq!(on.written(false), [(3, 1), (5, 1), (41, 1)]);
    assert_eq!(on.written(true), [(3, 1), (5, 1), (41, 1)]);
    assert_eq!(on.written(true), []);
    on.store(50, 1).unwrap();
    let select = |is: Categories| (!is.contains(Categories::WRITTEN)).then_some(is & Categories::PRESENT);
    on.space.advise(on.at(2), 2 * on.page, Advise::PageOut).unwrap();
    let swapped = |is: Categories| is.contains(Categories::SWAPPED).then_some(Categories::SWAPPED);
    let out = on.scan(on.pages(2, 2), swapped, false);
    assert_eq!(out, [Region { range: on.pages(2, 2), categories: Categories::SWAPPED }]);
    assert!(on.scan(on.all(), select, false).iter().all(|region| !region.range.contains(on.at(50))));
    // A scan stops when its output is full.
    for i in [10, 20, 30] {
        on.store(i, 1).unwrap();
    }
    let select = |is: Categories| is.contains(Categories::WRITTEN).then_some(Categories::WRITTEN);
    let mut out = [Region::default(); 2];
    let scan = Scan { select, max_pages: u64::MAX, write_protect: true, only_async: true };
    let found = on.space.scan(on.all(), scan, Some(&mut out)).unwrap();
    assert_eq!((found.regions, found.end), (2, on.at(30)));
    assert_eq!(on.written(false), [(30, 1), (50, 1)]);
    let found = on.space.scan(on.all(), Scan { max_pages: 1, ..scan }, None).unwrap();
    assert_eq!((found.pages, on.written(false)), (1, vec![(50, 1)]));
    on.space.uffd_register(on.pages(32, 16), UFFD, VmaFlags::UFFD_WP).unwrap();
    let refused = on.space.scan(on.all(), scan, None);
    assert_eq!(refused, Err(ScanError::NotAsync(on.pages(32, 16))));
}

fn poisoned<A: Silicon>(on: &Bench<'_, A>) {
    on.watch(VmaFlags::UFFD_MISSING);
    on.space.uffd_poison(on.pages(2, 20)).unwrap();
    for i in 2..22 {
        assert_eq!(on.load(i), Err(Fault::Handler(FaultError::Poisoned(on.at(i)))));
        assert_eq!(on.store(i, 0), Err(Fault::Handler(FaultError::Poisoned(on.at(i)))));
    }
    assert_eq!(on.load(1), on.no_load(1));
    let child = on.space.fork().unwrap();
    assert_eq!(on.cpu.enter(&child).load_u64(on.at(2)), Err(Fault::Handler(FaultError::Poisoned(on.at(2)))));
    on.space.advise(on.at(2), on.page, Advise::DontNeed).unwrap();
    assert_eq!(on.load(2), on.no_load(2));
    // A poisoned page is present, without contents.
    let exists = Err(UffdFillStopped { done: 0, error: UffdFillError::Exists(on.at(4)) });
    assert_eq!((on.space.uffd_zeropage(on.pages(4, 1)), on.space.uffd_poison(on.pages(4, 1))), (exists, exists));
    on.fill(4, 4, false).unwrap();
    assert_eq!((on.load(4), on.load(7)), (Ok(1004), Ok(1007)));
}

fn refused<A: Silicon>(on: &Bench<'_, A>) {
    let flags = MapFlags::FIXED | MapFlags::SHARED;
    let shared = VirtRange { start: on.at(100), end: on.at(101) };
    on.space.map(MapRequest { addr: shared.start, len: on.page, prot: RW, flags }).unwrap();
    let watch = |range, by, what| on.space.uffd_register(range, by, what);
    assert_eq!(watch(on.all(), UFFD, VmaFlags::UFFD_MINOR), Err(UffdError::Unsupported(on.all())));
    assert_eq!(watch(on.pages(60, 10), UFFD, LATER), Err(UffdError::NotMapped));
    assert_eq!(watch(on.all(), UFFD, VmaFlags::UFFD_WP_ASYNC), Err(UffdError::NoModes));
    watch(on.pages(8, 8), UFFD, VmaFlags::UFFD_MISSING).unwrap();
    assert_eq!(watch(on.all(), OTHER, VmaFlags::UFFD_MISSING), Err(UffdError::Busy(on.pages(8, 8))));
    assert_eq!(on.space.uffd_write_protect(on.pages(8, 8), true), Err(UffdError::NotRegistered));
    let stopped = |error| Err(UffdFillStopped { done: 0, error });
    assert_eq!(on.fill(8, 1, true), stopped(UffdFillError::Unsuitable(on.at(8))), "no write protection");
    assert_eq!(on.space.uffd_zeropage(on.pages(14, 4)), stopped(UffdFillError::NotRegistered(on.at(16))));
    assert_eq!(space::uffd_continue(&on.space, on.pages(8, 1), false), stopped(UffdFillError::Unsuitable(on.at(8))));
    let odd = VirtRange { start: BASE + 1, end: on.at(1) };
    assert_eq!(watch(odd, UFFD, LATER), Err(UffdError::Unaligned(odd)));
    // Asynchronous write protection works in shared memory.
    watch(shared, UFFD, LATER).unwrap();
    on.store(100, 1).unwrap();
    let select =
        |is: Categories| is.contains(Categories::WRITTEN).then_some(is & (Categories::FILE | Categories::PRESENT));
    let categories = Categories::FILE | Categories::PRESENT;
    assert_eq!(on.scan(shared, select, true), [Region { range: shared, categories }]);
    assert_eq!(on.scan(shared, select, true), []);
    on.store(100, 2).unwrap();
    assert_eq!(on.scan(shared, select, true), [Region { range: shared, categories }]);
}
