//! A thread's registers and private state, and the attributes that it inherits from its creator.

use crate::arch::entry::Registers;
use crate::arch::extended_state::ExtendedState;
use crate::mem::UserSpace;
use crate::task::signal::Set;
use alloc::sync::Arc;
use vellum_kernel::credentials::Credentials;
use vellum_kernel::fs::Files;
use vellum_kernel::seccomp::filter::Seccomp;

/// The state that only the thread's own future accesses.
pub struct Context {
    /// The general registers.
    pub registers: Registers,
    /// The FPU, vector and TLS registers, while no CPU holds the thread's values of them.
    pub extended: ExtendedState,
    /// The address space it runs in.
    pub memory: Arc<UserSpace>,
    /// Its open files.
    pub files: Arc<Files>,
    /// The address at which the kernel writes 0 when the thread ends (`set_tid_address`).
    pub clear_tid: u64,
    /// The list of robust futexes to mark when the thread ends (`set_robust_list`).
    pub robust_list: u64,
    /// The alternate signal stack: address and length.
    pub signal_stack: [u64; 2],
    /// The mask to restore after a signal, while `sigsuspend` and the like have another one in
    /// place.
    pub saved_mask: Option<Set>,
    /// The address of the last page fault.
    pub fault_address: u64,
    /// The number of a system call that a signal interrupted and that may be restarted.
    pub restart: Option<u64>,
    /// True if the call in `restart` is restarted even after a handler without `SA_RESTART`.
    pub always_restarts: bool,
    /// The deadline of the system call's wait, if the call was restarted: it keeps its first
    /// deadline.
    pub wait_deadline: Option<u64>,
}

/// A memory policy: the nodes from which a thread's memory is allocated (`set_mempolicy`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// A mode of `linux/mempolicy.h`, without its flags.
    pub mode: u32,
    /// The nodes, a bit each.
    pub nodes: u64,
}

/// The attributes that a thread inherits from its creator.
#[derive(Clone)]
pub struct Traits {
    /// Its credentials.
    pub credentials: Arc<Credentials>,
    /// True if `execve` never grants privileges (`PR_SET_NO_NEW_PRIVS`).
    pub no_new_privileges: bool,
    /// The system calls that it may make (`seccomp`).
    pub seccomp: Seccomp,
    /// The nice value, from −20 to 19.
    pub nice: i32,
    /// The scheduling policy and priority; only reported, not applied.
    pub schedule: (u32, u32),
    /// The memory policy.
    pub policy: Policy,
    /// The personality, of which nothing has an effect (`personality`).
    pub personality: u32,
    /// The timer slack in nanoseconds; only reported, not applied.
    pub slack: u64,
    /// The default timer slack: the creator's slack when it created the thread.
    pub usual_slack: u64,
}

impl Traits {
    /// Returns the attributes of the first thread.
    pub(super) fn first() -> Self {
        Self {
            credentials: Arc::new(Credentials::root()),
            no_new_privileges: false,
            seccomp: Seccomp::default(),
            nice: 0,
            schedule: (0, 0),
            policy: Policy::default(),
            personality: 0,
            slack: 50_000,
            usual_slack: 50_000,
        }
    }

    /// Returns the attributes of a thread that a thread with these attributes creates.
    pub(super) fn inherited(&self) -> Self {
        Self { usual_slack: self.slack, ..self.clone() }
    }
}

impl Context {
    /// Returns the context of a new thread that starts with these registers.
    pub fn new(memory: Arc<UserSpace>, files: Arc<Files>, registers: Registers) -> Self {
        Self {
            registers,
            extended: ExtendedState::new(),
            memory,
            files,
            clear_tid: 0,
            robust_list: 0,
            signal_stack: [0; 2],
            saved_mask: None,
            fault_address: 0,
            restart: None,
            always_restarts: false,
            wait_deadline: None,
        }
    }
}
