//! The address spaces of processes, and the space that each CPU has loaded.
//!
//! A CPU keeps its last space loaded while it runs kernel code, because it will most likely need
//! the same space next. It unloads the space when it needs another, when it is idle, and when the
//! last thread on it ends.

use crate::arch::paging::{kernel_root, load_root, load_tagged_root};
use crate::arch::percpu::MAX_CPUS;
use crate::arch::{cpu, interrupts};
use crate::mem::percpu;
use crate::mem::spaces::{self, Registration};
use crate::mem::thread::failed;
use crate::mem::uffd::{Messages, Uffd};
use crate::mem::{self, Space};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::num::NonZeroU16;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use linux_raw_sys::prctl::PR_MDWE_NO_INHERIT;
use spin::{Mutex, Once};
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange, align_up};
use vellum::memcg::MayBeRefused;
use vellum::memcg::MemcgId;
use vellum::memcg::Refused;
use vellum::platform::SpaceId;
use vellum::space::{Advise, Limits, fork_with_uffds};
use vellum::vma::{UffdId, Vma};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::names::MappedFile;
use vellum_kernel::fs::write_access::WriteDenial;
use vellum_kernel::keys::Keys;
use vellum_kernel::proc::names::VmaNames;
use vellum_kernel::tags::{Generations, Loaded};

/// The number of files recorded in a space (`UserSpace::mapped`) at which the kernel first removes
/// those that no VMA maps any more.
const FILES_BEFORE_CLEANUP: usize = 64;

/// A process's address space, and what the kernel keeps with it (Linux: `mm_struct`).
pub struct UserSpace {
    /// The engine's address space.
    pub engine: Space,
    /// The bounds of the `brk` heap.
    pub heap: Mutex<Heap>,
    /// The `membarrier` commands for which the program has registered.
    pub barriers: AtomicU32,
    /// The `PR_SET_MDWE` bits, which deny memory that becomes executable; 0 if unset, and never
    /// cleared.
    refusals: AtomicU32,
    /// The layout of the program that runs in this space.
    pub image: Mutex<Image>,
    /// The space's userfaultfds.
    pub uffds: Mutex<Uffds>,
    /// The address of the shared object with the clocks ([`mem::vdso`]); 0 if it is not mapped.
    pub vdso: AtomicU64,
    /// True once one of the userfaultfds has asked for events of changes.
    pub has_uffd_events: AtomicBool,
    /// The number of processes that use this space (Linux: `mm_users`).
    users: AtomicUsize,
    /// The files that VMAs map, by the tags of their page-cache objects; may include files that are
    /// not mapped any more.
    mapped: Mutex<Arc<BTreeMap<u64, MappedFile>>>,
    /// The program's protection keys.
    pub keys: Mutex<Keys>,
    /// The names of VMAs.
    names: Mutex<VmaNames>,
    /// The entry in the registry of spaces. Dropped last.
    _registration: Registration,
}

/// The program's layout, as `/proc` shows it.
#[derive(Clone, Default)]
pub struct Image {
    /// The program's file, to which no program can write meanwhile.
    pub program: Option<(WriteDenial, MappedFile)>,
    /// The executable mappings: first address, and end.
    pub code: [u64; 2],
    /// The writable mappings: first address, and end.
    pub data: [u64; 2],
    /// The first stack pointer.
    pub stack: u64,
    /// The argument strings: first address, and end.
    pub arguments: [u64; 2],
    /// The environment strings: first address, and end.
    pub environment: [u64; 2],
    /// The auxiliary vector: first address, and end.
    pub aux: [u64; 2],
}

/// The heap whose end `brk` moves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    /// The heap's first address.
    pub start: u64,
    /// The heap's end, as the program set it.
    pub end: u64,
}

/// The userfaultfds of a space, by number.
#[derive(Default)]
pub struct Uffds(BTreeMap<NonZeroU16, Weak<Uffd>>);

impl Uffds {
    /// Chooses an unused number, calls `make` with it, and registers the userfaultfd that `make`
    /// returns.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: all numbers are in use.
    pub fn add(&mut self, make: impl FnOnce(UffdId) -> Arc<Uffd>) -> Result<Arc<Uffd>, Errno> {
        let unused = (1..=u16::MAX).filter_map(NonZeroU16::new).find(|number| !self.0.contains_key(number));
        let number = unused.ok_or(Errno::ENOMEM)?;
        let uffd = make(UffdId(number));
        self.0.insert(number, Arc::downgrade(&uffd));
        Ok(uffd)
    }

