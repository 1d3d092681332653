//! Filters of system calls (`seccomp`).
//!
//! A filter is a program of classic BPF that reads the number, the architecture and the arguments
//! of a system call, and returns an action. A thread's filters form a chain, the newest first; each
//! runs for each call, and the strictest action counts. Children share the chain, which never
//! changes; a new filter begins a longer one.
//!
//! Most filters permit most calls whatever their arguments. A filter that is installed is run once
//! for each number, up to the first load of an argument; the numbers that it permits that way are a
//! bitmap, for the whole chain, which spares their calls the programs.
//!
//! | file | subject |
//! |---|---|
//! | [`bpf`] | programs: their checks, and their execution |
//! | [`action`] | what filters return |
//! | [`filter`] | filters, and the chains that they form |

pub mod action;
pub mod bpf;
pub mod filter;
