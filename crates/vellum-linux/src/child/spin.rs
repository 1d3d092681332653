//! A helper that keeps a CPU busy in user mode, with an address space of its own.

use super::{Helper, Message, send};
use crate::Skip;
use crate::cpu::pin_to;

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The CPU to keep busy.
    #[arg(long)]
    cpu: usize,
}

/// Starts a helper that keeps `cpu` busy until the returned value is dropped.
///
/// # Errors
/// The helper failed.
pub fn start(cpu: usize) -> Result<Helper, Skip> {
    let mut helper = Helper::start(&["spin".to_owned(), format!("--cpu={cpu}")])?;
    match helper.receive()? {
        Message::Ready => Ok(helper),
        other => Err(Skip::Child(format!("unexpected message {other:?}"))),
    }
}

/// Runs the helper, which never returns unless it fails.
///
/// # Errors
/// Standard output can't be written.
pub fn run(args: &Args) -> anyhow::Result<()> {
    pin_to(args.cpu);
    send(Message::Ready)?;
    loop {
        std::hint::spin_loop();
    }
}
