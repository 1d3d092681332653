//! The watches of an inode and of an instance.

use super::limits::{Counted, Limited, MAX_QUEUED_EVENTS};
use super::queue::{Event, EventQueue};
use crate::errno::Errno;
use crate::wait::Queue;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use linux_raw_sys::general::{
    IN_ALL_EVENTS, IN_DELETE_SELF, IN_EXCL_UNLINK, IN_IGNORED, IN_ISDIR, IN_MASK_ADD, IN_MASK_CREATE, IN_MOVE_SELF,
    IN_ONESHOT, IN_UNMOUNT,
};
use spin::Mutex;

/// The bits of a request that a watch keeps.
const KEPT: u32 = IN_ALL_EVENTS | IN_EXCL_UNLINK | IN_ONESHOT;

/// The number of watches in all instances.
static WATCHES: AtomicUsize = AtomicUsize::new(0);

/// Returns true if an inode may have a watch.
#[inline]
pub fn any() -> bool {
    WATCHES.load(Relaxed) != 0
}

/// The watches of one inode.
#[derive(Default)]
pub struct Watches {
    /// The events that one of the watches wants.
    wanted: AtomicU32,
    /// The watches, by ascending serial number.
    list: Mutex<Vec<Arc<Watch>>>,
    /// The directory and the name that the inode was last moved to.
    place: Mutex<Option<Place>>,
}

/// A directory, by its watches, and a name in it.
type Place = (Weak<Watches>, Arc<[u8]>);

/// A watch.
struct Watch {
    /// A number that no other watch has.
    serial: u64,
    /// The number by which the program knows it (`wd`).
    number: i32,
    /// The events that it wants, and its flags: those of [`KEPT`].
    mask: AtomicU32,
    of: Weak<Watches>,
    instance: Weak<Instance>,
    /// The numbers of the inode and of its device.
    inode: [u64; 2],
    _counted: Counted,
}

/// An instance of inotify: a queue of events, and the watches that fill it.
pub struct Instance {
    this: Weak<Instance>,
    state: Mutex<State>,
    /// The tasks that wait for an event.
    pub(super) arrived: Queue,
    user: u32,
    _counted: Counted,
}

struct State {
    queue: EventQueue,
    watches: BTreeMap<i32, Arc<Watch>>,
    /// The last number given out. Numbers are used again when all have been used.
    last: i32,
}

