//! A case: a machine boots, actors work side by side, all is counted, everything ends.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use vellum::addr::FRAME_SHIFT;
use vellum::arch::Arch;
use vellum::frame::{BootOptions, LARGEST_FOLIO};
use vellum::memcg::MemcgId;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Cpu, Program};

use super::census::{self, Counted, Pages};
use super::dice::{Dice, derive};
use super::expect::Bounds;
use super::fork;
use super::host::Host;
use super::model::Model;
use super::op::{Op, Step};
use super::plot::{Plot, Scene};
use super::setup::{Family, Setup};
use super::swap::{Devices, Glass};
use super::threads::{Doing, Leaky, Threads, together};
use super::walk::Space;
use super::watch::Case;

/// A thread's plots, those in shared spaces first.
struct Actor<'m, H: Host> {
    plots: Vec<Plot>,
    own: Option<Leaky<Space<'m, H>>>,
}

/// What all actors share.
struct World<'m, H: Host> {
    host: &'m H,
    machine: &'m Machine<'m, H>,
    setup: &'m Setup<H::Arch>,
    case: &'m Arc<Case>,
    spaces: Vec<Leaky<Space<'m, H>>>,
    memcgs: Vec<(MemcgId, MemcgId)>,
    /// One for each actor, and one for the census.
    glasses: Vec<Glass>,
}

/// Run these steps, by actor. Panics when something is not as it should be.
pub fn run<H: Host<Arch: Family>>(
    host: &H,
    setup: &Setup<H::Arch>,
    steps: &[Vec<Step>],
    threads: Threads,
    case: &Arc<Case>,
) {
    case.begin();
    let seat = host.seat(0);
    let options = BootOptions { zero_on_free: setup.zero_on_free, ..Default::default() };
    let machine = Machine::boot(host, options).expect("enough memory to boot");
    machine.policy().set_global(setup.knobs[0]);
    (1..=LARGEST_FOLIO).for_each(|order| machine.policy().set(order, setup.knobs[usize::from(order)]));
    let memcgs = make_memcgs(&machine, &setup.memcgs);
    let devices = Devices::new(&machine, setup.seed, &setup.swap);
    devices.attach(&machine, &setup.swap);
    let glasses = (0..=setup.actors).map(|_| Glass::new(&machine, setup.arch.page_order())).collect();
    host.booted();
    // The memcgs are removed in the end, and their memory comes back.
    let own = machine.memcgs().usage(machine.frames(), MemcgId::ROOT).expect("the root is there").shards;
    let free = machine.frames().free_frames() + own;
    let mut world = World { host, machine: &machine, setup, case, spaces: Vec::new(), memcgs, glasses };
    for memcg in &setup.spaces {
        world.spaces.push(world.new_space(*memcg).expect("memory for an empty space"));
    }
    let mut actors: Vec<Actor<'_, H>> = (0..setup.actors).map(|actor| world.actor(actor)).collect();
    drop(seat);
    for round in 0..setup.plan.rounds {
        host.fail_allocations(if setup.tight { setup.plan.fail } else { 0 });
        devices.fail(setup.broken.0, setup.broken.1);
        world.round(round, steps, &mut actors, threads);
        host.fail_allocations(0);
        devices.fail(0, 0);
        let _seat = host.seat(0);
        world.count(&actors);
    }
    let _seat = host.seat(0);
    actors.into_iter().filter_map(|actor| actor.own).for_each(Leaky::end);
    world.spaces.drain(..).for_each(Leaky::end);
    census::nothing_left(host, &machine, free, &world.memcgs);
    host.over();
}

/// memcgs, each with its parent.
fn make_memcgs<H: Host>(machine: &Machine<'_, H>, wanted: &[(usize, u64)]) -> Vec<(MemcgId, MemcgId)> {
    let mut memcgs = Vec::new();
    for (parent, limit) in wanted {
        let parent = id(&memcgs, *parent);
        memcgs.push((machine.memcgs().create(machine.frames(), parent, *limit).expect("memory for a group"), parent));
    }
    memcgs
}

fn id(memcgs: &[(MemcgId, MemcgId)], number: usize) -> MemcgId {
    number.checked_sub(1).map_or(MemcgId::ROOT, |at| memcgs[at].0)
}

