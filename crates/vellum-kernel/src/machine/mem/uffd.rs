//! Userfaultfds: a program resolves the missing, minor and write-protection faults of registered
//! ranges itself, and is notified of changes of the address space.
//!
//! An address space knows its userfaultfds by number (`UserSpace::uffds`). The engine reports the
//! number with a fault. The task layer lets the faulting thread wait, and the file layer takes the
//! program's requests (`UFFDIO_COPY` and others). A forked child knows a forked userfaultfd by the
//! number of the parent's.
//!
//! A system call that changes the address space begins with [`Notices`]: from then on the program
//! can't fill pages. After the change, or before it in the case of dropped contents, the call's
//! thread adds the events, and waits until the program has read them
//! ([`crate::task::blocked::notify`]).

use crate::arch::paging::user_end;
use crate::mem::UserSpace;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use linux_raw_sys::general as abi;
use vellum::addr::VirtRange;
use vellum::vma::UffdId;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::uffd;

/// The messages of a userfaultfd.
pub type Messages = uffd::Messages<Arc<Uffd>>;
/// An event of a userfaultfd.
pub type Event = uffd::Event<Arc<Uffd>>;

/// The features that are events.
const EVENTS: u32 = abi::UFFD_FEATURE_EVENT_FORK
    | abi::UFFD_FEATURE_EVENT_REMAP
    | abi::UFFD_FEATURE_EVENT_REMOVE
    | abi::UFFD_FEATURE_EVENT_UNMAP;

/// A userfaultfd. It unregisters its ranges and wakes its waiters when its file is closed.
pub struct Uffd {
    /// The address space whose faults it receives.
    pub memory: Weak<UserSpace>,
    /// The number by which the engine knows it.
    pub number: UffdId,
    /// The `UFFD_FEATURE_` bits that the program enabled; 0 before `UFFDIO_API`.
    pub features: AtomicU64,
    /// The flags with which it was created. With `UFFD_USER_MODE_ONLY`, faults that the kernel
    /// takes for the program fail instead of being reported.
    pub flags: u32,
    /// The messages for the program. A waiting thread keeps these alive, and not the file.
    pub messages: Arc<Messages>,
}

impl Uffd {
    /// Creates a userfaultfd of `memory`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: all numbers are in use.
    pub fn new(memory: &Arc<UserSpace>, flags: u32) -> Result<Arc<Self>, Errno> {
        memory.uffds.lock().add(|number| Arc::new(Self::with_number(memory, number, flags, 0)))
    }

    fn with_number(memory: &Arc<UserSpace>, number: UffdId, flags: u32, features: u64) -> Self {
        Self {
            memory: Arc::downgrade(memory),
            number,
            features: AtomicU64::new(features),
            flags,
            messages: Arc::default(),
        }
    }

    /// Returns whether the program enabled one of these `UFFD_FEATURE_` bits.
    pub fn has(&self, feature: u32) -> bool {
        self.features.load(Relaxed) & u64::from(feature) != 0
    }

    /// Notes that the program has enabled features (`UFFDIO_API`), unless it has before. Returns
    /// false if it has.
    pub fn enable(&self, features: u64) -> bool {
        let is_first = self.features.compare_exchange(0, features, Relaxed, Relaxed).is_ok();
        if is_first
            && self.has(EVENTS)
            && let Some(memory) = self.memory.upgrade()
        {
            memory.has_uffd_events.store(true, Relaxed);
        }
        is_first
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.upgrade() {
            let all = VirtRange { start: 0, end: user_end() };
            // The call can't fail: it covers whole VMAs, so that none needs to be split.
            let _ = memory.engine.uffd_unregister(all, self.number);
            memory.uffds.lock().remove(self.number);
        }
        self.messages.close();
    }
}

/// An event that a userfaultfd has to be notified of. The change has begun
/// ([`uffd::Messages::begin_change`]), and ends when this value is dropped.
pub struct Notice {
    /// The messages of the userfaultfd.
    pub messages: Arc<Messages>,
    /// The event.
    pub event: Event,
}

impl Notice {
    fn new(messages: &Arc<Messages>, event: Event) -> Self {
        messages.begin_change();
        Self { messages: messages.clone(), event }
    }
}

impl Drop for Notice {
    fn drop(&mut self) {
        self.messages.end_change();
    }
}

/// The events of one change. No two are alike for one userfaultfd, so their number is bounded by
/// those of userfaultfds and of VMAs.
#[derive(Default)]
pub struct Notices(pub Vec<Notice>);

impl Notices {
    fn push(&mut self, messages: &Arc<Messages>, event: Event) -> Result<(), Errno> {
        self.0.try_reserve(1)?;
        self.0.push(Notice::new(messages, event));
        Ok(())
    }

