//! Alternates contenders run by run.
//!
//! A machine's speed drifts: neighbours come and go, and memory fragments. Contenders measured one
//! after the other would each see another speed, so they alternate. Each leaves caches and free
//! memory in another state to the next, so the order changes from run to run and from row to row:
//! [`Orders`].

use vellum_linux::time::Time;
use vellum_linux::workload::case::{Case, Op};
use vellum_linux::workload::shuffle::{seed_of, shuffle};

use super::contender::{Columns, Contender, Skip, Work};
use super::load::{Load, Meter};
use super::progress::Progress;

/// The results of a contender's runs of one operation on one case.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Times of the operation, one for each run.
    pub ops: Vec<Time>,
    /// Times of touching the region before the operation.
    pub touches: Vec<Time>,
    /// Times of what comes after the operation.
    pub backs: Vec<Time>,
    /// The largest share of the region that was not mapped as the case asks.
    pub fallback: f64,
    /// Counts of the last operation.
    pub work: Option<Work>,
    /// The bytes that the faults after the last operation copied or swapped in, if there are any.
    pub moved: Option<u64>,
    /// The greatest [`Sample::noise`](super::contender::Sample::noise).
    pub noise: Option<u64>,
    /// The reason for missing samples.
    pub skip: Option<Skip>,
}

/// The results of all contenders.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// The results, by contender.
    pub outcomes: Columns<Outcome>,
    /// The other work on the machine meanwhile.
    pub load: Load,
}

/// The orders of contenders in the runs of one row of a report.
///
/// N contenders are at each place once in each N runs (a Latin square), so that none is first more
/// often than another; for an even N each also comes directly after each other once (a Williams
/// design). The square is random by row, as rows have fewer runs than squares have orders: over
/// many rows each contender is first equally often.
#[derive(Debug)]
pub struct Orders {
    /// The contenders, in the order that the square is made of.
    contenders: Vec<usize>,
    /// The orders of the square that were taken.
    taken: usize,
    random: u64,
}

impl Orders {
    /// Returns the orders of `contenders` in a row. `row` is its name: the same name has the same
    /// orders.
    pub fn of(row: &str, contenders: impl IntoIterator<Item = usize>) -> Orders {
        Orders { contenders: contenders.into_iter().collect(), taken: 0, random: seed_of(row) }
    }

    /// Returns the order of the next run.
    pub fn next_order(&mut self) -> Vec<usize> {
        let count = self.contenders.len();
        if self.taken == 0 {
            shuffle(&mut self.contenders, &mut self.random);
        }
        // The places 0, 1, N - 1, 2, N - 2, …: neighbours have each distance once for an even N.
        let steps = (0..count).map(|place| if place % 2 == 1 { place.div_ceil(2) } else { count - place / 2 });
        let order = steps.map(|step| self.contenders[(self.taken + step) % count]).collect();
        self.taken = (self.taken + 1) % count.max(1);
        order
    }

    /// Leaves a contender out of all further runs, in which the others begin a new square.
    pub fn remove(&mut self, contender: usize) {
        self.contenders.retain(|&other| other != contender);
        self.taken = 0;
    }
}

