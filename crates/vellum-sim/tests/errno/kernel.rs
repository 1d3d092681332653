//! What both kernels are asked. Addresses mean the same on both sides.

use vellum::space::{Advise, LockAll, MapFlags, RemapFlags};
use vellum::vma::Prot;

pub const PAGE: u64 = 4096;
/// Where the calls go: far from where Linux puts anything by itself.
pub const BASE: u64 = 0x10_0000_0000;
/// The end of what is looked at.
pub const END: u64 = BASE + (1 << 32);
/// The first address that user mode can't have: on x86-64 with four levels of tables, and with five unless asked for.
pub const USER_END: u64 = 0x7fff_ffff_f000;

/// A VMA: first address, end, protection as bits of [`Prot`].
pub type Vma = (u64, u64, u8);

/// A kernel. Calls answer with a number, or the negative number of an error, as system calls do.
pub trait Kernel {
    /// `mmap` of anonymous memory: where.
    fn map(&self, addr: u64, len: u64, prot: Prot, flags: MapFlags) -> i64;
    /// `munmap`.
    fn unmap(&self, addr: u64, len: u64) -> i64;
    /// `mprotect`.
    fn protect(&self, addr: u64, len: u64, prot: Prot) -> i64;
    /// `madvise`.
    fn advise(&self, addr: u64, len: u64, advise: Advise) -> i64;
    /// `mremap`: where.
    fn remap(&self, addr: u64, old_len: u64, new_len: u64, flags: RemapFlags, new_addr: u64) -> i64;
    /// `mlock2`.
    fn lock(&self, addr: u64, len: u64, on_fault: bool) -> i64;
    /// `munlock`.
    fn unlock(&self, addr: u64, len: u64) -> i64;
    /// `mlockall`.
    fn lock_all(&self, flags: LockAll) -> i64;
    /// `munlockall`.
    fn unlock_all(&self) -> i64;
    /// `mseal`.
    fn seal(&self, addr: u64, len: u64) -> i64;
    /// `mincore`, with room for so many pages: one bit for each of the first 62 pages, the first the lowest.
    fn resident(&self, addr: u64, len: u64, room: usize) -> i64;
    /// Something about a file in memory.
    fn file(&self, call: super::file::Call) -> i64;
    /// A program stores a byte.
    fn store(&self, addr: u64);
    /// A program loads a byte.
    fn load(&self, addr: u64) -> i64;
    /// The VMAs between [`BASE`] and [`END`].
    fn vmas(&self) -> Vec<Vma>;
}

/// What may be set before a row begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given {
    /// Bytes of address space that may be added.
    pub address_space: Option<u64>,
    /// Bytes of memory that may be locked.
    pub locked: Option<u64>,
    /// Whether memory may become executable only while nobody can write it, as it is mapped.
    pub no_exec_gain: bool,
}

/// What the calls of a row answered, in order.
pub type Answers = Vec<i64>;

/// A row of the table.
pub struct Row {
    pub name: &'static str,
    pub given: Given,
    /// The calls.
    pub calls: fn(&dyn Kernel) -> Answers,
    pub expect: Expect,
}

/// What to expect of the two.
pub enum Expect {
    /// The same of both.
    Same,
    /// Something else of each, on purpose.
    Differ { engine: &'static [i64], linux: &'static [i64], why: &'static str },
}
