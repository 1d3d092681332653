//! Sets of files that a program waits on (`epoll`).
//!
//! A set watches the wait queue of each of its files. A wake lists the file as one that may
//! have an event, and wakes the tasks that wait on the set; these look only at the files that are
//! listed (Linux: `rdllist`), the first first. A file that is level-triggered is listed again, as
//! the last, as long as it has an event; one that is edge-triggered (`EPOLLET`) by the next wake.
//!
//! A set is a file itself: a program can poll it, or add it to another set.

use crate::errno::Errno;
use crate::fs::inode::File;
use crate::fs::open::Open;
use crate::wait::Queue;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::task::Wake;
use alloc::vec::Vec;
use core::any::Any;
use core::future::poll_fn;
use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use core::task::Poll;
use linux_raw_sys::general::{
    EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, EPOLLWAKEUP, POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDNORM,
};
use spin::Mutex;

/// The largest number of sets that may contain each other in a row (Linux: `EP_MAX_NESTS`).
const MAX_DEPTH: u32 = 4;

/// The flags of an entry that are no events.
const FLAGS: u32 = EPOLLET | EPOLLEXCLUSIVE | EPOLLONESHOT | EPOLLWAKEUP;

/// The events that are reported whether or not the program wants them.
const ALWAYS: u32 = POLLERR | POLLHUP;

/// The flags and events that an exclusive entry may have (Linux: `EPOLLEXCLUSIVE_OK_BITS`).
const WITH_EXCLUSIVE: u32 = FLAGS & !EPOLLONESHOT | POLLIN | POLLOUT | ALWAYS;

/// The events that a program asks for, or that the kernel reports (`epoll_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEvent {
    /// The events, `POLLIN` and others, and the flags of the entry.
    pub events: u32,
    /// The program's own value.
    pub data: u64,
}

impl EpollEvent {
    fn with_errors(self) -> Self {
        EpollEvent { events: self.events | ALWAYS, ..self }
    }
}

/// A set of files.
pub struct Epoll {
    this: Weak<Epoll>,
    state: Mutex<State>,
    wakes: Arc<Wakes>,
    /// The largest number of sets in a row that have contained this one. [`NESTING`] protects it.
    above: AtomicU32,
}

/// A set's part that a file's wake changes. Entries share it with the set, so that a wake can't
/// drop the set, which would lock the file's queue again.
struct Wakes {
    listed: Mutex<Listed>,
    /// The tasks that wait on the set.
    waiting: Queue,
}

/// An event that [`Epoll::wait`] took out of a set.
#[derive(Clone, Copy, Debug)]
pub struct TakenEvent {
    key: Key,
    /// The entry as it was.
    wanted: EpollEvent,
    /// The event.
    pub event: EpollEvent,
}

struct State {
    /// The entries, by the number of the descriptor and the address of the open file description:
    /// the descriptor may be another file's by now.
    entries: BTreeMap<Key, Member>,
    /// The number of entries at which those of closed files are looked for.
    look_at: usize,
}

/// The smallest number of entries at which those of closed files are looked for.
const FEW: usize = 8;

type Key = (u32, usize);

/// An entry that watches the wait queue of its file.
struct Member {
    entry: Arc<Entry>,
    /// The number of the watcher in the file's queue.
    number: u64,
}

/// A file of a set, which the file's wait queue refers to.
struct Entry {
    key: Key,
    set: Arc<Wakes>,
    /// The file. It leaves the set when its last descriptor is closed.
    open: Weak<Open>,
    /// The opened file, which other open file descriptions may have as well.
    file: Weak<dyn File>,
    /// The events and the data that the program wants. [`Epoll::state`] protects them.
    events: AtomicU32,
    data: AtomicU64,
    /// One of the constants below; [`Wakes::listed`] protects it.
    place: AtomicU8,
}

