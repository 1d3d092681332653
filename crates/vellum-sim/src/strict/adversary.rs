//! The adversary: hardware that does, at the worst moment, what the architecture allows at any.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use vellum::platform::SpaceId;

use super::options::Hostility;
use crate::hardware::Hardware;
use crate::program::Access;
use crate::rng::Rng;
use crate::walker::Silicon;

/// So many addresses are remembered as worth speculating on.
const REMEMBERED: usize = 64;

#[derive(Debug)]
pub(crate) struct Adversary {
    hostility: Hostility,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    lately: VecDeque<(SpaceId, u64)>,
}

/// What the hardware decided to do.
#[derive(Debug, Default)]
struct Plan {
    mark: bool,
    speculate: bool,
    evict: bool,
    /// Numbers to choose with.
    dice: [usize; 3],
    lately: Option<(SpaceId, u64)>,
}

impl Adversary {
    pub fn new(seed: u64, hostility: Hostility) -> Self {
        Adversary { hostility, state: Mutex::new(State { rng: Rng::new(seed), lately: VecDeque::new() }) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether another CPU of the machine should go on now.
    pub fn preempts(&self) -> bool {
        self.with(|s| s.rng.percent(self.hostility.preempt))
    }

    /// A program used this address.
    pub fn notice(&self, space: SpaceId, va: u64) {
        self.with(|s| {
            if s.lately.len() == REMEMBERED {
                s.lately.pop_front();
            }
            s.lately.push_back((space, va));
        });
    }

    /// Do what hardware may do now. CPU `me` is about to do something that concerns `place`.
    ///
    /// All of it is walks and forgetting, so nothing happens here that the page walker could not do by itself. Locks of
    /// the units are taken one at a time, and no turn is given away meanwhile.
    pub fn act<A: Silicon>(&self, hardware: &Hardware<A>, me: usize, place: Option<(SpaceId, u64)>) {
        if self.hostility == Hostility::NONE {
            return;
        }
        let plan = self.with(|s| {
            let mut plan = Plan {
                mark: place.is_some() && s.rng.percent(self.hostility.mark),
                speculate: s.rng.percent(self.hostility.speculate),
                evict: s.rng.percent(self.hostility.evict),
                ..Plan::default()
            };
            if plan.mark || plan.speculate || plan.evict {
                plan.dice = std::array::from_fn(|_| s.rng.below(usize::MAX));
                let lately = s.rng.below(s.lately.len());
                plan.lately = s.lately.get(lately).copied();
            }
            plan
        });
        let cpus = hardware.seats.count();
        if plan.evict {
            hardware.mmu(plan.dice[0] % cpus).tlb.evict(plan.dice[1]);
        }
        // Only a program that runs elsewhere can write now; and only what speculation may do is done on this CPU too.
        if let Some((space, va)) = place.filter(|_| plan.mark) {
            let access = if plan.dice[0].is_multiple_of(2) { Access::Write } else { Access::Read };
            reach(hardware, (0..cpus).filter(|cpu| *cpu != me), plan.dice[1], space, va, access);
        }
        if plan.speculate {
            let lately = plan.lately.filter(|_| place.is_none() || plan.dice[1].is_multiple_of(4));
            if let Some((space, va)) = lately.or(place) {
                reach(hardware, 0..cpus, plan.dice[2], space, va, Access::Read);
            }
        }
    }
}

/// Have one of these CPUs, if any has the space loaded, walk to an address and cache what it finds.
fn reach<A: Silicon>(
    hardware: &Hardware<A>,
    cpus: impl Iterator<Item = usize>,
    which: usize,
    space: SpaceId,
    va: u64,
    access: Access,
) {
    let loaded: Vec<usize> = cpus.filter(|cpu| hardware.loaded_on(space, *cpu)).collect();
    if loaded.is_empty() {
        return;
    }
    let mut mmu = hardware.mmu(loaded[which % loaded.len()]);
    let root = mmu.spaces.iter().find(|(s, ..)| *s == space).map(|(_, root, _)| *root);
    if let Some(root) = root {
        // Nothing there is nothing to cache; no fault comes of it.
        let _ = mmu.walk(hardware, (space, root), va, access);
    }
}
