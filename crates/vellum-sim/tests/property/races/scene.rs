//! Where two meet: a space, a disk to swap to, and three CPUs.

use vellum::Machine;
use vellum::arch::Kind;
use vellum::space::{Advise, FaultError, MapFlags};
use vellum_sim::{Cpu, Disk, Fault, Strict};

use super::{PAGE, Space, at, both, fixed, some_swapping, space};

/// Pages that something happens to, of two folios.
pub const PAGES: u64 = 4;

/// What a case has: a space whose first pages hold 100, 101, … and a disk to swap to.
pub struct Scene<'s, 'm> {
    pub sim: &'s Strict,
    pub machine: &'m Machine<'m, Strict>,
    pub disk: &'s Disk,
    pub space: &'s Space<'m>,
    pub cpu: &'s Cpu<'s, Strict>,
}

impl Scene<'_, '_> {
    pub fn load(&self, space: &Space<'_>, page: u64) -> Result<u64, Fault<FaultError>> {
        self.cpu.enter(space).load_u64(at(page))
    }

    /// These pages hold what they held in the beginning.
    pub fn holds(&self, space: &Space<'_>, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| assert_eq!(self.load(space, page), Ok(100 + page), "page {page}"));
    }

    /// Swapped pages of a space, by its entries.
    pub fn swapped(&self, space: &Space<'_>) -> u64 {
        let mut pages = 0;
        let all = vellum::addr::VirtRange { start: at(0), end: at(2048) };
        space.runs(all, |run| pages += if run.kind == Kind::Swap { run.len as u64 } else { 0 });
        assert_eq!(space.stats().swap, pages * PAGE);
        pages
    }

    /// Slots in use, and those that hold what is in memory.
    pub fn used(&self) -> [u64; 2] {
        let usage = self.machine.swaps().usage(self.sim, 0).unwrap();
        [usage.used, usage.cached].map(u64::from)
    }
}

/// A space has so many pages mapped, and the first of them, of two folios, hold 100, 101, …; something happens to them to begin with. Two
/// do something at once, from another CPU each; then the third looks. Slots are in use as entries name them, and nothing is left in the
/// end. Under so many schedules of each kind.
pub fn together(
    (schedules, mapped): (usize, u64),
    begin: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    one: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
) {
    some_swapping(schedules, if mapped > PAGES { 8 << 20 } else { 4 << 20 }, move |sim, boot, machine, disk| {
        let space = space(machine);
        space.map(fixed(0, mapped, MapFlags::empty())).unwrap();
        space.map(fixed(mapped, 1, MapFlags::POPULATE)).unwrap();
        let here = Scene { sim, machine, disk, space: &space, cpu: boot };
        (0..PAGES).for_each(|page| boot.enter(&space).store_u64(at(page), 100 + page).unwrap());
        begin(&here);
        both(sim, |cpu| one(&Scene { cpu, ..here }), |cpu| other(&Scene { cpu, ..here }));
        let [used, cached] = here.used();
        assert_eq!(here.swapped(&space) + cached, used, "slots that nobody names, or that two do");
        look(&here);
    });
}

/// All goes out that can.
pub fn out(on: &Scene<'_, '_>) {
    // Somebody may have locked it, or taken it away.
    let _ = on.space.advise(at(0), PAGES * PAGE, Advise::PageOut);
}

/// Count in all pages, and find what was counted.
pub fn counts(on: &Scene<'_, '_>) {
    let program = on.cpu.enter(on.space);
    for n in 0..3 {
        for page in 0..PAGES {
            assert_eq!(program.add_u64(at(page) + 8, 1), Ok(n), "page {page}");
        }
    }
}

pub fn counted(on: &Scene<'_, '_>) {
    on.holds(on.space, 0..PAGES);
    let program = on.cpu.enter(on.space);
    (0..PAGES).for_each(|page| assert_eq!(program.load_u64(at(page) + 8), Ok(3), "page {page}"));
}
