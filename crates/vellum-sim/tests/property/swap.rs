//! Devices to swap to, which a case may have none or several of, and which may fail; and what is in their slots.

use vellum::Machine;
use vellum::addr::Pfn;
use vellum::frame::{OutOfMemory, Use};
use vellum::swap::{Compressed, ReadError, SwapRun};
use vellum_sim::{Disk, Refusal};

use super::host::Host;
use super::model::SLOTS;
use super::walk;

/// A device that a case has.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// A disk, or compressed memory.
    pub disk: bool,
    pub slots: u32,
    pub priority: i16,
}

enum Store {
    Memory(Box<Compressed>),
    Disk(Box<Disk>),
}

/// The devices of a machine.
pub struct Devices(Vec<Store>);

impl Devices {
    pub fn new<H: Host>(machine: &Machine<'_, H>, seed: u64, plans: &[Plan]) -> Self {
        let store = |plan: &Plan| {
            Ok(match plan.disk {
                true => Store::Disk(Box::new(Disk::new(seed))),
                false => Store::Memory(Box::new(Compressed::new(machine.frames(), plan.slots)?)),
            })
        };
        let stores: Result<_, OutOfMemory> = plans.iter().map(store).collect();
        Devices(stores.expect("memory for swap devices"))
    }

    /// Take them into use.
    pub fn attach<H: Host>(&self, machine: &Machine<'_, H>, plans: &[Plan]) {
        for (store, plan) in self.0.iter().zip(plans) {
            // SAFETY: nobody else uses them, and they live as long as anybody swaps.
            let attached = unsafe {
                match store {
                    Store::Memory(store) => {
                        machine.swaps().attach(machine.frames(), &**store, plan.slots, plan.priority)
                    }
                    Store::Disk(store) => machine.swaps().attach(machine.frames(), &**store, plan.slots, plan.priority),
                }
            };
            attached.expect("memory for the counts of slots");
        }
    }

    /// So many writes and reads in a hundred fail from now on.
    pub fn fail(&self, writes: u8, reads: u8) {
        let refusal = |percent| if percent == 0 { Refusal::Never } else { Refusal::Percent(percent) };
        for store in &self.0 {
            if let Store::Disk(disk) = store {
                disk.refuse_writes(refusal(writes));
                disk.refuse_reads(refusal(reads));
            }
        }
    }
}

/// Memory for one page, to look at what a slot holds.
#[derive(Clone, Copy, Debug)]
pub struct Glass(Pfn);

impl Glass {
    /// It is never given back.
    pub fn new<H: Host>(machine: &Machine<'_, H>, page_order: u8) -> Self {
        Glass(machine.frames().alloc(page_order, false, Use::Kernel).expect("memory for a page"))
    }

    /// What is in the slots of a page, in each of [`SLOTS`]. An entry that stays names them, and nobody else has this glass.
    pub fn words<H: Host>(
        self,
        host: &H,
        machine: &Machine<'_, H>,
        slots: SwapRun,
    ) -> Result<[u64; SLOTS.len()], ReadError> {
        // SAFETY: the entry has a reference to them, and the memory is the caller's.
        unsafe { machine.swaps().read(machine.frames(), slots, self.0) }?;
        Ok(walk::words(host, self.0.addr()))
    }
}
