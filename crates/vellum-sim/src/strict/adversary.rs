//! The adversary: hardware that does, at the worst moment, what the architecture allows at any
//! moment.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use vellum::platform::SpaceId;

use super::options::Hostility;
use crate::hardware::Hardware;
use crate::program::Access;
use crate::rng::Rng;
use crate::walker::Silicon;

/// Recently used addresses that are remembered as targets of speculation.
const REMEMBERED: usize = 64;

#[derive(Debug)]
pub(crate) struct Adversary {
    hostility: Hostility,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    recent: VecDeque<(SpaceId, u64)>,
}

/// The actions that the simulated hardware takes at one event.
#[derive(Debug, Default)]
struct Plan {
    mark: bool,
    speculate: bool,
    evict: bool,
    /// Random numbers for the choices that the actions make.
    dice: [usize; 3],
    recent: Option<(SpaceId, u64)>,
}

impl Adversary {
    pub fn new(seed: u64, hostility: Hostility) -> Self {
        Adversary { hostility, state: Mutex::new(State { rng: Rng::new(seed), recent: VecDeque::new() }) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether another CPU of the machine should go on now.
    pub fn preempts(&self) -> bool {
        self.with(|s| s.rng.percent(self.hostility.preempt))
    }

    /// Remembers an address that a program used.
    pub fn notice(&self, space: SpaceId, va: u64) {
        self.with(|s| {
            if s.recent.len() == REMEMBERED {
                s.recent.pop_front();
            }
            s.recent.push_back((space, va));
        });
    }

    /// Does what hardware may do now. CPU `me` is about to do an event that concerns `place`.
    ///
    /// All actions are walks and evictions, so nothing happens here that the page walker could not
    /// do by itself. The lock of each memory-management unit is taken alone, and no other CPU gets
    /// a turn while one is held.
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
                let recent = s.rng.below(s.recent.len());
                plan.recent = s.recent.get(recent).copied();
            }
            plan
        });
        let cpus = hardware.seats.count();
        if plan.evict {
            hardware.mmu(plan.dice[0] % cpus).tlb.evict(plan.dice[1]);
        }
        // Only a program on another CPU can write now; on this CPU only speculation is possible.
        if let Some((space, va)) = place.filter(|_| plan.mark) {
            let access = if plan.dice[0].is_multiple_of(2) { Access::Write } else { Access::Read };
            reach(hardware, (0..cpus).filter(|cpu| *cpu != me), plan.dice[1], space, va, access);
        }
        if plan.speculate {
            let recent = plan.recent.filter(|_| place.is_none() || plan.dice[1].is_multiple_of(4));
            if let Some((space, va)) = recent.or(place) {
                reach(hardware, 0..cpus, plan.dice[2], space, va, Access::Read);
            }
        }
    }
}

/// Makes one of these CPUs, if any has the space loaded, walk to an address and cache the result.
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
        // A walk that finds nothing caches nothing, and delivers no fault.
        let _ = mmu.walk(hardware, (space, root), va, access);
    }
}
