//! Alternates contenders run by run.
//!
//! A machine's speed drifts: neighbours come and go, and memory fragments. Contenders measured one
//! after the other would each see another speed, so they alternate, in an order that changes from
//! run to run: each leaves caches and free memory in another state to the next.

use vellum_linux::time::Time;
use vellum_linux::workload::case::{Case, Op};
use vellum_linux::workload::shuffle::{SEED, shuffle};

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

/// Runs `op` on `case` `runs` times by each contender, in turn. The order of the contenders is
/// random, but the same for every call. A contender that skips is not run again, and one that does
/// not do `op` is not run at all.
pub fn take(contenders: &mut [Box<dyn Contender>], case: &Case, op: Op, runs: u32, progress: &Progress) -> Taken {
    let mut random = SEED;
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    let mut outcomes = Columns::<Outcome>::default();
    for contender in contenders.iter_mut().filter(|contender| contender.does(case, op)) {
        progress.set_text(format!("{} {} {}", op.title(), case.label(), contender.column().name()));
        outcomes[contender.column()].skip = contender.prepare(case).err();
    }
    // After the preparation: the processes of a churn live on, and count as other work.
    let meter = Meter::start();
    for _ in 0..runs {
        shuffle(&mut order, &mut random);
        for &index in &order {
            let contender = &mut contenders[index];
            progress.set_text(format!("{} {} {}", op.title(), case.label(), contender.column().name()));
            let outcome = &mut outcomes[contender.column()];
            if outcome.skip.is_none() && contender.does(case, op) {
                match contender.run(case, op) {
                    Ok(sample) => {
                        outcome.ops.push(sample.op);
                        outcome.touches.extend(sample.touch);
                        outcome.backs.extend(sample.back);
                        outcome.fallback = outcome.fallback.max(sample.fallback);
                        outcome.work = sample.work;
                    }
                    Err(skip) => outcome.skip = Some(skip),
                }
            }
            progress.step();
        }
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
                back: None,
                op: Time { wall_ns: self.runs, cpu_ns: self.runs },
                fallback: 0.5 / self.runs as f64,
                work: None,
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

    #[test]
    fn each_contender_comes_first_in_some_run() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut contenders = [Column::Floor, Column::Vellum, Column::Linux].map(|column| -> Box<dyn Contender> {
            Box::new(Scripted { column, skip_at: None, does: true, runs: 0, log: log.clone() })
        });
        take(&mut contenders, &Case::of(2 << 20, 4), Op::Munmap, 7, &Progress::new(21));
        let log = log.borrow();
        let rounds: Vec<&[Column]> = log.chunks(3).collect();
        for column in [Column::Floor, Column::Vellum, Column::Linux] {
            assert!(rounds.iter().all(|round| round.contains(&column)), "every round has all: {rounds:?}");
            assert!(rounds.iter().any(|round| round[0] == column), "{column:?} never comes first: {rounds:?}");
        }
    }
}
