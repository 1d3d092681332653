//! Vellum: the memory manager of an operating-system kernel, working by the **run**.
//!
//! A run is a stretch of consecutive page-table entries that say the same thing. Whatever a memory manager does to page
//! tables, Vellum does once a run instead of once a page: unmapping, protecting, counting, flushing. A page is a run of
//! length one, so there is no second path.
//!
//! The crate is `no_std`, allocates from the memory it manages and nothing else, holds no global state, and reaches its
//! host only through the traits of [`platform`]. Start with [`Machine::boot`], then [`AddressSpace::new`].
//!
//! Modules import only from those above them in this list:
//!
//! | module | what |
//! |---|---|
//! | [`addr`], [`errno`] | addresses, ranges; Linux's names for errors |
//! | [`platform`] | what a host supplies |
//! | [`sync`] | locks, and lockless walkers |
//! | [`arch`] | page-table formats |
//! | [`stats`] | counters |
//! | [`frame`] | physical memory: descriptors, allocator, folio sizes |
//! | [`swap`] | swap: slots, devices, compressed memory |
//! | [`memcg`] | memory control memcgs and their LRU lists |
//! | `machine` | all of the above for one machine |
//! | `tlb` | what must be flushed before it is freed |
//! | `table` | page tables: walk, lock, runs |
//! | [`vma`] | VMAs |
//! | [`page_cache`] | memory objects: shared memory and files |
//! | [`space`] | address spaces |
//! | [`reclaim`] | memory is short |
//! | [`audit`] | what the engine counts, compared with what is there |
#![no_std]
#![deny(unsafe_op_in_unsafe_fn, missing_docs)]

#[cfg(any(test, loom))]
extern crate std;

pub mod addr;
pub mod errno;
pub mod platform;
pub mod sync;

// A model of the locks has no use for the rest, whose memory is not `loom`'s.
#[cfg(not(loom))]
pub mod arch;
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
pub use machine::Machine;
#[cfg(not(loom))]
pub use space::AddressSpace;
#[cfg(not(loom))]
pub use table::{Cont, Run};
