//! Vellum: the memory manager of an operating-system kernel, which handles page tables one **run**
//! at a time.
//!
//! A run is a sequence of consecutive PTEs of one page table that are alike: for example leaf PTEs
//! that map consecutive frames with the same attributes. Unmapping, protecting, counting and TLB
//! flushing take one step for each run, where other memory managers take one for each page. A
//! single page is a run of length one and takes the same code path. See [`Run`].
//!
//! The crate is `no_std` and has no global state. All its memory comes from the regions that the
//! host gives it, and it reaches the host only through the traits of [`platform`].
//!
//! # The way through the crate
//!
//! 1. [`Machine::boot`] takes over the host's memory and builds what all address spaces share:
//!    frame descriptors, allocators, memcgs and swap devices.
//! 2. [`AddressSpace::new`] makes an address space with a page-table format ([`arch`]), a memcg and
//!    limits. Its methods are the system calls of memory management: [`AddressSpace::map`],
//!    [`AddressSpace::unmap`], [`AddressSpace::protect`], [`AddressSpace::fork`] and others.
//! 3. [`AddressSpace::fault`] resolves a page fault. Reading the engine from there shows most of
//!    it: lookup of the VMA, allocation and charging of a folio, and the mapping of a run.
//!
//! ```
//! use vellum::arch::X86_64;
//! use vellum::memcg::MemcgId;
//! use vellum::platform::Platform;
//! use vellum::space::{Access, Limits, MapFlags, MapRequest};
//! use vellum::vma::Prot;
//! use vellum::{AddressSpace, Machine};
//!
//! // `host` implements `Platform`; the crate `vellum-sim` has one in software.
//! fn first_fault<P: Platform<Arch = X86_64>>(host: &P) {
//!     let machine = Machine::boot(host, Default::default()).expect("enough memory to boot");
//!     let arch = X86_64::four_levels();
//!     let (memcg, limits) = (MemcgId::ROOT, Limits::default());
//!     let space = AddressSpace::new(&machine, arch, memcg, limits).expect("memory for a root");
//!     let prot = Prot::READ | Prot::WRITE;
//!     let request = MapRequest { addr: 0, len: 1 << 20, prot, flags: MapFlags::empty() };
//!     let addr = space.map(request).expect("free addresses");
//!     space.fault(addr, Access::Write).expect("memory for a folio");
//! }
//! ```
//!
//! # Modules
//!
//! A module imports only from modules above it in this table.
//!
//! | module | contents |
//! |---|---|
//! | [`addr`], [`errno`] | addresses and ranges; Linux's error numbers |
//! | [`arch`] | page-table formats: x86-64, AArch64, RISC-V |
//! | [`platform`] | the traits that a host implements |
//! | [`sync`] | spin locks, a per-CPU reader-writer lock, grace periods for lockless walks |
//! | [`stats`] | per-CPU counters |
//! | [`frame`] | physical memory: descriptors, buddy allocators, folio orders |
//! | [`swap`] | swap devices, swap slots, the swap cache, compressed swap |
//! | [`memcg`] | memory cgroups: charges, limits and LRU lists |
//! | `machine` | [`Machine`]: the memory that all address spaces of a machine share |
//! | `tlb` | TLB shootdown, and freeing after the flush |
//! | `table` | page tables: lockless walks, locks, runs |
//! | [`vma`] | VMAs and the VMA tree |
//! | [`page_cache`] | page-cache objects (Linux's `address_space`): shared memory and files |
//! | [`space`] | address spaces: mapping, page faults, fork, `madvise`, swapping, userfaultfd |
//! | [`reclaim`] | reclaim by memcg and NUMA node |
//! | [`audit`] | checks that reference counts and statistics agree with page tables, lists and indexes |
//!
//! # The host's duties
//!
//! The safety contracts are those of the traits in [`platform`]. Beyond them a host does the
//! following.
//!
//! - **Memory, CPUs and TLBs.** It implements [`platform::Platform`]. The engine frees memory as
//!   soon as [`platform::Tlb::invalidate`] has returned.
//! - **Loading a root.** It calls [`AddressSpace::cpu_enter`] before a CPU loads
//!   [`AddressSpace::root`], and [`AddressSpace::cpu_leave`] after that CPU has loaded another
//!   root. In the root page table, the entries that translate no user address belong to the host
//!   (INV-17).
//! - **Page faults.** It passes faults of user mode to [`AddressSpace::fault`] and turns a
//!   [`space::FaultError`] into a signal or a userfaultfd event.
//! - **Direct reclaim.** An operation that finds no memory returns an error with no state changed
//!   (INV-7). The error names the memcg whose limit was reached, or says that the machine is out of
//!   memory ([`memcg::MayBeRefused`]). The host reclaims memory there ([`reclaim::reclaim`]) and
//!   retries, or ends a process.
//! - **Background reclaim.** It runs a task like kswapd that reclaims while
//!   [`frame::Frames::shortage`] is above 0.
//! - **Truncation.** When an object loses pages, the host unmaps them from all spaces by
//!   [`space::unmap_removed`] before it reports success (INV-12).
//! - **Listing its spaces.** For reclaim, truncation and queries about all spaces it implements
//!   [`space::Spaces`].
#![no_std]
#![deny(unsafe_op_in_unsafe_fn, missing_docs)]

#[cfg(any(test, loom))]
extern crate std;

pub mod addr;
pub mod arch;
pub mod errno;
pub mod platform;
pub mod sync;

// The loom models test `sync`, and compile only it and the modules that it imports. The other
// modules access memory that loom does not track.
#[cfg(not(loom))]
pub mod audit;
#[cfg(not(loom))]
pub mod frame;
#[cfg(not(loom))]
mod machine;
#[cfg(not(loom))]
pub mod memcg;
#[cfg(not(loom))]
pub mod page_cache;
#[cfg(not(loom))]
pub mod reclaim;
#[cfg(not(loom))]
pub mod space;
#[cfg(not(loom))]
pub mod stats;
#[cfg(not(loom))]
pub mod swap;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod tlb;
#[cfg(not(loom))]
pub mod vma;

#[cfg(all(test, not(loom)))]
mod testing;

#[cfg(not(loom))]
pub use machine::{HugePages, HugePool, Machine};
#[cfg(not(loom))]
pub use space::AddressSpace;
#[cfg(not(loom))]
pub use table::{Cont, Run};
