//! Tests that the compressed device returns what was written, and frees the memory that it took.

use std::collections::BTreeMap;
use std::vec::Vec;

use lz4_flex::block::compress_into;

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{BootOptions, Frames, Use};
use crate::swap::compressed::CompressedStats;
use crate::swap::{Compressed, ReadError, Slots, SwapDevice, Unreadable, WriteError};
use crate::testing::{Dice, Host};

type Bytes = [u8; FRAME_SIZE as usize];

/// The number of slots of the devices: their records are in three frames.
const SLOTS: u32 = 1200;

/// The kinds of page contents.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Zero,
    /// Filled with a random word.
    Repeated,
    /// Filled with a word, but with one bit flipped anywhere.
    Almost,
    /// This percentage of the words is random; each other word repeats its predecessor.
    Mixed(u64),
    Random,
}

const KINDS: [Kind; 9] = [
    Kind::Zero,
    Kind::Repeated,
    Kind::Almost,
    Kind::Mixed(3),
    Kind::Mixed(20),
    Kind::Mixed(40),
    Kind::Mixed(60),
    Kind::Mixed(75),
    Kind::Random,
];

fn fill(kind: Kind, dice: &mut Dice, page: &mut Bytes) {
    let word = dice.roll(u64::MAX).to_le_bytes();
    let words = page.as_chunks_mut::<8>().0;
    match kind {
        Kind::Zero => words.fill([0; 8]),
        Kind::Repeated => words.fill(word),
        Kind::Almost => {
            words.fill(word);
            page[dice.roll(FRAME_SIZE) as usize] ^= 1 << dice.roll(8);
        }
        Kind::Random => words.fill_with(|| dice.roll(u64::MAX).to_le_bytes()),
        Kind::Mixed(percent) => {
            let mut last = word;
            words.fill_with(|| {
                if dice.roll(100) < percent {
                    last = dice.roll(u64::MAX).to_le_bytes();
                }
                last
            });
        }
    }
}

/// A device on a machine, with a model of its contents.
struct World<'h> {
    frames: Frames<'h, Host>,
    device: Compressed,
    /// The expected contents of each slot that is not empty.
    model: BTreeMap<u32, Bytes>,
    /// Sixteen consecutive frames.
    buffer: Pfn,
    dice: Dice,
}

const RUN: u32 = 16;

impl World<'_> {
    fn buffer(&mut self) -> &mut [Bytes] {
        // SAFETY: the frames are the test's own, and nothing else uses them while `self` is
        // borrowed.
        unsafe { core::slice::from_raw_parts_mut(self.frames.at(self.buffer.addr()).cast().as_ptr(), RUN as usize) }
    }

    fn run(&mut self) -> Slots {
        let count = 1 + self.dice.roll(RUN.into()) as u32;
        Slots { first: self.dice.roll((SLOTS - count).into()) as u32, count }
    }

    fn write(&mut self, slots: Slots, kinds: &[Kind]) -> Result<(), WriteError> {
        let mut dice = Dice(self.dice.roll(u64::MAX));
        for page in &mut *self.buffer() {
            fill(kinds[dice.roll(kinds.len() as u64) as usize], &mut dice, page);
        }
        // SAFETY: the test has one thread, which uses only this device's slots and its own frames.
        let done = unsafe { self.device.write(&self.frames, slots, self.buffer) };
        for i in 0..slots.count {
            let page = self.buffer()[i as usize];
            match done {
                Ok(()) => self.model.insert(slots.first + i, page),
                Err(_) => self.model.remove(&(slots.first + i)),
            };
        }
        done
    }

    fn forget(&mut self, slots: Slots) {
        // SAFETY: the test has one thread, which alone uses the device's slots.
        unsafe { self.device.forget(&self.frames, slots) };
        (slots.first..slots.first + slots.count).for_each(|slot| _ = self.model.remove(&slot));
    }

    /// Reads slots and compares them with the model.
    fn read(&mut self, slots: Slots) {
        self.buffer().iter_mut().for_each(|page| page.fill(0xcc));
        // SAFETY: the test has one thread, which alone uses the device's slots and the frames.
        let done = unsafe { self.device.read(&self.frames, slots, self.buffer) };
        let mut range = slots.first..slots.first + slots.count;
        let hole = range.clone().find(|slot| !self.model.contains_key(slot));
        let expected = hole.map_or(Ok(()), |slot| Err(ReadError { slot, reason: Unreadable::Empty }));
        assert_eq!(done, expected);
        if done.is_ok() {
            let model = range.clone().map(|slot| self.model[&slot]).collect::<Vec<_>>();
            let same = self.buffer().iter().zip(&model).all(|(page, model)| page == model);
            assert!(same, "{:?} came back changed", range.next());
        }
    }

    /// Checks the device's statistics against the model.
    fn check(&self) {
        let contents = self.device.stats();
        let same_filled =
            self.model.values().filter(|page| page.as_chunks::<8>().0.iter().all(|word| *word == page[..8])).count();
        assert_eq!(contents.same_filled, same_filled as u64);
        assert_eq!(contents.same_filled + contents.compressed + contents.incompressible, self.model.len() as u64);
        assert!(contents.bytes <= contents.frames * FRAME_SIZE);
    }
}