    /// Returns the userfaultfd with a number, unless it is being closed.
    pub fn find(&self, number: UffdId) -> Option<Arc<Uffd>> {
        self.0.get(&number.0)?.upgrade()
    }

    /// Registers a forked userfaultfd under the number of its parent's.
    pub fn insert(&mut self, uffd: &Arc<Uffd>) {
        self.0.insert(uffd.number.0, Arc::downgrade(uffd));
    }

    /// Returns the userfaultfds that are not being closed.
    pub fn all(&self) -> impl Iterator<Item = Arc<Uffd>> {
        self.0.values().filter_map(Weak::upgrade)
    }

    /// Forgets a userfaultfd that is being closed.
    pub fn remove(&mut self, number: UffdId) {
        self.0.remove(&number.0);
    }
}

impl UserSpace {
    /// Wraps the engine's space, with an empty heap.
    pub fn new(engine: Space) -> Self {
        Self {
            _registration: Registration::of(&engine),
            engine,
            heap: Mutex::default(),
            barriers: AtomicU32::new(0),
            refusals: AtomicU32::new(0),
            image: Mutex::default(),
            uffds: Mutex::default(),
            vdso: AtomicU64::new(0),
            has_uffd_events: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            mapped: Mutex::default(),
            keys: Mutex::default(),
            names: Mutex::default(),
        }
    }

    /// Returns the messages of a userfaultfd, if it has one of these `UFFD_FEATURE_` bits.
    pub fn uffd_messages(&self, number: UffdId, feature: u32) -> Option<Arc<Messages>> {
        let uffd = self.uffds.lock().find(number).filter(|uffd| uffd.has(feature));
        uffd.map(|uffd| uffd.messages.clone())
    }

    /// Returns whether a process uses the space.
    pub fn is_used(&self) -> bool {
        self.users.load(Relaxed) > 0
    }

    /// Unregisters all userfaultfds from the VMAs in a range, after `mremap` moved the VMAs into
    /// it.
    pub fn unregister_uffds(&self, start: u64, len: u64) {
        let numbers: Vec<UffdId> = self.uffds.lock().0.keys().copied().map(UffdId).collect();
        let end = align_up(len, FRAME_SHIFT).and_then(|len| start.checked_add(len)).unwrap_or(start);
        for by in numbers {
            // VMAs begin and end at the bounds of the range: none needs to be split, and the call
            // can't fail.
            let _ = self.engine.uffd_unregister(VirtRange { start, end }, by);
        }
    }

