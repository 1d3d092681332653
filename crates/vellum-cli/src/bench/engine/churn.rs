//! Runs the churn that leaves free memory in pieces, and finds the frames that a region then gets.

use vellum::addr::VirtRange;
use vellum::arch::Kind;
use vellum::memcg::MemcgId;
use vellum::reclaim::compact;
use vellum::space::{Advise, MapFlags, MapRequest};
use vellum_linux::workload::arm::Arm;
use vellum_linux::workload::case::{Case, PAGE, TABLE_SPAN};
use vellum_linux::workload::churn::{self, Act, PEAK, Pieces, SLOT, SPACES, Step};
use vellum_sim::Access;

use super::{Booted, Engine, READ_WRITE, Space, folios_of, map, touch, unmap};
use crate::bench::contender::Skip;

/// The address of the first slot.
const BASE: u64 = 1 << 40;
/// The bits of an x86-64 PTE that hold the frame's number.
const FRAME: u64 = 0x000f_ffff_ffff_f000;

impl Engine {
    /// Returns the first frame of each folio of the case's region, in the order of addresses;
    /// `None` for folios whose pages lie apart.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn frames(&self, case: &Case) -> Result<Vec<Option<u64>>, Skip> {
        let booted = self.booted()?;
        booted.age(case, self.spare())?;
        booted.compact(case);
        let space = booted.space(case.folio_kib, MemcgId::ROOT)?;
        let range = map(&space, case.bytes)?;
        booted.touch(&space, range, case, &booted.neighbours(case, MemcgId::ROOT)?, |at| at)?;
        let mut frames = vec![None; case.folios() as usize];
        let folio = case.folio_bytes();
        space.runs(range, |run| {
            let bytes = run.len as u64 * if run.level == 1 { PAGE } else { TABLE_SPAN };
            if run.kind != Kind::Leaf {
                return;
            }
            let mut va = run.va.next_multiple_of(folio);
            while va + folio <= run.va + bytes {
                let frame = ((run.raw & FRAME) + (va - run.va)) / PAGE;
                frames[((va - range.start) / folio) as usize] = Some(frame);
                va += folio;
            }
        });
        Ok(frames)
    }
}

