//! Times the reclaim of lazyfree memory.
//!
//! The memory belongs to a helper in a memcg of its own, so that nothing else is reclaimed.

use std::io::Read;

use super::holder::{self, RegionHolder};
use super::neighbour::Place;
use super::{Message, send};
use crate::settings::knobs::Scope;
use crate::settings::memcg;
use crate::settings::resource::{HeldResource, Resource};
use crate::time::{Stopwatch, Time};
use crate::workload::case::{Case, PAGE};
use crate::workload::data::Rewrites;
use crate::{Sample, Skip};

/// The most calls of reclaim in one run: one call does not reclaim all pages.
const TRIES: usize = 8;

/// Times reclaim.
#[derive(Default)]
pub struct LazyfreeTimer {
    memcg: Option<(HeldResource, String)>,
}

impl LazyfreeTimer {
    /// Makes the memcg at the first call; it exists until this value is dropped.
    ///
    /// # Errors
    /// A memcg can't be made.
    pub fn prepare(&mut self) -> Result<(), Skip> {
        if self.memcg.is_none() {
            let name = format!("vellum-{}", std::process::id());
            self.memcg = Some((HeldResource::new(&Resource::Memcg { name: name.clone() })?, name));
        }
        Ok(())
    }

    /// Times the reclaim of the case's region. Restores the settings once the region is touched.
    ///
    /// # Errors
    /// A setting can't be restored, or the helper failed.
    pub fn measure(
        &self,
        case: &Case,
        neighbours: &[Place],
        rewrites: Rewrites,
        settings: Scope<'_>,
    ) -> Result<Sample, Skip> {
        let name = self.memcg.as_ref().map_or("", |(_, name)| name);
        let mut args = vec!["reclaim".to_owned(), format!("--group={name}")];
        args.extend((rewrites == Rewrites::EveryTenth).then(|| "--every-tenth".to_owned()));
        let mut holder = RegionHolder::start(args, Some((case, neighbours)))?;
        settings.restore()?;
        holder.helper.resume_last()?;
        Ok(Sample { touch: Some(holder.touch), op: holder.helper.took()?, back: None, fallback: holder.fallback })
    }
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Its memcg.
    #[arg(long)]
    group: String,
    /// Write to every tenth 2 MiB range again.
    #[arg(long)]
    every_tenth: bool,
    /// The region it holds.
    #[command(flatten)]
    held: holder::Args,
}

/// Runs the helper.
///
/// # Errors
/// A system call failed, or the pages that stayed are not exactly those written again.
pub fn run(args: &Args) -> anyhow::Result<()> {
    memcg::join(&args.group)?;
    let (Some(region), pages) = (args.held.hold()?, args.held.bytes() / PAGE) else { return Ok(()) };
    if std::io::stdin().read(&mut [0])? != 1 {
        return Ok(());
    }
    let rewrites = if args.every_tenth { Rewrites::EveryTenth } else { Rewrites::None };
    region.free()?;
    (0..pages).filter(|&page| rewrites.includes(page)).for_each(|page| region.set_word(page, Rewrites::word(page)));
    let wanted = rewrites.pages(pages);
    let (mut time, mut kept) = (Time::default(), pages);
    for _ in 0..TRIES {
        let watch = Stopwatch::start();
        memcg::reclaim(&args.group, (kept - wanted) * PAGE)?;
        time += watch.time();
        kept = region.present()?;
        if kept <= wanted {
            break;
        }
    }
    rewrites.check(pages, kept, |page| Ok(region.word(page)))?;
    send(Message::Took { time })
}
