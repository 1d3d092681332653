//! Serves `/sys/kernel/mm/audit`, which Linux lacks and only root may read: the engine's audit of
//! the whole machine, run on each read. The first line is `sound` or the first discrepancy; sums or
//! further discrepancies follow.
//!
//! The machine should be idle: a process that runs during the audit causes discrepancies to be
//! reported although nothing is wrong.

use crate::mem::{machine, spaces};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use spin::Mutex;
use vellum::audit::{self, Discrepancy, Sums};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::text::Text;
use vellum_kernel::proc::Text as Words;

/// The most discrepancies listed.
const SHOWN: usize = 16;

/// Adds the file.
///
/// # Errors
///
/// `ENOMEM`.
pub fn fill(directory: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    directory.add("audit", Text::new(directory.system(), 0o400, Some(Box::new(audit)), None))
}

fn audit() -> Result<Vec<u8>, Errno> {
    /// The audit's buffer, allocated by the first audit and kept: later memory may be short.
    static COUNTS: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    let mut counts = COUNTS.try_lock().ok_or(Errno::EBUSY)?;
    let len = audit::counts_len(machine());
    let missing = len - counts.len();
    counts.try_reserve_exact(missing)?;
    counts.resize(len, 0);
    let (mut first, mut found) = ([None::<Discrepancy>; SHOWN], 0);
    let spaces: Vec<_> = spaces::all().collect();
    let engines = spaces.iter().map(|space| &space.engine);
    let sums = audit::audit(machine(), engines, &mut counts, &mut |unsound| {
        if let Some(place) = first.get_mut(found) {
            *place = Some(unsound);
        }
        found += 1;
    });
    Words::of(|text| {
        // No thread keeps a page pinned while it waits. So on an idle machine nothing holds these
        // references any more, and they have leaked.
        if found == 0 && sums.pinned > 0 {
            writeln!(text, "{} references to folios are neither mappings nor pages of objects", sums.pinned)?;
        } else if found == 0 {
            let Sums { spaces, tables, folios, mapped, pinned, structures, host } = sums;
            text.write_str("sound\n")?;
            writeln!(
                text,
                "spaces {spaces}\ntables {tables}\nfolios {folios}\nmapped {mapped}\n\
                 pinned {pinned}\nstructures {structures}\nhost {host}"
            )?;
        }
        first.iter().flatten().try_for_each(|unsound| writeln!(text, "{unsound}"))?;
        if found > SHOWN { writeln!(text, "{found} differences in all") } else { Ok(()) }
    })
}
