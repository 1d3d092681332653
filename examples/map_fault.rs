//! Maps memory, has a program fault it in, and prints the resulting runs.
//!
//! `cargo run -p vellum-sim --example map_fault`

use std::error::Error;

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::space::{Advise, Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Access, Config};

fn main() -> Result<(), Box<dyn Error>> {
    // The host: here a machine in software, with 64 MiB of memory and one CPU.
    let host = Config::new(64 << 20).fast()?;
    let cpu = host.cpu(0);
    let machine = Machine::boot(&host, Default::default())?;
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default())?;

    // 8 MiB at an address of the engine's choice; the first half may use huge pages.
    let len = 8 << 20;
    let request = MapRequest { addr: 0, len, prot: Prot::READ | Prot::WRITE, flags: MapFlags::empty() };
    let at = space.map(request)?;
    space.advise(at, len / 2, Advise::Huge)?;
    assert_eq!(space.stats().anon, 0, "nothing is resident before it is touched");

    // A program writes a byte in each page. Its CPU walks the page tables and raises the faults;
    // the engine resolves them.
    let program = cpu.enter(&space);
    let range = VirtRange { start: at, end: at + len };
    program.touch(range, 4096, Access::Write).map_err(|_| "a write was refused")?;
    assert_eq!(space.stats().anon, len);

    // Consecutive single pages are one run, as a huge page is.
    let mut runs = 0;
    space.runs(range, |run| {
        runs += 1;
        println!("{:#x}: {:?}, {} entries of level {}", run.va, run.kind, run.len, run.level);
    });
    println!("{} pages in {runs} runs", len / 4096);
    assert!(runs < 16, "{runs} runs");

    // An access that the mapping does not allow is the program's error.
    space.protect(at, len, Prot::READ)?;
    assert!(program.store(at, 1).is_err());
    space.unmap(at, len)?;
    assert!(program.load(at).is_err());
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
