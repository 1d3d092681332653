//! Random operations on the engine, against a model of plain maps.
//!
//! An **actor** is a thread that sits at one CPU. In each space it has a **plot**: addresses that are its alone, and a model
//! of every page there. So whatever the others do meanwhile, the answer to each of its operations is known beforehand,
//! although plots of different actors lie side by side: in one table, often in one VMA, sometimes under one large folio.
//! Now and then all actors stop, and the whole machine is compared with all models at once.
//!
//! | file | story |
//! |---|---|
//! | `dice` | chance from a seed |
//! | `model` | pages of a space, and the VMAs that follow from them |
//! | `contents` | what a page holds |
//! | `lock` | locking, sealing, populating, guarding, pinning |
//! | `presence` | which pages are resident |
//! | `remap` | VMAs that change their size or place |
//! | `expect` | what an operation should answer |
//! | `op` | operations, and their choice |
//! | `pieces` | operations in pieces |
//! | `plot`, `change`, `access` | an operation on the engine and on the model |
//! | `fork` | a child has what its parent had |
//! | `look` | what the engine says of a plot |
//! | `walk` | page tables, read from the machine's memory as hardware reads them |
//! | `census` | the whole machine against all models, when nothing runs |
//! | `cases`, `races` | small cases, on one CPU and on two |
//! | `swap` | devices to swap to, and what is in their slots |
//! | `watched` | writes that somebody asks for |
//! | `setup` | what machine, spaces and actors a seed stands for |
//! | `threads` | actors as threads of the host, or of a deterministic schedule |
//! | `world` | a case: boot, rounds of operations and counting, exit |
//! | `shared` | pages that all actors use |
//! | `host` | the fast and the strict machine by one name |
//! | `fuzz` | new seeds, for hours |
//! | `watch`, `shrink` | failures: how to run them again, what hangs, and the shortest way there |

pub mod access;
mod cases;
pub mod census;
pub mod change;
pub mod contents;
pub mod dice;
pub mod expect;
pub mod fork;
pub mod fuzz;
pub mod host;
pub mod lock;
pub mod look;
pub mod model;
pub mod op;
pub mod pieces;
pub mod plot;
pub mod presence;
pub mod remap;
pub mod setup;
pub mod shared;
pub mod shrink;
pub mod swap;
pub mod threads;
pub mod walk;
pub mod watch;
pub mod watched;
pub mod world;

#[cfg(feature = "shuttle")]
mod races;