/// The files that may have events, each once, in the order in which they are looked at. There is
/// room for all entries of the set. It is locked after [`Epoll::state`] and after a file's queue.
#[derive(Default)]
struct Listed(VecDeque<Arc<Entry>>);

/// The place of an entry that is not listed.
const UNLISTED: u8 = 0;
/// The place of an entry that is listed.
const LISTED: u8 = 1;
/// The place of an entry that has left the set.
const GONE: u8 = 2;

impl Listed {
    /// Lists an entry as the last, unless it is listed or gone. Returns whether it was not listed.
    fn add(&mut self, entry: &Arc<Entry>) -> bool {
        let adds = entry.place.load(Relaxed) == UNLISTED;
        if adds {
            entry.place.store(LISTED, Relaxed);
            self.0.push_back(entry.clone());
        }
        adds
    }

    /// Removes an entry that leaves the set.
    fn forget(&mut self, entry: &Arc<Entry>) {
        // Mostly an entry leaves that was listed or looked at last.
        if entry.place.swap(GONE, Relaxed) == LISTED
            && let Some(at) = self.0.iter().rposition(|other| Arc::ptr_eq(other, entry))
        {
            self.0.remove(at);
        }
    }

    /// Takes the first entry off the list.
    fn take_first(&mut self) -> Option<Arc<Entry>> {
        let entry = self.0.pop_front()?;
        entry.place.store(UNLISTED, Relaxed);
        Some(entry)
    }
}

impl Wakes {
    /// Lists an entry, and wakes the waiting tasks if it was not listed.
    fn list(&self, entry: &Arc<Entry>) {
        let adds = self.listed.lock().add(entry);
        if adds {
            self.waiting.wake_all();
        }
    }
}

impl Wake for Entry {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.set.list(self);
    }
}

impl Entry {
    fn wanted(&self) -> EpollEvent {
        EpollEvent { events: self.events.load(Relaxed), data: self.data.load(Relaxed) }
    }

    fn want(&self, wanted: EpollEvent) {
        self.events.store(wanted.events, Relaxed);
        self.data.store(wanted.data, Relaxed);
    }

    /// Returns the wanted events of the file, or `None` if it is closed.
    fn ready(&self) -> Option<u32> {
        Some(self.open.upgrade()?.ready() & self.events.load(Relaxed) & !FLAGS)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(file) = self.entry.file.upgrade()
            && let Some(queue) = file.queue()
        {
            queue.unwatch(self.number);
        }
    }
}

/// Returns the set that a file is, or `None` if it is no set.
pub fn epoll_of(open: &Open) -> Option<Arc<Epoll>> {
    open.file().ok()?.as_any().downcast_ref::<Epoll>()?.this.upgrade()
}

fn key(fd: u32, open: &Arc<Open>) -> Key {
    (fd, Arc::as_ptr(open).addr())
}

/// Keeps two sets from being added to each other at once.
static NESTING: Mutex<()> = Mutex::new(());

impl Epoll {
    /// Creates an empty set.
    pub fn new() -> Arc<Epoll> {
        Arc::new_cyclic(|this| Epoll {
            this: this.clone(),
            state: Mutex::new(State { entries: BTreeMap::new(), look_at: FEW }),
            wakes: Arc::new(Wakes { listed: Mutex::default(), waiting: Queue::new() }),
            above: AtomicU32::new(0),
        })
    }