    /// Records the file whose page-cache object has this tag, because a VMA maps it now. Forgets
    /// unmapped files each time the number of recorded ones reaches a power of two from
    /// [`FILES_BEFORE_CLEANUP`] on.
    pub fn note_mapped_file(&self, tag: u64, file: MappedFile) {
        let mut mapped = self.mapped.lock();
        let forgets =
            !mapped.contains_key(&tag) && mapped.len() >= FILES_BEFORE_CLEANUP && mapped.len().is_power_of_two();
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

    /// Returns the file whose page-cache object has this tag, if a VMA maps it or mapped it until
    /// lately.
    pub fn mapped(&self, tag: u64) -> Option<MappedFile> {
        self.mapped.lock().get(&tag).cloned()
    }

    /// Gives the VMAs of a range a name, or none (`PR_SET_VMA_ANON_NAME`).
    ///
    /// # Errors
    ///
    /// `ENOMEM`: memory is short, there would be too many VMAs, or there are holes, of which the
    /// last leaves the rest with the name. `EINVAL`: the range is not one. `EBADF`: a VMA maps a
    /// file.
    pub fn set_vma_name(&self, addr: u64, len: u64, name: Option<&[u8]>) -> Result<(), Errno> {
        let len = len.checked_next_multiple_of(FRAME_SIZE).ok_or(Errno::EINVAL)?;
        let end = addr.checked_add(len).ok_or(Errno::EINVAL)?;
        let mut has_file = false;
        self.engine.vmas(addr, |vma| {
            let is_within = vma.range.start < end;
            has_file |= is_within && !vma.backing.is_anonymous() && self.mapped(vma.backing.tag()).is_some();
            is_within && !has_file
        });
        if has_file {
            return Err(Errno::EBADF);
        }
        // The lock is held until the VMAs have the number, so that the number stays.
        let mut names = self.names.lock();
        let in_use = |is_used: &mut dyn FnMut(u32)| {
            self.engine.vmas(0, |vma| {
                is_used(vma.name);
                true
            });
        };
        let number = name.map_or(Ok(0), |name| names.number(name, in_use))?;
        self.engine.advise(addr, len, Advise::Name(number)).map_err(|error| failed(error.refused(), error.errno()))
    }

    /// Returns the name that a program gave a VMA.
    pub fn vma_name(&self, vma: &Vma) -> Option<Arc<[u8]>> {
        if vma.name == 0 { None } else { self.names.lock().get(vma.name) }
    }

    /// Returns the empty space, which processes have after they gave up their own (Linux: `init_mm`
    /// in this role).
    ///
    /// # Panics
    ///
    /// Before [`init`].
    pub fn empty() -> Arc<Self> {
        EMPTY.get().expect("space::init must be called before UserSpace::empty").clone()
    }

    /// Creates a child's copy of this space (`fork`). Its VMAs stay registered with the
    /// userfaultfds `follow`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn fork(&self, follow: &[Arc<Uffd>]) -> Result<Self, Errno> {
        let keeps = |number| follow.iter().any(|uffd| uffd.number == number);
        let engine = fork_with_uffds(&self.engine, keeps).map_err(|error| failed(error.refused(), error.errno()))?;
        mem::map_kernel(&engine);
        let (heap, image, mapped) = (*self.heap.lock(), self.image.lock().clone(), self.mapped.lock().clone());
        let names = self.names.lock().copy()?;
        let barriers = AtomicU32::new(self.barriers.load(Relaxed));
        let child = Self {
            _registration: Registration::of(&engine),
            engine,
            heap: Mutex::new(heap),
            barriers,
            refusals: AtomicU32::new(0),
            image: Mutex::new(image),
            uffds: Mutex::default(),
            vdso: AtomicU64::new(self.vdso.load(Relaxed)),
            has_uffd_events: AtomicBool::new(false),
            users: AtomicUsize::new(0),
            mapped: Mutex::new(mapped),
            keys: Mutex::new(*self.keys.lock()),
            names: Mutex::new(names),
        };
        child.engine.set_limits(|limits| limits.exec_gain = true);
        child.inherit(self);
        Ok(child)
    }

    /// Sets the `PR_SET_MDWE` bits: from now on memory may not become executable. Returns false if
    /// other bits were set before.
    pub fn set_mdwe(&self, bits: u32) -> bool {
        let before = self.refusals.compare_exchange(0, bits, Relaxed, Relaxed);
        if before.is_ok() && bits != 0 {
            self.engine.set_limits(|limits| limits.exec_gain = false);
        }
        before.is_ok() || before == Err(bits)
    }

    /// Returns the `PR_SET_MDWE` bits.
    pub fn mdwe(&self) -> u32 {
        self.refusals.load(Relaxed)
    }

    /// Copies what `prctl` has set for the parent's space, or for the space before `execve`: the
    /// memory that may have large folios, and the `PR_SET_MDWE` bits, unless they exclude
    /// inheritance.
    pub fn inherit(&self, from: &Self) {
        let large_folios = from.engine.limits().large_folios;
        self.engine.set_limits(|limits| limits.large_folios = large_folios);
        let bits = from.mdwe();
        if bits & PR_MDWE_NO_INHERIT == 0 {
            self.set_mdwe(bits);
        }
    }
}

/// A process's use of a space (Linux: one of `mm_users`). Dropping the last one unmaps everything:
/// a reference that only inspects the space, or a CPU that still has it loaded, does not keep its
/// memory or its program in use.
pub struct SpaceUser(Arc<UserSpace>);

impl SpaceUser {
    /// Counts one more process as a user of the space.
    pub fn new(space: Arc<UserSpace>) -> Self {
        space.users.fetch_add(1, Relaxed);
        Self(space)
    }

    /// Returns the space.
    pub fn space(&self) -> &Arc<UserSpace> {
        &self.0
    }
}

impl Drop for SpaceUser {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, AcqRel) == 1 {
            self.0.engine.unmap_all();
            // Ends the denial of writes to the program's file.
            self.0.image.lock().program = None;
        }
    }
}

static EMPTY: Once<Arc<UserSpace>> = Once::new();

/// Creates the empty space.
///
/// # Errors
///
/// Memory is short.
pub fn init() -> Result<(), Refused> {
    let engine = mem::new_space(mem::machine(), MemcgId::ROOT, Limits::default())?;
    EMPTY.call_once(|| spaces::register(UserSpace::new(engine)));
    Ok(())
}

