//! Compares the slot allocator with a plain table of reference counts.

use std::vec::Vec;
use std::{assert_eq, vec};

use crate::frame::{BootOptions, Frames, HUGE_ORDER};
use crate::swap::cluster::{MAX_REFERENCES, SLOTS};
use crate::swap::{Saturated, SlotAllocator, Slots};
use crate::testing::{Dice, Host};

const CPUS: usize = 3;

/// The allocator, and the expected reference count of each slot.
struct World<'h> {
    host: &'h Host,
    slots: SlotAllocator,
    counts: Vec<u32>,
}

impl World<'_> {
    fn counts_of(&mut self, run: Slots) -> &mut [u32] {
        &mut self.counts[run.first as usize..][..run.count as usize]
    }

    fn has_block(&self, order: u8) -> bool {
        self.counts.chunks_exact(1 << order).any(|block| block.iter().all(|count| *count == 0))
    }

    fn allocate(&mut self, order: u8) -> Option<Slots> {
        let found = self.slots.allocate(self.host, order);
        let Some(run) = found else {
            assert!(!self.has_block(order), "allocation of order {order} failed, although such a block is free");
            return None;
        };
        assert_eq!(run.count, 1 << order);
        assert_eq!(run.first % run.count, 0, "{run:?} is not aligned");
        assert!(self.counts_of(run).iter().all(|count| *count == 0), "{run:?} is in use");
        self.counts_of(run).fill(1);
        Some(run)
    }

    fn duplicate(&mut self, run: Slots) {
        let full = self.counts_of(run).iter().position(|count| *count >= MAX_REFERENCES);
        let expected = full.map_or(Ok(()), |at| Err(Saturated { slot: run.first + at as u32 }));
        assert_eq!(self.slots.duplicate(self.host, run), expected);
        if expected.is_ok() {
            self.counts_of(run).iter_mut().for_each(|count| *count += 1);
        }
    }

    /// Sets the reference counts of slots in use of one cluster, as if references had been added
    /// one by one.
    fn set_references(&mut self, run: Slots, references: u32) {
        let range = run.first % SLOTS..run.first % SLOTS + run.count;
        self.slots.lock(self.host, run.first / SLOTS).set_references(&range, references);
        self.counts_of(run).fill(references);
    }

    fn release(&mut self, run: Slots) {
        let mut forgotten = vec![];
        self.slots.release(self.host, run, |dead| {
            // `release` passes ascending ranges of slots, which are not free before this closure
            // returns.
            forgotten.extend(dead.first..dead.first + dead.count);
        });
        self.counts_of(run).iter_mut().for_each(|count| *count -= 1);
        let dead: Vec<u32> =
            (run.first..run.first + run.count).filter(|slot| self.counts[*slot as usize] == 0).collect();
        assert_eq!(forgotten, dead);
    }

    fn check(&self) {
        let free = self.counts.iter().filter(|count| **count == 0).count();
        assert_eq!(self.slots.free_slots() as usize, free);
        for (slot, count) in self.counts.iter().enumerate() {
            assert_eq!(
                self.slots.max_references(self.host, Slots { first: slot as u32, count: 1 }),
                *count,
                "slot {slot}"
            );
        }
    }

    /// Returns consecutive slots in use, from a random position on.
    fn run_in_use(&self, dice: &mut Dice) -> Option<Slots> {
        let start = dice.roll(self.counts.len() as u64) as usize;
        let first = (start..self.counts.len()).find(|slot| self.counts[*slot] > 0)?;
        let longest = 1 << dice.roll(11);
        let count = self.counts[first..].iter().take(longest).take_while(|count| **count > 0).count();
        Some(Slots { first: first as u32, count: count as u32 })
    }
}

fn with_world(len: u32, test: impl FnOnce(World<'_>) -> SlotAllocator) {
    let host = Host::with_frames(2000, CPUS);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let before = frames.free_frames();
    let slots = SlotAllocator::new(&frames, len).unwrap();
    let slots = test(World { host: &host, slots, counts: vec![0; len as usize] });
    slots.free(&frames);
    assert_eq!(frames.free_frames(), before, "the allocator did not free all its memory");
}

/// Allocated blocks are aligned and disjoint, and an allocation fails only when no such block is
/// free. A slot becomes free exactly when its last reference is dropped and its contents are
/// forgotten. A duplication adds all references or none.
#[test]
fn slots_agree_with_a_table_of_counts() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        // The last cluster may be partial.
        let len = 512 * 3 + dice.roll(600) as u32;
        with_world(len, |mut world| {
            let eager = 1 + dice.roll(6);
            for step in 0..2000 {
                world.host.on_cpu(dice.roll(CPUS as u64) as usize);
                match dice.roll(6 + eager) {
                    0..3 => world.run_in_use(&mut dice).into_iter().for_each(|run| world.release(run)),
                    3..6 => world.run_in_use(&mut dice).into_iter().for_each(|run| world.duplicate(run)),
                    _ => _ = world.allocate(dice.roll(HUGE_ORDER as u64 + 1) as u8),
                }
                if step % 200 == 0 {
                    world.check();
                }
            }
            world.check();
            for first in 0..len {
                while world.counts[first as usize] > 0 {
                    world.release(Slots { first, count: 1 });
                }
            }
            world.check();
            // Freed slots have merged into whole blocks again.
            (0..len / 512).for_each(|_| assert!(world.allocate(HUGE_ORDER).is_some()));
            (0..len % 512).for_each(|_| assert!(world.allocate(0).is_some()));
            assert_eq!(world.allocate(0), None);
            world.slots
        });
    }
}

