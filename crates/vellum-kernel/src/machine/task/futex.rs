//! Futexes: threads that wait for a word of their memory to change.
//!
//! A thread that waits looks at the word under the lock under which others wake; so a wake that
//! follows a change is never missed. A wake that has been counted is never lost either: under the
//! same lock a thread that gives up finds that it was woken.

use crate::mem::payer::Shared;
use crate::mem::{UserSpace, uaccess};
use crate::task::Thread;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use spin::Mutex;
use vellum_kernel::errno::Errno;
use vellum_kernel::wait::Queue;

/// What a futex is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Whose memory, and where in it.
    Private(usize, u64),
    /// Which object, and where in it: all who share the memory find the same.
    Shared(u64, u64),
}

struct Waiter {
    bits: u32,
    /// Set under the lock of the lines, as the waiter leaves its line.
    woken: AtomicBool,
    /// The thread's, which may have other places.
    changed: Arc<Queue>,
    /// Where it stands in line: a requeue moves it.
    key: Mutex<Key>,
}

static LINES: Shared<BTreeMap<Key, VecDeque<Arc<Waiter>>>> = Shared::new(BTreeMap::new());

/// The key of a word.
pub fn key(memory: &Arc<UserSpace>, address: u64) -> Result<Key, Errno> {
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    Ok(match memory.engine.shared_key(address) {
        Some(shared) => Key::Shared(shared.object, shared.offset),
        None => Key::Private(Arc::as_ptr(memory).addr(), address),
    })
}

/// The word at an address.
pub fn word(memory: &Arc<UserSpace>, address: u64) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    uaccess::read(memory, address, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// A word that a thread waits at.
#[derive(Clone, Copy)]
pub struct Watched {
    /// Where it is.
    pub address: u64,
    /// What it must be for the thread to wait.
    pub expected: u32,
    /// For which wakes: those of one of these bits.
    pub bits: u32,
}

/// Waits, if each word is as expected, until somebody wakes one who waits at one of them: at which.
///
/// # Errors
///
/// `EAGAIN`: a word is another. `EINTR`: a signal came. `ETIMEDOUT`: the deadline passed. `EFAULT`, `ENOMEM`.
pub async fn wait(thread: &Thread, watched: &[Watched], deadline: Option<u64>) -> Result<usize, Errno> {
    let memory = thread.memory();
    let changed = Arc::new(Queue::new());
    let mut places = Vec::new();
    places.try_reserve_exact(watched.len())?;
    for one in watched {
        let key = Mutex::new(key(&memory, one.address)?);
        // A fault on the word may take long: have it done before the lock.
        word(&memory, one.address)?;
        places.push(Place(Arc::new(Waiter {
            bits: one.bits,
            woken: AtomicBool::new(false),
            changed: changed.clone(),
            key,
        })));
    }
    {
        let mut lines = LINES.lock();
        for one in watched {
            if word(&memory, one.address)? != one.expected {
                return Err(Errno::EAGAIN);
            }
        }
        for Place(waiter) in &places {
            let key = *waiter.key.lock();
            let line = lines.entry(key).or_default();
            line.try_reserve(1)?;
            line.push_back(waiter.clone());
        }
    }
    let woken = || places.iter().position(|place| place.0.woken.load(Ordering::Acquire));
    let waited = thread.interruptible(changed.wait_until(woken), deadline).await;
    waited.or_else(|error| {
        places.iter().for_each(Place::leave);
        woken().ok_or(error)
    })
}

/// A place in line, left when it is dropped.
struct Place(Arc<Waiter>);

impl Place {
    /// Leaves the line: from now on nothing wakes it.
    fn leave(&self) {
        let mut lines = LINES.lock();
        let key = *self.0.key.lock();
        if let Some(line) = lines.get_mut(&key) {
            line.retain(|other| !Arc::ptr_eq(other, &self.0));
            if line.is_empty() {
                lines.remove(&key);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// How many are woken for each time that the lines are locked.
const AT_ONCE: usize = 32;

/// Wakes up to `most` of those who wait for one of `bits`; how many there were.
pub fn wake(key: Key, most: u32, bits: u32) -> u32 {
    let mut left = most;
    // Those that come meanwhile are not for this call, however many it may wake.
    let mut there = usize::MAX;
    loop {
        let mut woken = [const { None }; AT_ONCE];
        let mut free = woken.iter_mut();
        {
            let mut lines = LINES.lock();
            let Some(line) = lines.get_mut(&key) else { break };
            let mut seen = 0;
            there = there.min(line.len());
            line.retain(|waiter: &Arc<Waiter>| {
                seen += 1;
                let wake = seen <= there && left > 0 && waiter.bits & bits != 0;
                let Some(place) = wake.then(|| free.next()).flatten() else { return true };
                waiter.woken.store(true, Ordering::Release);
                *place = Some(waiter.clone());
                left -= 1;
                false
            });
            if line.is_empty() {
                lines.remove(&key);
            }
        }
        let is_last = free.len() > 0;
        let count = woken.iter().flatten().inspect(|waiter| waiter.changed.wake_all()).count();
        there -= count;
        if is_last || left == 0 {
            break;
        }
    }
    most - left
}

/// Moves up to `most` of those who wait at `from` to the end of the line at `to`; how many there were.
///
/// # Errors
///
/// `ENOMEM`: none was moved.
pub fn requeue(from: Key, to: Key, most: u32) -> Result<u32, Errno> {
    if from == to {
        return Ok(0);
    }
    let mut lines = LINES.lock();
    let count = lines.get(&from).map_or(0, |line| line.len().min(most as usize));
    if count == 0 {
        return Ok(0);
    }
    let mut target = lines.remove(&to).unwrap_or_default();
    let has_room = target.try_reserve(count);
    if let (Ok(()), Some(line)) = (&has_room, lines.get_mut(&from)) {
        target.extend(line.drain(..count).inspect(|waiter| *waiter.key.lock() = to));
        if line.is_empty() {
            lines.remove(&from);
        }
    }
    if !target.is_empty() {
        lines.insert(to, target);
    }
    has_room.map(|()| count as u32).map_err(Errno::from)
}
