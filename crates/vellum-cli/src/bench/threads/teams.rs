//! The contenders: the floor, the engine, and the kernel of this machine, each with several
//! threads.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use vellum::Machine;
use vellum::memcg::MemcgId;
use vellum_linux::child::together::{self, Together};
use vellum_linux::compact;
use vellum_linux::region::{EVICTING, Region, minor_faults, warm_memory};
use vellum_linux::settings::knobs::Knobs;
use vellum_linux::settings::mthp::Mthp;
use vellum_linux::workload::case::{Case, Op, PAGE};
use vellum_sim::Fast;

use super::Spaces;
use super::pace::{Times, work};
use crate::bench::contender::{Column, Skip};
use crate::bench::engine::{self, Counted};
use crate::bench::floor::{Arena, Placement, Way};
use crate::bench::memory::Mapped;

/// The result of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds of the steps.
    pub times: Times,
    /// The largest share of a region that was not mapped as the case asks.
    pub fallback: f64,
}

/// A contender with several threads.
pub trait Team {
    /// Returns the column of the report that the team fills.
    fn column(&self) -> Column;

    /// Prepares the runs of a case, outside of all measurement.
    ///
    /// # Errors
    /// The team can't measure the case.
    fn prepare(&mut self, _case: &Case, _threads: usize) -> Result<(), Skip> {
        Ok(())
    }

    /// Does one run with a thread for each number in `members`: each thread maps a fresh region,
    /// then all touch their regions at the same time, then all unmap them at the same time.
    /// `cpus[member]` is the CPU of a thread.
    ///
    /// # Errors
    /// The team can't measure the case.
    fn run(&mut self, case: &Case, spaces: Spaces, cpus: &[usize], members: Range<usize>) -> Result<Sample, Skip>;
}

/// The floor. Each thread has its own PTEs and descriptors, and its own memory, which it zeroes in
/// place of touching.
#[derive(Default)]
pub struct Floor {
    memories: Vec<Mutex<ThreadMemory>>,
}

/// One thread's memory, kept between its runs.
#[derive(Default)]
struct ThreadMemory {
    arena: Option<Arena>,
    pages: Option<Mapped<u64>>,
}

impl Team for Floor {
    fn column(&self) -> Column {
        Column::Floor
    }

    fn run(&mut self, case: &Case, _: Spaces, cpus: &[usize], members: Range<usize>) -> Result<Sample, Skip> {
        self.memories.resize_with(self.memories.len().max(members.end), Default::default);
        let memories = &self.memories;
        let (times, _) = work(
            cpus,
            members,
            || Ok(()),
            |member, pace| {
                let mut memory = memories[member].lock().unwrap_or_else(PoisonError::into_inner);
                let (arena, pages) = memory.of(case).map_err(|error| Skip::system("mmap", error))?;
                arena.fill();
                // Zero as many bytes as the other contenders touch, so that PTEs and descriptors
                // are evicted from the caches just as theirs are.
                pace.touch(|| {
                    zero(pages, case.bytes);
                    Ok(())
                })?;
                pace.unmap(|| {
                    std::hint::black_box(arena.perform(Op::Munmap, Way::Ahead(8)));
                    Ok(())
                })
            },
        )?;
        Ok(Sample { times, fallback: 0.0 })
    }
}

impl ThreadMemory {
    fn of(&mut self, case: &Case) -> rustix::io::Result<(&mut Arena, &mut Mapped<u64>)> {
        let arena = match self.arena.take().filter(|arena| arena.case == *case) {
            Some(arena) => arena,
            None => Arena::new(case, Placement::in_order(case))?,
        };
        // No more than the other contenders touch: each thread has memory of its own.
        let words = case.bytes.min(EVICTING) as usize / size_of::<u64>();
        let pages = match self.pages.take().filter(|pages| pages.len() == words) {
            Some(pages) => pages,
            None => Mapped::zeroed(words)?,
        };
        Ok((self.arena.insert(arena), self.pages.insert(pages)))
    }
}

/// Zeroes `bytes` in all, a page at a time, and begins again at the start of `memory` when it ends.
fn zero(memory: &mut [u64], bytes: u64) {
    let pages = memory.len() / WORDS;
    for page in 0..(bytes / PAGE) as usize {
        let at = page % pages * WORDS;
        // Hide each page from the optimiser, which would otherwise merge the zeroing of several
        // pages.
        std::hint::black_box(&mut memory[at..at + WORDS]).fill(0);
    }
}

/// Words in a page.
const WORDS: usize = PAGE as usize / size_of::<u64>();

/// The engine, on a simulated machine with a CPU for each thread.
pub struct Engine<'m> {
    /// The machine, or the reason why there is none.
    pub machine: Result<&'m Machine<'m, Fast>, Skip>,
}

