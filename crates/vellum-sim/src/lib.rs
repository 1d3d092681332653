//! A machine in software for [`vellum`]: memory, CPUs, TLBs, and a page walker that reads the page
//! tables that the engine writes.
//!
//! There are two machines, and both are a [`vellum::platform::Platform`]:
//!
//! | | [`Fast`] | [`Strict`] |
//! |---|---|---|
//! | for | benchmarks | tests |
//! | the engine's events | compiled away | checked, one by one |
//! | TLBs | none by default; invalidations are counted, and wait for accesses under way | small and hostile |
//! | time | the host's | one tick for each reading of the clock |
//! | CPUs | threads of the host | threads of the host, or coroutines under a deterministic scheduler |
//!
//! TLBs are data: [`TlbModel::CORES`] holds those of real cores, with their sources. They cache a
//! cont block (AArch64's contiguous bit, RISC-V's Svnapot) as one entry; and the strict machine
//! checks the rules for cont blocks.
//!
//! A thread becomes a CPU by taking a seat: `let cpu = machine.cpu(3);`. A program runs on a CPU in
//! an address space: `let program = cpu.enter(&space); program.store(va, 1)?`. Its accesses go
//! through that CPU's TLB and page walker, end in real bytes of the machine's memory, and call the
//! space's [`Handler`] where nothing is mapped.
//!
//! ```
//! use vellum::space::{Limits, MapFlags, MapRequest};
//! use vellum::{AddressSpace, Machine, arch::X86_64, memcg::MemcgId, vma::Prot};
//! use vellum_sim::{Config, Strictness};
//!
//! // 16 MiB and two CPUs; the seed decides what the hostile hardware does.
//! let host = Config::new(16 << 20).cpus(2).strict(Strictness::new(1)).unwrap();
//! let cpu = host.cpu(1);
//! let machine = Machine::boot(&host, Default::default()).unwrap();
//! host.baseline();
//! {
//!     let space =
//!         AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default())
//!             .unwrap();
//!     let request = MapRequest {
//!         addr: 0,
//!         len: 1 << 20,
//!         prot: Prot::READ | Prot::WRITE,
//!         flags: MapFlags::default(),
//!     };
//!     let at = space.map(request).unwrap();
//!     let program = cpu.enter(&space);
//!     program.store(at, 7).unwrap();
//!     assert_eq!(program.load(at), Ok(7));
//!     drop(program);
//! }
//! // Panics if a frame leaked, or a lock or walk never ended.
//! host.finish();
//! ```

#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]
#![warn(missing_docs)]

mod adapter;
mod arena;
mod config;
mod cores;
mod disk;
mod fast;
mod files;
mod hardware;
mod inject;
mod model;
mod program;
mod rng;
mod schedule;
mod seat;
mod stats;
mod strict;
mod tlb;
mod walker;

pub use arena::Arena;
pub use config::Config;
pub use disk::Disk;
pub use fast::Fast;
pub use files::{Files, Finished};
pub use hardware::{Hardware, Simulated};
pub use inject::Refusal;
pub use model::{Bank, PagingCache, TlbModel};
pub use program::{Access, Cpu, Fault, Handler, Program, Touched};
pub use schedule::Schedule;
pub use stats::Stats;
pub use strict::{Hostility, Rule, Strict, Strictness, Violation};
pub use walker::Silicon;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
