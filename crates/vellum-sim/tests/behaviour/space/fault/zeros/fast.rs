//! The folio of zeros with more than one size of folios.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use vellum::arch::X86_64;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::Config;

const PAGE: u64 = 4096;
const BASE: u64 = 0x4000_0000_0000;

/// Far more than the case takes: one that has not ended by then hangs.
const HANGS: Duration = Duration::from_secs(60);

/// Runs this, and fails if it doesn't end.
fn ends(case: impl FnOnce() + Send + 'static) {
    let (done, wait) = channel();
    let thread = thread::spawn(move || {
        case();
        let _ = done.send(());
    });
    if wait.recv_timeout(HANGS) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        panic!("it does not end");
    }
    thread.join().expect("the case fails");
}

/// A write to a huge page of zeros succeeds when policy, since the read, allows only smaller
/// folios.
#[test]
fn huge_zeros_are_written_with_smaller_folios() {
    ends(|| {
        // Smaller machines have a smaller folio of zeros.
        let sim = Config::new((2 << 30) + (64 << 20)).fast().unwrap();
        let cpu = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(9, Knob::Always);
        let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
        let (prot, flags) = (Prot::READ | Prot::WRITE, MapFlags::FIXED);
        space.map(MapRequest { addr: BASE, len: 512 * PAGE, prot, flags }).unwrap();
        let program = cpu.enter(&space);
        assert_eq!(program.load_u64(BASE + 100 * PAGE), Ok(0));
        machine.policy().set(9, Knob::Never);
        machine.policy().set(4, Knob::Always);
        assert_eq!(program.store_u64(BASE + 100 * PAGE, 7), Ok(()));
        assert_eq!(program.load_u64(BASE + 100 * PAGE), Ok(7));
        assert_eq!(program.load_u64(BASE), Ok(0));
    });
}
