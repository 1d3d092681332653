//! Swaps to a device that the host supplies.
//!
//! `cargo run -p vellum-sim --example swap_device`

use std::collections::HashMap;
use std::error::Error;
use std::sync::Mutex;

use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::arch::X86_64;
use vellum::frame::Frames;
use vellum::memcg::MemcgId;
use vellum::platform::Platform;
use vellum::reclaim::reclaim;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::swap::{ReadError, Slots, SwapDevice, Unreadable, WriteError};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::Config;

const PAGE: u64 = FRAME_SIZE;
const PAGES: u64 = 1024;

type Page = [u8; FRAME_SIZE as usize];

/// A device that stores pages in the host's memory.
#[derive(Default)]
struct MemoryDevice(Mutex<HashMap<u32, Box<Page>>>);

fn each(slots: Slots) -> std::ops::Range<u32> {
    slots.first..slots.first + slots.count
}

// The engine calls a device by the run: consecutive slots, and consecutive frames. It holds no lock
// during a call.
impl<P: Platform> SwapDevice<P> for MemoryDevice {
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        let mut pages = self.0.lock().map_err(|_| WriteError::Failed)?;
        for (slot, pfn) in each(slots).zip(from.0..) {
            // SAFETY: the trait's contract: the frame is the machine's, and no CPU writes to it
            // during the call.
            let page = unsafe { frames.at(Pfn(pfn).addr()).cast::<Page>().read() };
            pages.insert(slot, Box::new(page));
        }
        Ok(())
    }

    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        for (slot, pfn) in each(slots).zip(to.0..) {
            let pages = self.0.lock().map_err(|_| ReadError { slot, reason: Unreadable::Failed })?;
            let page = pages.get(&slot).ok_or(ReadError { slot, reason: Unreadable::Empty })?;
            // SAFETY: the trait's contract: the frame is the machine's, and the caller's alone
            // during the call.
            unsafe { frames.at(Pfn(pfn).addr()).cast::<Page>().write(**page) };
        }
        Ok(())
    }

    unsafe fn forget(&self, _frames: &Frames<'_, P>, slots: Slots) {
        if let Ok(mut pages) = self.0.lock() {
            each(slots).for_each(|slot| _ = pages.remove(&slot));
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let host = Config::new(64 << 20).fast()?;
    let cpu = host.cpu(0);
    let backing = MemoryDevice::default();
    let machine = Machine::boot(&host, Default::default())?;
    // SAFETY: the device outlives the machine, which was declared after it.
    let device = unsafe { machine.swaps().attach(machine.frames(), &backing, 4096, 0) }?;
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default())?;
    let prot = Prot::READ | Prot::WRITE;
    let at = space.map(MapRequest { addr: 0, len: PAGES * PAGE, prot, flags: MapFlags::empty() })?;
    let program = cpu.enter(&space);
    for page in 0..PAGES {
        program.store_u64(at + page * PAGE, page).map_err(|_| "a write was refused")?;
    }

    // A host reclaims when memory is short. Recently used pages get a second chance, so it takes a
    // second round.
    let spaces = [&space];
    while space.stats().anon > 0 {
        let done = reclaim(&machine, &spaces[..], MemcgId::ROOT, PAGES)?;
        println!("reclaimed {} pages, {} are resident", done.freed, space.stats().anon / PAGE);
    }
    assert_eq!(backing.0.lock().map_err(|_| "poisoned")?.len() as u64, PAGES);

    // The next touch brings a page back.
    for page in 0..PAGES {
        assert_eq!(program.load_u64(at + page * PAGE).map_err(|_| "a read was refused")?, page);
    }
    space.unmap(at, PAGES * PAGE)?;
    machine.swaps().close(&host, device)?;
    machine.swaps().detach(machine.frames(), device)?;
    assert!(backing.0.lock().map_err(|_| "poisoned")?.is_empty(), "freed slots are forgotten");
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
