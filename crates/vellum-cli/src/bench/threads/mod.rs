//! `bench threads`: several threads at once, each with a region of its own: does munmap scale?
//!
//! | module | contents |
//! |---|---|
//! | [`pace`] | threads that do a step at the same time |
//! | [`teams`] | the contenders |
//! | [`rows`] | results, and their JSON |
//! | [`mod@section`] | the section of the report |

mod pace;
mod rows;
mod section;
mod teams;

use std::num::NonZero;
use std::path::PathBuf;

use vellum::platform::MAX_CPUS;
use vellum_linux::cpu::allowed_cpus;
use vellum_linux::workload::case::{Case, Op, parse_folio};

use super::contender::{Columns, Skip};
use super::engine;
use super::load::Meter;
use super::progress::Progress;
use super::regions::{self, FEW_FOLIOS, check_size, parse_size};
use super::report::Section;
use super::turns::Orders;
use rows::{Outcome, Row, Taken};
use teams::{Engine, Floor, Linux, Team};

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The number of threads.
    #[command(flatten)]
    pub crowd: ThreadCount,
    /// Length of each thread's region: a multiple of 2 MiB.
    #[arg(long, default_value = "512MiB", value_parser = parse_size)]
    pub size: u64,
    /// Runs of each contender, by all threads and by one in turn; the figure is their median.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Folio sizes in KiB whose pages are mapped by a PTE each.
    #[arg(long, value_delimiter = ',', default_values_t = FEW_FOLIOS, value_parser = parse_folio)]
    pub folios: Vec<u32>,
    /// The directory of the huge-page settings.
    #[arg(long, hide = true, default_value = "/sys/kernel/mm/transparent_hugepage")]
    pub thp_root: PathBuf,
}

const SIZE: u64 = 512 << 20;

/// The options that `bench all` has, too.
#[derive(clap::Args)]
pub struct ThreadCount {
    /// Threads at once, each on its own CPU. [default: one for each CPU of this machine]
    #[arg(long)]
    pub threads: Option<NonZero<usize>>,
}

impl Args {
    /// Returns the arguments for `bench all`: regions no larger than those of `unmap`.
    pub fn beside(crowd: ThreadCount, unmap: &regions::Args) -> Args {
        let folios = unmap.restricted_to(&FEW_FOLIOS);
        Args { crowd, size: unmap.size.min(SIZE), runs: unmap.runs, folios, thp_root: unmap.thp_root.clone() }
    }
}

/// The address spaces of the regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spaces {
    /// All regions in one address space.
    One,
    /// Each region in its own address space.
    Own,
}

impl Spaces {
    const ALL: [Spaces; 2] = [Spaces::One, Spaces::Own];

    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Spaces::One => "one",
            Spaces::Own => "own",
        }
    }
}

/// Runs the benchmark and returns its section.
///
/// # Errors
/// An argument is not possible on this machine.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    check_size(args.size)?;
    let mut cpus = allowed_cpus();
    let threads = args.crowd.threads.map_or(cpus.len().min(MAX_CPUS), NonZero::get);
    anyhow::ensure!(
        threads <= cpus.len() && threads <= MAX_CPUS,
        "--threads: each thread needs its own CPU, and there are {}",
        cpus.len().min(MAX_CPUS)
    );
    cpus.truncate(threads);

    // Give the machine half as much memory again as the regions take: large folios need free
    // contiguous blocks.
    let bytes = args.size * threads as u64;
    let sim = engine::simulate(threads, bytes + bytes / 2 + (128 << 20));
    let machine = match &sim {
        Ok(sim) => sim.on_cpu(0, || engine::boot(sim)),
        Err(skip) => Err(skip.clone()),
    };
    let mut teams: [Box<dyn Team + '_>; 3] = [
        Box::new(Floor::default()),
        Box::new(Engine { machine: machine.as_ref().map_err(Skip::clone) }),
        Box::new(Linux::new(&args.thp_root)),
    ];
    let rows = measure(args, &cpus, &mut teams);
    Ok(section::of(&rows, args.runs))
}

