//! Userfaultfds: a program resolves the missing and write-protection faults of registered ranges
//! itself.
//!
//! An address space knows its userfaultfds by number (`UserSpace::uffds`). The engine reports the
//! number with a fault. The task layer lets the faulting thread wait, and the file layer takes the
//! program's requests (`UFFDIO_COPY` and others).

use crate::arch::paging::user_end;
use crate::mem::UserSpace;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::addr::VirtRange;
use vellum::vma::UffdId;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::uffd::PendingFaults;

/// A userfaultfd. It unregisters its ranges and wakes its waiters when its file is closed.
pub struct Uffd {
    /// The address space whose faults it receives.
    pub memory: Weak<UserSpace>,
    /// The number by which the engine knows it.
    pub number: UffdId,
    /// The `UFFD_FEATURE_` bits that the program enabled; 0 before `UFFDIO_API`.
    pub features: AtomicU64,
    /// True if faults that the kernel takes for the program fail instead of being reported
    /// (`UFFD_USER_MODE_ONLY`).
    pub user_only: bool,
    /// The faults that wait for the program. A waiting thread keeps these alive, and not the file.
    pub faults: Arc<PendingFaults>,
}

impl Uffd {
    /// Creates a userfaultfd of `memory`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: all numbers are in use.
    pub fn new(memory: &Arc<UserSpace>, user_only: bool) -> Result<Arc<Self>, Errno> {
        memory.uffds.lock().add(|number| {
            let features = AtomicU64::new(0);
            let faults = Arc::default();
            Arc::new(Self { memory: Arc::downgrade(memory), number, features, user_only, faults })
        })
    }

    /// Returns whether the program enabled one of these `UFFD_FEATURE_` bits.
    pub fn has(&self, feature: u32) -> bool {
        self.features.load(Relaxed) & u64::from(feature) != 0
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
        self.faults.wake(0..u64::MAX);
    }
}
