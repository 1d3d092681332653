//! Threads and processes, and the executor that schedules them.
//!
//! | file | contents |
//! |---|---|
//! | [`executor`] | the scheduler: one run queue, ordered by virtual runtime |
//! | [`time`] | sleeping until a deadline; the CPUs' timers |
//! | [`thread`] | a user thread: a future that enters user mode again and again |
//! | [`run`] | the thread's loop: enter user mode, handle the trap |
//! | [`blocked`] | waiting until a failed memory access is worth a retry |
//! | [`oom`] | direct reclaim and the OOM killer |
//! | [`background`] | background reclaim (Linux: kswapd) |
//! | [`collapse`] | collapsing small pages into huge ones (Linux: khugepaged) |
//! | [`percpu`] | the task layer's part of a CPU's record |
//! | [`timer`] | a process's timers |
//! | [`context`] | a thread's registers and private state, and what it inherits |
//! | [`process`] | processes: what the threads of a program share, and the process tree |
//! | [`life`] | the states of a process |
//! | [`limits`] | the limits of CPU time and of the number of threads |
//! | [`usage`] | the resources that a thread has used |
//! | [`signal`] | signals: sending |
//! | [`job`] | job control: process groups, sessions, and their terminals |
//! | [`deliver`] | signals: delivery |
//! | [`trace`] | tracing of threads (`ptrace`) |
//! | [`futex`] | futexes |

pub mod background;
pub mod blocked;
pub mod collapse;
pub mod context;
pub mod deliver;
pub mod executor;
pub mod futex;
pub mod job;
pub mod life;
pub mod limits;
pub mod oom;
pub mod percpu;
pub mod process;
pub mod run;
pub mod signal;
pub mod thread;
pub mod time;
pub mod timer;
pub mod trace;
pub mod usage;

pub use process::Process;
pub use thread::Thread;
