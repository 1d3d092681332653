//! Futexes: threads wait for a word of their memory to change.
//!
//! A waiter checks the word under the lock of the wait queues, which a waker takes too, so that a
//! wake after a change is never missed. A waiter that gives up takes itself off its queue under the
//! same lock and then checks whether it was woken, so no waiter that a waker counted returns an
//! error.

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

/// The identity of a futex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A word in private memory: the address of the `UserSpace`, and the word's address.
    Private(usize, u64),
    /// A word in shared memory: the page-cache object's number, and the offset in it. All spaces
    /// that map the object get the same key.
    Shared(u64, u64),
}

struct Waiter {
    bits: u32,
    /// Set under the lock of the wait queues, when the waiter is taken off its queue.
    woken: AtomicBool,
    /// Notified when any waiter of the same system call is woken.
    changed: Arc<Queue>,
    /// The futex on whose queue it is; a requeue changes it.
    key: Mutex<Key>,
}

static QUEUES: Shared<BTreeMap<Key, VecDeque<Arc<Waiter>>>> = Shared::new(BTreeMap::new());

/// Returns the key of the word at `address`.
///
/// # Errors
///
/// `EINVAL`: the address is not aligned.
pub fn key(memory: &Arc<UserSpace>, address: u64) -> Result<Key, Errno> {
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    Ok(match memory.engine.shared_key(address) {
        Some(shared) => Key::Shared(shared.object, shared.offset),
        None => Key::Private(Arc::as_ptr(memory).addr(), address),
    })
}

/// Reads the word at `address`.
///
/// # Errors
///
/// `EFAULT`.
pub fn word(memory: &Arc<UserSpace>, address: u64) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    uaccess::read(memory, address, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// A futex that a thread waits on.
#[derive(Clone, Copy)]
pub struct FutexWait {
    /// The word's address.
    pub address: u64,
    /// The value that the word must have for the thread to wait.
    pub expected: u32,
    /// The bit set that a wake must intersect (`FUTEX_WAIT_BITSET`).
    pub bits: u32,
}

/// Waits, if each word has its expected value, until a waker wakes one of the futexes. Returns the
/// index of the one that was woken.
///
/// # Errors
///
/// `EAGAIN`: a word has another value. `EINTR`: a signal arrived. `ETIMEDOUT`: the deadline passed.
/// `EFAULT`, `ENOMEM`.
pub async fn wait(thread: &Thread, watched: &[FutexWait], deadline: Option<u64>) -> Result<usize, Errno> {
    let memory = thread.memory();
    let changed = Arc::new(Queue::new());
    let mut places = Vec::new();
    places.try_reserve_exact(watched.len())?;
    for one in watched {
        let key = Mutex::new(key(&memory, one.address)?);
        // A fault on the word may take long: resolve it before taking the lock.
        word(&memory, one.address)?;
        places.push(QueuedWaiter(Arc::new(Waiter {
            bits: one.bits,
            woken: AtomicBool::new(false),
            changed: changed.clone(),
            key,
        })));
    }
    {
        let mut queues = QUEUES.lock();
        for one in watched {
            if word(&memory, one.address)? != one.expected {
                return Err(Errno::EAGAIN);
            }
        }
        for QueuedWaiter(waiter) in &places {
            let key = *waiter.key.lock();
            let queue = queues.entry(key).or_default();
            queue.try_reserve(1)?;
            queue.push_back(waiter.clone());
        }
    }
    let woken = || places.iter().position(|place| place.0.woken.load(Ordering::Acquire));
    let waited = thread.interruptible(changed.wait_until(woken), deadline).await;
    waited.or_else(|error| {
        places.iter().for_each(QueuedWaiter::leave);
        woken().ok_or(error)
    })
}

/// Guard. A waiter on a wait queue, taken off the queue on drop.
struct QueuedWaiter(Arc<Waiter>);

impl QueuedWaiter {
    /// Takes the waiter off its queue, after which it can't be woken.
    fn leave(&self) {
        let mut queues = QUEUES.lock();
        let key = *self.0.key.lock();
        if let Some(queue) = queues.get_mut(&key) {
            queue.retain(|other| !Arc::ptr_eq(other, &self.0));
            if queue.is_empty() {
                queues.remove(&key);
            }
        }
    }
}

impl Drop for QueuedWaiter {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The number of waiters woken for each locking of the queues.
const AT_ONCE: usize = 32;

/// Wakes up to `most` waiters whose bit set intersects `bits`. Returns the number woken.
pub fn wake(key: Key, most: u32, bits: u32) -> u32 {
    let mut left = most;
    // Waiters that arrive after the call began are not woken by it, even below `most`.
    let mut there = usize::MAX;
    loop {
        let mut woken = [const { None }; AT_ONCE];
        let mut free = woken.iter_mut();
        {
            let mut queues = QUEUES.lock();
            let Some(queue) = queues.get_mut(&key) else { break };
            let mut seen = 0;
            there = there.min(queue.len());
            queue.retain(|waiter: &Arc<Waiter>| {
                seen += 1;
                let wake = seen <= there && left > 0 && waiter.bits & bits != 0;
                let Some(place) = wake.then(|| free.next()).flatten() else { return true };
                waiter.woken.store(true, Ordering::Release);
                *place = Some(waiter.clone());
                left -= 1;
                false
            });
            if queue.is_empty() {
                queues.remove(&key);
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

/// Moves up to `most` waiters from the queue of `from` to the end of the queue of `to`. Returns the
/// number moved.
///
/// # Errors
///
/// `ENOMEM`: no waiter was moved.
pub fn requeue(from: Key, to: Key, most: u32) -> Result<u32, Errno> {
    if from == to {
        return Ok(0);
    }
    let mut queues = QUEUES.lock();
    let count = queues.get(&from).map_or(0, |queue| queue.len().min(most as usize));
    if count == 0 {
        return Ok(0);
    }
    let mut target = queues.remove(&to).unwrap_or_default();
    let has_room = target.try_reserve(count);
    if let (Ok(()), Some(queue)) = (&has_room, queues.get_mut(&from)) {
        target.extend(queue.drain(..count).inspect(|waiter| *waiter.key.lock() = to));
        if queue.is_empty() {
            queues.remove(&from);
        }
    }
    if !target.is_empty() {
        queues.insert(to, target);
    }
    has_room.map(|()| count as u32).map_err(Errno::from)
}
