//! What an operation should answer, from the model and the limits alone.

use std::ops::Range;

use vellum::addr::VirtRange;
use vellum::space::{Access, AdviseError, Limits, MapError, MapFlags, RemapError, RemapFlags};
use vellum::vma::{Prot, VmaFlags};

use super::model::{Kind, Model, ModelVma, vmas_of};
use super::op::Place;

/// The guard below a stack, in bytes.
use vellum::vma::STACK_GUARD;

/// What bounds a space, and a plot in it.
#[derive(Clone)]
pub struct Bounds {
    pub limits: Limits,
    pub page_shift: u32,
    /// log2 of the bytes that an entry of the second level maps: VMAs as large as that begin at such an address.
    pub huge_shift: u32,
    pub user_end: u64,
    /// Frames of 4 KiB that the machine has, and slots to swap to.
    pub promised: u64,
    /// Whether the model holds all of the space, so that limits and free addresses can be foretold.
    pub alone: bool,
}

impl Bounds {
    fn pages(&self, bytes: u64) -> u64 {
        bytes >> self.page_shift
    }

    pub fn range(&self, pages: &Range<u64>) -> VirtRange {
        VirtRange { start: pages.start << self.page_shift, end: pages.end << self.page_shift }
    }

    fn guard(&self) -> u64 {
        self.pages(STACK_GUARD)
    }
}

/// Where a mapping goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// To this page.
    Page(u64),
    /// Nobody can tell.
    Anywhere,
}

/// The result of `map`: where, or why not.
pub fn map(
    model: &Model,
    bounds: &Bounds,
    place: Place,
    pages: u64,
    prot: Prot,
    flags: MapFlags,
) -> Result<Where, MapError> {
    let fixed = |page: u64| page..page + pages;
    let (to, replaced) = match place {
        Place::Fixed(page) | Place::NoReplace(page) => {
            let range = fixed(page);
            let there = model.vmas(range.clone());
            if bounds.range(&range).start < bounds.limits.lowest {
                return Err(MapError::TooLow(bounds.range(&range).start));
            }
            if let (Place::NoReplace(_), Some((first, _))) = (place, there.first()) {
                return Err(MapError::Exists(bounds.range(first)));
            }
            (Where::Page(page), there.iter().map(|(vma, _)| vma.end - vma.start).sum())
        }
        Place::Hint(page) if is_room(model, bounds, fixed(page)) => (Where::Page(page), 0),
        Place::Hint(_) | Place::Anywhere if bounds.alone => {
            (Where::Page(highest_room(model, bounds, pages).ok_or(MapError::NoRoom)?), 0)
        }
        _ => (Where::Anywhere, 0),
    };
    if bounds.alone {
        let limits = &bounds.limits;
        let bytes = |pages: u64| pages << bounds.page_shift;
        if vmas_of(model.all()).len() > limits.vmas {
            return Err(MapError::TooManyVmas);
        }
        let locks = flags.contains(MapFlags::LOCKED) || model.future.contains(VmaFlags::LOCKED);
        if locks && bytes(locked(model) + pages) > limits.locked {
            return Err(MapError::LockLimit);
        }
        if bytes(model.len() - replaced + pages) > limits.address_space {
            return Err(MapError::AddressSpaceLimit);
        }
        let data = prot.contains(Prot::WRITE) && !flags.contains(MapFlags::GROWSDOWN);
        if data && bytes((data_pages(model) + pages).saturating_sub(replaced.min(data_pages(model)))) > limits.data {
            return Err(MapError::DataLimit);
        }
    }
    let promised = prot.contains(Prot::WRITE) && !flags.contains(MapFlags::NORESERVE);
    if promised && (pages << bounds.page_shift) >> 12 > bounds.promised {
        return Err(MapError::Overcommit);
    }
    if let (Place::Fixed(page), true) = (place, replaced > 0)
        && let Some(vma) = sealed(model, &fixed(page))
    {
        return Err(MapError::SealedVma(bounds.range(&vma)));
    }
    Ok(to)
}

/// The first sealed VMA of these pages, in full.
pub fn sealed(model: &Model, pages: &Range<u64>) -> Option<Range<u64>> {
    let (at, _) = model.runs(pages.clone()).find(|(_, page)| page.kind.flags.contains(VmaFlags::SEALED))?;
    model.vma_at(at.start).map(|(vma, _)| vma)
}

/// Whether what these pages hold may be forgotten.
pub fn may_forget(model: &Model, pages: &Range<u64>) -> bool {
    let forbids = |kind: &Kind| kind.flags.contains(VmaFlags::SEALED) && !kind.prot.contains(Prot::WRITE);
    !model.runs(pages.clone()).any(|(_, page)| forbids(&page.kind))
}

