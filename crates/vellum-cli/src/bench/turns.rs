//! Alternates contenders run by run.
//!
//! A machine's speed drifts: neighbours come and go, and memory fragments. Contenders measured one
//! after the other would each see another speed, so they alternate.

use vellum_linux::workload::case::{Case, Op};

use super::contender::{Columns, Contender, Skip, Work};
use super::progress::Progress;

/// The results of a contender's runs of one operation on one case.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Nanoseconds of the operation, one sample for each run.
    pub ops: Vec<u64>,
    /// Nanoseconds of touching the region before the operation.
    pub touches: Vec<u64>,
    /// Nanoseconds of undoing the operation.
    pub backs: Vec<u64>,
    /// The largest share of the region that was not mapped as the case asks.
    pub fallback: f64,
    /// Counts of the last operation.
    pub work: Option<Work>,
    /// The reason for missing samples.
    pub skip: Option<Skip>,
}

/// Runs `op` on `case` `runs` times by each contender, in turn. A contender that skips is not run
/// again.
pub fn take(
    contenders: &mut [Box<dyn Contender>],
    case: &Case,
    op: Op,
    runs: u32,
    progress: &Progress,
) -> Columns<Outcome> {
    let mut outcomes = Columns::<Outcome>::default();
    for contender in contenders.iter_mut() {
        outcomes[contender.column()].skip = contender.prepare(case).err();
    }
    for _ in 0..runs {
        for contender in contenders.iter_mut() {
            progress.set_text(format!("{} {} {}", op.title(), case.label(), contender.column().name()));
            let outcome = &mut outcomes[contender.column()];
            if outcome.skip.is_none() {
                match contender.run(case, op) {
                    Ok(sample) => {
                        outcome.ops.push(sample.op_ns);
                        outcome.touches.extend(sample.touch_ns);
                        outcome.backs.extend(sample.back_ns);
                        outcome.fallback = outcome.fallback.max(sample.fallback);
                        outcome.work = sample.work;
                    }
                    Err(skip) => outcome.skip = Some(skip),
                }
            }
            progress.step();
        }
    }
    outcomes
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
        runs: u64,
        log: Rc<RefCell<Vec<Column>>>,
    }

    impl Contender for Scripted {
        fn column(&self) -> Column {
            self.column
        }

        fn run(&mut self, _: &Case, _: Op) -> Result<Sample, Skip> {
            self.runs += 1;
            self.log.borrow_mut().push(self.column);
            if self.skip_at == Some(self.runs) {
                return Err(Skip::Busy);
            }
            Ok(Sample {
                touch_ns: Some(1),
                back_ns: None,
                op_ns: self.runs,
                fallback: 0.5 / self.runs as f64,
                work: None,
            })
        }
    }

    #[test]
    fn contenders_alternate_and_skip_for_good() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let scripted = |column, skip_at| -> Box<dyn Contender> {
            Box::new(Scripted { column, skip_at, runs: 0, log: log.clone() })
        };
        let mut contenders = [scripted(Column::Floor, None), scripted(Column::Linux, Some(2))];
        let case = Case::of(2 << 20, 4);
        let outcomes = take(&mut contenders, &case, Op::Munmap, 3, &Progress::new(6));

        use Column::{Floor, Linux};
        assert_eq!(*log.borrow(), [Floor, Linux, Floor, Linux, Floor]);
        assert_eq!(outcomes.floor.ops, [1, 2, 3]);
        assert_eq!(outcomes.floor.skip, None);
        assert_eq!(outcomes.floor.fallback, 0.5, "the worst run counts, not the last");
        assert_eq!(outcomes.linux.skip, Some(Skip::Busy));
        assert!(outcomes.vellum.ops.is_empty());
    }
}
