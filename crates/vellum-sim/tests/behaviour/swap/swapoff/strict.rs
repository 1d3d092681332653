//! Swapoff: all pages of a closed device are swapped in.

use vellum::frame::policy::Knob;
use vellum::memcg::Refused;
use vellum::space::{Advise, FaultError};
use vellum::swap::DetachError;
use vellum::vma::Prot;
use vellum_sim::{Disk, Refusal, Silicon};

use crate::fixtures::bench::{BASE, Bench, Setup, USUAL, held, in_every_format, map, range};

/// Runs a test on a machine with this many bytes of memory and swap slots.
fn on<A: Silicon>(arch: A, bytes: u64, slots: u32, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { bytes, slots, ..USUAL }, test);
}

in_every_format! {
    swapoff_empties_a_device => emptied,
    swapoff_stops_when_memory_runs_out => emptied_in_part,
}

/// Swapoff brings all pages of a closed device back, whatever their protection; then the device can
/// be detached.
fn emptied<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = 1 << arch.page_shift();
        let disk = Disk::new(1);
        // SAFETY: no other code uses it, and it is detached below.
        let other = unsafe { on.machine.swaps().attach(on.machine.frames(), &disk, 4096, 1) }.unwrap();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        space.advise(BASE, 48 * page, Advise::PageOut).unwrap();
        let swaps = on.machine.swaps();
        swaps.close(on.sim, other).unwrap();
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        assert_eq!((disk.used() as u64, on.used() as u64), (48 * (page >> 12), 16 * (page >> 12)));
        space.protect(BASE, 20 * page, Prot::empty()).unwrap();
        let child = space.fork().unwrap();
        assert_eq!(swaps.detach(on.machine.frames(), other), Err(DetachError::InUse(48 * (page >> 12) as u32)));
        // While reads fail, nothing is lost.
        let lost = BASE + 20 * page;
        disk.refuse_reads(Refusal::Percent(100));
        assert_eq!(space.swap_off(other), Err(FaultError::Poisoned(BASE)));
        assert_eq!(held(&space, range(BASE, 64 * page)), (0, 64 * page));
        disk.refuse_reads(Refusal::Never);
        space.unmap(lost, page).unwrap();
        assert_eq!(space.swap_off(other), Ok(()));
        assert_eq!(held(&space, range(BASE, 64 * page)), (47 * page, 16 * page));
        assert_eq!(held(&child, range(BASE, 64 * page)), (0, 64 * page));
        assert_eq!(child.swap_off(other), Ok(()));
        swaps.detach(on.machine.frames(), other).unwrap();
        for space in [&space, &child] {
            space.protect(BASE, 20 * page, Prot::READ | Prot::WRITE).unwrap();
            let kept = (0..64).filter(|i| *i != 20);
            kept.for_each(|i| assert_eq!(on.load(space, BASE + i * page), i));
        }
        assert_eq!(on.load(&child, lost), 20);
    });
}

/// If memory runs out, the remaining pages stay swapped.
fn emptied_in_part<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        on.machine.swaps().close(on.sim, 0).unwrap();
        on.sim.refuse(Refusal::From(3));
        assert_eq!(space.swap_off(0), Err(FaultError::NoMemory(Refused::OutOfMemory)));
        on.sim.refuse(Refusal::Never);
        let (resident, swapped) = held(&space, range(BASE, 64 * page));
        assert!(resident > 0 && swapped > 0 && resident + swapped == 64 * page);
        (0..64).step_by(9).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
        assert_eq!(space.swap_off(0), Ok(()));
        assert_eq!((held(&space, range(BASE, 64 * page)).1, on.used()), (0, 0));
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
    });
}
