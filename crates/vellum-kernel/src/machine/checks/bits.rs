//! Checks the accessed and dirty bits: the CPU sets them, and the engine reads and keeps them.
//!
//! The engine sets both bits when it maps a page, so the CPU has nothing to set. The check clears
//! them directly in the PTEs. It walks the page tables by the processor's manual, and so checks
//! their format.

use super::lab::{Checked, Failed, Lab, expect, must};
use super::memory::{BASE, HUGE, RW, each_run, first, map, protect, write};
use super::user::{Space, load, run_in, store};
use crate::arch::kernel_map::phys_to_virt;
use crate::arch::manual::{self, Entry};
use crate::arch::paging::flush_pages;
use crate::arch::serial::println;
use vellum::addr::{FRAME_SIZE, VirtRange};
use vellum::arch::{Arch, Attrs};
use vellum::frame::HUGE_ORDER;
use vellum::vma::Prot;

pub fn story(lab: &Lab) -> Checked {
    for (folios, step) in [(0, FRAME_SIZE), (HUGE_ORDER, HUGE)] {
        lab.use_folios(folios);
        let space = lab.space()?;
        map(&space, first(4 * step), RW)?;
        run_in(&space, || {
            write(first(4 * step))?;
            one_entry(&space, step)
        })?;
        println!("  entries of {} KiB: accessed by a read, dirty by a write, kept when rights change", step >> 10);
    }
    Ok(())
}

/// Checks the bits of the second of four PTEs that are all of one run.
fn one_entry(space: &Space, step: u64) -> Checked {
    let (all, page) = (first(4 * step), VirtRange { start: BASE + step, end: BASE + 2 * step });
    let runs = each_run(space, all, |_| Ok(()))?;
    let clear = || {
        clear_bits(space, page.start)?;
        expect_bits(space, page, Attrs::empty())
    };
    clear()?;
    // The bits are merged over a run, and do not split it.
    expect("runs", each_run(space, all, |_| Ok(()))?, runs)?;
    must("read", load(page.start))?;
    expect_bits(space, page, Attrs::ACCESSED)?;
    must("write", store(page.start, 1))?;
    expect_bits(space, page, Attrs::ACCESSED | Attrs::DIRTY)?;
    // The page is written without a read before.
    clear()?;
    must("write", store(page.start, 2))?;
    expect_bits(space, page, Attrs::ACCESSED | Attrs::DIRTY)?;
    // Rights change while the CPU may still set the bits. No bit may get lost, and none may appear.
    clear()?;
    must("read", load(page.start))?;
    protect(space, all, Prot::READ)?;
    expect_bits(space, page, Attrs::ACCESSED)?;
    protect(space, all, RW)?;
    expect_bits(space, page, Attrs::ACCESSED)?;
    must("write", store(page.start, 3))?;
    protect(space, all, Prot::empty())?;
    expect_bits(space, page, Attrs::ACCESSED | Attrs::DIRTY)
}

fn expect_bits(space: &Space, page: VirtRange, bits: Attrs) -> Checked {
    each_run(space, page, |run| {
        expect(format_args!("bits of {:#x}", run.va), run.attrs(space.arch()) & Attrs::HARDWARE, bits)
    })?;
    let usage = space.usage(page);
    let referenced = if bits.contains(Attrs::ACCESSED) { page.len() } else { 0 };
    // An anonymous page is lost unless it is written to swap, so all of them count as dirty.
    expect("usage", (usage.referenced, usage.dirty), (referenced, page.len()))
}

/// Clears both bits in the PTE of a writable address. Walks the page tables by the processor's
/// manual, independently of the engine's code.
fn clear_bits(space: &Space, address: u64) -> Checked {
    let mut table = space.root().addr().0;
    for level in (0..u32::from(space.arch().levels())).rev() {
        let index = address >> (12 + 9 * level) & 511;
        let entry = phys_to_virt::<u64>(table).wrapping_add(index as usize);
        // SAFETY: a PTE in a page table of this space, which stays one: nothing is unmapped
        // meanwhile.
        let raw = unsafe { entry.read_volatile() };
        match manual::read(raw, level) {
            Some(Entry::Table(next)) => table = next,
            Some(Entry::Page(cleared)) => {
                // SAFETY: the same PTE. Only the CPU changes it at the same time, and only these
                // bits.
                unsafe { entry.write_volatile(cleared) };
                flush_pages([address].into_iter());
                break;
            }
            None => must(format_args!("write by the entry at level {}: {raw:#x}", level + 1), Err(Failed))?,
        }
    }
    Ok(())
}
