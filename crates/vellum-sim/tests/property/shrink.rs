//! The shortest way to a failure: of a case on one CPU, which fails in the same way each time, steps are left out for as
//! long as it still fails.

use super::op::Step;
use super::watch;

/// So many times a failing case is run again, at most.
const TRIES: u32 = 400;

/// Run `case` with these steps; if it fails, say what the shortest series of steps is that fails too, and fail.
pub fn or_shrink(steps: Vec<Step>, case: impl Fn(&[Step])) {
    if !watch::fails(|| case(&steps)) {
        return;
    }
    let mut tries = TRIES;
    let mut fails = |steps: &[Step]| {
        tries = tries.saturating_sub(1);
        tries > 0 && watch::fails(|| case(steps))
    };
    let steps = without_tail(steps, &mut fails);
    let steps = without_most(steps, &mut fails);
    eprintln!("these {} steps fail:", steps.len());
    for step in &steps {
        eprintln!("    {step:x?}");
    }
    // Once more, aloud.
    case(&steps);
    panic!("a case failed that doesn't fail each time");
}

/// The shortest prefix that fails: what comes after the first failure can't matter.
fn without_tail(mut steps: Vec<Step>, fails: &mut impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let (mut good, mut bad) = (0, steps.len());
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if fails(&steps[..middle]) {
            bad = middle;
        } else {
            good = middle;
        }
    }
    steps.truncate(bad);
    steps
}

/// Leave out pieces, large ones first.
fn without_most(mut steps: Vec<Step>, fails: &mut impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut piece = steps.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < steps.len() {
            let end = (at + piece).min(steps.len());
            let fewer = [&steps[..at], &steps[end..]].concat();
            if fails(&fewer) {
                steps = fewer;
            } else {
                at = end;
            }
        }
        piece /= 2;
    }
    steps
}
