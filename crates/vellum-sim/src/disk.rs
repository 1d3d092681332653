//! A swap device for tests. Its writes and reads fail as the test chooses, and the test can damage
//! its contents.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::frame::Frames;
use vellum::platform::{Event, Platform};
use vellum::swap::{ReadError, Slots, SwapDevice, Unreadable, WriteError};

use crate::inject::{Injector, Refusal};

type Page = [u8; FRAME_SIZE as usize];

/// A swap device with as many slots as are used. It keeps the contents of each written slot.
#[derive(Debug)]
pub struct Disk {
    pages: Mutex<HashMap<u32, Box<Page>>>,
    writes: Injector,
    reads: Injector,
}

impl Disk {
    /// Returns an empty disk that works. `seed` decides the failures that are drawn by chance.
    pub fn new(seed: u64) -> Self {
        Disk { pages: Mutex::default(), writes: Injector::new(seed), reads: Injector::new(!seed) }
    }

    /// Sets which writes fail from now on, counted by slot. A write of several slots fails as a
    /// whole.
    pub fn refuse_writes(&self, refusal: Refusal) {
        self.writes.set(refusal);
    }

    /// Sets which reads fail from now on, counted by slot.
    pub fn refuse_reads(&self, refusal: Refusal) {
        self.reads.set(refusal);
    }

    /// Returns how many slots were to be written, and how many of these writes failed, since
    /// [`Disk::refuse_writes`].
    pub fn writes(&self) -> (u64, u64) {
        self.writes.counts()
    }

    /// Returns how many slots were to be read, and how many of these reads failed, since
    /// [`Disk::refuse_reads`].
    pub fn reads(&self) -> (u64, u64) {
        self.reads.counts()
    }

    /// Returns the number of slots with contents.
    pub fn used(&self) -> usize {
        self.pages().len()
    }

    /// Flips a bit of the contents of a slot.
    ///
    /// # Panics
    /// If the slot has no contents, or a page has no such bit.
    pub fn flip(&self, slot: u32, bit: u32) {
        let mut pages = self.pages();
        let page = pages.get_mut(&slot).unwrap_or_else(|| panic!("slot {slot} has no contents"));
        page[bit as usize / 8] ^= 1 << (bit % 8);
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<u32, Box<Page>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn each(slots: Slots) -> impl Iterator<Item = u32> {
    slots.first..slots.first + slots.count
}

/// Gives other CPUs a turn, as device I/O does.
fn work<P: Platform>(frames: &Frames<'_, P>) {
    if P::ENABLED {
        frames.platform().event(Event::Step);
    }
}

impl<P: Platform> SwapDevice<P> for Disk {
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        let result = each(slots).zip(from.0..).try_for_each(|(slot, pfn)| {
            work(frames);
            if !self.writes.allow() {
                return Err(WriteError::Failed);
            }
            // SAFETY: a frame of the machine, which no CPU writes during the call (contract of
            // `SwapDevice::write`).
            let page = unsafe { frames.at(Pfn(pfn).addr()).cast::<Page>().read() };
            self.pages().insert(slot, Box::new(page));
            Ok(())
        });
        if result.is_err() {
            // SAFETY: nothing else reads, writes or forgets the slots during the call (contract of
            // `SwapDevice::write`).
            unsafe { self.forget(frames, slots) };
        }
        result
    }

    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        each(slots).zip(to.0..).try_for_each(|(slot, pfn)| {
            work(frames);
            if !self.reads.allow() {
                return Err(ReadError { slot, reason: Unreadable::Failed });
            }
            let pages = self.pages();
            let page = pages.get(&slot).ok_or(ReadError { slot, reason: Unreadable::Empty })?;
            // SAFETY: a frame of the machine that the caller owns (contract of `SwapDevice`).
            unsafe { frames.at(Pfn(pfn).addr()).cast::<Page>().write(**page) };
            Ok(())
        })
    }

    unsafe fn forget(&self, _frames: &Frames<'_, P>, slots: Slots) {
        let mut pages = self.pages();
        each(slots).for_each(|slot| _ = pages.remove(&slot));
    }
}