impl Booted {
    /// Runs the churn for a case of [`Arm::Aged`], unless it ran for this case already, in memory
    /// of which `spare` bytes stay free. What the churn leaves mapped stays until another case is
    /// prepared.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn age(&self, case: &Case, spare: u64) -> Result<(), Skip> {
        let mut aged = self.aged.borrow_mut();
        if aged.as_ref().is_some_and(|(aged, _)| aged == case) {
            return Ok(());
        }
        *aged = None;
        if case.arm == Arm::Aged {
            *aged = Some((*case, self.churn(case.bytes, spare)?));
        }
        Ok(())
    }

    /// Compacts the memory that a churn left in pieces, as far as a region of the case lacks blocks
    /// for its folios: a kernel's faults would ask for as much.
    pub fn compact(&self, case: &Case) {
        let aged = self.aged.borrow();
        let Some((_, spaces)) = aged.as_ref() else { return };
        let order = case.pages_per_folio().trailing_zeros() as usize;
        let free = self.machine.frames().free_blocks_on(0);
        let folios: u64 = (order..).zip(&free[order..]).map(|(of, blocks)| blocks << (of - order)).sum();
        let lacking = case.folios().saturating_sub(folios) * case.folio_bytes();
        if lacking > 0 {
            let spaces: Vec<&Space<'static>> = spaces.iter().collect();
            let _emptied = compact(self.machine, &spaces[..], None, lacking.div_ceil(TABLE_SPAN));
        }
    }

    /// Runs the churn before a region of `bytes` bytes, in memory that it fills to `spare` bytes.
    /// Returns its address spaces, and one that holds the machine's other memory.
    fn churn(&self, bytes: u64, spare: u64) -> Result<Vec<Space<'static>>, Skip> {
        let spaces: Result<Vec<_>, Skip> = (0..SPACES).map(|_| self.space(4, MemcgId::ROOT)).collect();
        let mut spaces = spaces?;
        spaces.push(self.hold_all_but(PEAK * bytes + spare)?);
        for round in churn::rounds(bytes) {
            folios_of(self.machine, round.folio_kib);
            for (space, step) in round.steps {
                self.step(&spaces[space], step)?;
            }
        }
        Ok(spaces)
    }

    /// Makes a space that holds memory in 2 MiB folios, so that `left` bytes are free.
    fn hold_all_but(&self, left: u64) -> Result<Space<'static>, Skip> {
        let space = self.space(2048, MemcgId::ROOT)?;
        let free = self.machine.frames().free_frames() * PAGE;
        let held = free.saturating_sub(left) / TABLE_SPAN * TABLE_SPAN;
        if held > 0 {
            let range = map(&space, held)?;
            let touched = self.cpu.enter(&space).touch(range, TABLE_SPAN, Access::Write);
            touched.map_err(|error| Skip::system("touch", format!("{error:?}")))?;
        }
        Ok(space)
    }

    fn step(&self, space: &Space<'static>, Step { slot, act, pieces }: Step) -> Result<(), Skip> {
        let start = BASE + u64::from(slot) * 2 * SLOT;
        if act == Act::Fill {
            let flags = MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
            let mapped = space.map(MapRequest { addr: start, len: SLOT, prot: READ_WRITE, flags });
            mapped.map_err(|error| Skip::system("map", error))?;
            return touch(&self.cpu.enter(space), VirtRange { start, end: start + SLOT }).map(drop);
        }
        if (act, pieces) == (Act::Unmap, Pieces::All) {
            return unmap(space, VirtRange { start, end: start + SLOT });
        }
        for (at, len) in pieces.ranges() {
            let at = start + at;
            let advised = match act {
                Act::Unmap => {
                    unmap(space, VirtRange { start: at, end: at + len })?;
                    continue;
                }
                Act::Reclaim => {
                    space.advise(at, len, Advise::Free).and_then(|()| space.advise(at, len, Advise::PageOut))
                }
                Act::Discard | Act::Fill => space.advise(at, len, Advise::DontNeed),
            };
            advised.map_err(|error| Skip::system("advise", error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 32 << 20;

    fn aged(folio_kib: u32) -> Case {
        Case { arm: Arm::Aged, ..Case::of(BYTES, folio_kib) }
    }

    fn engine() -> Engine {
        Engine::of(BYTES).with_beside(Arm::Aged.regions_beside())
    }

    /// Returns the frames of the folios in the order of touches.
    fn touched(engine: &Engine, case: &Case) -> Vec<Option<u64>> {
        let frames = engine.frames(case).unwrap();
        case.arm.order(case.folios()).into_iter().map(|n| frames[n as usize]).collect()
    }

    /// Returns the average number of pages in a row of frames that ascend without a gap.
    fn pages_in_a_row(frames: &[Option<u64>], folio: u64) -> f64 {
        let breaks = frames.windows(2).filter(|pair| match pair {
            [Some(a), Some(b)] => *b != a + folio,
            _ => true,
        });
        (frames.len() as u64 * folio) as f64 / (breaks.count() + 1) as f64
    }

    #[test]
    fn aged_memory_is_in_pieces() {
        let (engine, fresh) = (engine(), engine());
        for (folio_kib, most) in [(4, 64.0), (64, 128.0)] {
            let case = aged(folio_kib);
            let folio = case.pages_per_folio();
            let frames = touched(&engine, &case);
            let pages = pages_in_a_row(&frames, folio);
            assert!(!frames.is_sorted(), "{folio_kib} KiB");
            assert!(pages < most, "{pages} pages of {folio_kib} KiB folios in a row");
            // The order of touches scatters them, too, as seen from the addresses.
            assert!(pages_in_a_row(&engine.frames(&case).unwrap(), folio) < 1.5 * folio as f64);
            // Without the churn, the frames ascend with the touches.
            let random = Case { arm: Arm::Random, ..case };
            assert!(pages_in_a_row(&touched(&fresh, &random), folio) > 1024.0);
        }
    }

    #[test]
    fn the_frames_of_aged_memory_repeat() {
        let frames = || engine().frames(&aged(4)).unwrap();
        assert!(frames() == frames());
    }

    #[test]
    fn a_churn_gives_its_memory_back() {
        let engine = engine();
        let booted = engine.booted().unwrap();
        let free = || booted.machine.frames().free_frames();
        let before = free();
        booted.age(&aged(4), engine.spare()).unwrap();
        let left = free();
        assert!(left > BYTES / PAGE && left < 2 * BYTES / PAGE, "{left} frames are free");
        booted.age(&Case::of(BYTES, 4), engine.spare()).unwrap();
        assert_eq!(free(), before);
    }
}
