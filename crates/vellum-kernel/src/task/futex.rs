//! Futexes: threads that wait for a word of their memory to change.
//!
//! A thread that waits looks at the word under the lock under which others wake; so a wake that
//! follows a change is never missed. A wake that has been counted is never lost either: under the
//! same lock a thread that gives up finds that it was woken.

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

static LINES: Mutex<BTreeMap<Key, VecDeque<Arc<Waiter>>>> = Mutex::new(BTreeMap::new());

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
            lines.entry(key).or_default().push_back(waiter.clone());
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

/// Wakes up to `most` of those who wait for one of `bits`; how many there were.
pub fn wake(key: Key, most: u32, bits: u32) -> u32 {
    let mut woken = VecDeque::new();
    {
        let mut lines = LINES.lock();
        let Some(line) = lines.get_mut(&key) else { return 0 };
        line.retain(|waiter| {
            let wake = woken.len() < most as usize && waiter.bits & bits != 0;
            if wake {
                waiter.woken.store(true, Ordering::Release);
                woken.push_back(waiter.clone());
            }
            !wake
        });
        if line.is_empty() {
            lines.remove(&key);
        }
    }
    woken.iter().for_each(|waiter| waiter.changed.wake_all());
    woken.len() as u32
}

/// Moves up to `most` of those who wait at `from` to the end of the line at `to`; how many there were.
pub fn requeue(from: Key, to: Key, most: u32) -> u32 {
    if from == to {
        return 0;
    }
    let mut lines = LINES.lock();
    let Some(mut line) = lines.remove(&from) else { return 0 };
    let stay = line.split_off(line.len().min(most as usize));
    if !stay.is_empty() {
        lines.insert(from, stay);
    }
    let moved = line.len() as u32;
    for waiter in &line {
        *waiter.key.lock() = to;
    }
    lines.entry(to).or_default().append(&mut line);
    moved
}
