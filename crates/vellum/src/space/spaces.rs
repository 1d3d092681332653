//! Operations on several of the host's address spaces.

use core::ops::Range;

use crate::frame::Family;
use crate::memcg::MemcgId;
use crate::page_cache::{Collapses, Object, ObjectError, RemovedPages, Writeback, Writes, remove_clean};
use crate::platform::{Platform, SpaceId};

use super::AddressSpace;
use crate::space::reclaim::Rmap;
use crate::space::vma_ops::VmaOps;

/// The address spaces of a host, which implements this trait. A space that is passed to `visit` is
/// not dropped before `visit` returns.
pub trait Spaces<'m, P: Platform> {
    /// Calls `visit` for all spaces, including those that are exiting.
    fn each(&self, visit: &mut dyn FnMut(&AddressSpace<'m, P>));

    /// Calls `visit` for the space with the number `id`; a host may leave out a space that has
    /// begun to exit. Returns true if the host knows the space, even if it is exiting. Returns
    /// false if the host does not know the space yet, because [`AddressSpace::fork`] has not
    /// returned it, or not any more, because the space has ended.
    fn find(&self, id: SpaceId, visit: &mut dyn FnMut(&AddressSpace<'m, P>)) -> bool {
        let mut known = false;
        self.each(&mut |space| {
            if space.id() == id {
                known = true;
                visit(space);
            }
        });
        known
    }

    /// Calls `visit` for each space in `family` (a space and those forked from it, directly or not,
    /// [`AddressSpace::families`]), until `visit` returns false. A host should do this in ascending
    /// order of the spaces' numbers: parents then come before their children, and the reclaimer,
    /// which stops once no PTE maps its folios, usually visits few spaces.
    fn each_in_family(&self, family: Family, visit: &mut dyn FnMut(&AddressSpace<'m, P>) -> bool) {
        let mut continues = true;
        self.each(&mut |space| {
            if continues && space.families().contains(family) {
                continues = visit(space);
            }
        });
    }
}

impl<'m, P: Platform> Spaces<'m, P> for [&AddressSpace<'m, P>] {
    fn each(&self, visit: &mut dyn FnMut(&AddressSpace<'m, P>)) {
        self.iter().for_each(|space| visit(space));
    }
}

/// Calls `visit` for each space that maps `object` and that the host knows, in ascending order of
/// the spaces' numbers. Skips spaces that were created after this call began, so that a stream of
/// forks can't keep the call from ending.
pub(crate) fn each_mapper<'m, P: Platform>(
    spaces: &(impl Spaces<'m, P> + ?Sized),
    object: &Object<'m, P>,
    visit: &mut dyn FnMut(&AddressSpace<'m, P>),
) {
    let mut from = SpaceId(0);
    let end = object.machine().spaces_end();
    while let Some(id) = object.next_mapper(from).filter(|id| id.0 < end.0) {
        spaces.find(id, visit);
        from = SpaceId(id.0 + 1);
    }
}

/// Unmaps the pages `removed`, which `object` has lost, in every space that maps the object. When
/// this returns, no CPU reaches these pages through any space. The cost depends on the spaces that
/// map the object, not on the number of other spaces.
///
/// A child whose fork is under way when this call begins may map the pages, as its parent does. The
/// object counts such a child among its mappers already, and the child is visited after its parent,
/// because its number is higher. A fork that begins later finds the pages removed from the object,
/// and does not share the parent's private copies of pages beyond the object's end. So the child of
/// a later fork is not visited, and a stream of forks can't keep this call from ending. The caller
/// ensures that the object does not grow before this returns.
///
/// Waits for changes of VMAs that are under way in these spaces, and until the host knows each
/// child that is being forked ([`Spaces::find`]). The caller holds no lock that a fork takes,
/// because the fork could then never end.
pub fn unmap_removed<'m, P: Platform>(
    spaces: &(impl Spaces<'m, P> + ?Sized),
    object: &Object<'m, P>,
    removed: &RemovedPages,
) {
    if removed.is_empty() {
        return;
    }
    let mut from = SpaceId(0);
    let end = object.machine().spaces_end();
    while let Some(id) = object.next_mapper(from).filter(|id| id.0 < end.0) {
        if spaces.find(id, &mut |space| VmaOps::of(space).unmap_removed(object, removed)) {
            from = SpaceId(id.0 + 1);
        } else {
            // Either the fork that creates the space is under way, and the host will know the space
            // soon; or the space is exiting, and will soon not map the object any more.
            from = id;
            object.machine().platform().wait();
        }
    }
}

/// The number of attempts to collapse a block whose pages keep being mapped or used.
const COLLAPSE_TRIES: u32 = 4;

/// Replaces the small folios of an object, in the block of a huge folio around `page`, by one huge
/// folio that is charged to `memcg` (Linux: `collapse_file`). Swapped-out pages are read back
/// first, and pages that don't exist become zeros, or are read if the object has a store. Unmaps
/// the block from all spaces; the next fault maps it by a huge PTE where it can. Returns false if
/// there is no page, or the block reaches beyond the end of the object. The caller holds no lock.
///
/// # Errors
/// [`ObjectError::Pending`]: the host is reading this page. [`ObjectError::InUse`]: pages are
/// pinned, or used all the time, or differ from the storage, or a VMA has a record of their writes
/// (userfaultfd, soft-dirty). [`ObjectError::NoMemory`], and those of [`Object::page`].
pub fn collapse_object<'m, P: Platform>(
    spaces: &(impl Spaces<'m, P> + ?Sized),
    object: &Object<'m, P>,
    page: u64,
    memcg: MemcgId,
) -> Result<bool, ObjectError> {
    let pages = Collapses(object).block(page);
    for _ in 0..COLLAPSE_TRIES {
        let seen = Collapses(object).survey(pages.clone());
        if seen.is_huge || !seen.is_fit {
            return Ok(seen.is_fit);
        }
        if seen.is_partly_stored {
            Collapses(object).read(pages.clone(), memcg)?;
            continue;
        }
        if seen.is_busy {
            break;
        }
        if seen.swapped > 0 {
            Collapses(object).swap_in(pages.clone())?;
        }
        let mut can_move = true;
        each_mapper(spaces, object, &mut |space| {
            can_move = can_move && VmaOps::of(space).unmap_kept(object, pages.clone());
        });
        if can_move && Collapses(object).replace(pages.clone(), memcg)? {
            return Ok(true);
        }
        object.machine().platform().relax();
    }
    Err(ObjectError::InUse)
}

/// Has the host write dirty pages of an object to its storage
/// ([`Storage::write`](crate::platform::Storage::write)), as `pass` says. The next write of a
/// program to one of them through a shared VMA faults. The host calls this for `fsync`, `msync`,
/// `sync_file_range`, and from time to time; the caller holds no lock. A space that `spaces` leaves
/// out runs no program any more.
///
/// # Errors
/// [`ObjectError::Pending`]: the pass waits for the write of this page, and goes on with the next
/// call. [`ObjectError::TooManyReferences`].
pub fn write_back<'m, P: Platform>(
    spaces: &(impl Spaces<'m, P> + ?Sized),
    object: &Object<'m, P>,
    pass: &mut Writeback,
) -> Result<(), ObjectError> {
    while let Some(batch) = Writes(object).next_write(pass, None)? {
        if batch.is_writable() {
            each_mapper(spaces, object, &mut |space| Rmap::of(space).write_protect(object, &batch));
        }
        Writes(object).write(batch);
        object.machine().platform().resched();
    }
    Ok(())
}

/// Drops the clean ones of `pages` of an object with a store, and unmaps all of `pages` in every
/// space: the next use of a page that was dropped reads it from the storage (Linux:
/// `invalidate_inode_pages2_range`). No store of a program is lost: pages that are dirty, or that
/// the host uses, stay. The caller holds no lock, and other than that is bound as the caller of
/// [`unmap_removed`] is.
pub fn invalidate<'m, P: Platform>(spaces: &(impl Spaces<'m, P> + ?Sized), object: &Object<'m, P>, pages: Range<u64>) {
    unmap_removed(spaces, object, &remove_clean(object, pages));
}
