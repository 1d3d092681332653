//! Writes to the host's storage that failed, reported once to each opener (Linux: `errseq_t`).
//!
//! An object counts its failed writes, and each opener remembers the count that it has seen: an
//! opener learns of every failure since it opened the file, and of each once, whatever others ask
//! meanwhile. A failure that no opener has seen is reported to the next one that opens the file,
//! too, so that a program that opens it anew to synchronise it does not miss the failure.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

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

    /// Returns what a new opener has seen: all failures, but for those since the last that any
    /// opener saw.
    pub(in crate::page_cache) fn seen(&self) -> WriteErrors {
        let record = self.0.load(Acquire);
        let seen = if record & SEEN != 0 { record & !SEEN } else { (record & !SEEN).saturating_sub(FAILURE) };
        WriteErrors { seen }
    }

    /// Returns whether there was a failure that an opener has not seen. It has, from now on.
    pub(in crate::page_cache) fn show(&self, opener: &mut WriteErrors) -> bool {
        let record = self.0.fetch_or(SEEN, AcqRel) & !SEEN;
        core::mem::replace(&mut opener.seen, record) != record
    }
}
