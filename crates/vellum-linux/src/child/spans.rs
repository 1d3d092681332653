//! Counting the page tables that a long walk over addresses leaves behind.
//!
//! A child does the walk, so that its page tables vanish with it, and reads the kernel's own
//! account of them: `VmPTE`.

use procfs::process::Process;
use serde::{Deserialize, Serialize};

use super::{Helper, Message, say};
use crate::Skip;
use crate::region::Region;
use crate::workload::case::{PAGE, TABLE_SPAN};
use crate::workload::shuffle::{SEED, shuffle};

/// How many times on its way the child looks at its page tables.
const LOOKS: u64 = 512;
/// Page tables of a process in KiB, its own few for program and stack included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageTables {
    /// Before the walk.
    pub start_kb: u64,
    /// The most that was seen on the way.
    pub peak_kb: u64,
    /// After it.
    pub end_kb: u64,
}

/// What the child is to do.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Bytes of addresses.
    #[arg(long)]
    span: u64,
    /// Bytes discarded in one call.
    #[arg(long)]
    piece: u64,
}

/// Has a child walk over `span` and discard by the `piece`; tells `progress` how far it is, 0 to 1.
pub fn measure(span: u64, piece: u64, mut progress: impl FnMut(f64)) -> Result<PageTables, Skip> {
    let mut helper = Helper::start(&["tables".to_owned(), format!("--span={span}"), format!("--piece={piece}")])?;
    loop {
        match helper.hear()? {
            Message::Progress(done) => progress(done),
            Message::Tables(tables) => return Ok(tables),
            other => return Err(Skip::Child(format!("said {other:?}"))),
        }
    }
}

/// The child's life.
pub fn count(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.piece > 0 && TABLE_SPAN.is_multiple_of(args.piece), "pieces must divide 2 MiB");
    // 4 KiB folios, whatever the machine's settings are; this needs no leave.
    rustix::thread::disable_transparent_huge_pages(true)?;
    let region = Region::map(args.span)?;
    let start_kb = page_tables_kb()?;
    let (mut peak_kb, steps) = (start_kb, args.span / TABLE_SPAN);
    let mut random = SEED;
    let mut pieces: Vec<u64> = (0..TABLE_SPAN / args.piece).collect();
    for step in 0..steps {
        let offset = step * TABLE_SPAN;
        region.write(offset as usize, TABLE_SPAN as usize, PAGE);
        // Between the two, where there is the most to see.
        if step % (steps / LOOKS).max(1) == 0 {
            peak_kb = peak_kb.max(page_tables_kb()?);
            say(Message::Progress(step as f64 / steps as f64))?;
        }
        shuffle(&mut pieces, &mut random);
        for piece in &pieces {
            region.discard_part((offset + piece * args.piece) as usize, args.piece as usize)?;
        }
    }
    let end_kb = page_tables_kb()?;
    say(Message::Tables(PageTables { start_kb, peak_kb: peak_kb.max(end_kb), end_kb }))
}

/// `VmPTE` of this process.
fn page_tables_kb() -> anyhow::Result<u64> {
    Process::myself()?.status()?.vmpte.ok_or_else(|| anyhow::anyhow!("no VmPTE in /proc/self/status"))
}
