//! Threads, and what runs them.
//!
//! | file | story |
//! |---|---|
//! | [`executor`] | who may run, and on which processor |
//! | [`time`] | waiting for a moment |
//! | [`thread`] | a user thread: a future that enters user mode again and again |
//! | [`run`] | into user mode, and what a thread comes back for |
//! | [`blocked`] | waiting until an access to memory that failed is worth another try |
//! | [`oom`] | memory runs out |
//! | [`background`] | memory is reclaimed before it runs out |
//! | [`collapse`] | where there is time, small pages become huge ones |
//! | [`percpu`] | the task layer's part of a CPU's record |
//! | [`timer`] | a process's timers |
//! | [`context`] | what a thread has of the processor, and what from its maker |
//! | [`process`] | what the threads of a program share, and who knows whom |
//! | [`life`] | how far its life has come |
//! | [`count`] | how many there are |
//! | [`allowance`] | how long processors may work for a process |
//! | [`usage`] | what a thread has used |
//! | [`signal`] | signals: sending |
//! | [`deliver`] | signals: what a thread does about them |
//! | [`futex`] | waiting for a word of memory |

pub mod allowance;
pub mod background;
pub mod blocked;
pub mod collapse;
pub mod context;
pub mod count;
pub mod deliver;
pub mod executor;
pub mod futex;
pub mod life;
pub mod oom;
pub mod percpu;
pub mod process;
pub mod run;
pub mod signal;
pub mod thread;
pub mod time;
pub mod timer;
pub mod usage;

pub use process::Process;
pub use thread::Thread;