    /// Adds a file to the set (`EPOLL_CTL_ADD`).
    ///
    /// # Errors
    /// `EEXIST`: it is in the set. `EPERM`: it has no events. `EINVAL`: it is this set, or the
    /// flags exclude each other. `ELOOP`: sets would contain each other, or too many in a row.
    pub fn add(&self, fd: u32, open: &Arc<Open>, wanted: EpollEvent) -> Result<(), Errno> {
        let file = open.file().map_err(|_| Errno::EPERM)?;
        let queue = file.queue().ok_or(Errno::EPERM)?;
        let inner = epoll_of(open);
        if wanted.events & EPOLLEXCLUSIVE != 0 && (wanted.events & !WITH_EXCLUSIVE != 0 || inner.is_some()) {
            return Err(Errno::EINVAL);
        }
        let _nesting = inner.as_ref().map(|_| NESTING.lock());
        if let Some(inner) = &inner {
            if ptr::eq(&**inner, self) {
                return Err(Errno::EINVAL);
            }
            if inner.contains(self, MAX_DEPTH.saturating_sub(self.above.load(Relaxed))) {
                return Err(Errno::ELOOP);
            }
        }
        let key = key(fd, open);
        let mut state = self.state.lock();
        self.forget_closed(&mut state);
        if state.entries.contains_key(&key) {
            return Err(Errno::EEXIST);
        }
        let wanted = wanted.with_errors();
        let entry = Arc::new(Entry {
            key,
            set: self.wakes.clone(),
            open: Arc::downgrade(open),
            file: Arc::downgrade(file),
            events: AtomicU32::new(wanted.events),
            data: AtomicU64::new(wanted.data),
            place: AtomicU8::new(UNLISTED),
        });
        let mut listed = self.wakes.listed.lock();
        let free = state.entries.len() + 1 - listed.0.len();
        listed.0.try_reserve(free)?;
        drop(listed);
        let number = queue.watch(entry.clone().into())?;
        state.entries.insert(key, Member { entry: entry.clone(), number });
        drop(state);
        if let Some(inner) = &inner {
            inner.move_below(self.above.load(Relaxed) + 1);
        }
        // Only now, so that no event is lost that came before the watcher.
        self.wakes.list(&entry);
        Ok(())
    }

    /// Notes that `above` sets in a row contain this one.
    fn move_below(&self, above: u32) {
        self.above.fetch_max(above, Relaxed);
        let inner = |member: &Member| epoll_of(&*member.entry.open.upgrade()?);
        self.state.lock().entries.values().filter_map(inner).for_each(|inner| inner.move_below(above + 1));
    }

    /// Returns whether this set contains `other`, itself or in another set, or sets nest deeper
    /// than `depth`.
    fn contains(&self, other: &Epoll, depth: u32) -> bool {
        let is_or_contains = |inner: Arc<Epoll>| ptr::eq(&*inner, other) || inner.contains(other, depth - 1);
        let inner = |member: &Member| epoll_of(&*member.entry.open.upgrade()?);
        depth == 0 || self.state.lock().entries.values().filter_map(inner).any(is_or_contains)
    }

    /// Changes what the program wants to know of a file (`EPOLL_CTL_MOD`).
    ///
    /// # Errors
    /// `ENOENT`: it is not in the set. `EINVAL`: the entry is exclusive, or would be.
    pub fn modify(&self, fd: u32, open: &Arc<Open>, wanted: EpollEvent) -> Result<(), Errno> {
        let state = self.state.lock();
        let Member { entry, .. } = state.entries.get(&key(fd, open)).ok_or(Errno::ENOENT)?;
        if (wanted.events | entry.events.load(Relaxed)) & EPOLLEXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        entry.want(wanted.with_errors());
        self.wakes.list(entry);
        Ok(())
    }

    /// Removes a file from the set (`EPOLL_CTL_DEL`).
    ///
    /// # Errors
    /// `ENOENT`: it is not in the set.
    pub fn remove(&self, fd: u32, open: &Arc<Open>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let removed = state.entries.remove(&key(fd, open)).ok_or(Errno::ENOENT)?;
        self.wakes.listed.lock().forget(&removed.entry);
        Ok(())
    }

