//! Instruction fetches that see what was written to memory, where hardware does not see to that.
//!
//! A folio of a page-cache object is made coherent once, and not for each mapping of it: its
//! descriptor tells that nothing was written to it since (Linux: `PG_dcache_clean`). Programs that
//! write instructions through a mapping of their own make them visible themselves, as the
//! architecture lets them do in user mode.

use super::desc::flag::ICACHE;
use super::{Frame, Frames};
use crate::addr::{FRAME_SIZE, Pfn};
use crate::arch::Attrs;
use crate::platform::Platform;

/// Tells whether instruction fetches are coherent with a folio: the bits [`ICACHE`] of its state
/// word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coherence {
    /// No CPU has made the folio coherent since the kernel wrote to it.
    Unknown,
    /// A CPU is making the folio coherent, and the kernel has not written to it meanwhile.
    Syncing,
    /// A CPU is making the folio coherent, but the kernel has written to it meanwhile.
    Stale,
    /// The folio is coherent.
    Clean,
}

impl Coherence {
    const ALL: [Coherence; 4] = [Coherence::Unknown, Coherence::Syncing, Coherence::Stale, Coherence::Clean];

    fn unpack(state: u32) -> Coherence {
        Coherence::ALL[((state & ICACHE) >> ICACHE.trailing_zeros()) as usize]
    }

    fn pack(self) -> u32 {
        (self as u32) << ICACHE.trailing_zeros()
    }
}

impl Frame {
    /// Replaces the folio's coherence by what `next` makes of it, unless that is the same. Returns
    /// what it was. Caches are made coherent, and bytes written, before the change that follows.
    fn change_coherence(&self, next: impl Fn(Coherence) -> Coherence) -> Coherence {
        let change = |state| {
            let (before, after) = (Coherence::unpack(state), next(Coherence::unpack(state)));
            (before != after).then(|| state & !ICACHE | after.pack())
        };
        let (Ok(state) | Err(state)) = self.change_state(change);
        Coherence::unpack(state)
    }

    /// Begins to make a folio coherent whose coherence is not known. Returns what it was: another
    /// CPU may have begun, but its end does not come before this CPU maps the folio.
    fn begin_icache_sync(&self) -> Coherence {
        self.change_coherence(|before| if before == Coherence::Unknown { Coherence::Syncing } else { before })
    }

    /// Ends what [`Frame::begin_icache_sync`] began. Bytes that the kernel wrote meanwhile may be
    /// in memory alone.
    fn end_icache_sync(&self) {
        self.change_coherence(|now| if now == Coherence::Syncing { Coherence::Clean } else { Coherence::Unknown });
    }

    /// Notes that the kernel has written to the folio. The caller has a reference to it.
    #[inline]
    pub(crate) fn note_icache_stale(&self) {
        if self.has(ICACHE) {
            self.change_coherence(|before| match before {
                Coherence::Clean => Coherence::Unknown,
                Coherence::Syncing => Coherence::Stale,
                Coherence::Unknown | Coherence::Stale => before,
            });
        }
    }
}

impl<P: Platform> Frames<'_, P> {
    /// Makes the instruction cache coherent with `count` frames before they are mapped executable,
    /// if `attrs` allows execution (Linux: `flush_icache_pages`). The caller passes the permissions
    /// that the new PTEs add.
    #[inline(always)]
    pub(crate) fn sync_icache(&self, pfn: Pfn, count: u32, attrs: Attrs) {
        if attrs.contains(Attrs::EXEC) {
            self.platform.sync_icache(self.at(pfn.addr()).as_ptr(), count as usize * FRAME_SIZE as usize);
        }
    }
}

/// Makes the instruction cache coherent with the folios of an object that have any of `count`
/// frames, before these are mapped executable. Does nothing for those that are coherent since an
/// earlier call. The caller has references to the folios, and no lock (INV-11).
pub(crate) fn sync_object_icache<P: Platform>(frames: &Frames<'_, P>, pfn: Pfn, count: u32) {
    for (head, frame, _) in frames.folios(pfn, count) {
        let before = frame.begin_icache_sync();
        if before == Coherence::Clean {
            continue;
        }
        frames.for_each_chunk(1 << frame.order(), |at, bytes| {
            frames.platform.sync_icache(frames.at(head.add(at).addr()).as_ptr(), bytes);
        });
        if before == Coherence::Unknown {
            frame.end_icache_sync();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folio to which the kernel writes while a CPU makes it coherent is not coherent
    /// afterwards, whichever CPU ends or begins in between.
    #[test]
    fn writes_during_a_sync_leave_the_folio_stale() {
        let folio = Frame::default();
        assert_eq!(folio.begin_icache_sync(), Coherence::Unknown);
        folio.note_icache_stale();
        assert_eq!(folio.begin_icache_sync(), Coherence::Stale, "only the first of two CPUs ends it");
        folio.end_icache_sync();
        assert_eq!(folio.begin_icache_sync(), Coherence::Unknown);
        assert_eq!(folio.begin_icache_sync(), Coherence::Syncing);
        folio.end_icache_sync();
        assert_eq!(folio.begin_icache_sync(), Coherence::Clean);
        folio.note_icache_stale();
        assert_eq!(folio.begin_icache_sync(), Coherence::Unknown);
    }
}
