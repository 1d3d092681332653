//! User mode: what programs know the architecture by, and what a CPU keeps of a thread.
//!
//! | file | story |
//! |---|---|
//! | [`abi`] | names and numbers that programs know the architecture by |
//! | [`held`] | the registers of a thread beside the general ones |
//! | [`frame`] | the frame that a signal's handler finds on its stack |
//! | `touch` | the instructions that touch user memory |

pub mod abi;
pub mod frame;
pub mod held;
mod touch;
