//! A child of a space, while others may be at work in its parent: it has what its parent had, and what either does afterwards
//! the other never sees.

use vellum::space::ForkError;
use vellum_sim::Cpu;

use super::dice::Dice;
use super::host::Host;
use super::op::Choice;
use super::plot::{Plot, Scene};
use super::threads::Leaky;
use super::walk::Space;

/// Fork, look at all that the child has of the plot, and do a few things in both.
pub fn run<'m, H: Host>(
    on: &Scene<'_, 'm, H>,
    plot: &mut Plot,
    cpu: &Cpu<'_, H>,
    choice: &Choice,
    (at, seed): (usize, u64),
) -> Option<(Leaky<Space<'m, H>>, Plot)> {
    let child = match on.space.fork() {
        Ok(child) => Leaky::new(child),
        Err(ForkError::NoMemory(_)) => {
            assert!(on.tight, "no memory for a child");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut twin = Plot { model: plot.model.child(on.rules(plot.exact).fresh()), ..plot.clone() };
    {
        let program = cpu.enter(&*child);
        let scene = Scene { space: &child, program: Some(&program), parent: Some(on.space), ..*on };
        // Where a child has nothing of a VMA that the engine placed, anything may be placed now.
        let model = &twin.model;
        twin.elsewhere.retain(|pages| model.covers(pages.clone()));
        twin.windows.iter().for_each(|window| twin.check(&scene, &window.pages));
        look_at_all(&scene, &twin);
        let dice = &mut Dice::new(seed);
        for _ in 0..dice.below(40) {
            let op = choice.op(dice, at);
            if dice.percent(50) { twin.apply(&scene, op) } else { plot.apply(on, op) }
        }
        look_at_all(&scene, &twin);
    }
    Some((child, twin))
}

/// Nobody else is at work in the space: what a page holds is what stands where its entry points.
fn look_at_all<H: Host>(on: &Scene<'_, '_, H>, plot: &Plot) {
    for (page, held) in plot.model.all().flat_map(|(pages, held)| pages.map(move |page| (page, held))) {
        if let Some((found, _)) = on.words(page) {
            assert!(
                held.contents.could(|words| *words == found),
                "page {page:#x} of a child holds {found:x?}: {held:x?}"
            );
        }
    }
}
