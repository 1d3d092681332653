//! Devices that a benchmark needs. They are removed when it ends, however it ends.
//!
//! A helper process makes the resource and keeps it until the helper's standard input ends, which
//! happens when the benchmark closes its end of the pipe or is gone. Signals that end the benchmark
//! don't end the helper.

use std::io::Read;

use super::disk::{self, Disk};
use super::zram::{self, Swap};
use crate::Skip;
use crate::child::{Helper, Message, outlive_signals, send};

/// A resource of the machine.
#[derive(clap::Subcommand)]
pub enum Resource {
    /// A zram swap device.
    Zram {
        /// Its size in bytes.
        #[arg(long)]
        bytes: u64,
    },
    /// A disk in memory with a mounted file system.
    Disk {
        /// Its size in bytes.
        #[arg(long)]
        bytes: u64,
    },
}

impl Resource {
    fn args(&self) -> [String; 2] {
        match self {
            Resource::Zram { bytes } => ["zram".into(), format!("--bytes={bytes}")],
            Resource::Disk { bytes } => ["disk".into(), format!("--bytes={bytes}")],
        }
    }

    fn available(&self) -> Result<(), Skip> {
        match self {
            Resource::Zram { .. } => zram::available(),
            Resource::Disk { .. } => disk::available(),
        }
    }
}

/// Guard. The resource exists while this value does.
pub struct HeldResource(Helper);

impl HeldResource {
    /// Starts a helper that makes the resource.
    ///
    /// # Errors
    /// The kernel lacks the resource, this user may not make it, or the helper failed.
    pub fn new(resource: &Resource) -> Result<HeldResource, Skip> {
        resource.available()?;
        let mut helper = Helper::start(&[vec!["lent".to_owned()], resource.args().to_vec()].concat())?;
        match helper.receive()? {
            Message::Ready => Ok(HeldResource(helper)),
            other => Err(Skip::Child(format!("unexpected message {other:?}"))),
        }
    }

    /// Returns the process that made the resource.
    pub fn helper(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for HeldResource {
    fn drop(&mut self) {
        if let Err(error) = self.0.finish() {
            eprintln!("vellum: {error}");
        }
    }
}

/// Runs the helper: makes the resource and keeps it.
///
/// # Errors
/// The resource can't be made.
pub fn run(resource: &Resource) -> anyhow::Result<()> {
    outlive_signals()?;
    match resource {
        Resource::Zram { bytes } => keep(Swap::set_up(*bytes)?),
        Resource::Disk { bytes } => keep(Disk::set_up(*bytes)?),
    }
}

/// Notifies the benchmark that the resource exists, and keeps it until standard input ends.
fn keep<T>(_thing: T) -> anyhow::Result<()> {
    send(Message::Ready)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
