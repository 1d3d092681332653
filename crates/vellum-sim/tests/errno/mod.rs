//! The same system calls on the engine and on the kernel of this machine.
//!
//! | file | story |
//! |---|---|
//! | `kernel` | what both are asked, and what they answer |
//! | `engine` | the engine answers |
//! | `linux` | Linux answers, in a process of its own for each question |
//! | `file` | files in memory, of which there is one |
//! | `rows` | the table: bad input, edges, limits |
//! | `geometry` | which VMAs are left after a series of calls |

pub mod engine;
pub mod file;
pub mod geometry;
pub mod kernel;
pub mod linux;
pub mod rows;