/// If no listed cluster is left, a CPU allocates from the other CPUs' current clusters.
#[test]
fn cpus_allocate_from_other_cpus_clusters_at_last() {
    with_world(512 * 2, |mut world| {
        for cpu in 0..2 {
            world.host.on_cpu(cpu);
            world.allocate(0).unwrap();
        }
        world.host.on_cpu(2);
        for order in [8, 7, 6, 5, 4, 3, 2, 1, 0] {
            assert!(world.allocate(order).is_some() && world.allocate(order).is_some(), "order {order}");
        }
        assert_eq!(world.allocate(0), None);
        world.slots
    });
}

/// Reference counts are exact beyond 8 and 16 bits, when they rise and when they fall, and for
/// ranges of several clusters.
#[test]
fn reference_counts_exceed_16_bits() {
    with_world(512 * 2, |mut world| {
        (0..2).for_each(|_| assert!(world.allocate(HUGE_ORDER).is_some()));
        let run = Slots { first: 500, count: 24 };
        for _ in 0..70_000 {
            world.duplicate(run);
        }
        world.check();
        for _ in 0..70_000 {
            world.release(run);
        }
        world.check();
        world.slots
    });
}

/// If a slot of a range has the maximum number of lasting references, the range gets no further
/// reference and nothing is changed, even if that slot is in the middle or in another cluster.
/// Transient references are never refused, and counts don't wrap.
#[test]
fn duplicate_at_the_maximum_fails_and_changes_nothing() {
    with_world(512 * 3, |mut world| {
        (0..3).for_each(|_| assert!(world.allocate(HUGE_ORDER).is_some()));
        let (near, run) = (Slots { first: 1100, count: 2 }, Slots { first: 10, count: 1200 });
        world.set_references(near, MAX_REFERENCES - 2);
        world.duplicate(run);
        world.duplicate(run);
        assert_eq!(world.slots.duplicate(world.host, run), Err(Saturated { slot: 1100 }));
        world.check();
        world.duplicate(Slots { first: 10, count: 1090 });
        (0..1000).for_each(|_| world.slots.get_transient(world.host, near));
        assert_eq!(world.slots.max_references(world.host, near), MAX_REFERENCES + 1000);
        world.duplicate(near);
        (0..1000).for_each(|_| world.slots.release(world.host, near, |dead| panic!("{dead:?} are still in use")));
        world.check();
        world.release(near);
        world.duplicate(run);
        world.check();
        world.set_references(near, 1);
        world.slots
    });
}

/// A closed device allocates nothing, accepts releases, and allocates again when opened.
#[test]
fn a_closed_device_allocates_nothing() {
    with_world(512, |mut world| {
        let run = world.allocate(4).unwrap();
        world.slots.close(world.host);
        assert!(world.slots.is_closed());
        (0..=HUGE_ORDER).for_each(|order| assert_eq!(world.slots.allocate(world.host, order), None));
        world.duplicate(run);
        world.release(run);
        world.release(run);
        world.check();
        world.slots.open();
        assert!(world.allocate(HUGE_ORDER).is_some());
        world.slots
    });
}

/// Small blocks are allocated from clusters with scattered free slots before a whole free cluster
/// is split.
#[test]
fn small_blocks_come_from_the_fullest_cluster() {
    with_world(512 * 4, |mut world| {
        let whole = world.allocate(HUGE_ORDER).unwrap();
        world.release(Slots { first: whole.first + 5, count: 1 });
        world.release(Slots { first: whole.first + 64, count: 64 });
        let hints: Vec<u32> = [0, 6].map(|order| world.allocate(order).unwrap().first).into();
        assert_eq!(hints, [whole.first + 5, whole.first + 64]);
        (0..3).for_each(|_| assert!(world.allocate(HUGE_ORDER).is_some()));
        world.slots
    });
}

/// Without enough memory no allocator is made, and no memory stays allocated.
#[test]
fn an_allocator_without_enough_memory_takes_none() {
    let host = Host::with_frames(300, CPUS);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let before = frames.free_frames();
    assert!(SlotAllocator::new(&frames, 1 << 20).is_err());
    assert_eq!(frames.free_frames(), before);
    // Tries every amount of free memory.
    for held in 0..before {
        let kept: Vec<_> = (0..held).map(|_| frames.alloc(0, false, crate::frame::Use::Kernel).unwrap()).collect();
        if let Ok(slots) = SlotAllocator::new(&frames, 4096) {
            slots.free(&frames);
        }
        assert_eq!(frames.free_frames(), before - held);
        // SAFETY: allocated by this test, and not used any more.
        kept.iter().for_each(|pfn| unsafe { frames.free(*pfn, 1, false, crate::frame::Use::Kernel) });
    }
}
