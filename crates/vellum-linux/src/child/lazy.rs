//! Timing the reclaim of memory that a process has no use for any more.
//!
//! The process is a helper in a group of its own, so that nothing else is reclaimed.

use std::io::Read;

use super::held::{self, Holding};
use super::{Message, say};
use crate::cpu::now_ns;
use crate::settings::group;
use crate::settings::knobs::Scope;
use crate::settings::lent::{Lent, Thing};
use crate::workload::case::{Case, PAGE};
use crate::workload::data::Written;
use crate::{Sample, Skip};

/// How often a group is asked again.
const TRIES: usize = 8;

/// Times reclaim.
#[derive(Default)]
pub struct LazyTimer {
    group: Option<(Lent, String)>,
}

impl LazyTimer {
    /// Has a group, from the first call on until this is dropped.
    pub fn prepare(&mut self) -> Result<(), Skip> {
        if self.group.is_none() {
            let name = format!("vellum-{}", std::process::id());
            self.group = Some((Lent::of(&Thing::Group { name: name.clone() })?, name));
        }
        Ok(())
    }

    /// Times the reclaim of the case's region. The settings are needed until it is touched.
    pub fn measure(&self, case: &Case, written: Written, settings: Scope<'_>) -> Result<Sample, Skip> {
        let name = self.group.as_ref().map_or("", |(_, name)| name);
        let mut args = vec!["reclaim".to_owned(), format!("--group={name}")];
        args.extend((written == Written::EveryTenth).then(|| "--every-tenth".to_owned()));
        let mut holding = Holding::start(args, Some(case))?;
        settings.restore()?;
        holding.helper.go()?;
        Ok(Sample {
            touch_ns: Some(holding.touch_ns),
            op_ns: holding.helper.took()?,
            back_ns: None,
            fallback: holding.fallback,
        })
    }
}

/// What the helper is to do.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Its group.
    #[arg(long)]
    group: String,
    /// Every tenth stretch of 2 MiB is written to again.
    #[arg(long)]
    every_tenth: bool,
    /// What it holds.
    #[command(flatten)]
    held: held::Args,
}

/// The helper's life.
pub fn reclaim(args: &Args) -> anyhow::Result<()> {
    group::join(&args.group)?;
    let (Some(region), pages) = (args.held.hold()?, args.held.bytes() / PAGE) else { return Ok(()) };
    if std::io::stdin().read(&mut [0])? != 1 {
        return Ok(());
    }
    let written = if args.every_tenth { Written::EveryTenth } else { Written::None };
    region.free()?;
    (0..pages).filter(|&page| written.again(page)).for_each(|page| region.set_word(page, Written::word(page)));
    let wanted = written.pages(pages);
    let (mut ns, mut kept) = (0, pages);
    for _ in 0..TRIES {
        let start = now_ns();
        group::reclaim(&args.group, (kept - wanted) * PAGE)?;
        ns += now_ns() - start;
        kept = region.present()?;
        if kept <= wanted {
            break;
        }
    }
    written.check(pages, kept, |page| Ok(region.word(page)))?;
    say(Message::Took { ns })
}
