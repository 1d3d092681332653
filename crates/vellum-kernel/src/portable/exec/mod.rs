//! Starting programs: what a file says about the memory it wants, and what a program finds on its
//! stack. Everything here judges input that a program made up: it answers with an error, and never
//! panics.
//!
//! | file | story |
//! |---|---|
//! | [`elf`] | from an ELF file to a list of mappings |
//! | [`script`] | `#!` |
//! | [`stack`] | arguments, environment and auxiliary vector, as Linux lays them out |

pub mod elf;
pub mod script;
pub mod stack;
