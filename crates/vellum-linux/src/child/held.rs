//! The region that a helper process holds, and how it is told of it.

use super::{Helper, Message, say};
use crate::Skip;
use crate::region::Region;
use crate::workload::case::Case;

/// What a helper is to hold.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Length of the region; 0 for none.
    #[arg(long, default_value_t = 0)]
    bytes: u64,
    /// Its folios.
    #[arg(long, default_value_t = 4)]
    folio_kib: u32,
    /// Mapped by upper-level entries.
    #[arg(long)]
    huge: bool,
}

impl Args {
    /// How much.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps and touches it, and says so.
    pub fn hold(&self) -> anyhow::Result<Option<Region>> {
        let case = Case { bytes: self.bytes, folio_kib: self.folio_kib, huge: self.huge };
        let (mut ns, mut fallback, mut region) = (0, 0.0, None);
        if case.bytes > 0 {
            let touched = region.insert(Region::map(case.bytes)?).touch(&case)?;
            (ns, fallback) = (touched.ns, touched.fallback);
        }
        say(Message::Touched { ns, fallback })?;
        Ok(region)
    }
}

/// A helper that holds a region, or none.
pub struct Holding {
    /// It.
    pub helper: Helper,
    /// Nanoseconds that the touch took.
    pub touch_ns: u64,
    /// Share of the region that is not mapped as asked, 0 to 1.
    pub fallback: f64,
}

impl Holding {
    /// Starts one, in the role that `args` begin with.
    pub fn start(mut args: Vec<String>, case: Option<&Case>) -> Result<Holding, Skip> {
        if let Some(case) = case {
            args.extend([format!("--bytes={}", case.bytes), format!("--folio-kib={}", case.folio_kib)]);
            args.extend(case.huge.then(|| "--huge".to_owned()));
        }
        let mut helper = Helper::start(&args)?;
        match helper.hear()? {
            Message::Touched { ns, fallback } => Ok(Holding { helper, touch_ns: ns, fallback }),
            other => Err(Skip::Child(format!("said {other:?}"))),
        }
    }
}