    /// Removes the entries of closed files, if there are twice as many entries as after the last
    /// time: so an entry is looked at once for each that is added, or twice.
    fn forget_closed(&self, state: &mut State) {
        if state.entries.len() < state.look_at {
            return;
        }
        state.entries.retain(|_, Member { entry, .. }| {
            let stays = entry.open.strong_count() > 0;
            if !stays {
                self.wakes.listed.lock().forget(entry);
            }
            stays
        });
        state.look_at = FEW.max(2 * state.entries.len());
    }

    /// Takes the first entry off the list, and calls `f` with it and the wanted events that its
    /// file has, if any. The entry is listed again if `f` returns true. Returns `None` if the list
    /// is empty.
    fn look_at_first(&self, state: &mut State, f: impl FnOnce(&Entry, u32) -> bool) -> Option<()> {
        let entry = self.wakes.listed.lock().take_first()?;
        match entry.ready() {
            None => {
                self.wakes.listed.lock().forget(&entry);
                state.entries.remove(&entry.key);
            }
            Some(0) => {}
            Some(events) => {
                if f(&entry, events) {
                    self.wakes.listed.lock().add(&entry);
                }
            }
        }
        Some(())
    }

    /// Adds the events of at most `most` files to `found`. A file that keeps its event is listed
    /// again behind all others, so that each has its turn.
    fn take(&self, most: usize, found: &mut Vec<TakenEvent>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let listed = self.wakes.listed.lock().0.len();
        found.try_reserve(most.min(listed))?;
        for _ in 0..listed {
            if found.len() == most {
                break;
            }
            self.look_at_first(&mut state, |entry, events| {
                let wanted = entry.wanted();
                let event = EpollEvent { events, data: wanted.data };
                found.push(TakenEvent { key: entry.key, wanted, event });
                let once = wanted.events & EPOLLONESHOT != 0;
                if once {
                    entry.events.store(wanted.events & FLAGS, Relaxed);
                }
                !once && wanted.events & EPOLLET == 0
            });
        }
        Ok(())
    }

    /// Waits until a file of the set has an event. Returns at most `most` events, which must be at
    /// least 1. A caller that can't pass them on puts them back ([`Epoll::put_back`]).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub async fn wait(&self, most: usize) -> Result<Vec<TakenEvent>, Errno> {
        let mut found = Vec::new();
        self.take(most, &mut found)?;
        if !found.is_empty() {
            return Ok(found);
        }
        let mut waiter = self.wakes.waiting.waiter();
        poll_fn(|context| {
            waiter.enqueue(context.waker());
            match self.take(most, &mut found) {
                Err(error) => Poll::Ready(Err(error)),
                Ok(()) if found.is_empty() => Poll::Pending,
                Ok(()) => Poll::Ready(Ok(())),
            }
        })
        .await?;
        waiter.dequeue();
        Ok(found)
    }

    /// Puts events back into the set, so that the next wait reports them if they are still there.
    pub fn put_back(&self, taken: &[TakenEvent]) {
        let state = self.state.lock();
        for taken in taken {
            if let Some(Member { entry, .. }) = state.entries.get(&taken.key) {
                let events = entry.events.load(Relaxed);
                if taken.wanted.events & EPOLLONESHOT != 0 && events & !FLAGS == 0 {
                    entry.want(taken.wanted);
                }
                self.wakes.list(entry);
            }
        }
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // First the watchers, so that no wake lists an entry again. Listed entries share the list.
        self.state.get_mut().entries.clear();
        self.wakes.listed.lock().0.clear();
    }
}

impl File for Epoll {
    fn ignores_seeks(&self) -> bool {
        true
    }

    fn ready(&self) -> u32 {
        let mut state = self.state.lock();
        let mut has_event = false;
        let listed = self.wakes.listed.lock().0.len();
        for _ in 0..listed {
            self.look_at_first(&mut state, |_, _| {
                has_event = true;
                true
            });
            if has_event {
                return POLLIN | POLLRDNORM;
            }
        }
        0
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.wakes.waiting)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::device;
    use crate::fs::event::Event;
    use crate::fs::pipe::{AnonymousPipe, NewPipe};
    use crate::testing::Count;
    use core::future::Future;
    use core::pin::pin;
    use core::task::Context;
    use std::vec;