    /// Adds the event that a range is unmapped (`UFFD_EVENT_UNMAP`), once for each userfaultfd with
    /// a VMA in the range.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn unmap(&mut self, memory: &UserSpace, start: u64, len: u64) -> Result<(), Errno> {
        let end = whole_pages(start, len);
        let mut at = start;
        while memory.has_uffd_events.load(Relaxed)
            && let Some((number, part)) = next_registered(memory, at, end)
        {
            at = part.end;
            let Some(messages) = memory.uffd_messages(number, abi::UFFD_FEATURE_EVENT_UNMAP) else { continue };
            let is_known =
                |known: &Notice| Arc::ptr_eq(&known.messages, &messages) && known.event.is_unmap_of(start, end);
            if !self.0.iter().any(is_known) {
                self.push(&messages, Event::Unmap { start, end })?;
            }
        }
        Ok(())
    }

    /// Adds the event that the memory at an address moves (`UFFD_EVENT_REMAP`). The new address is
    /// filled in by [`Notices::moved`].
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn remap(&mut self, memory: &UserSpace, from: u64, len: u64) -> Result<(), Errno> {
        if !memory.has_uffd_events.load(Relaxed) {
            return Ok(());
        }
        let part = next_registered(memory, from, from.saturating_add(1));
        let messages = part.and_then(|(number, _)| memory.uffd_messages(number, abi::UFFD_FEATURE_EVENT_REMAP));
        let len = whole_pages(from, len) - from;
        messages.map_or(Ok(()), |messages| self.push(&messages, Event::Remap { from, to: from, len }))
    }

    /// Adds the event that contents are dropped in the first registered part of a range from
    /// `start` on (`UFFD_EVENT_REMOVE`), if its userfaultfd asked for it. Returns the end of that
    /// part.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn remove(&mut self, memory: &UserSpace, start: u64, end: u64) -> Result<Option<u64>, Errno> {
        let Some((number, part)) = next_registered(memory, start, end) else { return Ok(None) };
        if let Some(messages) = memory.uffd_messages(number, abi::UFFD_FEATURE_EVENT_REMOVE) {
            self.push(&messages, Event::Remove { start: part.start, end: part.end })?;
        }
        Ok(Some(part.end))
    }

    /// Fills in the address to which memory was moved.
    pub fn moved(&mut self, address: u64) {
        for notice in &mut self.0 {
            if let Event::Remap { to, .. } = &mut notice.event {
                *to = address;
            }
        }
    }

    /// Returns whether memory that moves stays registered.
    pub fn has_remap(&self) -> bool {
        self.0.iter().any(|notice| matches!(notice.event, Event::Remap { .. }))
    }
}

/// Returns the end of a range in whole pages.
fn whole_pages(start: u64, len: u64) -> u64 {
    start.saturating_add(len).checked_next_multiple_of(vellum::addr::FRAME_SIZE).unwrap_or(start)
}

/// Returns the first part of a range that is registered, with its userfaultfd.
pub fn next_registered(memory: &UserSpace, start: u64, end: u64) -> Option<(UffdId, VirtRange)> {
    let mut found = None;
    if start >= end {
        return None;
    }
    memory.engine.vmas(start, |vma| {
        if vma.range.start < end {
            let part = VirtRange { start: vma.range.start.max(start), end: vma.range.end.min(end) };
            found = vma.uffd.map(|number| (number, part));
        }
        vma.range.start < end && found.is_none()
    });
    found
}

impl Notices {
    /// Finds the userfaultfds that follow a fork of `memory` (`UFFD_FEATURE_EVENT_FORK`).
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn followers(memory: &UserSpace) -> Result<Vec<Arc<Uffd>>, Errno> {
        let mut follow = Vec::new();
        if memory.has_uffd_events.load(Relaxed) {
            let uffds = memory.uffds.lock();
            for uffd in uffds.all().filter(|uffd| uffd.has(abi::UFFD_FEATURE_EVENT_FORK)) {
                follow.try_reserve(1)?;
                follow.push(uffd);
            }
        }
        Ok(follow)
    }

    /// Creates the child's userfaultfds for those that follow the fork and have VMAs in the child.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn fork(follow: Vec<Arc<Uffd>>, child: &Arc<UserSpace>) -> Result<Notices, Errno> {
        let mut notices = Notices::default();
        for parent in follow {
            let mut is_registered = false;
            child.engine.vmas(0, |vma| {
                is_registered = vma.uffd == Some(parent.number);
                !is_registered
            });
            if is_registered {
                let features = parent.features.load(Relaxed);
                let forked = Arc::new(Uffd::with_number(child, parent.number, parent.flags, features));
                child.uffds.lock().insert(&forked);
                child.has_uffd_events.store(true, Relaxed);
                notices.push(&parent.messages, Event::Fork(forked))?;
            }
        }
        Ok(notices)
    }
}
