//! A disk to swap to, whose writes and reads fail as told, and whose contents change.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::frame::Frames;
use vellum::platform::{Event, Platform};
use vellum::swap::{ReadError, Slots, SwapDevice, Unreadable, WriteError};

use crate::inject::{Injector, Refusal};

type Page = [u8; FRAME_SIZE as usize];

/// The disk. It has as many slots as anybody asks for, and remembers those that were written.
#[derive(Debug)]
pub struct Disk {
    pages: Mutex<HashMap<u32, Box<Page>>>,
    writes: Injector,
    reads: Injector,
}

impl Disk {
    /// Empty, and in order. The seed decides what fails by chance.
    pub fn new(seed: u64) -> Self {
        Disk { pages: Mutex::default(), writes: Injector::new(seed), reads: Injector::new(!seed) }
    }

    /// Which writes fail from now on, counted by the slot; all of a run does then.
    pub fn refuse_writes(&self, refusal: Refusal) {
        self.writes.set(refusal);
    }

    /// Which reads fail from now on, counted by the slot.
    pub fn refuse_reads(&self, refusal: Refusal) {
        self.reads.set(refusal);
    }

    /// Slots that were to be written, and that failed, since [`Disk::refuse_writes`].
    pub fn writes(&self) -> (u64, u64) {
        self.writes.counts()
    }

    /// Slots that were to be read, and that failed, since [`Disk::refuse_reads`].
    pub fn reads(&self) -> (u64, u64) {
        self.reads.counts()
    }

    /// Slots that hold something.
    pub fn used(&self) -> usize {
        self.pages().len()
    }

    /// A bit of what a slot holds is another from now on.
    ///
    /// # Panics
    /// If it holds nothing, or pages have no such bit.
    pub fn flip(&self, slot: u32, bit: u32) {
        let mut pages = self.pages();
        let page = pages.get_mut(&slot).unwrap_or_else(|| panic!("slot {slot} holds nothing"));
        page[bit as usize / 8] ^= 1 << (bit % 8);
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<u32, Box<Page>>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn each(slots: Slots) -> impl Iterator<Item = u32> {
    slots.first..slots.first + slots.count
}

/// Others may go on while the disk works.
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
            // SAFETY: a frame of the machine's, to which nobody writes (contract of `SwapDevice`).
            let page = unsafe { frames.at(Pfn(pfn).addr()).cast::<Page>().read() };
            self.pages().insert(slot, Box::new(page));
            Ok(())
        });
        if result.is_err() {
            // SAFETY: who may write the slots may forget them.
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
            // SAFETY: a frame of the machine's, and the caller's alone (contract of `SwapDevice`).
            unsafe { frames.at(Pfn(pfn).addr()).cast::<Page>().write(**page) };
            Ok(())
        })
    }

    unsafe fn forget(&self, _frames: &Frames<'_, P>, slots: Slots) {
        let mut pages = self.pages();
        each(slots).for_each(|slot| _ = pages.remove(&slot));
    }
}