/// Locked pages.
pub fn locked(model: &Model) -> u64 {
    model.count(0..u64::MAX, |page| page.kind.flags.contains(VmaFlags::LOCKED))
}

/// Whether pages like this count as data.
fn is_data(kind: &Kind) -> bool {
    kind.prot.contains(Prot::WRITE) && !kind.flags.contains(VmaFlags::GROWSDOWN)
}

fn data_pages(model: &Model) -> u64 {
    model.count(0..u64::MAX, |page| is_data(&page.kind))
}

/// Whether a protection is refused because so much may not be written.
pub fn too_much_data(model: &Model, bounds: &Bounds, pages: &Range<u64>, prot: Prot) -> bool {
    let becomes = |page: &Kind| !is_data(page) && is_data(&Kind { prot, ..*page });
    let more = model.count(pages.clone(), |page| becomes(&page.kind));
    bounds.alone && more > 0 && (data_pages(model) + more) << bounds.page_shift > bounds.limits.data
}

/// The result of `remap`: where, or why not.
pub fn remap(
    model: &Model,
    bounds: &Bounds,
    old: &Range<u64>,
    pages: u64,
    flags: RemapFlags,
    to: u64,
) -> Result<Where, RemapError> {
    let new = to..to + pages;
    let moves = flags.intersects(RemapFlags::FIXED | RemapFlags::DONTUNMAP);
    if moves && old.start < new.end && new.start < old.end {
        return Err(RemapError::Overlap);
    }
    let at = |page: u64| page << bounds.page_shift;
    let (vma, kind) = model.vma_at(old.start).ok_or(RemapError::NotMapped(at(old.start)))?;
    let len = old.end - old.start;
    if kind.flags.contains(VmaFlags::SEALED) {
        return Err(RemapError::Sealed(bounds.range(&vma)));
    }
    if !moves && pages <= len {
        if let Some(vma) = sealed(model, &(old.start + pages..old.end)) {
            return Err(RemapError::Sealed(bounds.range(&vma)));
        }
        return Ok(Where::Page(old.start));
    }
    let several = flags.contains(RemapFlags::FIXED) && pages == len;
    if !several && old.start + len.min(pages) > vma.end {
        return Err(RemapError::NotMapped(at(vma.end)));
    }
    let limits = &bounds.limits;
    let fits = |more: u64, replaced: u64, kind: &Kind| {
        let sum = |now: u64| at(now - replaced.min(now) + more);
        if !bounds.alone {
            Ok(())
        } else if kind.flags.contains(VmaFlags::LOCKED) && at(locked(model) + more) > limits.locked {
            Err(RemapError::LockLimit)
        } else if sum(model.len()) > limits.address_space {
            Err(RemapError::AddressSpaceLimit)
        } else if is_data(kind) && sum(data_pages(model)) > limits.data {
            Err(RemapError::DataLimit)
        } else {
            Ok(())
        }
    };
    if pages > len {
        fits(pages - len, 0, &kind)?;
        let promised = kind.prot.contains(Prot::WRITE) && !kind.flags.contains(VmaFlags::NORESERVE);
        if promised && at(pages - len) >> 12 > bounds.promised {
            return Err(RemapError::Overcommit);
        }
    }
    if !moves {
        let end = old.start + pages;
        let free = at(end) <= bounds.user_end && model.next(old.end).is_none_or(|next| next >= end);
        if vma.end == old.end && free {
            return Ok(Where::Page(old.start));
        }
        if !flags.contains(RemapFlags::MAYMOVE) {
            return Err(RemapError::NoRoom);
        }
    }
    if flags.contains(RemapFlags::FIXED) && at(to) < limits.lowest {
        return Err(RemapError::TooLow(at(to)));
    }
    let there = if flags.contains(RemapFlags::FIXED) { sealed(model, &new) } else { None };
    if let Some(vma) = sealed(model, old).or(there) {
        return Err(RemapError::Sealed(bounds.range(&vma)));
    }
    if flags.contains(RemapFlags::DONTUNMAP) {
        let there = if flags.contains(RemapFlags::FIXED) { model.count(new.clone(), |_| true) } else { 0 };
        fits(pages, there, &Kind { flags: kind.flags - VmaFlags::LOCKS, ..kind })?;
    }
    Ok(if flags.contains(RemapFlags::FIXED) { Where::Page(to) } else { Where::Anywhere })
}

/// Where free addresses end that are followed by a VMA which starts here.
fn reserved(bounds: &Bounds, (vma, kind): &ModelVma) -> u64 {
    if kind.flags.contains(VmaFlags::GROWSDOWN) { vma.start.saturating_sub(bounds.guard()) } else { vma.start }
}

