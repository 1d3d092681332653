//! The engine as a kernel.

use std::cell::RefCell;

use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{Advise, Limits, LockAll, LockError, MapFlags, MapRequest, Populating, RemapFlags, RemapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Fast};

use super::file::Call;
use super::kernel::{BASE, END, Given, Kernel, PAGE, Vma};
use super::linux::{lowest, most_vmas};

pub struct Engine<'e> {
    pub space: &'e AddressSpace<'e, Fast, X86_64>,
    pub file: RefCell<Option<Object<'e, Fast>>>,
    cpu: &'e Cpu<'e, Fast>,
    pieces: bool,
}

/// Ask the engine, on a machine of its own whose limits are those of this machine's Linux.
pub fn ask<R>(given: Given, calls: impl FnOnce(&dyn Kernel) -> R) -> R {
    ask_host(given, false, calls)
}

/// The same, where the host does what takes long in the smallest pieces.
pub fn ask_in_pieces<R>(given: Given, calls: impl FnOnce(&dyn Kernel) -> R) -> R {
    ask_host(given, true, calls)
}

fn ask_host<R>(given: Given, pieces: bool, calls: impl FnOnce(&dyn Kernel) -> R) -> R {
    let sim = Config::new(64 << 20).fast().expect("memory on the host");
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    let limits = Limits {
        address_space: given.address_space.unwrap_or(u64::MAX),
        locked: given.locked.unwrap_or(u64::MAX),
        lowest: lowest(),
        vmas: most_vmas(),
        exec_gain: !given.no_exec_gain,
        ..Limits::default()
    };
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, limits).expect("memory");
    calls(&Engine { space: &space, file: RefCell::new(None), cpu: &cpu, pieces })
}

pub fn answer<E>(result: Result<(), E>, errno: impl FnOnce(E) -> vellum::errno::Errno) -> i64 {
    result.map_or_else(|error| -i64::from(errno(error).number()), |()| 0)
}

/// Makes the pieces of an operation until there are no more.
fn all<E>(mut piece: impl FnMut() -> Result<bool, E>) -> Result<(), E> {
    while !piece()? {}
    Ok(())
}

impl Engine<'_> {
    /// Faults in what was locked or mapped as far as possible, one fault after the other.
    fn populate_all(&self, mut rest: Populating) {
        while all(|| self.space.populate_some(&mut rest, || false)).is_err() {
            rest.pass_over();
        }
    }

    /// Faults in what was locked, one fault after the other.
    fn populate(&self, locked: Result<Populating, LockError>) -> Result<(), LockError> {
        let mut rest = locked?;
        all(|| self.space.populate_some(&mut rest, || false)).map_err(LockError::Fault)
    }
}

impl Kernel for Engine<'_> {
    fn map(&self, addr: u64, len: u64, prot: Prot, flags: MapFlags) -> i64 {
        let later = if self.pieces { MapFlags::LATER } else { MapFlags::empty() };
        let mapped = self.space.map(MapRequest { addr, len, prot, flags: flags | later });
        if let (Ok(at), true) = (mapped, self.pieces) {
            self.populate_all(self.space.begin_populate(at, len, flags.contains(MapFlags::POPULATE)));
        }
        mapped.map_or_else(|error| -i64::from(error.errno().number()), |at| at as i64)
    }

    fn unmap(&self, addr: u64, len: u64) -> i64 {
        answer(self.space.unmap(addr, len), |error| error.errno())
    }

    fn protect(&self, addr: u64, len: u64, prot: Prot) -> i64 {
        answer(self.space.protect(addr, len, prot), |error| error.errno())
    }

    fn advise(&self, addr: u64, len: u64, advise: Advise) -> i64 {
        if !self.pieces {
            return answer(self.space.advise(addr, len, advise), |error| error.errno());
        }
        let begun = self.space.begin_advice(addr, len, advise);
        let taken = begun.and_then(|mut rest| all(|| self.space.advise_some(&mut rest, || false)));
        answer(taken, |error| error.errno())
    }

    fn remap(&self, addr: u64, old_len: u64, new_len: u64, flags: RemapFlags, new_addr: u64) -> i64 {
        let remapped = self.space.remap(RemapRequest { addr, old_len, new_len, flags, new_addr });
        remapped.map_or_else(|error| -i64::from(error.errno().number()), |at| at as i64)
    }

    fn lock(&self, addr: u64, len: u64, on_fault: bool) -> i64 {
        let locked = match self.pieces {
            true => self.populate(self.space.begin_lock(addr, len, on_fault)),
            false => self.space.lock(addr, len, on_fault),
        };
        answer(locked, |error| error.errno())
    }

    fn unlock(&self, addr: u64, len: u64) -> i64 {
        answer(self.space.unlock(addr, len), |error| error.errno())
    }

    fn lock_all(&self, flags: LockAll) -> i64 {
        let locked = match self.pieces {
            true => self.space.begin_lock_all(flags).map(|rest| self.populate_all(rest)),
            false => self.space.lock_all(flags),
        };
        answer(locked, |error| error.errno())
    }

    fn unlock_all(&self) -> i64 {
        self.space.unlock_all();
        0
    }

    fn seal(&self, addr: u64, len: u64) -> i64 {
        answer(self.space.seal(addr, len), |error| error.errno())
    }

    fn resident(&self, addr: u64, len: u64, room: usize) -> i64 {
        let mut bits = vec![false; room];
        match self.space.resident(addr, len, &mut bits) {
            Err(error) => -i64::from(error.errno().number()),
            Ok(()) => {
                let pages = len.div_ceil(PAGE).min(62) as usize;
                bits.iter().take(pages).enumerate().map(|(at, bit)| i64::from(*bit) << at).sum()
            }
        }
    }

    fn file(&self, call: Call) -> i64 {
        Engine::file(self, call)
    }

    fn store(&self, addr: u64) {
        self.cpu.enter(self.space).store(addr, 1).expect("memory that may be written");
    }

    fn load(&self, addr: u64) -> i64 {
        self.cpu.enter(self.space).load(addr).expect("memory that may be read").into()
    }

    fn vmas(&self) -> Vec<Vma> {
        let mut vmas = Vec::new();
        self.space.vmas(BASE, |vma| {
            if vma.range.start < END {
                vmas.push((vma.range.start, vma.range.end, vma.prot.bits()));
            }
            vma.range.end < END
        });
        vmas
    }
}
