//! Other processes whose regions are touched in turn with a measured one, so that frames of several
//! programs alternate in memory.
//!
//! A neighbour only holds a region. The process that touches the measured region also touches the
//! neighbours', by `process_vm_writev`: the kernel takes the fault in the neighbour's address
//! space, without a context switch for each.

use std::io::{IoSlice, Read};
use std::str::FromStr;

use super::{Helper, Message, send};
use crate::Skip;
use crate::region::Region;

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Length of the region in bytes.
    #[arg(long)]
    bytes: u64,
}

/// Runs the helper: maps a region, reports it, and waits for the end of standard input.
///
/// # Errors
/// A system call failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let region = Region::map(args.bytes)?;
    // With Yama, only a descendant may be written to, unless it allows more.
    // SAFETY: the call changes no memory.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    send(Message::Mapped { start: region.start() })?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The address of a neighbour's region. As text, its process and the address, with a colon between
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    process: i32,
    start: u64,
}

impl Place {
    /// Writes a byte at `offset` of the region.
    ///
    /// # Errors
    /// The process is gone, or this one may not write to it.
    pub fn touch(&self, offset: u64) -> Result<(), Skip> {
        let byte = IoSlice::new(&[1]);
        let there = libc::iovec { iov_base: (self.start + offset) as *mut libc::c_void, iov_len: 1 };
        // SAFETY: the call reads one byte of this process, from a live slice, and writes to none.
        // `IoSlice` has the layout of an `iovec`.
        let written =
            unsafe { libc::process_vm_writev(self.process, (&raw const byte).cast(), 1, &raw const there, 1, 0) };
        if written == 1 { Ok(()) } else { Err(Skip::system("process_vm_writev", std::io::Error::last_os_error())) }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.process, self.start)
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = text
            .split_once(':')
            .and_then(|(process, start)| Some(Place { process: process.parse().ok()?, start: start.parse().ok()? }));
        place.ok_or_else(|| format!("{text} is not PROCESS:ADDRESS"))
    }
}

/// The neighbours of a measured region. Dropping this ends them.
#[derive(Default)]
pub struct Neighbours {
    _helpers: Vec<Helper>,
    places: Vec<Place>,
}

impl Neighbours {
    /// Starts `count` neighbours with regions of `bytes`.
    ///
    /// # Errors
    /// A helper failed.
    pub fn start(count: usize, bytes: u64) -> Result<Neighbours, Skip> {
        let mut neighbours = Neighbours::default();
        for _ in 0..count {
            let mut helper = Helper::start(&["neighbour".to_owned(), format!("--bytes={bytes}")])?;
            let Message::Mapped { start } = helper.receive()? else {
                return Err(Skip::Child("a neighbour sent an unexpected message".to_owned()));
            };
            neighbours.places.push(Place { process: helper.id() as i32, start });
            neighbours._helpers.push(helper);
        }
        Ok(neighbours)
    }

    /// Returns where their regions are.
    pub fn places(&self) -> &[Place] {
        &self.places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_parsed_as_it_is_written() {
        let place = Place { process: 17, start: 0x7f00_0020_0000 };
        assert_eq!(place.to_string().parse(), Ok(place));
        for wrong in ["", "17", "17:", ":5", "a:5", "17:0x5"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
