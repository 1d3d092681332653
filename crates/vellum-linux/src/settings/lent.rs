//! What the benchmark has of the machine for a while: it goes when the benchmark does, however that
//! ends.
//!
//! A helper process makes it, keeps it until its standard input ends, which is when whoever held
//! the other end is no more, and removes it. Signals that end the benchmark do not end the helper.

use std::io::Read;

use super::group::{self, Group};
use super::zram::{self, Zram};
use crate::Skip;
use crate::child::{Helper, Message, outlive_signals, say};

/// What it may be.
#[derive(clap::Subcommand)]
pub enum Thing {
    /// A swap device of compressed memory.
    Zram {
        /// Its size.
        #[arg(long)]
        bytes: u64,
    },
    /// A control group.
    Group {
        /// Its name.
        #[arg(long)]
        name: String,
    },
}

impl Thing {
    fn args(&self) -> [String; 2] {
        match self {
            Thing::Zram { bytes } => ["zram".into(), format!("--bytes={bytes}")],
            Thing::Group { name } => ["group".into(), format!("--name={name}")],
        }
    }

    fn available(&self) -> Result<(), Skip> {
        match self {
            Thing::Zram { .. } => zram::available(),
            Thing::Group { .. } => group::available(),
        }
    }
}

/// It is there for as long as this is.
pub struct Lent(Helper);

impl Lent {
    /// Has it made.
    pub fn of(thing: &Thing) -> Result<Lent, Skip> {
        thing.available()?;
        let mut helper = Helper::start(&[vec!["lent".to_owned()], thing.args().to_vec()].concat())?;
        match helper.hear()? {
            Message::Lent => Ok(Lent(helper)),
            other => Err(Skip::Child(format!("said {other:?}"))),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Err(error) = self.0.finish() {
            eprintln!("vellum: {error}");
        }
    }
}

/// The helper's life.
pub fn lend(thing: &Thing) -> anyhow::Result<()> {
    outlive_signals()?;
    match thing {
        Thing::Zram { bytes } => keep(Zram::set_up(*bytes)?),
        Thing::Group { name } => keep(Group::make(name)?),
    }
}

/// Keeps something until standard input ends.
fn keep<T>(_thing: T) -> anyhow::Result<()> {
    say(Message::Lent)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
