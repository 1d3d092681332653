//! Processes whose churn leaves free memory in pieces.
//!
//! Each address space of a [`churn`] is a helper, which does the steps that the benchmark sends it,
//! one at a time. The helpers hold what the churn leaves mapped until they end.

use std::collections::HashMap;
use std::io::BufRead;

use super::{Helper, Message, send};
use crate::Skip;
use crate::region::Region;
use crate::settings::knobs::Knobs;
use crate::settings::mthp::Mthp;
use crate::workload::case::{Case, PAGE};
use crate::workload::churn::{self, Act, Pieces, SLOT, SPACES, Step};

/// The slots of one address space.
#[derive(Default)]
struct Slots(HashMap<u32, Region>);

impl Slots {
    /// Does a step.
    ///
    /// # Errors
    /// A system call failed, or the slot is not mapped.
    fn apply(&mut self, Step { slot, act, pieces }: Step) -> anyhow::Result<()> {
        if act == Act::Fill {
            let region = Region::map(SLOT)?;
            region.write(0, SLOT as usize, PAGE);
            self.0.insert(slot, region);
            return Ok(());
        }
        let Some(region) = self.0.get(&slot) else { anyhow::bail!("slot {slot} is not mapped") };
        if (act, pieces) == (Act::Unmap, Pieces::All) {
            self.0.remove(&slot);
            return Ok(());
        }
        for (at, len) in pieces.ranges() {
            let (at, len) = (at as usize, len as usize);
            match act {
                Act::Unmap => region.unmap_range(at, len)?,
                Act::Reclaim => region.reclaim_range(at, len)?,
                Act::Discard | Act::Fill => region.discard_range(at, len)?,
            }
        }
        Ok(())
    }
}

/// Runs the helper: does each step that comes on standard input, a line each, and reports it.
///
/// # Errors
/// A step failed, or is no step.
pub fn run() -> anyhow::Result<()> {
    let mut slots = Slots::default();
    for line in std::io::stdin().lock().lines() {
        slots.apply(serde_json::from_str(&line?)?)?;
        send(Message::Ready)?;
    }
    Ok(())
}

/// The processes of a churn, after it. Dropping this ends them, and frees their memory.
pub struct Aged {
    _helpers: Vec<Helper>,
}

impl Aged {
    /// Runs the churn before a region of `bytes` bytes. Changes the settings for folio sizes while
    /// it runs; sizes that the kernel lacks are base pages.
    ///
    /// # Errors
    /// A setting can't be changed, or a helper failed.
    pub fn new(bytes: u64, mthp: &Mthp, knobs: &mut Knobs) -> Result<Aged, Skip> {
        let helpers: Result<Vec<Helper>, Skip> = (0..SPACES).map(|_| Helper::start(&["churn".to_owned()])).collect();
        let mut helpers = helpers?;
        for round in churn::rounds(bytes) {
            let plan = mthp.plan(&Case::of(SLOT, round.folio_kib));
            let plan = match plan {
                Err(Skip::NoFolio(_) | Skip::NoThp) => mthp.plan(&Case::of(SLOT, 4)),
                plan => plan,
            };
            let settings = knobs.apply(&plan?)?;
            for (space, step) in round.steps {
                helpers[space].request(&step)?;
                let Message::Ready = helpers[space].receive()? else {
                    return Err(Skip::Child("a churn sent an unexpected message".to_owned()));
                };
            }
            settings.restore()?;
        }
        Ok(Aged { _helpers: helpers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of the slots' pages in memory.
    fn present(slots: &Slots) -> u64 {
        slots.0.values().map(|region| region.present().unwrap()).sum::<u64>() * PAGE
    }

    #[test]
    fn steps_fill_memory_and_free_their_pieces() {
        const BYTES: u64 = 32 << 20;
        let mut slots = Slots::default();
        let (mut most, mut reclaimed) = (0, 0);
        for (_, step) in churn::rounds(BYTES).into_iter().flat_map(|round| round.steps) {
            let before = present(&slots);
            slots.apply(step).unwrap();
            let after = present(&slots);
            match step.act {
                Act::Fill => assert_eq!(after, before + SLOT),
                // The kernel may not reclaim every page.
                Act::Reclaim => reclaimed += before - after,
                _ if step.pieces.ranges().next().is_none() => assert_eq!(after, before),
                _ => assert!(after < before, "{step:?}: {before} bytes, then {after}"),
            }
            most = most.max(after);
        }
        assert!(reclaimed > 0);
        assert!(most > 2 * BYTES && most <= churn::PEAK * BYTES, "{most} bytes");
        assert!((BYTES / 2..2 * BYTES).contains(&present(&slots)), "{} bytes", present(&slots));
        let slots_left: Vec<u32> = slots.0.keys().copied().collect();
        for slot in slots_left {
            slots.apply(Step { slot, act: Act::Unmap, pieces: Pieces::All }).unwrap();
        }
        assert_eq!(present(&slots), 0);
        let unmapped = Step { slot: 7, act: Act::Discard, pieces: Pieces::All };
        assert!(slots.apply(unmapped).is_err());
    }
}
