use super::*;
use crate::roles::Role;
use crate::tally::{Count, IDLE, INIT, INTERRUPT, KERNEL_TASK, NAMELESS, PAGE_FAULT, PROGRAM, START};

const K: u64 = 0xffff_8000_0000_0000;
const CALL: u64 = K + 0x100;
const FAULT: u64 = K + 0x200;
const IRQ: u64 = K + 0x300;
const SWITCH: u64 = K + 0x400;
const START_AT: u64 = K + 0x500;
const IDLE_AT: u64 = K + 0x600;
const EXECVE: u64 = K + 0x700;
const READ: u64 = K + 0x800;
const FORK: u64 = K + 0x900;
const GETPPID: u64 = K + 0xa00;
const RETURN: u64 = K + 0xb00;
const OTHER: u64 = K + 0x5000;
const TABLE: u64 = K + 0x8000;

fn linux() -> Roles {
    let mut roles = Roles { init_ends_by: Some("getppid".into()), ..Roles::default() };
    let one = |at| at..at + 1;
    roles.add(one(CALL), Role::Unnamed("other system call".into()));
    roles.add(one(FAULT), Role::Entry("page fault".into()));
    roles.add(IRQ..IRQ + 0x100, Role::Entry("interrupt".into()));
    roles.add(SWITCH..SWITCH + 0x20, Role::Switch);
    roles.add(one(START_AT), Role::Start);
    roles.add(one(IDLE_AT), Role::Idle);
    for (at, name) in [(EXECVE, "execve"), (READ, "read"), (FORK, "fork"), (GETPPID, "getppid")] {
        roles.add(one(at), Role::Names(name.into()));
    }
    roles.returns.push(RETURN..RETURN + 0x100);
    roles
}

/// A machine whose every block has ten instructions.
struct Run {
    machine: Machine,
    now: u64,
}

impl Run {
    fn new(roles: &Roles) -> Self {
        Self { machine: Machine::new(roles), now: 0 }
    }

    fn on(&mut self, cpu: usize, blocks: &[u64]) -> &mut Self {
        for &start in blocks {
            let returns = (RETURN..RETURN + 0x100).contains(&start);
            let block = self.machine.describe(start, returns);
            self.machine.block(cpu, self.now, block);
            self.now += 10;
        }
        self
    }

    fn switch(&mut self, cpu: usize, thread: u64) -> &mut Self {
        self.on(cpu, &[SWITCH]);
        self.machine.reads_in_switch(cpu, self.now, thread);
        // Another read of the function, from the next thread's stack.
        self.machine.reads_in_switch(cpu, self.now, 0x77);
        self
    }

    fn note(&mut self, number: u64) -> &mut Self {
        self.machine.notes(0, self.now, TABLE + number);
        self
    }

    /// Boots until the program, thread 2, has executed one block. The thread of init is 1.
    fn booted() -> Self {
        let mut run = Self::new(&linux());
        run.on(0, &[OTHER, IDLE_AT]).switch(0, 1).on(0, &[START_AT, OTHER, RETURN, 0x1000]);
        run.on(0, &[CALL, READ, RETURN, 0x1000, CALL, FORK]).switch(0, 2).on(0, &[START_AT, RETURN, 0x1000]);
        run.on(0, &[CALL, EXECVE, OTHER, RETURN, 0x4000]);
        run
    }

    fn tally(&mut self) -> Tally {
        self.machine.finish(self.now)
    }
}

fn count(times: u64, instructions: u64) -> Count {
    Count { times, instructions }
}

fn named(tally: &Tally, name: &str) -> Count {
    tally.of(tally.clone().cause(name))
}

#[test]
fn counting_begins_with_the_programs_first_block() {
    let tally = Run::booted().tally();
    assert_eq!(tally.to_string(), "0 10 program\n");
}

#[test]
fn the_programs_first_instruction_may_fault() {
    let mut run = Run::new(&linux());
    run.on(0, &[OTHER, IDLE_AT]).switch(0, 1).on(0, &[START_AT, 0x1000, CALL, READ, RETURN, 0x1000]);
    run.switch(0, 2).on(0, &[START_AT, RETURN, 0x1000, CALL, EXECVE, OTHER, RETURN, FAULT, OTHER, RETURN]);
    assert_eq!(run.tally().to_string(), "");
    assert_eq!(run.on(0, &[0x4000, FAULT, RETURN]).tally().to_string(), "0 10 program\n1 20 page fault\n");
}

#[test]
fn the_way_into_a_call_belongs_to_the_call() {
    let mut run = Run::booted();
    let tally = run.on(0, &[CALL, OTHER, READ, OTHER, RETURN, 0x4000]).tally();
    assert_eq!(named(&tally, "read"), count(1, 50));
    assert_eq!(tally.of(PROGRAM), count(0, 20));
}

