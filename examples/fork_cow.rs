//! Forks an address space, and shows which pages copy-on-write shares and which it copies.
//!
//! `cargo run -p vellum-sim --example fork_cow`

use std::error::Error;

use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::Config;

const PAGE: u64 = 4096;
const PAGES: u64 = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let host = Config::new(64 << 20).fast()?;
    let cpu = host.cpu(0);
    let machine = Machine::boot(&host, Default::default())?;
    let parent = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default())?;
    let prot = Prot::READ | Prot::WRITE;
    let at = parent.map(MapRequest { addr: 0, len: PAGES * PAGE, prot, flags: MapFlags::empty() })?;
    let write = |space: &AddressSpace<'_, _>, page: u64, value: u64| {
        cpu.enter(space).store_u64(at + page * PAGE, value).map_err(|_| "a write was refused")
    };
    let read = |space: &AddressSpace<'_, _>, page: u64| {
        cpu.enter(space).load_u64(at + page * PAGE).map_err(|_| "a read was refused")
    };
    for page in 0..PAGES {
        write(&parent, page, page)?;
    }

    // The child maps the parent's folios. The parent's PTEs lose the right to write in place by the
    // run, and one flush removes the writable translations from all TLBs.
    let before = machine.frames().free_frames();
    let child = parent.fork()?;
    let tables = before - machine.frames().free_frames();
    println!("fork took {tables} frames, for page tables and VMAs: {PAGES} pages are shared");
    assert!(tables < PAGES / 8);

    // A write to a shared page copies that page, and nothing else.
    let before = machine.frames().free_frames();
    write(&child, 7, 70)?;
    assert_eq!((read(&child, 7)?, read(&parent, 7)?), (70, 7));
    println!("a write in the child took {} frame", before - machine.frames().free_frames());
    assert_eq!(before - machine.frames().free_frames(), 1);

    // Without the child, the parent's pages are exclusive again: it writes to them in place.
    drop(child);
    let before = machine.frames().free_frames();
    for page in 0..PAGES {
        write(&parent, page, page + 1)?;
    }
    assert_eq!(before, machine.frames().free_frames());
    assert_eq!(read(&parent, 7)?, 8);
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
