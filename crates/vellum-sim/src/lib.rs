//! A machine in software for [`vellum`]: memory, CPUs, TLBs, and a page walker that reads the very tables that the
//! engine writes.
//!
//! There are two machines, and both are a [`vellum::platform::Platform`]:
//!
//! | | [`Fast`] | [`Strict`] |
//! |---|---|---|
//! | for | benchmarks | tests |
//! | the engine's events | compiled away | checked, one by one |
//! | TLBs | none unless asked for; invalidations are counted, and wait for accesses under way | small and hostile |
//! | time | the host's | one tick an event |
//! | CPUs | threads of the host | threads of the host, or coroutines under a deterministic scheduler |
//!
//! TLBs are data: [`TlbModel::CORES`] has those of real cores, with their sources. They know contiguous blocks (AArch64's
//! contiguous bit, RISC-V's Svnapot); and in a strict machine so does whoever watches over the tables.
//!
//! A thread becomes a CPU by sitting down: `let cpu = machine.cpu(3);`. A program runs on a CPU in an address space:
//! `let program = cpu.enter(&space); program.store(va, 1)?`. What the program does goes through that CPU's TLB and page
//! walker, ends in real bytes of the machine's memory, and where nothing is mapped calls the space's [`Handler`].
//!
//! ```
//! use vellum::space::{Limits, MapFlags, MapRequest};
//! use vellum::{AddressSpace, Machine, arch::X86_64, memcg::GroupId, vma::Prot};
//! use vellum_sim::{Config, Strictness};
//!
//! // 16 MiB and two CPUs; the seed decides what the hardware does to us.
//! let host = Config::new(16 << 20).cpus(2).strict(Strictness::new(1)).unwrap();
//! let cpu = host.cpu(1);
//! let machine = Machine::boot(&host, Default::default()).unwrap();
//! host.baseline();
//! {
//!     let space =
//!         AddressSpace::new(&machine, X86_64::four_levels(), GroupId::ROOT, Limits::default()).unwrap();
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
//! // Nothing leaked, and no rule was broken on the way: that would have been a panic.
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
