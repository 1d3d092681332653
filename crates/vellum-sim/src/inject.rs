//! Allocations that fail on purpose.

use std::sync::{Mutex, PoisonError};

use crate::rng::Rng;

/// Which allocations fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusal {
    /// None that memory suffices for.
    #[default]
    Never,
    /// The n-th from now, counting from 1, and no other.
    Nth(u64),
    /// The n-th from now, counting from 1, and all after it.
    From(u64),
    /// So many in a hundred, by chance.
    Percent(u8),
}

#[derive(Debug)]
struct State {
    refusal: Refusal,
    asked: u64,
    refused: u64,
    rng: Rng,
}

/// Decides about each allocation.
#[derive(Debug)]
pub(crate) struct Injector(Mutex<State>);

impl Injector {
    pub fn new(seed: u64) -> Self {
        Injector(Mutex::new(State { refusal: Refusal::Never, asked: 0, refused: 0, rng: Rng::new(seed) }))
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Decide like this from now on; counting begins anew.
    pub fn set(&self, refusal: Refusal) {
        self.with(|s| (s.refusal, s.asked, s.refused) = (refusal, 0, 0));
    }

    /// Allocations asked for, and refused, since [`Injector::set`].
    pub fn counts(&self) -> (u64, u64) {
        self.with(|s| (s.asked, s.refused))
    }

    pub fn allow(&self) -> bool {
        self.with(|s| {
            s.asked += 1;
            let refuse = match s.refusal {
                Refusal::Never => false,
                Refusal::Nth(n) => s.asked == n,
                Refusal::From(n) => s.asked >= n,
                Refusal::Percent(p) => s.rng.percent(p),
            };
            s.refused += u64::from(refuse);
            !refuse
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ten(injector: &Injector, refusal: Refusal) -> Vec<bool> {
        injector.set(refusal);
        (0..10).map(|_| injector.allow()).collect()
    }

    #[test]
    fn refuses_as_told() {
        let injector = Injector::new(1);
        assert_eq!(ten(&injector, Refusal::Never), [true; 10]);
        let mut third = [true; 10];
        third[2] = false;
        assert_eq!(ten(&injector, Refusal::Nth(3)), third);
        assert_eq!(injector.counts(), (10, 1));
        assert_eq!(ten(&injector, Refusal::From(1)), [false; 10]);
        assert_eq!(ten(&injector, Refusal::Percent(0)), [true; 10]);
        assert_eq!(ten(&injector, Refusal::Percent(100)), [false; 10]);
    }

    #[test]
    fn chance_repeats_with_its_seed() {
        let run = |seed| ten(&Injector::new(seed), Refusal::Percent(50));
        assert_eq!(run(7), run(7));
        assert!((0..20).any(|seed| run(seed) != run(7)));
    }
}
