//! Writes to the host's storage that failed, reported once to each opener (Linux: `errseq_t`).
//!
//! An object counts its failed writes, and each opener remembers the count that it has seen: an
//! opener learns of every failure since it opened the file, and of each once, whatever others ask
//! meanwhile. A failure that no opener has seen is reported to the next one that opens the file,
//! too, so that a program that opens it anew to synchronise it does not miss the failure.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

use crate::page_cache::{Object, ObjectError};
use crate::platform::Platform;

/// Bit of the record: an opener has seen the last failure.
const SEEN: u64 = 1;
/// Each failure adds this to the record, which has 63 bits for their number and does not wrap.
const FAILURE: u64 = 2;

/// The failed writes of an object: their number, and [`SEEN`].
#[derive(Default)]
pub(in crate::page_cache) struct ErrorRecord(AtomicU64);

/// The failed writes that an opener of a file has seen (Linux: `f_wb_err`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteErrors {
    /// The record without [`SEEN`].
    seen: u64,
}

impl ErrorRecord {
    /// Records a failure, which no opener has seen.
    pub(in crate::page_cache) fn record(&self) {
        let _ = self.0.fetch_update(AcqRel, Acquire, |record| Some((record & !SEEN) + FAILURE));
    }
}

impl WriteErrors {
    /// Returns what a new opener of the file has seen of failed writes: all of them, but for those
    /// since the last that any opener saw.
    pub fn of<P: Platform>(object: &Object<'_, P>) -> Self {
        let record = object.head().write_errors.0.load(Acquire);
        let seen = if record & SEEN != 0 { record & !SEEN } else { (record & !SEEN).saturating_sub(FAILURE) };
        WriteErrors { seen }
    }

    /// Reports writes of the object to the storage that failed since the opener last asked (Linux:
    /// `file_check_and_advance_wb_err`). A host calls it at the end of `fsync` and `msync`.
    ///
    /// # Errors
    /// [`ObjectError::NotWritten`]: a write failed. The pages are clean all the same, and the
    /// storage may have their old contents.
    pub fn check<P: Platform>(&mut self, object: &Object<'_, P>) -> Result<(), ObjectError> {
        let record = object.head().write_errors.0.fetch_or(SEEN, AcqRel) & !SEEN;
        let last = core::mem::replace(&mut self.seen, record);
        if last == record { Ok(()) } else { Err(ObjectError::NotWritten) }
    }
}
