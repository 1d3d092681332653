//! Counts the page tables that a long walk over addresses leaves behind.
//!
//! A helper does the walk, so that its page tables vanish with it, and reads the kernel's own
//! count: `VmPTE`.

use procfs::process::Process;
use serde::{Deserialize, Serialize};

use super::{Helper, Message, send};
use crate::Skip;
use crate::region::Region;
use crate::workload::case::{PAGE, TABLE_SPAN};
use crate::workload::shuffle::{SEED, shuffle};

/// The number of times the helper reads its page tables during the walk.
const READINGS: u64 = 512;
/// Page tables of a process in KiB, those of its program and stack included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageTables {
    /// The KiB before the walk.
    pub start_kb: u64,
    /// The most KiB at any reading during the walk.
    pub peak_kb: u64,
    /// The KiB after the walk.
    pub end_kb: u64,
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Bytes of addresses to walk over.
    #[arg(long)]
    span: u64,
    /// Bytes discarded in one call.
    #[arg(long)]
    piece: u64,
}

/// Has a helper walk over `span` bytes and discard them in calls of `piece` bytes. Calls `progress`
/// with the share that is done, 0 to 1.
///
/// # Errors
/// The helper failed.
pub fn measure(span: u64, piece: u64, mut progress: impl FnMut(f64)) -> Result<PageTables, Skip> {
    let mut helper = Helper::start(&["tables".to_owned(), format!("--span={span}"), format!("--piece={piece}")])?;
    loop {
        match helper.receive()? {
            Message::Progress(done) => progress(done),
            Message::Tables(tables) => return Ok(tables),
            other => return Err(Skip::Child(format!("unexpected message {other:?}"))),
        }
    }
}

/// Runs the helper.
///
/// # Errors
/// A system call failed, or `piece` does not divide 2 MiB.
pub fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.piece > 0 && TABLE_SPAN.is_multiple_of(args.piece), "--piece must divide 2 MiB");
    // Disable large folios for this process, whatever the machine's settings are. This needs no
    // privilege.
    rustix::thread::disable_transparent_huge_pages(true)?;
    let region = Region::map(args.span)?;
    let start_kb = page_tables_kb()?;
    let (mut peak_kb, steps) = (start_kb, args.span / TABLE_SPAN);
    let mut random = SEED;
    let mut pieces: Vec<u64> = (0..TABLE_SPAN / args.piece).collect();
    for step in 0..steps {
        let offset = step * TABLE_SPAN;
        region.write(offset as usize, TABLE_SPAN as usize, PAGE);
        // Read the count between touch and discard, when there are most page tables.
        if step % (steps / READINGS).max(1) == 0 {
            peak_kb = peak_kb.max(page_tables_kb()?);
            send(Message::Progress(step as f64 / steps as f64))?;
        }
        shuffle(&mut pieces, &mut random);
        for piece in &pieces {
            region.discard_range((offset + piece * args.piece) as usize, args.piece as usize)?;
        }
    }
    let end_kb = page_tables_kb()?;
    send(Message::Tables(PageTables { start_kb, peak_kb: peak_kb.max(end_kb), end_kb }))
}

/// Returns `VmPTE` of this process.
pub(super) fn page_tables_kb() -> anyhow::Result<u64> {
    Process::myself()?.status()?.vmpte.ok_or_else(|| anyhow::anyhow!("no VmPTE in /proc/self/status"))
}
