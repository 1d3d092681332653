//! Execution of programs: the mappings that an executable asks for, and the initial stack. All of
//! this parses input that programs control: it returns errors, and never panics.
//!
//! | file | contents |
//! |---|---|
//! | [`dump`] | core files |
//! | [`elf`] | from an ELF file to a list of mappings |
//! | [`script`] | scripts, which begin with `#!` |
//! | [`stack`] | arguments, environment and auxiliary vector, laid out as on Linux |
//! | [`vvar`] | the page from which programs read the clocks |

pub mod dump;
pub mod elf;
pub mod script;
pub mod stack;
pub mod vvar;
