//! Simulated programs. A program runs on a CPU in an address space; its loads and stores go through
//! TLB, walker and faults to real bytes of the machine's memory.

use std::sync::atomic::Ordering;

use vellum::addr::{FRAME_SIZE, Pfn, PhysAddr, VirtRange};
use vellum::arch::{Arch, Attrs};
use vellum::platform::SpaceId;

use crate::hardware::{Hardware, Simulated};
use crate::seat::Seat;
use crate::tlb::Tag;
use crate::walker::{Leaf, Silicon};

/// The kind of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

impl Access {
    pub(crate) fn needs(self) -> Attrs {
        match self {
            Access::Read => Attrs::READ,
            Access::Write => Attrs::WRITE,
            Access::Execute => Attrs::EXEC,
        }
    }
}

/// An address space, as far as hardware and faults are concerned.
pub trait Handler {
    /// The reason why an access can't be resolved: a kernel would turn this into a signal.
    type Error;

    /// Returns the root page table.
    fn root(&self) -> Pfn;

    /// Returns the ID of the space.
    fn space_id(&self) -> SpaceId;

    /// Resolves a fault. If this succeeds, the access is tried again.
    fn fault(&self, va: u64, access: Access) -> Result<(), Self::Error>;

    /// Called before a CPU loads the root page table, if no program on this CPU runs in the space
    /// yet. Calls of `enter` and [`Handler::leave`] for one CPU alternate: they do not nest.
    fn enter(&self, _cpu: usize) {}

    /// Called when the last program in the space on a CPU has ended: the CPU has unloaded the root
    /// page table, and dropped all that it had cached of the space.
    fn leave(&self, _cpu: usize) {}
}

/// The reason why a program's access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault<E> {
    /// The handler returned this error.
    Handler(E),
    /// No program may access this address: it lies outside the user half.
    Address(u64),
    /// The handler succeeded `MAX_FAULTS` times, and the access still faults.
    Stuck(u64),
}

/// The number of resolved faults of one access after which the access counts as stuck.
const MAX_FAULTS: u32 = 10_000;

/// The number of bytes that [`Program::touch`] accesses under one hold of the lock, for which an
/// invalidation waits.
const TOUCH_BATCH: usize = 64;

/// The result of [`Program::touch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Number of accesses.
    pub accesses: u64,
    /// Number of faults.
    pub faults: u64,
}

/// A simulated CPU. The thread that made this value has a seat at the CPU, and so is this CPU,
/// until the value is dropped.
#[derive(Debug)]
pub struct Cpu<'m, S> {
    machine: &'m S,
    seat: Seat<'m>,
}

impl<'m, S: Simulated> Cpu<'m, S> {
    pub(crate) fn sit(machine: &'m S, cpu: usize) -> Self {
        Cpu { machine, seat: machine.hardware().seats.sit(cpu) }
    }

    /// Returns the number of the CPU.
    pub fn number(&self) -> usize {
        self.seat.cpu()
    }

    /// Runs a program in `space`, until the returned value is dropped. Several programs may take
    /// turns on one CPU.
    pub fn enter<'c, H: Handler>(&'c self, space: &'c H) -> Program<'c, S, H> {
        let (root, id) = (space.root(), space.space_id());
        if !self.machine.hardware().loaded_on(id, self.number()) {
            space.enter(self.number());
        }
        self.machine.hardware().load(self.number(), id, root);
        self.machine.switched(self.number(), id, true);
        Program { cpu: self, space, root, id }
    }
}

/// A program on a CPU.
#[derive(Debug)]
pub struct Program<'c, S: Simulated, H: Handler> {
    cpu: &'c Cpu<'c, S>,
    space: &'c H,
    root: Pfn,
    id: SpaceId,
}

