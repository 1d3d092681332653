//! Userfaultfds: memory whose faults and writes a program resolves itself.
//!
//! An address space knows its userfaultfds by number (`UserSpace::watchers`). The engine reports
//! the number with a fault; the task layer waits for the program, and the file layer takes the
//! program's requests.

use crate::arch::paging::user_end;
use crate::mem::UserSpace;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::addr::VirtRange;
use vellum::vma::Watcher;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::watch::Faults;

/// A userfaultfd. It ends when its file is closed.
pub struct Uffd {
    /// The address space whose faults it takes.
    pub memory: Weak<UserSpace>,
    /// The number by which the engine knows it.
    pub number: Watcher,
    /// The features that the program asked for, `UFFD_FEATURE_` bits; 0 until it has.
    pub features: AtomicU64,
    /// Whether faults that the kernel takes for the program fail instead of being reported
    /// (`UFFD_USER_MODE_ONLY`).
    pub user_only: bool,
    /// The faults that wait for the program. Waiting threads keep these, and not the file.
    pub faults: Arc<Faults>,
}

impl Uffd {
    /// Registers a userfaultfd of `memory`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there are as many as there may be.
    pub fn new(memory: &Arc<UserSpace>, user_only: bool) -> Result<Arc<Self>, Errno> {
        memory.watchers.lock().add(|number| {
            let features = AtomicU64::new(0);
            let faults = Arc::default();
            Arc::new(Self { memory: Arc::downgrade(memory), number, features, user_only, faults })
        })
    }

    /// Returns whether the program asked for one of these `UFFD_FEATURE_` bits.
    pub fn has(&self, feature: u32) -> bool {
        self.features.load(Relaxed) & u64::from(feature) != 0
    }
}

impl Drop for Uffd {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.upgrade() {
            let all = VirtRange { start: 0, end: user_end() };
            // No VMA needs to be split.
            let _ = memory.engine.unwatch(all, self.number);
            memory.watchers.lock().remove(self.number);
        }
        self.faults.wake(0..u64::MAX);
    }
}
