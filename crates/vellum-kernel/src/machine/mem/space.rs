//! The address spaces of processes, and which one a processor has loaded.
//!
//! A processor keeps the space that it had last, because mostly it will need the same again; it lets go of it when it needs
//! another, when it has nothing to do, and when the last thread there ends.

use crate::arch::paging::{kernel_root, load_root, load_tagged_root};
use crate::arch::percpu::MAX_CPUS;
use crate::arch::{cpu, interrupts};
use crate::mem::percpu;
use crate::mem::spaces::{self, Place};
use crate::mem::thread::failed;
use crate::mem::uffd::Uffd;
use crate::mem::{self, Space};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::num::NonZeroU16;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use linux_raw_sys::prctl::PR_MDWE_NO_INHERIT;
use spin::{Mutex, Once};
use vellum::addr::{FRAME_SHIFT, VirtRange, align_up};
use vellum::memcg::MayBeRefused;
use vellum::memcg::MemcgId;
use vellum::memcg::Refused;
use vellum::platform::SpaceId;
use vellum::space::Limits;
use vellum::vma::Watcher;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Inode;
use vellum_kernel::fs::names::Mapped;
use vellum_kernel::tags::Generations;

/// So many files are remembered before those are forgotten that no VMA maps any more.
const SOME: usize = 64;

/// A process's address space, and what the kernel remembers of it besides.
pub struct UserSpace {
    /// The engine's part.
    pub engine: Space,
    /// The program's heap: where it begins and ends (`brk`).
    pub heap: Mutex<Heap>,
    /// The kinds of `membarrier` that the program has registered for.
    pub barriers: AtomicU32,
    /// Whether memory may not become executable (`PR_SET_MDWE`, with its bits); never taken back.
    refusals: AtomicU32,
    /// The program that was put into it.
    pub image: Mutex<Image>,
    /// Who watches its faults and writes.
    pub watchers: Mutex<Watchers>,
    /// How many processes have it.
    tenants: AtomicUsize,
    /// The files that it maps, by the tags of their objects; some that it mapped once.
    mapped: Mutex<Arc<BTreeMap<u64, Mapped>>>,
    /// Dropped after all else.
    _place: Place,
}

/// Where the parts of a program are, as `/proc` shows it.
#[derive(Clone, Default)]
pub struct Image {
    /// The program's file.
    pub file: Option<(Arc<dyn Inode>, Mapped)>,
    /// What was mapped executable: first address, and that after the last.
    pub code: [u64; 2],
    /// What was mapped writable.
    pub data: [u64; 2],
    /// The first stack pointer.
    pub stack: u64,
    /// The strings of the arguments.
    pub arguments: [u64; 2],
    /// The strings of the environment.
    pub environment: [u64; 2],
    /// The auxiliary vector.
    pub aux: [u64; 2],
}

/// The heap that `brk` moves the end of.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    /// First address.
    pub start: u64,
    /// The address after the last, as the program set it.
    pub end: u64,
}

/// Who watches a space, by number.
#[derive(Default)]
pub struct Watchers(BTreeMap<NonZeroU16, Weak<Uffd>>);

impl Watchers {
    /// One more, made with the number that it is to have.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there are as many as there may be.
    pub fn add(&mut self, make: impl FnOnce(Watcher) -> Arc<Uffd>) -> Result<Arc<Uffd>, Errno> {
        let unused = (1..=u16::MAX).filter_map(NonZeroU16::new).find(|number| !self.0.contains_key(number));
        let number = unused.ok_or(Errno::ENOMEM)?;
        let watch = make(Watcher(number));
        self.0.insert(number, Arc::downgrade(&watch));
        Ok(watch)
    }

    /// The one with a number, unless it is being closed.
    pub fn find(&self, number: Watcher) -> Option<Arc<Uffd>> {
        self.0.get(&number.0)?.upgrade()
    }

    /// It is closed.
    pub fn remove(&mut self, number: Watcher) {
        self.0.remove(&number.0);
    }
}

impl UserSpace {
    /// A space without a heap yet.
    pub fn new(engine: Space) -> Self {
        Self {
            _place: Place::of(&engine),
            engine,
            heap: Mutex::default(),
            barriers: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            image: Mutex::default(),
            watchers: Mutex::default(),
            tenants: AtomicUsize::new(0),
            mapped: Mutex::default(),
        }
    }

    /// Nobody watches what was moved here any more.
    pub fn unwatch(&self, start: u64, len: u64) {
        let numbers: Vec<Watcher> = self.watchers.lock().0.keys().copied().map(Watcher).collect();
        let end = align_up(len, FRAME_SHIFT).and_then(|len| start.checked_add(len)).unwrap_or(start);
        for by in numbers {
            // The VMAs begin and end there: none needs to be split.
            let _ = self.engine.unwatch(VirtRange { start, end }, by);
        }
    }

    /// Remembers the file whose object has this tag: a VMA maps it now.
    pub fn remember(&self, tag: u64, file: Mapped) {
        let mut mapped = self.mapped.lock();
        let forgets = !mapped.contains_key(&tag) && mapped.len() >= SOME && mapped.len().is_power_of_two();
        let known = Arc::make_mut(&mut mapped);
        if forgets {
            let mut used = BTreeSet::new();
            self.engine.vmas(0, |vma| {
                used.insert(vma.backing.tag());
                true
            });
            known.retain(|tag, _| used.contains(tag));
        }
        known.insert(tag, file);
    }