/// Runs all cases, and returns the rows ordered by operation, then by kind of address space.
fn measure(args: &Args, cpus: &[usize], teams: &mut [Box<dyn Team + '_>]) -> Vec<Row> {
    let cases = args.folios.len() * Spaces::ALL.len();
    let progress = Progress::new((cases * teams.len() * args.runs as usize) as u64);
    let mut rows = Vec::new();
    for &folio_kib in &args.folios {
        let case = Case::of(args.size, folio_kib);
        for spaces in Spaces::ALL {
            let taken = take_turns(args.runs, &case, spaces, cpus, teams, &progress);
            let row = |op| Row::new(op, spaces, cpus.len(), case, &taken);
            rows.extend([Op::Munmap, Op::Touch].map(row));
        }
    }
    rows.sort_by_key(|row| (row.op == Op::Touch, row.spaces == Spaces::Own));
    rows
}

/// Runs `runs` rounds. In each round, each team (a contender with several threads) does a run by
/// all threads and one by a single thread. [`Orders`] has the order of the teams for this row, and
/// also of the two runs: the second finds memory that was freed a moment before, and the first may
/// find memory that the hypervisor took back.
fn take_turns(
    runs: u32,
    case: &Case,
    spaces: Spaces,
    cpus: &[usize],
    teams: &mut [Box<dyn Team + '_>],
    progress: &Progress,
) -> Taken {
    let meter = Meter::start();
    let mut outcomes = Columns::<Outcome>::default();
    for team in teams.iter_mut() {
        outcomes[team.column()].skip = team.prepare(case, cpus.len()).err();
    }
    let running = (0..teams.len()).filter(|&index| outcomes[teams[index].column()].skip.is_none());
    let row = format!("{spaces:?} {} {case:?}", cpus.len());
    let mut orders = Orders::of(&row, running);
    let mut parts: Vec<Orders> =
        teams.iter().map(|team| Orders::of(&format!("{:?} {row}", team.column()), 0..2)).collect();
    for run in 0..runs as usize {
        // CPUs may differ in speed, so the single thread moves on to another CPU after two rounds:
        // it is first in one of them, and second in the other.
        let alone = run / 2 % cpus.len();
        let order = orders.next_order();
        for &index in &order {
            let column = teams[index].column();
            let team = &mut teams[index];
            progress.set_text(format!("{} threads {} {}", cpus.len(), case.label(), column.name()));
            let mut by = |members| team.run(case, spaces, cpus, members);
            let (together, by_one) = if parts[index].next_order() == [0, 1] {
                let together = by(0..cpus.len());
                (together, by(alone..alone + 1))
            } else {
                let by_one = by(alone..alone + 1);
                (by(0..cpus.len()), by_one)
            };
            outcomes[column].add(together, by_one);
            if outcomes[column].skip.is_some() {
                orders.remove(index);
            }
            progress.step();
        }
        (order.len()..teams.len()).for_each(|_| progress.step());
    }
    Taken { outcomes, load: meter.load() }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ops::Range;
    use std::rc::Rc;

    use super::*;
    use crate::bench::contender::Column;
    use pace::Times;
    use teams::Sample;
    use vellum_linux::workload::case::TABLE_SPAN;

    type Log = Rc<RefCell<Vec<(Column, Range<usize>)>>>;

    struct Scripted(Column, Log);

    impl Team for Scripted {
        fn column(&self) -> Column {
            self.0
        }

        fn run(&mut self, _: &Case, _: Spaces, _: &[usize], members: Range<usize>) -> Result<Sample, Skip> {
            self.1.borrow_mut().push((self.0, members.clone()));
            let times = Times { touch_ns: 500, unmap_ns: 100 * members.len() as u64 };
            Ok(Sample { times, fallback: 0.0 })
        }
    }

    #[test]
    fn all_threads_and_one_take_turns_and_each_thread_is_the_one_in_turn() {
        let log = Log::default();
        let team = |column| -> Box<dyn Team> { Box::new(Scripted(column, log.clone())) };
        let mut teams = [team(Column::Vellum), team(Column::Linux)];
        let args = Args {
            crowd: ThreadCount { threads: None },
            size: TABLE_SPAN,
            runs: 4,
            folios: vec![4],
            thp_root: PathBuf::new(),
        };
        let rows = measure(&args, &[3, 7], &mut teams);

        use Column::{Linux, Vellum};
        for column in [Vellum, Linux] {
            let log = log.borrow();
            let of_team: Vec<_> =
                log[..16].iter().filter(|(of, _)| *of == column).map(|(_, members)| members).collect();
            for (round, alone) in of_team.chunks(2).zip([0..1, 0..1, 1..2, 1..2]) {
                assert!(round.contains(&&(0..2)) && round.contains(&&alone), "{round:?}");
            }
            let first = |round: usize| of_team[2 * round].len();
            assert_eq!([first(0) + first(1), first(2) + first(3)], [3; 2], "one is first in every second: {of_team:?}");
        }
        assert_eq!(log.borrow().len(), 32, "as many in an address space each");
        let names: Vec<_> = rows.iter().map(|row| (row.op.name(), row.spaces.name())).collect();
        assert_eq!(names, [("munmap", "one"), ("munmap", "own"), ("touch", "one"), ("touch", "own")]);
        assert_eq!(rows[0].scaling(Vellum), Some(1.0), "twice the work in twice the time");
        assert_eq!(rows[2].scaling(Vellum), Some(2.0), "twice the work in the same time");
        assert_eq!(rows[1].scaling(Linux), Some(1.0));
    }

    #[test]
    fn in_as_many_runs_as_teams_each_is_first_once_and_rows_differ() {
        let mut firsts = Vec::new();
        for n in 1..=12 {
            let log = Log::default();
            let team = |column| -> Box<dyn Team> { Box::new(Scripted(column, log.clone())) };
            let mut teams = [team(Column::Floor), team(Column::Vellum), team(Column::Linux)];
            let case = Case::of(n * TABLE_SPAN, 4);
            take_turns(3, &case, Spaces::One, &[3, 7], &mut teams, &Progress::new(0));
            // Each team runs twice in a round.
            let first: Vec<Column> = log.borrow().iter().step_by(6).map(|(column, _)| *column).collect();
            for column in [Column::Floor, Column::Vellum, Column::Linux] {
                assert_eq!(first.iter().filter(|&&of| of == column).count(), 1, "{first:?}");
            }
            firsts.push(first);
        }
        assert!(firsts.iter().any(|first| *first != firsts[0]), "{firsts:?}");
    }

    #[test]
    fn in_bench_all_regions_are_no_larger_than_those_of_unmap() {
        let unmap = |folios: &[u32], size| regions::Args {
            size,
            runs: 3,
            folios: folios.to_vec(),
            no_huge: false,
            arms: vec![vellum_linux::workload::arm::Arm::Ascending],
            thp_root: PathBuf::new(),
        };
        let beside = |unmap| {
            let args = Args::beside(ThreadCount { threads: None }, &unmap);
            (args.folios, args.size, args.runs)
        };
        assert_eq!(beside(unmap(&[4, 16, 2048], 1 << 30)), (vec![4, 2048], SIZE, 3));
        assert_eq!(beside(unmap(&[16], 2 << 20)), (vec![16], 2 << 20, 3));
    }
}
