//! Counts the references to an object, which handles and VMAs hold, and the writable shared VMAs.
//!
//! A handle or a VMA holds one reference. The CPU that drops the last reference frees the object. A
//! VMA is removed with its space's VMAs locked, and its object can't be freed under the lock of the
//! VMAs. So an object without references waits on a list ([`Orphans`]) until the VMAs are unlocked.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::mappers::Mapper;
use super::{DENIED, Head, Object, ObjectError, head, mapping, remove};
use crate::addr::Pfn;
use crate::machine::Machine;
use crate::memcg::{MemcgId, Refused};
use crate::platform::{Platform, SpaceId};
use crate::vma::{Backing, Sharing};

impl<P: Platform> Object<'_, P> {
    /// Returns the backing for a VMA that is about to be created in `space`. Takes the VMA's
    /// reference to the object, and counts the VMA among the space's VMAs that map the object.
    /// Memory for the list of mappers is charged to `memcg`. For a writable shared VMA, the caller
    /// has called [`Object::map_writable`], which succeeded.
    ///
    /// # Errors
    /// As for [`Object::add_mapper`]. The count of [`Object::map_writable`] is then undone.
    pub(crate) fn new_backing(&self, sharing: Sharing, space: SpaceId, memcg: MemcgId) -> Result<Backing, Refused> {
        let backing = Backing { object: self.at, sharing, delta: 0, tag: self.tag() };
        if let Err(why) = self.add_mapper(space, memcg) {
            self.head().drop_writer(sharing);
            return Err(why);
        }
        Ok(backing)
    }

    /// Counts one more VMA of a space that maps the object. The VMA holds a reference to the object
    /// from then on. If the list of mappers needs another frame, the frame is charged to `memcg`.
    ///
    /// # Errors
    /// Fails if there is no memory or `memcg` is at its limit.
    fn add_mapper(&self, space: SpaceId, memcg: MemcgId) -> Result<(), Refused> {
        let (memcgs, frames) = (self.machine.memcgs(), self.machine.frames());
        let mut spare = None;
        while !self.lock().mappers.add(frames, space, &mut spare) {
            spare = Some(memcgs.alloc(frames, memcg, 0, false)?.0);
        }
        if let Some(list_frame) = spare {
            // SAFETY: the frame was just allocated, and the list did not take it.
            unsafe { memcgs.free(frames, list_frame, 0, false) };
        }
        self.head().refs.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Returns the lowest-numbered space from `from` on that maps the object.
    pub(crate) fn next_mapper(&self, from: SpaceId) -> Option<SpaceId> {
        self.next_mapping(from).map(|mapper| mapper.space)
    }

    /// Returns the lowest-numbered space from `from` on that maps the object, and the number of the
    /// space's VMAs that map it.
    pub(super) fn next_mapping(&self, from: SpaceId) -> Option<Mapper> {
        self.lock().mappers.next(self.machine.frames(), from)
    }

    /// Undoes [`Object::new_backing`] for a VMA that was not created.
    pub(crate) fn cancel_backing(&self, backing: &Backing, space: SpaceId) {
        let mut orphans = Orphans::default();
        put_backing(self.machine, backing, space, &mut orphans);
        orphans.free(self.machine);
    }

    /// Counts a writable shared VMA that is about to be created, and returns whether it is
    /// permitted (Linux: `mapping_map_writable`).
    pub(crate) fn map_writable(&self) -> bool {
        let add_writer = |writers: u64| (writers & DENIED == 0).then_some(writers + 1);
        self.head().writers.fetch_update(AcqRel, Acquire, add_writer).is_ok()
    }

    /// Returns whether a shared VMA exists that may write to the object, now or after `mprotect`.
    pub fn has_shared_writers(&self) -> bool {
        self.head().writers.load(Acquire) & !DENIED != 0
    }

    /// Forbids writable shared VMAs from now on (Linux: `mapping_deny_writable`, for
    /// `F_SEAL_WRITE`).
    ///
    /// # Errors
    /// [`ObjectError::Busy`]: a writable shared VMA exists.
    pub fn deny_shared_write(&self) -> Result<(), ObjectError> {
        match self.head().writers.compare_exchange(0, DENIED, AcqRel, Acquire) {
            Ok(_) | Err(DENIED) => Ok(()),
            Err(_) => Err(ObjectError::Busy),
        }
    }
}

impl<P: Platform> Clone for Object<'_, P> {
    /// Takes another reference.
    fn clone(&self) -> Self {
        self.head().refs.fetch_add(1, Relaxed);
        Object { machine: self.machine, at: self.at }
    }
}

impl<P: Platform> Drop for Object<'_, P> {
    /// Drops the reference. Frees the object if that was the last: no spin lock may be held.
    fn drop(&mut self) {
        if let Some(last) = put(self.machine, self.at) {
            last.free(self.machine);
        }
    }
}

