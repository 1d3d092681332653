//! Operations that take long, as a host calls them that can't switch tasks inside the engine: at every
//! other address in the
//! smallest pieces there are, and otherwise in one. The model does not know which.

use vellum::space::{Advise, AdviseError, LockAll, LockError, Populating};

use super::host::Host;
use super::walk::Space;

/// Whether what begins at an address is done in pieces.
fn in_pieces(addr: u64) -> bool {
    (addr >> 12 ^ addr >> 21) & 1 != 0
}

fn all<E>(mut piece: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
    while !piece()? {}
    Ok(())
}

fn populate<H: Host>(space: &Space<'_, H>, rest: &mut Populating) -> Result<(), LockError> {
    all(|| space.populate_some(rest, || false)).map_err(LockError::Fault)
}

/// `advise`.
pub fn advise<H: Host>(space: &Space<'_, H>, addr: u64, len: u64, advise: Advise) -> Result<(), AdviseError> {
    if !in_pieces(addr) {
        return space.advise(addr, len, advise);
    }
    let mut rest = space.begin_advice(addr, len, advise)?;
    all(|| space.advise_some(&mut rest, || false))
}

/// `lock`.
pub fn lock<H: Host>(space: &Space<'_, H>, addr: u64, len: u64, on_fault: bool) -> Result<(), LockError> {
    if !in_pieces(addr) {
        return space.lock(addr, len, on_fault);
    }
    populate(space, &mut space.begin_lock(addr, len, on_fault)?)
}

/// `lock_all`.
pub fn lock_all<H: Host>(space: &Space<'_, H>, flags: LockAll) -> Result<(), LockError> {
    let mut rest = space.begin_lock_all(flags)?;
    while populate(space, &mut rest).is_err() {
        rest.pass_over();
    }
    Ok(())
}
