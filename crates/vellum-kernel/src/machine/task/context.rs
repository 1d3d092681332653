//! What a thread has of the processor, and what from its maker.

use crate::arch::entry::Registers;
use crate::arch::held::Held;
use crate::mem::UserSpace;
use crate::task::signal::Set;
use alloc::sync::Arc;
use vellum_kernel::credentials::Credentials;
use vellum_kernel::fs::Files;

/// What a thread has of the processor, and what nobody else needs to see.
pub struct Context {
    /// The general registers.
    pub registers: Registers,
    /// The registers beside them, while no processor holds them.
    pub held: Held,
    /// The memory it runs in.
    pub memory: Arc<UserSpace>,
    /// Its files.
    pub files: Arc<Files>,
    /// Where the kernel writes 0 when the thread ends (`set_tid_address`).
    pub clear_tid: u64,
    /// The list of locks to mark when the thread ends (`set_robust_list`).
    pub robust_list: u64,
    /// The alternate stack for signals: address and length.
    pub signal_stack: [u64; 2],
    /// The mask to return to after a signal, when `sigsuspend` and the like have another in place.
    pub saved_mask: Option<Set>,
    /// Where the last page fault was.
    pub fault_address: u64,
    /// The system call that a signal ended and that may be made again.
    pub restart: Option<u64>,
    /// Whether that is made again whatever a handler wants.
    pub insists: bool,
    /// How long the system call waits at most, if it has waited before: made again, it goes on waiting.
    pub waits_until: Option<u64>,
}

/// A memory policy: the nodes that a thread's memory is to come from (`set_mempolicy`).
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// A mode of `linux/mempolicy.h`, without its flags.
    pub mode: u32,
    /// The nodes, a bit each.
    pub nodes: u64,
}

/// What a thread has from its maker, and gives to those it makes.
#[derive(Clone)]
pub struct Traits {
    /// Whose it is.
    pub credentials: Arc<Credentials>,
    /// Whether no program that it executes gains anything by that (`PR_SET_NO_NEW_PRIVS`).
    pub no_new_privileges: bool,
    /// How nice it is to others: from −20 to 19.
    pub nice: i32,
    /// Its class of scheduling and its priority there, for those who only want to know.
    pub schedule: (u32, u32),
    /// Which node its memory is to come from.
    pub policy: Policy,
    /// How much later its sleep may end, in nanoseconds, for those who only want to know.
    pub slack: u64,
    /// What that is when nothing is said: its maker's as it was made.
    pub usual_slack: u64,
}

impl Traits {
    /// Of the first thread.
    pub(super) fn first() -> Self {
        Self {
            credentials: Arc::new(Credentials::root()),
            no_new_privileges: false,
            nice: 0,
            schedule: (0, 0),
            policy: Policy::default(),
            slack: 50_000,
            usual_slack: 50_000,
        }
    }

    /// Of a thread that one with these makes.
    pub(super) fn passed_on(&self) -> Self {
        Self { usual_slack: self.slack, ..self.clone() }
    }
}

impl Context {
    /// Of a thread that will begin with these registers.
    pub fn new(memory: Arc<UserSpace>, files: Arc<Files>, registers: Registers) -> Self {
        Self {
            registers,
            held: Held::new(),
            memory,
            files,
            clear_tid: 0,
            robust_list: 0,
            signal_stack: [0; 2],
            saved_mask: None,
            fault_address: 0,
            restart: None,
            insists: false,
            waits_until: None,
        }
    }
}
