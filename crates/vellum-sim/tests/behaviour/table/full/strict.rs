//! Full page tables: no operation on one disables preemption for long. The strict machine checks
//! that (`Rule::Long`), with as many entries as the format has in a page table.

use vellum::arch::Attrs;
use vellum::frame::LARGEST_FOLIO;
use vellum::frame::policy::Knob;
use vellum::space::Advise;
use vellum::vma::Prot;
use vellum_sim::{Hostility, Silicon};

use crate::fixtures::bench::{BASE, Bench, Setup, Space, USUAL, in_every_format, map, range};

in_every_format! {
    full_page_tables_are_locked_for_short_times => full,
}

/// An operation on the memory of a full page table, of so many bytes.
type Act<A> = fn(&Bench<'_, A>, &Space<'_, A>, u64);

/// Does each operation on a full page table, of folios of this order.
fn done_to_a_full_table<A: Silicon>(arch: A, order: u8, acts: &[Act<A>]) {
    let bytes = 1u64 << (arch.page_shift() + arch.index_bits());
    // Twice: for the copies and page tables of a child.
    let setup =
        Setup { bytes: 2 * bytes + (32 << 20), slots: (bytes >> 12) as u32, hostility: Hostility::WORST, ..USUAL };
    crate::fixtures::bench::on(arch, setup, |on| {
        on.machine.policy().set(order, Knob::Always);
        let space = on.space();
        map(&space, BASE, bytes);
        for act in acts {
            space.advise(BASE, bytes, Advise::PopulateWrite).unwrap();
            act(on, &space, bytes);
        }
    });
}

fn acts<A: Silicon>() -> [Act<A>; 9] {
    [
        |_, space, bytes| {
            space.protect(BASE, bytes, Prot::READ).and(space.protect(BASE, bytes, Prot::READ | Prot::WRITE)).unwrap()
        },
        |_, space, bytes| space.advise(BASE, bytes, Advise::Cold).unwrap(),
        |_, space, _| drop(space.fork().unwrap()),
        // Hardware sets accessed and dirty again during the fork.
        |_, space, bytes| {
            space.clear_accessed_dirty(range(BASE, bytes), Attrs::HARDWARE, |_, _| ());
            drop(space.fork().unwrap());
        },
        |_, space, bytes| space.advise(BASE, bytes, Advise::PageOut).unwrap(),
        |_, space, bytes| {
            space.advise(BASE, bytes, Advise::PageOut).unwrap();
            drop(space.fork().unwrap());
            space.advise(BASE, bytes, Advise::DontNeed).unwrap();
        },
        |on, space, bytes| {
            space.advise(BASE, bytes, Advise::Free).unwrap();
            drop(space.fork().unwrap());
            on.reclaim_all(&[space]);
        },
        |_, space, bytes| space.advise(BASE, bytes, Advise::DontNeed).unwrap(),
        |_, space, bytes| space.unmap(BASE, bytes).unwrap(),
    ]
}

fn full<A: Silicon>(arch: A) {
    let page = arch.page_order();
    for order in [page, page + 2, page + 4, page + 7, LARGEST_FOLIO] {
        done_to_a_full_table(arch, order, &acts());
    }
}