    const IN: u32 = POLLIN;

    fn event(count: u32) -> Arc<Open> {
        device::open(Arc::new(Event::new(count, false)), 0)
    }

    fn write(open: &Open) {
        open.file().unwrap().write(0, &mut &1u64.to_le_bytes()[..]).unwrap();
    }

    fn read(open: &Open) {
        open.file().unwrap().read(0, &mut &mut [0; 8][..]).unwrap();
    }

    fn wanted(events: u32, data: u64) -> EpollEvent {
        EpollEvent { events, data }
    }

    /// Returns the events that are there now.
    fn now(set: &Epoll, most: usize) -> Vec<EpollEvent> {
        let (_, waker) = Count::new();
        match pin!(set.wait(most)).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(found) => found.unwrap().iter().map(|taken| taken.event).collect(),
            Poll::Pending => Vec::new(),
        }
    }

    #[test]
    fn an_event_is_reported_as_long_as_it_lasts_or_once() {
        let (set, level, edge, once) = (Epoll::new(), event(1), event(1), event(1));
        set.add(3, &level, wanted(IN, 30)).unwrap();
        set.add(4, &edge, wanted(IN | EPOLLET, 40)).unwrap();
        set.add(5, &once, wanted(IN | EPOLLONESHOT, 50)).unwrap();
        assert_eq!(now(&set, 9), [wanted(IN, 30), wanted(IN, 40), wanted(IN, 50)]);
        assert_eq!(now(&set, 9), [wanted(IN, 30)]);
        read(&level);
        assert_eq!(now(&set, 9), []);
        [&edge, &once].into_iter().for_each(|open| write(open));
        assert_eq!(now(&set, 9), [wanted(IN, 40)]);
        set.modify(5, &once, wanted(IN, 51)).unwrap();
        assert_eq!(now(&set, 9), [wanted(IN, 51)]);
    }

    #[test]
    fn a_wait_ends_with_an_event_and_with_a_file_that_has_one() {
        let (set, first, second) = (Epoll::new(), event(0), event(1));
        set.add(3, &first, wanted(IN, 1)).unwrap();
        let (woken, waker) = Count::new();
        let check = |act: &dyn Fn(), data| {
            let mut wait = pin!(set.wait(9));
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let before = woken.woken();
            act();
            assert!(woken.woken() > before);
            let found = wait.as_mut().poll(&mut Context::from_waker(&waker));
            let Poll::Ready(Ok(found)) = found else { panic!("the wait goes on") };
            assert_eq!((found.len(), found[0].event), (1, wanted(IN, data)));
        };
        check(&|| write(&first), 1);
        read(&first);
        check(&|| set.add(4, &second, wanted(IN, 2)).unwrap(), 2);
    }

    #[test]
    fn events_that_are_put_back_are_reported_again() {
        let (set, edge, once, gone) = (Epoll::new(), event(1), event(1), event(1));
        for (fd, (open, flag)) in (0..).zip([(&edge, EPOLLET), (&once, EPOLLONESHOT), (&gone, 0)]) {
            set.add(fd, open, wanted(IN | flag, fd.into())).unwrap();
        }
        let taken = crate::testing::block_on(set.wait(9)).unwrap();
        assert_eq!(taken.len(), 3);
        drop(gone);
        set.put_back(&taken);
        assert_eq!(now(&set, 9), [wanted(IN, 0), wanted(IN, 1)]);
        assert_eq!(now(&set, 9), []);
    }

    #[test]
    fn files_take_turns() {
        let (set, files) = (Epoll::new(), [(); 5].map(|()| event(1)));
        (0..).zip(&files).for_each(|(fd, open)| set.add(fd, open, wanted(IN, fd.into())).unwrap());
        let turns: Vec<u64> = (0..5).flat_map(|_| now(&set, 2)).map(|event| event.data).collect();
        assert_eq!(turns, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_file_leaves_with_its_last_descriptor() {
        let (set, open) = (Epoll::new(), event(1));
        set.add(3, &open, wanted(IN, 1)).unwrap();
        assert_eq!(set.add(3, &open, wanted(IN, 1)), Err(Errno::EEXIST));
        assert_eq!(now(&set, 1).len(), 1);
        let file = open.file().unwrap().clone();
        drop(open);
        assert_eq!(now(&set, 1), []);
        assert_eq!(file.queue().unwrap().waiting(), 0, "no waker is left");
        let again = event(1);
        assert_eq!(set.modify(3, &again, wanted(IN, 1)), Err(Errno::ENOENT));
        set.add(3, &again, wanted(IN, 2)).unwrap();
        assert_eq!(now(&set, 1), [wanted(IN, 2)]);
        set.remove(3, &again).unwrap();
        assert_eq!((now(&set, 1), set.remove(3, &again)), (vec![], Err(Errno::ENOENT)));
    }

    #[test]
    fn a_dropped_set_leaves_nothing_behind() {
        let (set, open) = (Epoll::new(), event(1));
        set.add(3, &open, wanted(IN, 1)).unwrap();
        assert_eq!(now(&set, 1).len(), 1, "and it is listed again");
        let wakes = Arc::downgrade(&set.wakes);
        drop(set);
        assert_eq!((wakes.strong_count(), open.file().unwrap().queue().unwrap().waiting()), (0, 0));
    }

    #[test]
    fn a_hangup_is_reported_whether_it_is_wanted_or_not() {
        let NewPipe { inode, reader, writer } = AnonymousPipe::create(1, (0, 0), Default::default()).unwrap();
        let (set, open) = (Epoll::new(), Arc::new(Open::new(inode, Some(reader), 0, None)));
        set.add(3, &open, wanted(0, 1)).unwrap();
        writer.write(0, &mut &b"x"[..]).unwrap();
        assert_eq!(now(&set, 1), []);
        drop(writer);
        assert_eq!(now(&set, 1), [wanted(POLLHUP, 1)]);
    }

    #[test]
    fn sets_nest_but_not_in_circles() {
        let sets = [(); 7].map(|()| Epoll::new());
        let opens = sets.clone().map(|set| device::open(set, 0));
        assert_eq!(sets[0].add(0, &opens[0], wanted(IN, 0)), Err(Errno::EINVAL));
        let open = event(0);
        sets[0].add(9, &open, wanted(IN, 9)).unwrap();
        for n in 1..5 {
            sets[n].add(0, &opens[n - 1], wanted(IN, 0)).unwrap();
        }
        assert_eq!(sets[0].add(1, &opens[4], wanted(IN, 0)), Err(Errno::ELOOP));
        assert_eq!(sets[5].add(1, &opens[4], wanted(IN, 0)), Err(Errno::ELOOP));
        assert_eq!(now(&sets[4], 1), []);
        write(&open);
        assert_eq!((now(&sets[4], 1), sets[4].ready()), (vec![wanted(IN, 0)], POLLIN | POLLRDNORM));
        read(&open);
        assert_eq!(now(&sets[4], 1), []);
        // From the outermost set inward.
        let sets = [(); 7].map(|()| Epoll::new());
        let opens = sets.clone().map(|set| device::open(set, 0));
        for n in 0..4 {
            sets[n].add(0, &opens[n + 1], wanted(IN, 0)).unwrap();
        }
        assert_eq!(sets[4].add(0, &opens[5], wanted(IN, 0)), Err(Errno::ELOOP));
        let null = device::open(Arc::new(device::Null), 0);
        assert_eq!(sets[6].add(1, &null, wanted(IN, 0)), Err(Errno::EPERM));
    }
}
