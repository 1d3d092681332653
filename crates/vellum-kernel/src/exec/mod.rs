//! Programs: what their files say, and how they begin.
//!
//! | file | story |
//! |---|---|
//! | [`elf`] | from a file to what has to be mapped |
//! | [`stack`] | arguments, environment and auxiliary vector, as Linux lays them out |

pub mod elf;
pub mod stack;