    /// The file whose object has this tag, if a VMA maps it.
    pub fn mapped(&self, tag: u64) -> Option<Mapped> {
        self.mapped.lock().get(&tag).cloned()
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
        let engine = self.engine.fork().map_err(|error| failed(error.refused(), error.errno()))?;
        mem::adopt(&engine);
        let (heap, image, mapped) = (*self.heap.lock(), self.image.lock().clone(), self.mapped.lock().clone());
        let barriers = AtomicU32::new(self.barriers.load(Relaxed));
        let child = Self {
            _place: Place::of(&engine),
            engine,
            heap: Mutex::new(heap),
            barriers,
            refusals: AtomicU32::new(0),
            image: Mutex::new(image),
            watchers: Mutex::default(),
            tenants: AtomicUsize::new(0),
            mapped: Mutex::new(mapped),
        };
        child.engine.set_limits(|limits| limits.exec_gain = true);
        child.inherit(self);
        Ok(child)
    }

    /// From now on memory may not become executable. `false`: something else was said before.
    pub fn refuse(&self, bits: u32) -> bool {
        let before = self.refusals.compare_exchange(0, bits, Relaxed, Relaxed);
        if before.is_ok() && bits != 0 {
            self.engine.set_limits(|limits| limits.exec_gain = false);
        }
        before.is_ok() || before == Err(bits)
    }

    /// What was said by [`Self::refuse`].
    pub fn refusals(&self) -> u32 {
        self.refusals.load(Relaxed)
    }

    /// Takes over from a process's parent, or the program before, what is to be taken over.
    pub fn inherit(&self, from: &Self) {
        let bits = from.refusals();
        if bits & PR_MDWE_NO_INHERIT == 0 {
            self.refuse(bits);
        }
    }
}

/// That a process has a space. When the last that had it gives it up, what was mapped there is unmapped: whoever else just looks
/// at the space, or has not loaded another one yet, keeps no memory from being free.
pub struct Tenancy(Arc<UserSpace>);

impl Tenancy {
    /// One more process has it.
    pub fn new(space: Arc<UserSpace>) -> Self {
        space.tenants.fetch_add(1, Relaxed);
        Self(space)
    }

    /// The space.
    pub fn space(&self) -> &Arc<UserSpace> {
        &self.0
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        if self.0.tenants.fetch_sub(1, AcqRel) == 1 {
            self.0.engine.unmap_all();
        }
    }
}

static NOBODYS: Once<Arc<UserSpace>> = Once::new();

/// Sets up what spaces need.
///
/// # Errors
///
/// No memory.
pub fn init() -> Result<(), Refused> {
    let engine = mem::new_space(mem::machine(), MemcgId::ROOT, Limits::default())?;
    NOBODYS.call_once(|| spaces::publish(UserSpace::new(engine)));
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
    // SAFETY: the reference kept in the `PerCpu` keeps the space alive until another is loaded.
    unsafe { translate(next.as_ref().map(|space| &space.engine), loaded.as_ref().map(|space| &space.engine)) };
    *loaded = next;
}

/// Which generation of each space's translations there is.
static GENERATIONS: Generations = Generations::new();
/// The number of the space that each processor has loaded.
static LOADED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(NOBODY) }; MAX_CPUS];
const NOBODY: u64 = u64::MAX;

/// Returns whether a processor has loaded the space with this number.
pub fn is_loaded(space: SpaceId, cpu: usize) -> bool {
    LOADED[cpu].load(SeqCst) == space.0
}

/// A change of a space's tables that processors are to hear of.
#[derive(Clone, Copy)]
pub struct Change {
    /// Which space's.
    pub space: u64,
    /// Which generation of it this began.
    pub generation: u64,
}

impl Change {
    /// The tables of this space have changed.
    pub fn of(space: SpaceId) -> Self {
        Self { space: space.0, generation: GENERATIONS.advance(space.0) }
    }

    /// Whether the processor has the space loaded: then it must be told. If not, it finds out when it loads it.
    pub fn concerns(&self, cpu: usize) -> bool {
        is_loaded(SpaceId(self.space), cpu)
    }

    /// This processor has dropped what was asked for, or all that it held of the space, if it has the space loaded.
    pub fn heard(&self, all: bool) {
        // SAFETY: this processor's own, and interrupts are off wherever it is touched.
        let tags = || unsafe { &mut *percpu::current().tags.get() }.dropped(self.space, self.generation, all);
        interrupts::without(tags);
    }
}

/// Has this processor translate user addresses through the tables of `next`, or through none.
///
/// # Safety
///
/// `next` lives until another is loaded, and `before`, which is the one loaded, until this returns.
pub unsafe fn translate(next: Option<&Space>, before: Option<&Space>) {
    let cpu = percpu::current();
    // A shootdown must not find the one space announced and the other loaded.
    interrupts::without(|| match next {
        Some(space) => {
            space.cpu_enter(cpu.arch.index);
            let number = space.id().0;
            LOADED[cpu.arch.index].store(number, SeqCst);
            cpu::after_store();
            // SAFETY: this processor's own, and interrupts are off.
            let tags = unsafe { &mut *cpu.tags.get() };
            let (tag, keep) = tags.load(number, GENERATIONS.now(number));
            // SAFETY: the root of a space with the kernel in its upper half (`mem::adopt`), alive by contract.
            unsafe { load_tagged_root(space.root().addr().0, tag as u16 + 1, keep) };
        }
        None => {
            LOADED[cpu.arch.index].store(NOBODY, SeqCst);
            // SAFETY: the kernel's own root.
            unsafe { load_root(kernel_root()) };
        }
    });
    // With tags it may still hold translations, and goes on to take part in invalidations; see `Change`.
    if !cpu::has_tags()
        && let Some(before) = before
    {
        before.cpu_leave(cpu.arch.index);
    }
}
