//! The address spaces of processes, and which one a processor has loaded.
//!
//! A processor keeps the space that it had last, because mostly it will need the same again; it lets go of it when it needs
//! another, when it has nothing to do, and when the last thread there ends.

use crate::arch::paging::{kernel_root, load_root};
use crate::arch::percpu;
use crate::mem::{self, Space};
use alloc::sync::Arc;
use spin::{Mutex, Once};
use vellum::frame::OutOfMemory;
use vellum::group::GroupId;
use vellum::space::Limits;
use vellum_kernel::errno::Errno;

/// A process's address space, and what the kernel remembers of it besides.
pub struct UserSpace {
    /// The engine's part.
    pub engine: Space,
    /// The program's heap: where it begins and ends (`brk`).
    pub heap: Mutex<Heap>,
}

/// The heap that `brk` moves the end of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    /// First address.
    pub start: u64,
    /// The address after the last, as the program set it.
    pub end: u64,
}

impl UserSpace {
    /// A space without a heap yet.
    pub fn new(engine: Space) -> Self {
        Self { engine, heap: Mutex::new(Heap::default()) }
    }

    /// The space of whoever has none any more: nothing is mapped there.
    ///
    /// # Panics
    ///
    /// Before [`init`].
    pub fn nobodys() -> Arc<Self> {
        NOBODYS.get().expect("spaces are set up").clone()
    }

    /// A child's copy.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn fork(&self) -> Result<Self, Errno> {
        let engine = self.engine.fork().map_err(|error| Errno::from(error.errno()))?;
        mem::adopt(&engine);
        Ok(Self { engine, heap: Mutex::new(*self.heap.lock()) })
    }
}

static NOBODYS: Once<Arc<UserSpace>> = Once::new();

/// Sets up what spaces need.
///
/// # Errors
///
/// No memory.
pub fn init() -> Result<(), OutOfMemory> {
    let engine = mem::new_space(mem::machine(), GroupId::ROOT, Limits::default())?;
    NOBODYS.call_once(|| Arc::new(UserSpace::new(engine)));
    Ok(())
}

/// Has this processor translate user addresses through `space`.
#[inline]
pub fn load(space: &Arc<UserSpace>) {
    // SAFETY: this processor's own, which no handler looks at while it changes here.
    let loaded = unsafe { &mut *percpu::current().space.get() };
    if loaded.as_ref().is_none_or(|loaded| !Arc::ptr_eq(loaded, space)) {
        replace(loaded, Some(space.clone()));
    }
}

/// Has this processor let go of the space it has loaded.
pub fn unload() {
    // SAFETY: as above.
    let loaded = unsafe { &mut *percpu::current().space.get() };
    if loaded.is_some() {
        replace(loaded, None);
    }
}

#[cold]
fn replace(loaded: &mut Option<Arc<UserSpace>>, next: Option<Arc<UserSpace>>) {
    let cpu = percpu::current().index;
    // SAFETY: the root of a space with the kernel in its upper half (`mem::adopt`), which the reference kept in the
    // `PerCpu` keeps alive until another is loaded; or the kernel's own.
    unsafe {
        match &next {
            Some(space) => {
                space.engine.cpu_enter(cpu);
                load_root(space.engine.root().addr().0);
            }
            None => load_root(kernel_root()),
        }
    }
    let before = core::mem::replace(loaded, next);
    if let Some(before) = before {
        before.engine.cpu_leave(cpu);
    }
}