/// Runs `op` on `case` `runs` times by each contender, in the order that [`Orders`] has for this
/// row. A contender that skips is not run again, and one that does not do `op` is not run at all.
pub fn take(contenders: &mut [Box<dyn Contender>], case: &Case, op: Op, runs: u32, progress: &Progress) -> Taken {
    let mut outcomes = Columns::<Outcome>::default();
    for contender in contenders.iter_mut().filter(|contender| contender.does(case, op)) {
        progress.set_text(format!("{} {} {}", op.title(), case.label(), contender.column().name()));
        outcomes[contender.column()].skip = contender.prepare(case).err();
    }
    let runs_at_all =
        |contender: &dyn Contender| contender.does(case, op) && outcomes[contender.column()].skip.is_none();
    let running = (0..contenders.len()).filter(|&index| runs_at_all(&*contenders[index]));
    let mut orders = Orders::of(&format!("{op:?} {case:?}"), running);
    // After the preparation: the processes of a churn live on, and count as other work.
    let meter = Meter::start();
    for _ in 0..runs {
        let order = orders.next_order();
        for &index in &order {
            let contender = &mut contenders[index];
            progress.set_text(format!("{} {} {}", op.title(), case.label(), contender.column().name()));
            let outcome = &mut outcomes[contender.column()];
            match contender.run(case, op) {
                Ok(sample) => {
                    outcome.ops.push(sample.op);
                    outcome.touches.extend(sample.touch);
                    outcome.backs.extend(sample.back);
                    outcome.fallback = outcome.fallback.max(sample.fallback);
                    outcome.work = sample.work;
                    outcome.moved = sample.moved;
                    outcome.noise = outcome.noise.max(sample.noise);
                }
                Err(skip) => {
                    outcome.skip = Some(skip);
                    orders.remove(index);
                }
            }
            progress.step();
        }
        (order.len()..contenders.len()).for_each(|_| progress.step());
    }
    Taken { outcomes, load: meter.load() }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::bench::contender::{Column, Sample};

    struct Scripted {
        column: Column,
        skip_at: Option<u64>,
        does: bool,
        runs: u64,
        log: Rc<RefCell<Vec<Column>>>,
    }

    impl Contender for Scripted {
        fn column(&self) -> Column {
            self.column
        }

        fn does(&self, _: &Case, _: Op) -> bool {
            self.does
        }

        fn run(&mut self, _: &Case, _: Op) -> Result<Sample, Skip> {
            self.runs += 1;
            self.log.borrow_mut().push(self.column);
            if self.skip_at == Some(self.runs) {
                return Err(Skip::Busy);
            }
            Ok(Sample {
                touch: Some(Time::default()),
                op: Time { wall_ns: self.runs, cpu_ns: self.runs },
                fallback: 0.5 / self.runs as f64,
                noise: Some(100 / self.runs),
                ..Sample::default()
            })
        }
    }

    #[test]
    fn contenders_alternate_and_skip_for_good() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let scripted = |column, skip_at| -> Box<dyn Contender> {
            Box::new(Scripted { column, skip_at, does: true, runs: 0, log: log.clone() })
        };
        let mut contenders = [scripted(Column::Floor, None), scripted(Column::Linux, Some(2))];
        let case = Case::of(2 << 20, 4);
        let Taken { outcomes, .. } = take(&mut contenders, &case, Op::Munmap, 3, &Progress::new(6));

        use Column::{Floor, Linux};
        assert_eq!(log.borrow().iter().filter(|&&column| column == Floor).count(), 3);
        assert_eq!(log.borrow().iter().filter(|&&column| column == Linux).count(), 2);
        assert_eq!(outcomes.floor.ops.iter().map(|time| time.cpu_ns).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(outcomes.floor.skip, None);
        assert_eq!(outcomes.floor.fallback, 0.5, "the worst run counts, not the last");
        assert_eq!(outcomes.floor.noise, Some(100));
        assert_eq!(outcomes.linux.skip, Some(Skip::Busy));
        assert!(outcomes.vellum.ops.is_empty());
    }

    #[test]
    fn a_contender_without_the_operation_has_no_outcome() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut contenders = [(Column::Floor, false), (Column::Vellum, true)].map(|(column, does)| {
            let contender: Box<dyn Contender> =
                Box::new(Scripted { column, skip_at: None, does, runs: 0, log: log.clone() });
            contender
        });
        let taken = take(&mut contenders, &Case::of(2 << 20, 4), Op::Munmap, 2, &Progress::new(4));
        assert_eq!(*log.borrow(), [Column::Vellum; 2]);
        assert!(taken.outcomes.floor.ops.is_empty() && taken.outcomes.floor.skip.is_none());
    }

    const FOUR: [Column; 4] = Column::ALL;

    /// Returns the columns in the order in which they ran, run by run, of `runs` runs of a row.
    /// Those in `skipping` skip in their first run.
    fn rounds(case: &Case, op: Op, runs: u32, skipping: &[Column]) -> Vec<Vec<Column>> {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut contenders = FOUR.map(|column| -> Box<dyn Contender> {
            let skip_at = skipping.contains(&column).then_some(1);
            Box::new(Scripted { column, skip_at, does: true, runs: 0, log: log.clone() })
        });
        take(&mut contenders, case, op, runs, &Progress::new(0));
        let log = log.borrow();
        let (first, rest) = log.split_at(FOUR.len());
        std::iter::once(first).chain(rest.chunks(FOUR.len() - skipping.len())).map(<[Column]>::to_vec).collect()
    }

    /// Returns many rows of different cases and operations.
    fn rows() -> impl Iterator<Item = (Case, Op)> {
        let ops = [Op::Munmap, Op::Dontneed, Op::Exit, Op::Protect, Op::Fork];
        let cases = (1..=32).map(|n| Case::of(n << 21, 4 << (n % 3)));
        cases.flat_map(move |case| ops.map(|op| (case, op)))
    }

    #[test]
    fn in_as_many_runs_as_contenders_each_is_once_at_each_place_and_once_after_each_other() {
        for (case, op) in rows().take(20) {
            for square in rounds(&case, op, 8, &[]).chunks(FOUR.len()) {
                for place in 0..FOUR.len() {
                    let at_place = |column| square.iter().filter(|round| round[place] == column).count();
                    assert_eq!(FOUR.map(at_place), [1; 4], "{square:?}");
                }
                let mut pairs: Vec<_> = square.iter().flat_map(|round| round.windows(2)).collect();
                pairs.sort_by_key(|pair| (pair[0] as usize, pair[1] as usize));
                pairs.dedup();
                assert_eq!(pairs.len(), 12, "{square:?}");
            }
        }
    }

    #[test]
    fn over_rows_with_fewer_runs_than_contenders_each_is_first_equally_often() {
        let firsts: Vec<Column> =
            rows().flat_map(|(case, op)| rounds(&case, op, 3, &[])).map(|round| round[0]).collect();
        for column in FOUR {
            let share = firsts.iter().filter(|&&first| first == column).count() as f64 / firsts.len() as f64;
            assert!((0.2..0.3).contains(&share), "{column:?} is first in {share} of the runs");
        }
    }

    #[test]
    fn the_orders_are_those_of_the_row() {
        let of = |(case, op): (Case, Op)| rounds(&case, op, 4, &[]);
        assert!(rows().take(20).all(|row| of(row) == of(row)));
        let orders: Vec<_> = rows().map(of).collect();
        let others = orders.iter().filter(|order| **order != orders[0]).count();
        assert!(others > orders.len() * 3 / 4, "{others} of {} rows differ from the first", orders.len());
    }

    #[test]
    fn contenders_that_skip_take_no_place() {
        for (case, op) in rows().take(20) {
            let rounds = rounds(&case, op, 7, &[Column::Page]);
            let firsts = |column| rounds[1..].iter().filter(|round| round[0] == column).count();
            assert_eq!(FOUR.map(firsts), [2, 2, 0, 2], "{rounds:?}");
        }
    }

    #[test]
    fn no_contender_has_no_order() {
        let mut orders = Orders::of("", []);
        assert!(orders.next_order().is_empty() && orders.next_order().is_empty());
    }
}