impl<'m, H: Host<Arch: Family>> World<'m, H> {
    /// None if there is no memory for it.
    fn new_space(&self, memcg: usize) -> Option<Leaky<Space<'m, H>>> {
        let memcg = id(&self.memcgs, memcg);
        let mut space = AddressSpace::new(self.machine, self.setup.arch, memcg, self.setup.limits).ok()?;
        space.cap_runs(self.setup.cap);
        Some(Leaky::new(space))
    }

    /// The group of an actor's own space.
    fn own_memcg(&self, actor: usize) -> usize {
        actor % (self.memcgs.len() + 1)
    }

    fn actor(&self, actor: usize) -> Actor<'m, H> {
        let plots = self.setup.choices[actor].plots.iter().enumerate().map(|(at, windows)| {
            let alone = self.setup.actors == 1 || at >= self.setup.spaces.len();
            Plot {
                model: Model::default(),
                windows: windows.clone(),
                bounds: self.bounds(alone),
                elsewhere: Vec::new(),
                exact: !self.setup.reclaims
                    && (self.setup.small() || alone && !self.setup.tight && self.setup.broken.1 == 0),
            }
        });
        let own = self.setup.private.then(|| self.new_space(self.own_memcg(actor))).flatten();
        Actor { plots: plots.collect(), own }
    }

    fn bounds(&self, alone: bool) -> Bounds {
        let arch = self.setup.arch;
        let swap: u64 = self.setup.swap.iter().map(|plan| u64::from(plan.slots)).sum();
        Bounds {
            limits: self.setup.limits,
            page_shift: arch.page_shift(),
            huge_shift: arch.level_shift(2),
            user_end: arch.user_end(),
            promised: self.machine.frames().total() + swap,
            alone,
        }
    }

    /// All actors do their next steps.
    fn round(&self, round: usize, steps: &[Vec<Step>], actors: &mut [Actor<'m, H>], threads: Threads) {
        let jobs = actors.iter_mut().enumerate().map(|(at, actor)| {
            let all = &steps[at];
            let part = all.chunks(self.setup.plan.steps).nth(round).unwrap_or(&[]);
            move || self.act(actor, at, round, part)
        });
        together(threads, jobs.collect());
        assert!(!self.case.failed());
    }

    fn act(&self, actor: &mut Actor<'m, H>, at: usize, round: usize, steps: &[Step]) {
        let end = catch_unwind(AssertUnwindSafe(|| {
            // Never the same CPU for long: frames are freed elsewhere than where they were allocated.
            let cpu = self.host.seat((at + round) % self.setup.cpus);
            let dice = &mut Dice::new(derive(self.setup.seed, (500 + at * 1000 + round) as u64));
            let enter = |space| (dice.percent(90), space);
            let entered = self.spaces.iter().map(enter).map(|(enters, space)| enters.then(|| cpu.enter(&**space)));
            let programs: Vec<_> = entered.collect();
            for step in steps {
                if self.case.failed() {
                    break;
                }
                self.case.step();
                let _doing = Doing(step);
                self.host.says(&step.op);
                self.step(actor, at, step, &cpu, &programs);
            }
        }));
        if let Err(failure) = end {
            let message =
                failure.downcast_ref::<String>().cloned().or(failure.downcast_ref::<&str>().map(|s| s.to_string()));
            self.case.fail(message.unwrap_or_default());
            resume_unwind(failure);
        }
    }

    fn step<'c>(
        &'c self,
        actor: &mut Actor<'m, H>,
        at: usize,
        step: &Step,
        cpu: &'c Cpu<'c, H>,
        programs: &[Option<Program<'c, H, Space<'m, H>>>],
    ) {
        let plot = &mut actor.plots[step.plot];
        if let Some(space) = self.spaces.get(step.plot) {
            if let Op::Fork(seed, _) = step.op {
                let choice = &self.setup.choices[at];
                let on = self.scene(space, at, programs[step.plot].as_ref());
                let child = fork::run(&on, plot, cpu, choice, (step.plot, seed));
                return child.into_iter().for_each(|(child, _)| child.end());
            }
            return plot.apply(&self.scene(space, at, programs[step.plot].as_ref()), step.op);
        }
        if step.op == Op::Exec || actor.own.is_none() {
            actor.own.take().into_iter().for_each(Leaky::end);
            (plot.model, plot.elsewhere) = (Model::default(), Vec::new());
            actor.own = self.new_space(self.own_memcg(at));
            assert!(actor.own.is_some() || self.setup.tight, "no memory for an empty space");
        }
        if let (Some(space), Op::Fork(seed, stays)) = (&actor.own, step.op) {
            let choice = &self.setup.choices[at];
            let child = {
                let program = cpu.enter(&**space);
                fork::run(&self.scene(space, at, Some(&program)), plot, cpu, choice, (step.plot, seed))
            };
            let Some((mut child, twin)) = child else { return };
            if stays {
                *plot = twin;
                child = actor.own.replace(child).unwrap_or_else(|| unreachable!("it was there to be forked"));
            }
            return child.end();
        }
        if let Some(space) = &actor.own {
            let program = cpu.enter(&**space);
            plot.apply(&self.scene(space, at, Some(&program)), step.op);
        }
    }

    fn scene<'s>(
        &'s self,
        space: &'s Space<'m, H>,
        actor: usize,
        program: Option<&'s Program<'s, H, Space<'m, H>>>,
    ) -> Scene<'s, 'm, H> {
        Scene {
            host: self.host,
            machine: self.machine,
            space,
            program,
            tight: self.setup.tight,
            unreadable: self.setup.broken.1 > 0,
            glass: self.glasses[actor],
            reclaims: self.setup.reclaims,
            shared: &self.spaces,
            parent: None,
        }
    }

    /// Compare everything.
    fn count(&self, actors: &[Actor<'m, H>]) {
        let pages = |plot: usize| actors.iter().flat_map(move |actor| actor.plots[plot].model.all());
        let shared = self.spaces.iter().enumerate().map(|(at, space)| Counted {
            space: &**space,
            memcg: id(&self.memcgs, self.setup.spaces[at]),
            pages: Pages::new(pages(at).collect()),
        });
        let own = actors.iter().enumerate().filter_map(|(at, actor)| {
            let space = &**actor.own.as_ref()?;
            let pages = Pages::new(actor.plots.last()?.model.all().collect());
            Some(Counted { space, memcg: id(&self.memcgs, self.own_memcg(at)), pages })
        });
        let all: Vec<Counted<'_, 'm, H>> = shared.chain(own).collect();
        census::take(self.host, self.machine, self.glasses[self.setup.actors], &all, &self.memcgs);
        let used: u64 = all.iter().map(|counted| counted.space.stats().tables >> FRAME_SHIFT).sum();
        assert!(self.machine.frames().free_frames() + used <= self.machine.frames().total());
        let actors = self.setup.actors;
        let faults = self.machine.counter(vellum::stats::Counter::LargeFallbacks);
        assert!(
            self.setup.tight || actors > 1 || faults == 0,
            "{faults} large folios were not to be had in ample memory"
        );
    }
}
