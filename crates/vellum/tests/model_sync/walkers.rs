//! Lockless walkers: what was unhooked may be freed once they have been outwaited.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use vellum::sync::Walkers;

use super::{Cpu, Watched, explore};

const LIVE: u32 = 1;
const FREED: u32 = 2;

/// A node, whether it can be found, and who walks. To free the node is to write to it: `loom`
/// reports a walker that reads it meanwhile, and the walker itself finds what was freed before.
struct Scene {
    walkers: Walkers<'static>,
    hooked: AtomicBool,
    node: Watched,
}

impl Scene {
    fn new() -> Arc<Self> {
        let node = Watched::default();
        node.set(LIVE);
        Arc::new(Scene { walkers: Walkers::leaked(3), hooked: AtomicBool::new(true), node })
    }

    /// Look whether the node is there, and if so, into it.
    fn walk(&self, cpu: usize) -> bool {
        let cpu = Cpu(cpu);
        let _walk = self.walkers.enter(&cpu);
        let found = self.hooked.load(Ordering::Acquire);
        if found {
            assert_eq!(self.node.get(), LIVE, "a walker reads what was freed");
        }
        found
    }

    fn unhook_and_free(&self) {
        self.hooked.store(false, Ordering::Relaxed);
        self.walkers.wait_for_walkers(&Cpu(2));
        self.node.set(FREED);
    }
}

/// A walker that comes twice, and whoever frees.
///
/// Catches: no `outwait`; `enter` without `after_seqcst_rmw`; `outwait` without its first fence, or
/// with no acquire at all; a walk that ends with `Relaxed`.
#[test]
fn what_was_outwaited_is_out_of_reach() {
    explore(|| {
        let scene = Scene::new();
        let walker = {
            let scene = scene.clone();
            thread::spawn(move || {
                let first = scene.walk(0);
                assert!(scene.walk(0) <= first, "unhooked, and found again");
            })
        };
        scene.unhook_and_free();
        walker.join().unwrap();
        assert!(!scene.walk(2));
    });
}

/// Walkers on two CPUs.
///
/// Catches, besides what the first model does: `outwait` that looks at the first slot alone.
#[test]
fn every_walker_is_outwaited() {
    explore(|| {
        let scene = Scene::new();
        let walkers = [0, 1].map(|cpu| {
            let scene = scene.clone();
            thread::spawn(move || scene.walk(cpu))
        });
        scene.unhook_and_free();
        for walker in walkers {
            walker.join().unwrap();
        }
    });
}

/// Two CPUs walk, and each outwaits the other afterwards: nobody waits for ever.
///
/// Catches: `outwait` that waits for a walk later than the one under way; a walk that does not
/// count itself out.
#[test]
fn who_waits_is_waited_for_and_both_go_on() {
    explore(|| {
        let scene = Scene::new();
        let turn = |scene: &Scene, cpu: usize| {
            scene.walk(cpu);
            scene.walkers.wait_for_walkers(&Cpu(cpu));
            scene.walk(cpu);
        };
        let other = {
            let scene = scene.clone();
            thread::spawn(move || turn(&scene, 1))
        };
        turn(&scene, 0);
        other.join().unwrap();
    });
}
