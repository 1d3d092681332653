//! Changes the refcounts and mapcounts of folios, and traces each change. Tests check the counts by
//! these trace events.
//!
//! A folio's two counts are one word of its head's descriptor ([`Counts`]), so one atomic operation
//! changes both and references are never fewer than mappings (INV-2). The functions here also take
//! the head's frame number, which only the trace needs; a host without tracing pays nothing for it.

use super::{Counts, Frame, FrameKind, Frames, LARGEST_FOLIO, SECTION_SHIFT, TooManyReferences};
use crate::addr::Pfn;
use crate::platform::{Event, Platform, trace};

impl<'p, P: Platform> Frames<'p, P> {
    /// Drops `refs` references and `maps` mappings of a folio in one atomic step (INV-2). Returns
    /// the remaining counts; at zero references the folio belongs to the caller, which frees it.
    #[inline]
    pub(crate) fn put(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) -> Counts {
        trace(self.platform, || {
            let before = frame.counts();
            Event::Counts(
                head,
                (before.refs, before.maps),
                (before.refs.wrapping_sub(refs), before.maps.wrapping_sub(maps)),
            )
        });
        frame.put(refs, maps)
    }

    /// Sets the counts of a folio, without an atomic read-modify-write. The caller guarantees that
    /// no other CPU changes them meanwhile: it has all references, and no other CPU can find the
    /// folio and take one.
    #[inline]
    pub(crate) fn set_counts(&self, head: Pfn, frame: &Frame, counts: Counts) {
        trace(self.platform, || {
            let before = frame.counts();
            Event::Counts(head, (before.refs, before.maps), (counts.refs, counts.maps))
        });
        frame.set_counts(counts);
    }

    /// Takes references and mappings unless the folio's refcount is zero, by [`Frame::try_get`].
    /// Returns whether it took them.
    #[inline]
    pub(crate) fn try_get(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) -> bool {
        let got = frame.try_get(refs, maps);
        if got {
            // Traced afterwards, because only then is the outcome known. The reference just taken
            // keeps the folio from being freed meanwhile.
            trace(self.platform, || {
                let Counts { refs: all, maps: mapped } = frame.counts();
                Event::Counts(head, (all.wrapping_sub(refs), mapped.wrapping_sub(maps)), (all, mapped))
            });
        }
        got
    }

    /// Adds references and mappings to a folio, and returns the counts before. The caller has a
    /// reference, or holds a lock that prevents the last one from being dropped.
    #[inline]
    pub(crate) fn get_counts(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) -> Counts {
        self.trace_counts_raised(head, frame, refs, maps);
        frame.get(refs, maps)
    }

    /// Adds references and mappings for a program's system call, by [`Frame::get_checked`]. As for
    /// [`Frames::get_counts`], the caller has a reference, or holds a lock that prevents the last
    /// one from being dropped.
    ///
    /// # Errors
    /// Fails with [`TooManyReferences`], with nothing changed, if the folio already had
    /// [`Counts::MAX_REFS`] references.
    #[inline]
    pub(crate) fn get_counts_checked(
        &self,
        head: Pfn,
        frame: &Frame,
        refs: u32,
        maps: u32,
    ) -> Result<(), TooManyReferences> {
        self.trace_counts_raised(head, frame, refs, maps);
        if frame.get_checked(refs, maps) { Ok(()) } else { Err(TooManyReferences) }
    }

    /// Traces that the counts of a folio are about to rise.
    #[inline]
    fn trace_counts_raised(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) {
        trace(self.platform, || {
            let before = frame.counts();
            let after = (before.refs.wrapping_add(refs), before.maps.wrapping_add(maps));
            Event::Counts(head, (before.refs, before.maps), after)
        });
    }

    /// Turns a block that was just allocated into a folio with these counts, and returns the head's
    /// descriptor. Sets the tails' descriptors, from which the head can be found (Linux:
    /// `prep_compound_page`).
    #[inline]
    pub(crate) fn make_folio(&self, pfn: Pfn, order: u8, flags: u32, counts: Counts) -> &'p Frame {
        const { assert!(LARGEST_FOLIO as u32 <= SECTION_SHIFT, "the descriptors of a folio are one slice") };
        let descriptors = self.descriptors(pfn, 1 << order);
        let head = &descriptors[0];
        descriptors[1..].iter().for_each(|tail| tail.set_kind(FrameKind::Tail, order, 0));
        head.set_kind(FrameKind::Folio, order, flags);
        trace(self.platform, || Event::Counts(pfn, (0, 0), (counts.refs, counts.maps)));
        head.set_counts(counts);
        head
    }
}