#[test]
fn a_block_has_the_cause_that_it_is_charged_to() {
    let mut run = Run::new(&linux());
    assert_eq!(run.on(0, &[OTHER, IDLE_AT, CALL, READ]).machine.kernel_work(0), None, "before the program");
    let mut run = Run::booted();
    let mut cause = |blocks: &[u64]| {
        let cause = run.on(0, blocks).machine.kernel_work(0)?;
        Some(run.machine.name_of(cause).to_owned())
    };
    assert_eq!(cause(&[]), None, "in the program");
    assert_eq!(cause(&[CALL]).as_deref(), Some("other system call"), "before its name is known");
    assert_eq!(cause(&[READ]).as_deref(), Some("read"));
    assert_eq!(cause(&[FAULT, OTHER]).as_deref(), Some("page fault"));
    assert_eq!(cause(&[RETURN, OTHER]).as_deref(), Some("read"));
}

#[test]
fn a_call_without_a_name_is_counted() {
    let tally = Run::booted().on(0, &[CALL, OTHER, RETURN, 0x4000]).tally();
    assert_eq!(tally.of(NAMELESS), count(1, 30));
}

#[test]
fn a_call_within_a_call_does_not_rename_it() {
    let tally = Run::booted().on(0, &[CALL, READ, FORK, RETURN, 0x4000]).tally();
    assert_eq!(named(&tally, "read"), count(1, 40));
    assert_eq!(named(&tally, "fork"), count(0, 0));
}

#[test]
fn faults_and_interrupts_within_a_call_are_apart() {
    let mut run = Run::booted();
    let tally = run.on(0, &[CALL, READ, FAULT, IRQ, OTHER, RETURN, OTHER, RETURN, OTHER, RETURN, 0x4000]).tally();
    assert_eq!(named(&tally, "read"), count(1, 40));
    assert_eq!(tally.of(PAGE_FAULT), count(1, 30));
    assert_eq!(tally.of(INTERRUPT), count(1, 30));
}

#[test]
fn an_entry_directly_after_the_return_is_from_user_mode() {
    // The first instruction faults, so that no block of user mode is executed.
    let mut run = Run::booted();
    let tally = run.on(0, &[CALL, EXECVE, RETURN, FAULT, OTHER, RETURN, 0x4000]).tally();
    assert_eq!(named(&tally, "execve"), count(1, 30));
    assert_eq!(tally.of(PAGE_FAULT), count(1, 30));
    assert_eq!(run.machine.cpus[0].thread.frames.len(), 0);
}

#[test]
fn a_call_that_slept_goes_on() {
    let mut run = Run::booted();
    run.on(0, &[CALL, READ]).switch(0, 3).on(0, &[START_AT, OTHER]).switch(0, 2).on(0, &[OTHER, RETURN, 0x4000]);
    let tally = run.tally();
    // Entry, call and switch before the sleep; two blocks after it.
    assert_eq!(named(&tally, "read"), count(1, 50));
    assert_eq!(tally.of(KERNEL_TASK), count(0, 30), "thread 3 never went to user mode");
}

#[test]
fn a_new_thread_is_no_kernel_task_once_it_is_in_user_mode() {
    let mut run = Run::booted();
    run.on(0, &[CALL, FORK]).switch(0, 3).on(0, &[START_AT, OTHER, RETURN]);
    assert_eq!(run.tally().of(KERNEL_TASK), count(0, 30));
    let tally = run.on(0, &[0x4000]).tally();
    assert_eq!(tally.of(KERNEL_TASK), count(0, 0));
    assert_eq!(tally.of(START), count(1, 30));
}

#[test]
fn a_descriptor_may_be_used_again() {
    let mut run = Run::booted();
    run.on(0, &[CALL, READ]).switch(0, 3).on(0, &[START_AT, 0x4000, CALL, READ]).switch(0, 2);
    run.on(0, &[OTHER, RETURN, 0x4000, CALL, READ]).switch(0, 3).on(0, &[START_AT, OTHER, 0x4000]);
    assert_eq!(run.tally().of(START), count(2, 30));
}

#[test]
fn idle_and_init_are_apart_and_interrupts_belong_to_neither() {
    let mut run = Run::booted();
    run.on(0, &[CALL, READ]).switch(0, 0).on(0, &[OTHER, OTHER, IRQ, RETURN, OTHER]);
    run.switch(0, 1).on(0, &[OTHER, RETURN, 0x1000, CALL, READ, IRQ, OTHER, RETURN, OTHER]);
    let tally = run.tally();
    assert_eq!(tally.of(IDLE), count(0, 40));
    assert_eq!(tally.of(INTERRUPT), count(2, 50));
    assert_eq!(tally.of(INIT), count(0, 60));
    assert_eq!(named(&tally, "read"), count(1, 30));
}