/// Takes a reference for a VMA that is split off, or copied from, a VMA of the same space with the
/// same backing. Needs no memory, since the list of mappers has the space already. Does nothing for
/// a VMA of anonymous memory.
pub(crate) fn get_backing<P: Platform>(machine: &Machine<'_, P>, backing: &Backing, space: SpaceId) {
    let counted = get_backing_in(machine, backing, space, MemcgId::ROOT);
    debug_assert!(counted.is_ok(), "no memory is needed: the space is already counted");
}

/// Takes a reference for a VMA of `space` that is a copy of a VMA with the same backing in this or
/// another space (as on fork). Memory for the list of mappers is charged to `memcg`. Does nothing
/// for a VMA of anonymous memory.
///
/// # Errors
/// As for [`Object::add_mapper`].
pub(crate) fn get_backing_in<P: Platform>(
    machine: &Machine<'_, P>,
    backing: &Backing,
    space: SpaceId,
    memcg: MemcgId,
) -> Result<(), Refused> {
    if backing.is_anonymous() {
        return Ok(());
    }
    // SAFETY: the VMA of which the new VMA is a copy, or the handle by which it is created, holds a
    // reference.
    let object = unsafe { Object::of_backing(machine, backing) };
    object.add_mapper(space, memcg)?;
    if backing.sharing == Sharing::Shared {
        object.head().writers.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Drops the reference of a VMA that was removed from `space`. If it was the last reference, the
/// object is put on `orphans`, since the caller holds locks under which it can't be freed. Takes
/// the object's lock. Does nothing for a VMA of anonymous memory.
pub(crate) fn put_backing<P: Platform>(
    machine: &Machine<'_, P>,
    backing: &Backing,
    space: SpaceId,
    orphans: &mut Orphans,
) {
    if backing.is_anonymous() {
        return;
    }
    // SAFETY: the VMA's reference is dropped only below.
    let head = unsafe { head(machine, backing.object) };
    head.drop_writer(backing.sharing);
    let list_frame = head.state.lock(machine.platform()).mappers.remove(machine.frames(), space);
    if let Some(list_frame) = list_frame {
        // SAFETY: the frame has just left the list, and no CPU reads it.
        unsafe { machine.memcgs().free(machine.frames(), list_frame, 0, false) };
    }
    if let Some(last) = put(machine, backing.object) {
        // SAFETY: no other reference exists, and the object is freed only later.
        unsafe { self::head(machine, last.0) }.next.store(orphans.0.0, Relaxed);
        orphans.0 = last.0;
    }
}

impl Head {
    /// Subtracts from the count a writable shared VMA that was removed or not created.
    fn drop_writer(&self, sharing: Sharing) {
        if sharing == Sharing::Shared {
            self.writers.fetch_sub(1, AcqRel);
        }
    }
}

/// An object without references, which the owner of this value frees.
#[must_use = "it leaks unless it is freed"]
struct LastReference(Pfn);

/// Drops a reference. Returns the object if that was the last reference.
fn put<P: Platform>(machine: &Machine<'_, P>, at: Pfn) -> Option<LastReference> {
    // SAFETY: the caller has a reference, which is dropped only here.
    let previous = unsafe { head(machine, at) }.refs.fetch_sub(1, AcqRel);
    debug_assert!(previous > 0, "dropped a reference that the object does not have");
    (previous == 1).then_some(LastReference(at))
}

impl LastReference {
    /// Frees the pages, the index and the head. The caller holds no lock.
    fn free<P: Platform>(self, machine: &Machine<'_, P>) {
        remove::remove_all(machine, self.0);
        mapping::unlist(machine, self.0);
        let frames = machine.frames();
        // SAFETY: the head is freed only below.
        let head = unsafe { head(machine, self.0) };
        head.state.lock(machine.platform()).reserved.take().end(machine);
        let forgotten = head.store.map(|_| head.tag);
        // SAFETY: the last reference was dropped and no folio names the object; its index is empty,
        // and nothing in the head needs to be dropped.
        unsafe { machine.memcgs().free(frames, self.0, 0, false) };
        forgotten.into_iter().for_each(|tag| machine.platform().forget(tag));
    }
}

/// Objects whose last reference was dropped while the VMAs of a space were locked. The caller frees
/// the objects after it has released that lock.
#[must_use = "they leak unless they are freed"]
#[derive(Debug)]
pub(crate) struct Orphans(Pfn);

impl Default for Orphans {
    fn default() -> Self {
        Orphans(Pfn::NONE)
    }
}

impl Orphans {
    /// Frees the objects. The caller holds no lock.
    pub(crate) fn free<P: Platform>(mut self, machine: &Machine<'_, P>) {
        while let Some(at) = self.0.some() {
            // SAFETY: only this list leads to the object, which is freed only below.
            self.0 = Pfn(unsafe { head(machine, at) }.next.load(Relaxed));
            LastReference(at).free(machine);
        }
    }
}