impl<S: Simulated, H: Handler> Program<'_, S, H> {
    /// Loads a byte.
    pub fn load(&self, va: u64) -> Result<u8, Fault<H::Error>> {
        self.access(va, Access::Read, |pa| self.machine().hardware().arena().byte(pa).load(Ordering::Relaxed))
    }

    /// Stores a byte.
    pub fn store(&self, va: u64, value: u8) -> Result<(), Fault<H::Error>> {
        self.access(va, Access::Write, |pa| self.machine().hardware().arena().byte(pa).store(value, Ordering::Relaxed))
    }

    /// Loads an aligned word.
    pub fn load_u64(&self, va: u64) -> Result<u64, Fault<H::Error>> {
        self.access(va, Access::Read, |pa| self.machine().hardware().arena().word(pa).load(Ordering::Relaxed))
    }

    /// Stores an aligned word.
    pub fn store_u64(&self, va: u64, value: u64) -> Result<(), Fault<H::Error>> {
        self.access(va, Access::Write, |pa| self.machine().hardware().arena().word(pa).store(value, Ordering::Relaxed))
    }

    /// Adds to an aligned word atomically, and returns its previous value.
    pub fn add_u64(&self, va: u64, more: u64) -> Result<u64, Fault<H::Error>> {
        self.access(va, Access::Write, |pa| {
            self.machine().hardware().arena().word(pa).fetch_add(more, Ordering::Relaxed)
        })
    }

    /// Fetches an instruction byte.
    pub fn execute(&self, va: u64) -> Result<u8, Fault<H::Error>> {
        self.access(va, Access::Execute, |pa| self.machine().hardware().arena().byte(pa).load(Ordering::Relaxed))
    }

    /// Loads bytes.
    pub fn read(&self, va: u64, into: &mut [u8]) -> Result<(), Fault<H::Error>> {
        let mut done = 0;
        while done < into.len() {
            let at = va + done as u64;
            let part = &mut into[done..];
            let n = part.len().min((FRAME_SIZE - at % FRAME_SIZE) as usize);
            self.access(at, Access::Read, |pa| {
                for (i, byte) in part[..n].iter_mut().enumerate() {
                    let arena = self.machine().hardware().arena();
                    *byte = arena.byte(PhysAddr(pa.0 + i as u64)).load(Ordering::Relaxed);
                }
            })?;
            done += n;
        }
        Ok(())
    }

    /// Stores bytes.
    pub fn write(&self, va: u64, from: &[u8]) -> Result<(), Fault<H::Error>> {
        let mut done = 0;
        while done < from.len() {
            let at = va + done as u64;
            let n = (from.len() - done).min((FRAME_SIZE - at % FRAME_SIZE) as usize);
            self.access(at, Access::Write, |pa| {
                for (i, byte) in from[done..done + n].iter().enumerate() {
                    let arena = self.machine().hardware().arena();
                    arena.byte(PhysAddr(pa.0 + i as u64)).store(*byte, Ordering::Relaxed);
                }
            })?;
            done += n;
        }
        Ok(())
    }

    /// Accesses a byte at every `stride` bytes of a range: a read loads it, a write stores a 1, a
    /// fetch loads it. Stops at the first fault that the handler can't resolve.
    pub fn touch(&self, range: VirtRange, stride: u64, access: Access) -> Result<Touched, Fault<H::Error>> {
        assert!(stride > 0, "the stride of a touch must be greater than 0");
        let mut touched = Touched::default();
        let mut va = range.start;
        while va < range.end {
            match self.touch_some(va, range.end, stride, access) {
                (next, true) => {
                    touched.accesses += (next - va).div_ceil(stride);
                    va = next;
                }
                (next, false) => {
                    touched.accesses += (next - va).div_ceil(stride) + 1;
                    touched.faults += self.touch_one(next, access)?;
                    va = next.saturating_add(stride);
                }
            }
        }
        Ok(touched)
    }

    /// Accesses up to [`TOUCH_BATCH`] bytes under one hold of the lock of the CPU's
    /// memory-management unit. Returns the address where it stopped, and false if it stopped at a
    /// fault.
    fn touch_some(&self, mut va: u64, end: u64, stride: u64, access: Access) -> (u64, bool) {
        let hardware = self.machine().hardware();
        if S::STRICT || end > hardware.arch().user_end() {
            return (va, false);
        }
        let mut mmu = hardware.mmu(self.cpu.number());
        for _ in 0..TOUCH_BATCH {
            if va >= end {
                break;
            }
            let Ok(leaf) = mmu.translate(hardware, (self.id, self.root), va, access) else {
                return (va, false);
            };
            let pa = physical(leaf, va);
            self.poke(pa, access);
            va = va.saturating_add(stride);
        }
        (va, true)
    }

    #[cold]
    fn touch_one(&self, va: u64, access: Access) -> Result<u64, Fault<H::Error>> {
        let mut faults = 0;
        self.access_counting(va, access, |pa| self.poke(pa, access), &mut faults)?;
        Ok(faults)
    }

    fn poke(&self, pa: PhysAddr, access: Access) {
        let byte = self.machine().hardware().arena().byte(pa);
        match access {
            Access::Write => byte.store(1, Ordering::Relaxed),
            // Volatile in effect: the value is discarded, and the load must happen all the same.
            Access::Read | Access::Execute => drop(std::hint::black_box(byte.load(Ordering::Relaxed))),
        }
    }

    fn machine(&self) -> &S {
        self.cpu.machine
    }

    fn access<R>(&self, va: u64, access: Access, act: impl FnMut(PhysAddr) -> R) -> Result<R, Fault<H::Error>> {
        self.access_counting(va, access, act, &mut 0)
    }

    fn access_counting<R>(
        &self,
        va: u64,
        access: Access,
        mut act: impl FnMut(PhysAddr) -> R,
        faults: &mut u64,
    ) -> Result<R, Fault<H::Error>> {
        let (machine, cpu) = (self.machine(), self.cpu.number());
        let hardware = machine.hardware();
        if va >= hardware.arch().user_end() {
            return Err(Fault::Address(va));
        }
        for _ in 0..MAX_FAULTS {
            if let Some(done) = self.attempt(va, access, &mut act) {
                return Ok(done);
            }
            *faults += 1;
            hardware.count_fault(cpu);
            // The thread may have seats at several CPUs: the fault happens on this one.
            let _seat = hardware.seats.sit(cpu);
            self.space.fault(va, access).map_err(Fault::Handler)?;
        }
        Err(Fault::Stuck(va))
    }

    /// Tries an access once. Returns `None` if it faults.
    fn attempt<R>(&self, va: u64, access: Access, act: &mut impl FnMut(PhysAddr) -> R) -> Option<R> {
        let (machine, cpu) = (self.machine(), self.cpu.number());
        let hardware = machine.hardware();
        let mut mmu = hardware.mmu(cpu);
        let leaf = mmu.translate(hardware, (self.id, self.root), va, access).ok()?;
        let pa = physical(leaf, va);
        if !S::STRICT {
            return Some(act(pa));
        }
        // The access happens without the lock, so that other CPUs get a turn. An invalidation that
        // reaches this translation waits for it.
        mmu.in_flight = Some((Tag::new(self.id, va, leaf.shift), leaf));
        drop(mmu);
        let _in_flight = InFlight { hardware, cpu };
        machine.before_use(cpu, self.id, va, pa, access);
        Some(act(pa))
    }
}

/// Guard of an access under way. Ends the access even on a panic, so that an invalidation that
/// waits for it goes on.
struct InFlight<'h, A: Silicon> {
    hardware: &'h Hardware<A>,
    cpu: usize,
}

impl<A: Silicon> Drop for InFlight<'_, A> {
    fn drop(&mut self) {
        self.hardware.mmu(self.cpu).in_flight = None;
    }
}

fn physical(leaf: Leaf, va: u64) -> PhysAddr {
    PhysAddr(leaf.base.0 + (va & ((1 << leaf.shift) - 1)))
}

impl<S: Simulated, H: Handler> Drop for Program<'_, S, H> {
    fn drop(&mut self) {
        self.machine().switched(self.cpu.number(), self.id, false);
        if self.machine().hardware().unload(self.cpu.number(), self.id) {
            self.space.leave(self.cpu.number());
        }
    }
}