#[test]
fn counting_ends_with_inits_call() {
    let mut run = Run::booted();
    run.on(0, &[CALL, GETPPID, RETURN, 0x4000]);
    assert!(!run.machine.has_ended(), "the program may make this call, too");
    run.on(0, &[CALL, READ]).switch(0, 1).on(0, &[RETURN, 0x1000, CALL, GETPPID]);
    assert!(run.machine.has_ended());
    let before = run.tally();
    assert!(before.complete);
    assert_eq!(run.on(0, &[OTHER, RETURN, 0x1000, CALL, READ]).tally().to_string(), before.to_string());
}

#[test]
fn two_cpus_have_states_of_their_own() {
    let mut run = Run::booted();
    run.on(1, &[OTHER, IDLE_AT]).on(0, &[CALL]).on(1, &[OTHER]).on(0, &[READ]).on(1, &[IRQ]).on(0, &[OTHER]);
    let tally = run.on(1, &[RETURN, OTHER]).on(0, &[RETURN, 0x4000]).tally();
    assert_eq!(named(&tally, "read"), count(1, 40));
    assert_eq!(tally.of(INTERRUPT), count(1, 20));
    assert_eq!(tally.of(IDLE), count(0, 30));
}

#[test]
fn a_return_elsewhere_returns_from_no_exception() {
    // Linux's `sync_core` has such an instruction.
    let mut roles = linux();
    roles.returns.clear();
    roles.returns.push(K + 0xf000..K + 0xf100);
    let machine = Machine::new(&roles);
    assert!(!machine.describe(RETURN, true).returns());
    assert!(machine.describe(K + 0xf000, true).returns());
}

fn vellum() -> Roles {
    let mut roles = Roles::default();
    roles.add(CALL..CALL + 1, Role::Unnamed("other system call".into()));
    roles.add(FAULT..FAULT + 1, Role::Entry("page fault".into()));
    roles.add(IRQ..IRQ + 1, Role::Entry("interrupt".into()));
    roles.add(READ..READ + 8, Role::Notes);
    let names = ["read", "idle", "thread start", "kernel tasks", "end", "page fault"];
    roles.table = Some((TABLE, (0..).zip(names.map(String::from)).collect()));
    roles
}

#[test]
fn a_kernel_may_note_causes_itself() {
    let mut run = Run::new(&vellum());
    // A boot at low addresses, then the first thread.
    run.on(0, &[0x1000, OTHER, OTHER]).note(3).on(0, &[OTHER]).note(2).on(0, &[OTHER, RETURN]);
    assert_eq!(run.on(0, &[0x4000]).tally().to_string(), "0 10 program\n");
    run.on(0, &[CALL, OTHER]).note(0).on(0, &[OTHER, OTHER]);
    // The call waits; the executor takes a task, then idles, and polls the call again.
    run.note(3).on(0, &[OTHER]).note(1).on(0, &[OTHER, OTHER, IRQ, OTHER, RETURN, OTHER]).note(0);
    run.on(0, &[OTHER, FAULT, OTHER, RETURN, OTHER, RETURN, 0x4000]);
    let tally = run.tally();
    assert_eq!(named(&tally, "read"), count(1, 70));
    assert_eq!(tally.of(KERNEL_TASK), count(0, 10));
    assert_eq!(tally.of(IDLE), count(0, 30));
    assert_eq!(tally.of(INTERRUPT), count(1, 30));
    assert_eq!(tally.of(PAGE_FAULT), count(1, 30));
    assert_eq!(tally.of(PROGRAM), count(0, 20));
    assert_eq!(run.note(4).on(0, &[OTHER]).tally().to_string(), { tally.complete_text() });
}

impl Tally {
    fn complete_text(&self) -> String {
        format!("{self}complete\n")
    }
}

#[test]
fn a_noted_fault_or_thread_is_counted_once() {
    let mut run = Run::new(&vellum());
    run.on(0, &[OTHER]).note(2).on(0, &[RETURN, FAULT, OTHER]).note(5).on(0, &[RETURN, 0x4000]);
    run.on(0, &[FAULT]).note(5).on(0, &[RETURN]).on(0, &[CALL]).note(5).on(0, &[RETURN, 0x4000]);
    run.on(0, &[CALL, OTHER]).note(0).note(2).on(0, &[OTHER, RETURN, 0x4000]);
    let tally = run.tally();
    assert_eq!(tally.of(PAGE_FAULT), count(2, 40));
    assert_eq!(tally.of(START), count(1, 20));
    // The first instruction of the next thread faults.
    run.on(0, &[CALL]).note(0).note(2).on(0, &[OTHER, RETURN, FAULT, OTHER, RETURN, 0x4000]);
    assert_eq!(run.tally().of(START), count(2, 40));
}