impl Team for Engine<'_> {
    fn column(&self) -> Column {
        Column::Vellum
    }

    fn prepare(&mut self, _: &Case, _: usize) -> Result<(), Skip> {
        self.machine.as_ref().map(drop).map_err(Skip::clone)
    }

    fn run(&mut self, case: &Case, spaces: Spaces, cpus: &[usize], members: Range<usize>) -> Result<Sample, Skip> {
        let machine = *self.machine.as_ref().map_err(|skip| skip.clone())?;
        let (sim, whole) = (machine.platform(), of_all(case, &members));
        let common = match spaces {
            Spaces::One => Some(sim.on_cpu(0, || engine::space(machine, case.folio_kib, MemcgId::ROOT))?),
            Spaces::Own => None,
        };
        let before = Counted::now(machine);
        let shaped = Mutex::new(before);
        let (times, _) = work(
            cpus,
            members,
            || Ok(()),
            |member, pace| {
                let cpu = sim.cpu(member);
                let own = match &common {
                    Some(_) => None,
                    None => Some(engine::space(machine, case.folio_kib, MemcgId::ROOT)?),
                };
                let Some(space) = common.as_ref().or(own.as_ref()) else {
                    return Err(Skip::system("new", "no space"));
                };
                let program = cpu.enter(space);
                let range = engine::map(space, case.bytes)?;
                pace.touch(|| engine::touch(&program, range).map(drop))?;
                engine::shape(space, &program, range, case)?;
                // Each thread stores the counters after it has shaped its region, so that the last
                // ones stored cover all threads.
                *shaped.lock().unwrap_or_else(PoisonError::into_inner) = Counted::now(machine);
                pace.unmap(|| engine::unmap(space, range))
            },
        )?;
        sim.on_cpu(0, || drop(common));
        let shaped = shaped.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Sample { times, fallback: before.fallback(&shaped, &whole) })
    }
}

/// Returns the regions of all members as one case.
fn of_all(case: &Case, members: &Range<usize>) -> Case {
    Case { bytes: case.bytes * members.len() as u64, ..*case }
}

/// The kernel of this machine, with threads of this process for one address space, and with
/// processes for an address space each.
pub struct Linux {
    mthp: Mthp,
    knobs: Knobs,
}

impl Linux {
    /// Measures with the huge-page settings at `thp_root`; see [`vellum_linux::Linux::new`].
    pub fn new(thp_root: &Path) -> Linux {
        Linux { mthp: Mthp::at(thp_root), knobs: Knobs::guarded(thp_root) }
    }
}

impl Team for Linux {
    fn column(&self) -> Column {
        Column::Linux
    }

    fn prepare(&mut self, case: &Case, threads: usize) -> Result<(), Skip> {
        self.mthp.plan(case)?;
        let all = of_all(case, &(0..threads)).bytes;
        vellum_linux::memory::check_available(all + all / 8)?;
        compact();
        Ok(())
    }

    fn run(&mut self, case: &Case, spaces: Spaces, cpus: &[usize], members: Range<usize>) -> Result<Sample, Skip> {
        let settings = self.knobs.apply(&self.mthp.plan(case)?)?;
        warm_memory(of_all(case, &members).bytes)?;
        if spaces == Spaces::Own {
            let Together { touch_ns, unmap_ns, fallback } = together::measure(case, &cpus[members], settings)?;
            return Ok(Sample { times: Times { touch_ns, unmap_ns }, fallback });
        }
        let (times, fallbacks) = work(
            cpus,
            members,
            // Restore the huge-page settings as soon as all regions are touched.
            || settings.restore(),
            |_, pace| {
                let mut region = Region::map(case.bytes)?;
                let faults = minor_faults();
                pace.touch(|| {
                    region.write(0, case.bytes as usize, PAGE);
                    Ok(())
                })?;
                let fallback = region.shape(case, minor_faults() - faults)?;
                pace.unmap(|| region.unmap_in_place())?;
                Ok(fallback)
            },
        )?;
        Ok(Sample { times, fallback: fallbacks.into_iter().fold(0.0, f64::max) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads share one CPU of the host if there is only one: slower, but correct.
    fn cpus() -> Vec<usize> {
        vellum_linux::cpu::allowed_cpus().into_iter().cycle().take(2).collect()
    }

    #[test]
    fn the_engine_maps_as_the_case_asks_and_frees_everything() {
        let sim = engine::simulate(2, 64 << 20).unwrap();
        let machine = sim.on_cpu(0, || engine::boot(&sim)).unwrap();
        let free = || sim.on_cpu(0, || machine.frames().free_frames());
        let before = free();
        let mut team = Engine { machine: Ok(&machine) };
        for (folio_kib, huge) in [(4, false), (64, false), (2048, false), (2048, true)] {
            for spaces in [Spaces::One, Spaces::Own] {
                for members in [0..2, 1..2] {
                    let case = Case { huge, ..Case::of(8 << 20, folio_kib) };
                    let sample = team.run(&case, spaces, &cpus(), members).unwrap();
                    assert_eq!(sample.fallback, 0.0, "{}", case.label());
                    assert_eq!(free(), before, "{}", case.label());
                }
            }
        }
    }

    #[test]
    fn the_floor_and_linux_are_timed() {
        let thp = tempfile::tempdir().unwrap();
        let case = Case::of(4 << 20, 4);
        let teams: [&mut dyn Team; 2] = [&mut Floor::default(), &mut Linux::new(thp.path())];
        for team in teams {
            team.prepare(&case, 2).unwrap();
            for members in [0..2, 1..2] {
                let Times { touch_ns, unmap_ns } = team.run(&case, Spaces::One, &cpus(), members).unwrap().times;
                assert!(touch_ns > 0 && unmap_ns > 0);
            }
        }
    }

    #[test]
    fn zeroing_wraps_around_at_the_end() {
        let mut memory = vec![1; 3 * WORDS];
        zero(&mut memory, 2 * PAGE);
        assert!(memory[..2 * WORDS].iter().all(|&word| word == 0) && memory[2 * WORDS] == 1);
        memory.fill(1);
        zero(&mut memory, 100 * PAGE);
        assert!(memory.iter().all(|&word| word == 0));
    }
}
