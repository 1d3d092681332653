//! A helper that holds a touched region.

use super::neighbour::Place;
use super::{Helper, Message, send};
use crate::Skip;
use crate::region::{Region, Touched};
use crate::time::Time;
use crate::workload::arm::Arm;
use crate::workload::case::Case;
use crate::workload::mapping::Mapping;

/// The region that a helper holds.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Length of the region in bytes; 0 for none.
    #[arg(long, default_value_t = 0)]
    bytes: u64,
    /// Its folio size.
    #[arg(long, default_value_t = 4)]
    folio_kib: u32,
    /// Map it by huge PTEs.
    #[arg(long)]
    huge: bool,
    /// The order in which its folios are touched.
    #[arg(long, default_value = "ascending")]
    arm: Arm,
    /// The kind of its mapping.
    #[arg(long, default_value = "anon")]
    mapping: Mapping,
    /// A region of another process that is touched in turn with it.
    #[arg(long)]
    neighbour: Vec<Place>,
}

impl Args {
    /// Returns the length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps and touches the region, and reports it.
    ///
    /// # Errors
    /// A system call failed.
    pub fn hold(&self) -> anyhow::Result<Option<Region>> {
        if self.bytes == 0 {
            send(Message::Touched { time: Time::default(), fallback: 0.0 })?;
            return Ok(None);
        }
        let region = Region::of(&self.case())?;
        self.touch(&region, |at| at)?;
        Ok(Some(region))
    }

    /// Touches a mapped region whose byte `at` lies at `offset(at)`, and reports it.
    ///
    /// # Errors
    /// A system call failed.
    pub fn touch(&self, region: &Region, offset: impl Fn(u64) -> u64) -> anyhow::Result<()> {
        let Touched { time, fallback } = region.touch_at(&self.case(), &self.neighbour, offset)?;
        send(Message::Touched { time, fallback })
    }

    /// Returns the case whose region it is.
    pub fn case(&self) -> Case {
        let Args { bytes, folio_kib, huge, arm, mapping, .. } = *self;
        Case { bytes, folio_kib, huge, arm, mapping }
    }
}

/// A helper that holds a region, or none.
pub struct RegionHolder {
    /// The process.
    pub helper: Helper,
    /// The time of the touch.
    pub touch: Time,
    /// Share of the region, 0 to 1, that is not mapped as the case asks.
    pub fallback: f64,
}

impl RegionHolder {
    /// Starts a helper with the role and the arguments in `args`, which touches its region in turn
    /// with those of its neighbours.
    ///
    /// # Errors
    /// The helper failed.
    pub fn start(mut args: Vec<String>, held: Option<(&Case, &[Place])>) -> Result<RegionHolder, Skip> {
        if let Some((case, neighbours)) = held {
            args.extend(neighbours.iter().map(|place| format!("--neighbour={place}")));
            args.extend([format!("--bytes={}", case.bytes), format!("--folio-kib={}", case.folio_kib)]);
            args.extend([format!("--arm={}", case.arm.name()), format!("--mapping={}", case.mapping.name())]);
            args.extend(case.huge.then(|| "--huge".to_owned()));
        }
        let mut helper = Helper::start(&args)?;
        match helper.receive()? {
            Message::Touched { time, fallback } => Ok(RegionHolder { helper, touch: time, fallback }),
            other => Err(Skip::Child(format!("unexpected message {other:?}"))),
        }
    }
}
