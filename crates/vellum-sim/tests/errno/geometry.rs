//! The VMAs after a series of calls: where they are split, and where they merge.

use vellum::space::{Advise, MapFlags, RemapFlags};
use vellum::vma::Prot;

use crate::fixtures::kernel::{BASE, Kernel, PAGE, Vma};

/// The number of pages that the calls work on.
const PAGES: u64 = 64;

/// A call.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Maps pages readable and writable, with MAP_NORESERVE if true. (Pages mapped read-only and
    /// pages mapped writable that are read-only now are two VMAs in Linux, which accounts only the
    /// latter for overcommit.)
    Map(u64, u64, bool),
    Unmap(u64, u64),
    Protect(u64, u64, Prot),
    Advise(u64, u64, Advise),
    /// Moves this many pages from the first page to the last.
    Move(u64, u64, u64),
}

/// Returns a random series of calls.
pub fn calls(seed: u64, count: usize) -> Vec<Call> {
    let mut dice = oorandom::Rand32::new(seed);
    let mut below = |end: u32| u64::from(dice.rand_range(0..end));
    let prots = [Prot::empty(), Prot::READ, Prot::READ | Prot::WRITE, Prot::READ | Prot::EXEC, Prot::all()];
    let call = |_| {
        let start = below(PAGES as u32);
        let pages = (1 + below(12)).min(PAGES - start);
        match below(12) {
            0..=2 => Call::Map(start, pages, below(5) == 0),
            3 => Call::Unmap(start, pages),
            4..=7 => Call::Protect(start, pages, prots[below(prots.len() as u32) as usize]),
            8 => Call::Advise(start, pages, Advise::NoHuge),
            9..=10 => Call::Move(start, pages, below((PAGES - pages) as u32 + 1)),
            _ => Call::Advise(start, pages, Advise::Huge),
        }
    };
    let first = Call::Map(0, PAGES, false);
    [first].into_iter().chain((0..count).map(call)).collect()
}

/// Makes a call and returns the VMAs afterwards. A call that would fail halfway, where the two
/// kernels differ on purpose, is made page by page instead, on mapped pages.
pub fn vmas(kernel: &dyn Kernel, call: Call) -> Vec<Vma> {
    let at = |page: u64| BASE + page * PAGE;
    let each = |start: u64, pages: u64, call: &dyn Fn(u64, u64) -> i64| {
        let there: Vec<u64> = (start..start + pages).filter(|page| kernel.resident(at(*page), PAGE, 1) >= 0).collect();
        let all = there.len() as u64 == pages;
        let parts = if all { vec![(start, pages)] } else { there.iter().map(|page| (*page, 1)).collect() };
        for (start, pages) in parts {
            assert_eq!(call(at(start), pages * PAGE), 0);
        }
    };
    match call {
        Call::Map(start, pages, noreserve) => {
            let flags = if noreserve { MapFlags::FIXED | MapFlags::NORESERVE } else { MapFlags::FIXED };
            kernel.map(at(start), pages * PAGE, Prot::READ | Prot::WRITE, flags);
        }
        Call::Unmap(start, pages) => {
            kernel.unmap(at(start), pages * PAGE);
        }
        Call::Protect(start, pages, prot) => each(start, pages, &|addr, len| kernel.protect(addr, len, prot)),
        Call::Move(start, pages, to) => {
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            kernel.remap(at(start), pages * PAGE, pages * PAGE, flags, at(to));
        }
        Call::Advise(start, pages, advise) => each(start, pages, &|addr, len| kernel.advise(addr, len, advise)),
    }
    kernel.vmas()
}
