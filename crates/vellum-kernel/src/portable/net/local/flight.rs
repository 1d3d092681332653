//! Sockets in flight: whose descriptors lie in inboxes.
//!
//! A program can send a socket to itself, and close it: nothing but its own inbox refers to it
//! then. Whenever a socket ends, those are found that no program can reach any more (Linux:
//! `unix_gc`). They are among the sockets to which only inboxes refer. Of these, a program can
//! reach one that lies in the inbox of a socket that is not among them, and those that lie in the
//! inbox of a socket that it can reach. What lies in the inboxes of the others is closed.
//!
//! The lock of the sockets in flight is taken before the lock of any socket. Descriptors enter and
//! leave inboxes only under it, so that a search sees all of them at one moment; and only then are
//! the locks of two sockets held, those of one that listens and of one in its backlog.

use super::{Endpoint, Phase, State};
use crate::errno::Errno;
use crate::fs::Open;
use crate::net::rights::Rights;
use crate::net::socket_of;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use hashbrown::HashMap;
use spin::{Mutex, MutexGuard};

/// The sockets in flight, by the addresses of their open file descriptions.
type Sockets = HashMap<usize, InFlight>;

#[derive(Default)]
struct Registry {
    sockets: Sockets,
    /// The number of descriptors in flight that each user has sent.
    users: HashMap<u32, usize>,
}

struct InFlight {
    open: Weak<Open>,
    /// The number of times that it lies in an inbox.
    count: usize,
    /// The number of these times in inboxes of sockets to which only inboxes refer.
    within: usize,
    /// A program can reach it, as far as the search that runs has found out.
    reached: bool,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

/// The lock of the sockets in flight.
pub(super) struct Flight(MutexGuard<'static, Option<Registry>>);

/// Returns the socket of this module that an open file description is.
fn endpoint(open: &Open) -> Option<&Endpoint> {
    socket_of(open).ok()?.transport().as_any().downcast_ref::<Endpoint>()
}

fn key(open: &Arc<Open>) -> usize {
    Arc::as_ptr(open).addr()
}

impl Flight {
    /// Takes the lock.
    pub fn lock() -> Flight {
        Flight(REGISTRY.lock())
    }

    /// Counts the descriptors of a message that is about to be put into an inbox.
    ///
    /// # Errors
    /// `ETOOMANYREFS`: more than `most` descriptors of the sender would be in flight. `ENOMEM`.
    pub fn take_off(&mut self, rights: &Rights) -> Result<(), Errno> {
        let Registry { sockets, users } = self.0.get_or_insert_default();
        let files = rights.files();
        sockets.try_reserve(files.len()).map_err(|_| Errno::ENOMEM)?;
        users.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let sent = users.entry(rights.sender().uid).or_default();
        if rights.sender().most.is_some_and(|most| *sent as u64 > most) {
            return Err(Errno::ETOOMANYREFS);
        }
        *sent += files.len();
        for open in files.iter().filter(|open| endpoint(open).is_some()) {
            let new = || InFlight { open: Arc::downgrade(open), count: 0, within: 0, reached: false };
            sockets.entry(key(open)).or_insert_with(new).count += 1;
        }
        Ok(())
    }

    /// Counts the descriptors of a message that is in no inbox any more.
    pub fn land(&mut self, rights: &Rights) {
        let Some(Registry { sockets, users }) = self.0.as_mut() else { return };
        let uid = rights.sender().uid;
        if let Some(sent) = users.get_mut(&uid) {
            *sent = sent.saturating_sub(rights.files().len());
            if *sent == 0 {
                users.remove(&uid);
            }
        }
        for open in rights.files() {
            let Some(socket) = sockets.get_mut(&key(open)) else { continue };
            socket.count -= 1;
            if socket.count == 0 {
                sockets.remove(&key(open));
            }
        }
    }

    /// Takes the descriptors out of inboxes that no program can reach.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn unreachable(&mut self) -> Result<Vec<Rights>, Errno> {
        let Some(Registry { sockets, .. }) = self.0.as_mut() else { return Ok(Vec::new()) };
        let mut next: Vec<Arc<Open>> = Vec::new();
        next.try_reserve(sockets.len())?;
        // No reference from here is the last one, as each of these sockets lies in an inbox.
        for socket in sockets.values_mut() {
            (socket.within, socket.reached) = (0, socket.open.strong_count() > socket.count);
            next.extend((!socket.reached).then(|| socket.open.upgrade()).flatten());
        }
        for open in next.drain(..) {
            each_right(&open, &mut |open| {
                if let Some(socket) = sockets.get_mut(&key(open)) {
                    socket.within += 1;
                }
            });
        }
        for socket in sockets.values_mut().filter(|socket| !socket.reached && socket.within < socket.count) {
            socket.reached = true;
            next.extend(socket.open.upgrade());
        }
        while let Some(open) = next.pop() {
            each_right(&open, &mut |open| {
                if let Some(socket) = sockets.get_mut(&key(open))
                    && !core::mem::replace(&mut socket.reached, true)
                {
                    next.push(open.clone());
                }
            });
        }
        next.extend(sockets.values().filter(|socket| !socket.reached).filter_map(|socket| socket.open.upgrade()));
        let mut garbage = Vec::new();
        for open in &next {
            let mut take = |state: &mut State| {
                // Descriptors for which there is no memory are found by the next search.
                while garbage.try_reserve(1).is_ok()
                    && let Some(rights) = state.inbox.take_rights()
                {
                    self.land(&rights);
                    garbage.push(rights);
                }
            };
            endpoint(open).inspect(|socket| each_inbox(socket, &mut take));
        }
        // The garbage still refers to each of them.
        drop(next);
        Ok(garbage)
    }
}

/// Calls `each` with the state of a socket, and with those of the sockets in its backlog.
fn each_inbox(socket: &Endpoint, each: &mut dyn FnMut(&mut State)) {
    let mut state = socket.state.lock();
    each(&mut state);
    if let Phase::Listening { backlog, .. } = &state.phase {
        backlog.iter().for_each(|waiting| each(&mut waiting.state.lock()));
    }
}

/// Calls `each` with the files that lie in the inboxes of a socket, and of those in its backlog.
fn each_right(open: &Open, each: &mut dyn FnMut(&Arc<Open>)) {
    let mut all = |state: &mut State| state.inbox.rights().flat_map(Rights::files).for_each(&mut *each);
    endpoint(open).inspect(|socket| each_inbox(socket, &mut all));
}

/// Closes what lies in inboxes that no program can reach.
pub(super) fn collect() {
    /// A socket has ended since the last search began.
    static WANTED: AtomicBool = AtomicBool::new(false);
    /// A task searches, and does so again if that is wanted meanwhile.
    static BUSY: AtomicBool = AtomicBool::new(false);
    if REGISTRY.lock().as_ref().is_none_or(|registry| registry.sockets.is_empty()) {
        return;
    }
    WANTED.store(true, SeqCst);
    while WANTED.load(SeqCst) && !BUSY.swap(true, SeqCst) {
        WANTED.store(false, SeqCst);
        let garbage = Flight::lock().unreachable();
        // Without memory for a search, the end of the next socket begins one.
        drop(garbage);
        BUSY.store(false, SeqCst);
    }
}
