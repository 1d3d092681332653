//! User mode: the user ABI, signal frames, and a thread's extended registers.
//!
//! | file | contents |
//! |---|---|
//! | [`abi`] | architecture names and constants of the user ABI |
//! | [`extended_state`] | a thread's FPU, vector and TLS registers |
//! | [`frame`] | the signal frame on the user stack |
//! | [`keys`] | protection keys |
//! | [`regset`] | the registers of a traced thread |
//! | `touch` | the instructions that access user memory |

pub mod abi;
pub mod extended_state;
pub mod frame;
pub mod keys;
pub mod regset;
mod touch;
