//! Futexes: threads that wait for a word of their memory to change.
//!
//! Who waits looks at the word under the lock under which others wake; so a wake that follows a change is never missed.

use crate::mem::{UserSpace, uaccess};
use crate::task::Thread;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Poll, Waker};
use spin::Mutex;
use vellum_kernel::errno::Errno;

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
    woken: AtomicBool,
    waker: Mutex<Option<Waker>>,
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
    let mut places = Vec::new();
    places.try_reserve_exact(watched.len())?;
    for one in watched {
        let key = Mutex::new(key(&memory, one.address)?);
        // A fault on the word may take long: have it done before the lock.
        word(&memory, one.address)?;
        let (woken, waker) = (AtomicBool::new(false), Mutex::new(None));
        places.push(Place(Arc::new(Waiter { bits: one.bits, woken, waker, key })));
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
    let woken = poll_fn(|context| {
        for place in &places {
            *place.0.waker.lock() = Some(context.waker().clone());
        }
        match places.iter().position(|place| place.0.woken.load(Ordering::Acquire)) {
            Some(index) => Poll::Ready(index),
            None => Poll::Pending,
        }
    });
    thread.interruptible(woken, deadline).await
}

/// A place in line, left when it is dropped.
struct Place(Arc<Waiter>);

impl Drop for Place {
    fn drop(&mut self) {
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

/// Wakes up to `most` of those who wait for one of `bits`; how many there were.
pub fn wake(key: Key, most: u32, bits: u32) -> u32 {
    let mut woken = VecDeque::new();
    {
        let mut lines = LINES.lock();
        let Some(line) = lines.get_mut(&key) else { return 0 };
        line.retain(|waiter| {
            let wake = woken.len() < most as usize && waiter.bits & bits != 0;
            if wake {
                woken.push_back(waiter.clone());
            }
            !wake
        });
        if line.is_empty() {
            lines.remove(&key);
        }
    }
    for waiter in &woken {
        waiter.woken.store(true, Ordering::Release);
        let waker = waiter.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
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