impl State {
    /// Returns a number that no watch has.
    fn new_number(&mut self) -> i32 {
        loop {
            self.last = if self.last == i32::MAX { 1 } else { self.last + 1 };
            if !self.watches.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Takes out a watch, and reports its end. Returns `None` if it has ended already.
    fn end(&mut self, number: i32) -> Option<Arc<Watch>> {
        let watch = self.watches.remove(&number)?;
        WATCHES.fetch_sub(1, Relaxed);
        self.queue.push(&Event { watch: number, mask: IN_IGNORED, cookie: 0, name: &[] });
        Some(watch)
    }
}

impl Instance {
    /// Creates an instance of a user.
    ///
    /// # Errors
    /// `EMFILE`: the user has too many. `ENOMEM`.
    pub fn new(user: u32) -> Result<Arc<Self>, Errno> {
        let counted = Counted::new(user, Limited::Instance)?;
        let queue = EventQueue::new(MAX_QUEUED_EVENTS.load(Relaxed) as usize)?;
        let state = Mutex::new(State { queue, watches: BTreeMap::new(), last: 0 });
        Ok(Arc::new_cyclic(|this| Instance {
            this: this.clone(),
            state,
            arrived: Queue::new(),
            user,
            _counted: counted,
        }))
    }

    /// Watches an inode with the numbers `inode`, its own and that of its device, or changes the
    /// present watch of it. `wanted`: the events, and `IN_MASK_ADD`, `IN_MASK_CREATE`,
    /// `IN_EXCL_UNLINK`, `IN_ONESHOT`. Returns the number of the watch.
    ///
    /// # Errors
    /// `EEXIST`: there is a watch, with `IN_MASK_CREATE`. `ENOSPC`: the user has too many.
    /// `ENOMEM`.
    pub fn add(&self, of: &Arc<Watches>, inode: [u64; 2], wanted: u32) -> Result<i32, Errno> {
        let mut list = of.list.lock();
        let mut state = self.state.lock();
        let is_own = |watch: &&Arc<Watch>| Weak::ptr_eq(&watch.instance, &self.this);
        // A watch without an entry is about to leave the list.
        let present = list.iter().filter(is_own).find(|watch| state.watches.contains_key(&watch.number));
        if let Some(watch) = present {
            if wanted & IN_MASK_CREATE != 0 {
                return Err(Errno::EEXIST);
            }
            let kept = if wanted & IN_MASK_ADD != 0 { watch.mask.load(Relaxed) } else { 0 };
            watch.mask.store(kept | wanted & KEPT, Relaxed);
            let number = watch.number;
            of.collect_wanted(&list);
            return Ok(number);
        }
        static SERIALS: AtomicU64 = AtomicU64::new(1);
        let number = state.new_number();
        let counted = Counted::new(self.user, Limited::Watch)?;
        list.try_reserve(1)?;
        let watch = Arc::new(Watch {
            serial: SERIALS.fetch_add(1, Relaxed),
            number,
            mask: AtomicU32::new(wanted & KEPT),
            of: Arc::downgrade(of),
            instance: self.this.clone(),
            inode,
            _counted: counted,
        });
        state.watches.insert(number, watch.clone());
        WATCHES.fetch_add(1, Relaxed);
        list.push(watch);
        of.collect_wanted(&list);
        Ok(number)
    }

    /// Removes a watch.
    ///
    /// # Errors
    /// `EINVAL`: there is none with this number.
    pub fn remove(&self, number: i32) -> Result<(), Errno> {
        let ended = self.state.lock().end(number);
        let watch = ended.ok_or(Errno::EINVAL)?;
        self.arrived.wake_all();
        watch.leave();
        Ok(())
    }

    /// Calls `act` with the queue.
    pub(super) fn with_queue<T>(&self, act: impl FnOnce(&mut EventQueue) -> T) -> T {
        act(&mut self.state.lock().queue)
    }

    /// Calls `each` with each watch: its number, the numbers of its inode and device, and its
    /// events and flags.
    pub(super) fn each_watch(&self, mut each: impl FnMut(i32, [u64; 2], u32)) {
        let state = self.state.lock();
        state.watches.values().for_each(|watch| each(watch.number, watch.inode, watch.mask.load(Relaxed)));
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let watches = core::mem::take(&mut self.state.get_mut().watches);
        WATCHES.fetch_sub(watches.len(), Relaxed);
        watches.values().for_each(|watch| watch.leave());
    }
}

impl Watch {
    /// Removes the watch from its inode's list.
    fn leave(&self) {
        if let Some(of) = self.of.upgrade() {
            let mut list = of.list.lock();
            let left = list.iter().position(|watch| watch.serial == self.serial).map(|at| list.remove(at));
            of.collect_wanted(&list);
            drop(list);
            drop(left);
        }
    }

    /// Puts an event into the queue of the instance. A watch of one shot, or whose inode is gone
    /// (`is_end`), ends with it. Returns true if the watch ended.
    fn deliver(&self, mask: u32, cookie: u32, name: &[u8], is_end: bool) -> bool {
        let Some(instance) = self.instance.upgrade() else { return false };
        let mut state = instance.state.lock();
        if !state.watches.contains_key(&self.number) {
            return false;
        }
        let kept = self.mask.load(Relaxed);
        let is_wanted = mask & (kept | IN_UNMOUNT) & !IN_ISDIR != 0;
        let mut comes = false;
        if is_wanted {
            // The events of a directory about itself do not say that it is one.
            let mask = if mask & (IN_DELETE_SELF | IN_MOVE_SELF) != 0 { mask & !IN_ISDIR } else { mask };
            comes = state.queue.push(&Event { watch: self.number, mask, cookie, name });
        }
        let ends = is_end || is_wanted && kept & IN_ONESHOT != 0;
        let ended = if ends { state.end(self.number) } else { None };
        drop(state);
        if comes || ends {
            instance.arrived.wake_all();
        }
        drop(ended);
        ends
    }
}

impl Watches {
    /// Notes the events that the watches of the list want.
    fn collect_wanted(&self, list: &[Arc<Watch>]) {
        let all = list.iter().fold(0, |all, watch| all | watch.mask.load(Relaxed));
        self.wanted.store(all & IN_ALL_EVENTS, Relaxed);
    }

    /// Returns true if a watch wants one of these events.
    pub fn wants(&self, events: u32) -> bool {
        self.wanted.load(Relaxed) & events != 0
    }

    /// Reports an event. `name`: the name of the file that it is about, in this directory; empty if
    /// it is about this inode. `is_unlinked`: the file no longer has a name.
    pub fn report(&self, mask: u32, cookie: u32, name: &[u8], is_unlinked: bool) {
        if !self.wants(mask) {
            return;
        }
        let mut serial = 0;
        loop {
            let list = self.list.lock();
            let from = list.partition_point(|watch| watch.serial <= serial);
            let wants = |watch: &&Arc<Watch>| {
                let kept = watch.mask.load(Relaxed);
                kept & mask & IN_ALL_EVENTS != 0 && !(is_unlinked && kept & IN_EXCL_UNLINK != 0)
            };
            let Some(watch) = list[from..].iter().find(wants).cloned() else { return };
            drop(list);
            serial = watch.serial;
            if watch.deliver(mask, cookie, name, false) {
                watch.leave();
            }
        }
    }

    /// Ends all watches with the event `mask`: `IN_DELETE_SELF` or `IN_UNMOUNT`. The caller drops
    /// the inode.
    pub fn end(&self, mask: u32) {
        let list = core::mem::take(&mut *self.list.lock());
        for watch in list {
            watch.deliver(mask, 0, &[], true);
        }
    }

    /// Notes the directory and the name that the inode was moved to.
    pub(super) fn set_place(&self, directory: &Arc<Watches>, name: &[u8]) {
        let mut copy = Vec::new();
        // Without memory, events have the name of before.
        if copy.try_reserve_exact(name.len()).is_ok() {
            copy.extend_from_slice(name);
            *self.place.lock() = Some((Arc::downgrade(directory), copy.into()));
        }
    }

    /// Returns the directory and the name that the inode was last moved to.
    pub(super) fn place(&self) -> Option<(Arc<Watches>, Arc<[u8]>)> {
        let (directory, name) = self.place.lock().clone()?;
        Some((directory.upgrade()?, name))
    }
}
