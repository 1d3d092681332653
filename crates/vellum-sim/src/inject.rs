//! Fault injection: allocations and device operations that fail on purpose.

use std::sync::{Mutex, PoisonError};

use crate::rng::Rng;

/// The requests that are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusal {
    /// None, unless the resource runs out.
    #[default]
    Never,
    /// The n-th from now, counting from 1, and no other.
    Nth(u64),
    /// The n-th from now, counting from 1, and all after it.
    From(u64),
    /// This percentage of requests, by chance.
    Percent(u8),
}

#[derive(Debug)]
struct State {
    refusal: Refusal,
    requests: u64,
    refused: u64,
    rng: Rng,
}

impl State {
    fn allow(&mut self) -> bool {
        self.requests += 1;
        let refuse = match self.refusal {
            Refusal::Never => false,
            Refusal::Nth(n) => self.requests == n,
            Refusal::From(n) => self.requests >= n,
            Refusal::Percent(p) => self.rng.percent(p),
        };
        self.refused += u64::from(refuse);
        !refuse
    }
}

/// Decides about each request.
#[derive(Debug)]
pub(crate) struct Injector(Mutex<State>);

impl Injector {
    pub fn new(seed: u64) -> Self {
        Injector(Mutex::new(State { refusal: Refusal::Never, requests: 0, refused: 0, rng: Rng::new(seed) }))
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the rule, and resets the counts.
    pub fn set(&self, refusal: Refusal) {
        self.with(|s| (s.refusal, s.requests, s.refused) = (refusal, 0, 0));
    }

    /// Returns how many requests were made, and how many were refused, since [`Injector::set`].
    pub fn counts(&self) -> (u64, u64) {
        self.with(|s| (s.requests, s.refused))
    }

    pub fn allow(&self) -> bool {
        self.with(State::allow)
    }

    /// Makes `count` requests, or fewer: none after one that is refused. Returns the number of
    /// those that are not.
    pub fn allow_first(&self, count: u64) -> u64 {
        self.with(|state| (0..count).find(|_| !state.allow()).unwrap_or(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide_ten(injector: &Injector, refusal: Refusal) -> Vec<bool> {
        injector.set(refusal);
        (0..10).map(|_| injector.allow()).collect()
    }

    #[test]
    fn each_rule_refuses_the_requests_it_names() {
        let injector = Injector::new(1);
        assert_eq!(decide_ten(&injector, Refusal::Never), [true; 10]);
        let mut third = [true; 10];
        third[2] = false;
        assert_eq!(decide_ten(&injector, Refusal::Nth(3)), third);
        assert_eq!(injector.counts(), (10, 1));
        assert_eq!(decide_ten(&injector, Refusal::From(1)), [false; 10]);
        assert_eq!(decide_ten(&injector, Refusal::Percent(0)), [true; 10]);
        assert_eq!(decide_ten(&injector, Refusal::Percent(100)), [false; 10]);
    }

    #[test]
    fn refusals_by_chance_repeat_with_their_seed() {
        let run = |seed| decide_ten(&Injector::new(seed), Refusal::Percent(50));
        assert_eq!(run(7), run(7));
        assert!((0..20).any(|seed| run(seed) != run(7)));
    }
}