/// Runs `test` with a device on a machine of `frames` frames, and checks that all frames are free
/// afterwards.
fn with_device(frames: u64, seed: u64, test: impl FnOnce(&mut World<'_>)) {
    let host = Host::with_frames(frames, 2);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let before = frames.free_frames();
    let buffer = frames.alloc(RUN.trailing_zeros() as u8, false, Use::Kernel).unwrap();
    let device = Compressed::new(&frames, SLOTS).unwrap();
    let mut world = World { frames, device, model: BTreeMap::new(), buffer, dice: Dice(seed) };
    let fresh = world.frames.free_frames();
    test(&mut world);
    world.check();
    let contents = world.device.stats();
    assert_eq!(fresh - world.frames.free_frames(), contents.frames, "the device took other frames than it counts");
    let World { frames, device, .. } = world;
    device.free(&frames);
    // SAFETY: the test allocated these frames, and does not use them any more.
    unsafe { frames.free(buffer, RUN, false, Use::Kernel) };
    assert_eq!(frames.free_frames(), before, "the device did not free all its memory");
}

/// Pages of every kind are written, overwritten, read and forgotten in ranges of every length.
#[test]
fn stored_pages_are_read_back_unchanged() {
    for seed in 0..20 {
        with_device(3000, seed, |world| {
            for step in 0..1500 {
                let run = world.run();
                match world.dice.roll(5) {
                    0..2 => world.write(run, &KINDS).unwrap(),
                    2 => world.forget(run),
                    _ => world.read(run),
                }
                if step % 100 == 0 {
                    world.check();
                }
            }
            world.forget(Slots { first: 0, count: SLOTS });
            assert_eq!(world.device.stats(), CompressedStats::default());
        });
    }
}

/// On a nearly full machine a write stores all pages or none, whichever frame is missing.
#[test]
fn a_write_without_memory_stores_nothing() {
    let mut refused = 0;
    for seed in 0..20 {
        with_device(150, seed, |world| {
            for _ in 0..300 {
                let run = world.run();
                match world.write(run, &KINDS) {
                    Ok(()) => {}
                    Err(error) => {
                        assert_eq!(error, WriteError::NoMemory);
                        refused += 1;
                        world.check();
                        (0..4).for_each(|_| {
                            let run = world.run();
                            world.forget(run);
                        });
                    }
                }
                let run = world.run();
                world.read(run);
            }
        });
    }
    assert!(refused > 100, "{refused} writes found no memory");
}

/// Same-filled pages take no memory, and are stored even when there is none.
#[test]
fn same_filled_pages_take_no_memory() {
    with_device(3000, 1, |world| {
        let rest: Vec<Pfn> = core::iter::from_fn(|| world.frames.alloc(0, false, Use::Kernel).ok()).collect();
        for first in (0..SLOTS - RUN).step_by(RUN as usize) {
            world.write(Slots { first, count: RUN }, &[Kind::Zero, Kind::Repeated]).unwrap();
            world.read(Slots { first, count: RUN });
        }
        assert_eq!(world.write(Slots { first: 0, count: 1 }, &[Kind::Random]), Err(WriteError::NoMemory));
        assert_eq!(world.device.stats().frames, 0);
        // SAFETY: allocated by this test, and not used any more.
        rest.iter().for_each(|pfn| unsafe { world.frames.free(*pfn, 1, false, Use::Kernel) });
    });
}

/// Pages take little more memory than their lz4 output.
#[test]
fn the_pool_wastes_at_most_12_percent() {
    let (mut taken, mut needed) = (0, 0);
    for percent in (1..80).step_by(2) {
        with_device(3000, percent, |world| {
            let before = needed;
            for first in (0..1024).step_by(RUN as usize) {
                world.write(Slots { first, count: RUN }, &[Kind::Mixed(percent)]).unwrap();
                let mut output = [0; 5000];
                let lengths = world.buffer().iter().map(|page| compress_into(page, &mut output).unwrap() as u64);
                needed += lengths.map(|length| length.min(FRAME_SIZE)).sum::<u64>();
            }
            let here = world.device.stats().frames * FRAME_SIZE;
            taken += here;
            assert!(here * 75 < (needed - before) * 100, "of {percent} % random words: {here} for {}", needed - before);
        });
    }
    assert!(taken * 88 < needed * 100, "{needed} bytes take {taken}: more than 12 % are wasted");
}

/// If only single frames are free, pages whose size class has spans of four frames are stored in a
/// class with spans of one frame.
#[test]
fn pages_are_stored_when_only_single_frames_are_free() {
    with_device(1000, 3, |world| {
        let all: Vec<Pfn> = core::iter::from_fn(|| world.frames.alloc(0, false, Use::Kernel).ok()).collect();
        let free = |world: &World<'_>, parity| {
            for pfn in all.iter().filter(|pfn| pfn.0 % 2 == parity) {
                // SAFETY: allocated by this test, and not used any more.
                unsafe { world.frames.free(*pfn, 1, false, Use::Kernel) };
            }
        };
        free(world, 0);
        assert!(world.frames.alloc(1, false, Use::Kernel).is_err());
        for first in (0..128).step_by(RUN as usize) {
            world.write(Slots { first, count: RUN }, &[Kind::Mixed(60)]).unwrap();
            world.read(Slots { first, count: RUN });
        }
        assert!(world.device.stats().compressed > 100);
        world.forget(Slots { first: 0, count: 128 });
        free(world, 1);
    });
}

/// Without enough memory no device is made, and no memory stays allocated.
#[test]
fn a_device_without_enough_memory_takes_none() {
    let host = Host::with_frames(100, 2);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let before = frames.free_frames();
    let mut made = 0;
    for held in 0..before {
        let kept: Vec<Pfn> = (0..held).map(|_| frames.alloc(0, false, Use::Kernel).unwrap()).collect();
        if let Ok(device) = Compressed::new(&frames, SLOTS) {
            made += 1;
            device.free(&frames);
        }
        assert_eq!(frames.free_frames(), before - held);
        // SAFETY: allocated by this test, and not used any more.
        kept.iter().for_each(|pfn| unsafe { frames.free(*pfn, 1, false, Use::Kernel) });
    }
    assert!((1..before).contains(&made));
}