/// Whether these pages are free, and no stack wants them as its guard.
fn is_room(model: &Model, bounds: &Bounds, pages: Range<u64>) -> bool {
    let range = bounds.range(&pages);
    let above = model.next(pages.start).and_then(|page| model.vma_at(page));
    range.start >= bounds.limits.lowest
        && range.end <= bounds.user_end
        && model.next(pages.start).is_none_or(|next| next >= pages.end)
        && above.is_none_or(|vma| reserved(bounds, &vma) >= pages.end)
}

/// The highest place for so many pages below the base, or else anywhere; for large VMAs, first where huge pages fit.
fn highest_room(model: &Model, bounds: &Bounds, pages: u64) -> Option<u64> {
    let vmas = vmas_of(model.all());
    let lowest = bounds.pages(bounds.limits.lowest);
    // What is free, from the top: below the end of user space, and below each VMA.
    let tops = vmas.iter().map(|vma| reserved(bounds, vma)).chain([bounds.pages(bounds.user_end)]);
    let bottoms = [lowest].into_iter().chain(vmas.iter().map(|(vma, _)| vma.end));
    let gaps: Vec<Range<u64>> = bottoms.zip(tops).map(|(bottom, top)| bottom..top.max(bottom)).collect();
    let find = |end: u64, align: u64| {
        gaps.iter().rev().find_map(|gap| {
            let (start, end) = (gap.start.max(lowest), gap.end.min(end));
            let at = end.checked_sub(pages)? / align * align;
            (at >= start).then_some(at)
        })
    };
    let base = bounds.pages(bounds.limits.mmap_base.min(bounds.user_end));
    let huge = 1 << (bounds.huge_shift - bounds.page_shift);
    let aligned = if pages >= huge { find(base, huge) } else { None };
    aligned.or_else(|| find(base, 1)).or_else(|| find(bounds.pages(bounds.user_end), 1))
}

/// How many VMAs there are, and how many more there would be if VMAs were split at the ends of these pages.
pub fn cuts(model: &Model, pages: &Range<u64>) -> (usize, usize) {
    let inside = |page: u64| page > 0 && model.in_one_vma(page - 1..page + 1);
    (vmas_of(model.all()).len(), usize::from(inside(pages.start)) + usize::from(inside(pages.end)))
}

/// What `advise(DontNeed)` answers, and which pages it empties: all that are mapped, up to the first locked VMA.
/// `locked`: those too.
pub fn dont_need(
    model: &Model,
    bounds: &Bounds,
    pages: &Range<u64>,
    locked: bool,
) -> (Result<(), AdviseError>, Range<u64>) {
    let vmas = model.vmas(pages.clone());
    let refuses = |kind: &Kind| !locked && kind.flags.contains(VmaFlags::LOCKED);
    if let Some((locked, _)) = vmas.iter().find(|(_, kind)| refuses(kind)) {
        let whole = model.vma_at(locked.start).map_or(locked.clone(), |(vma, _)| vma);
        return (Err(AdviseError::Locked(bounds.range(&whole))), pages.start..locked.start);
    }
    let all = if model.covers(pages.clone()) { Ok(()) } else { Err(AdviseError::NotMapped) };
    (all, pages.clone())
}

/// If a touch of this page, which is not mapped, makes a stack grow: the new pages.
pub fn growth(model: &Model, bounds: &Bounds, page: u64) -> Option<(Range<u64>, Kind)> {
    let above = model.next(page)?;
    let kind = model.get(above)?.kind;
    if !kind.flags.contains(VmaFlags::GROWSDOWN) || bounds.range(&(page..page)).start < bounds.limits.lowest {
        return None;
    }
    let (stack, _) = model.vma_at(above)?;
    if let Some((below, there)) = model.prev(page) {
        let harmless = there.kind.flags.contains(VmaFlags::GROWSDOWN) || there.kind.prot.is_empty();
        if !harmless && below + 1 + bounds.guard() > page {
            return None;
        }
    }
    let bytes = |pages: u64| pages << bounds.page_shift;
    let (limits, more) = (&bounds.limits, above - page);
    let too_large = bytes(stack.end - page) > limits.stack;
    let too_much = bounds.alone
        && (bytes(model.len() + more) > limits.address_space
            || kind.flags.contains(VmaFlags::LOCKED) && bytes(locked(model) + more) > limits.locked);
    (!too_large && !too_much).then_some((page..above, kind))
}

/// Whether memory with this protection may be accessed so.
pub fn allowed(prot: Prot, access: Access) -> bool {
    match access {
        Access::Read => !prot.is_empty(),
        Access::Write => prot.contains(Prot::WRITE),
        Access::Exec => prot.contains(Prot::EXEC),
    }
}