/// Loads `space` on this CPU, unless it is loaded already.
#[inline]
pub fn load(space: &Arc<UserSpace>) {
    // SAFETY: this CPU's own field, which interrupt handlers do not access.
    let loaded = unsafe { &mut *percpu::current().space.get() };
    if loaded.as_ref().is_none_or(|loaded| !Arc::ptr_eq(loaded, space)) {
        replace(loaded, Some(space.clone()));
    }
}

/// Unloads the space that this CPU has loaded, if any.
pub fn unload() {
    // SAFETY: this CPU's own field, which interrupt handlers do not access.
    let loaded = unsafe { &mut *percpu::current().space.get() };
    if loaded.is_some() {
        replace(loaded, None);
    }
}

/// Loads `next` in place of `loaded`, which is this CPU's field, and drops the reference to the
/// previous space.
#[cold]
fn replace(loaded: &mut Option<Arc<UserSpace>>, next: Option<Arc<UserSpace>>) {
    // SAFETY: the reference in the per-CPU record keeps the space alive until another is loaded.
    unsafe { translate(next.as_ref().map(|space| &space.engine), loaded.as_ref().map(|space| &space.engine)) };
    *loaded = next;
}

/// The generation of each space's translations (Linux: `tlb_gen`).
static GENERATIONS: Generations = Generations::new();
/// The number of the space that each CPU has loaded; `NO_SPACE` if none.
static LOADED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(NO_SPACE) }; MAX_CPUS];
/// The value of [`LOADED`] for a CPU without a loaded space.
const NO_SPACE: u64 = u64::MAX;

/// Returns whether a CPU has loaded the space with this number.
pub fn is_loaded(space: SpaceId, cpu: usize) -> bool {
    LOADED[cpu].load(SeqCst) == space.0
}

/// A change of a space's page tables that the CPUs that have it loaded must be notified of.
#[derive(Clone, Copy)]
pub struct Change {
    /// The number of the space.
    pub space: u64,
    /// The generation of translations that the change began.
    pub generation: u64,
}

impl Change {
    /// Begins a new generation of the space's translations.
    pub fn of(space: SpaceId) -> Self {
        Self { space: space.0, generation: GENERATIONS.advance(space.0) }
    }

    /// Returns whether the CPU has the space loaded and must be notified. Otherwise it finds the
    /// change by the generation when it loads the space.
    pub fn is_loaded_on(&self, cpu: usize) -> bool {
        is_loaded(SpaceId(self.space), cpu)
    }

    /// Records that this CPU has invalidated what was requested, or with `all` everything of the
    /// space, if the space is loaded here.
    pub fn record_flush(&self, all: bool) {
        // SAFETY: this CPU's own field, and interrupts are off wherever it is accessed.
        let tags = || unsafe { &mut *percpu::current().tags.get() }.invalidated(self.space, self.generation, all);
        interrupts::without(tags);
    }
}

/// Points this CPU's user half at the page tables of `next`, or at none.
///
/// # Safety
///
/// `next` lives until another space is loaded. `before` is the loaded one, and lives until this
/// returns.
pub unsafe fn translate(next: Option<&Space>, before: Option<&Space>) {
    let cpu = percpu::current();
    // A shootdown must not find one space in `LOADED` and another in the page-table root register.
    interrupts::without(|| match next {
        Some(space) => {
            space.cpu_enter(cpu.arch.index);
            let number = space.id().0;
            LOADED[cpu.arch.index].store(number, SeqCst);
            cpu::store_load_barrier();
            // SAFETY: this CPU's own field, and interrupts are off.
            let tags = unsafe { &mut *cpu.tags.get() };
            let Loaded { tag, keep } = tags.load(number, GENERATIONS.current(number));
            // SAFETY: `root` is that of a space with the kernel in its upper half
            // (`mem::map_kernel`), which the caller keeps alive until another space is loaded.
            unsafe { load_tagged_root(space.root().addr().0, tag as u16 + 1, keep) };
        }
        None => {
            LOADED[cpu.arch.index].store(NO_SPACE, SeqCst);
            // SAFETY: the kernel's own root.
            unsafe { load_root(kernel_root()) };
        }
    });
    // With TLB tags this CPU may keep translations of `before`, and so stays in the space's CPU
    // mask; see `Change`.
    if !cpu::has_tags()
        && let Some(before) = before
    {
        before.cpu_leave(cpu.arch.index);
    }
}
