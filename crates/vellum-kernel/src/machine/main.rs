//! The machine half of the reference kernel: the engine on real page tables, under QEMU (`./x
//! boot`). It runs static Linux programs, each thread as a future. The portable half is the
//! library, `vellum_kernel`.
//!
//! # Layers
//!
//! A layer is a folder, or `main.rs` itself. Each imports only from modules above it in this table,
//! which lists the lowest layer first.
//!
//! | folder | what it is |
//! |---|---|
//! | [`arch`] | the processor and the machine: all that another architecture replaces |
//! | [`mem`] | the engine and its host: heap, address spaces, TLB shootdown, swap, memcgs |
//! | [`task`] | threads and processes: executor, timers, signals, futexes, OOM |
//! | [`files`] | the file systems tied to this machine: `/proc`, `/sys`, cgroups, userfaultfds |
//! | [`sys`] | the system calls; `sys/table.rs` has a row for each |
//! | [`checks`] | checks of the engine without user programs |
//! | `main` | boot, and the command line |
//!
//! A lower layer reaches a layer above it in these ways alone:
//!
//! | from | to | by |
//! |---|---|---|
//! | [`arch`] | [`mem`] | page faults and shootdowns: [`arch::hooks`] |
//! | [`arch`] | [`mem`] | a signal frame's user memory: [`arch::types::UserMemory`] |
//! | [`arch`], [`mem`] | [`task`] | the memory for per-CPU records: [`arch::percpu::provide`] |
//! | [`mem`] | [`task`] | an access that must wait, which `mem` notes and `task` waits for: [`mem::thread`] |
//! | [`task`] | [`files`] | input has come: [`task::time::set_input`] |
//! | [`task`] | [`sys`] | a system call, a thread's end: [`task::run::SystemCalls`] |
//! | [`arch`] | `main` | the first Rust code: the symbol `kernel_start` |
//!
//! # From boot to the first user instruction
//!
//! 1. The loader jumps to `pvh_entry` (x86-64) or `boot_entry` (AArch64) in `arch/*/boot/mod.rs`,
//!    with the MMU off. The assembly turns it on, with tables that map the first memory at the
//!    kernel's own address, takes the boot CPU's stack and calls [`kernel_start`].
//! 2. [`kernel_start`] opens the console and gives each CPU its record ([`task::percpu`]).
//!    `arch::boot::prepare` finds the boot CPU's record, switches protections on, sets the
//!    exception table up, reads what the loader handed over, and builds the final tables of the
//!    kernel half (`arch::paging::init`).
//! 3. [`main`] follows the command line, whose word `run` leads to [`run`]. That starts the other
//!    CPUs (`arch::secondary::start`), which wait in [`arch::smp::work`], and hands all usable
//!    memory to the engine ([`mem::init`]); from here on there is a heap.
//! 4. [`run`] registers the page-fault hook ([`mem::uaccess::resolve`]), unpacks the archive into a
//!    tmpfs or over the host's files ([`files::root::unpack`]), and takes swap into use.
//! 5. [`sys::process::first`] maps the program's ELF segments and its stack into a new address
//!    space ([`sys::program::load`]), makes process 1 to adopt orphans and process 2 for the
//!    program, and gives the program's thread to the executor.
//! 6. All CPUs enter [`task::executor::run`]. One polls the thread's future ([`task::run`]), which
//!    loads the address space ([`mem::space::load`]), arms the timer, and enters user mode by
//!    `arch::entry::enter`. The first instruction faults, as nothing is populated yet.
//!
//! # The way of a system call
//!
//! 1. The program executes `syscall` or `svc`. The entry code (`arch/*/entry.rs`) saves the general
//!    registers straight into the thread's [`task::context::Context`], goes back to the kernel's
//!    stack, and `arch::entry::enter` *returns* [`arch::types::Trap::SystemCall`]. Interrupts are
//!    enabled again.
//! 2. The thread's future, which had called `enter`, calls [`task::run::SystemCalls::call`]:
//!    `sys/table.rs` matches the number and awaits the row's function.
//! 3. A call that has to wait awaits a [`vellum_kernel::wait::Queue`]; the future is then
//!    suspended, and the CPU does other work. Copies from and to user memory go through
//!    [`mem::uaccess`].
//! 4. Where memory was short, or a userfaultfd has a fault to resolve, the call notes that
//!    ([`mem::thread::BlockedOn`]) and fails. The future waits until the cause has passed, and
//!    makes the call again.
//! 5. [`task::deliver::answer`] writes the result to the saved registers. Before the next `enter`
//!    the future deals with signals ([`task::deliver::handle_alert`]), if the thread was alerted.
//!
//! # The way of a page fault
//!
//! - **In user mode** `enter` returns [`arch::types::Trap::PageFault`]. The future calls the engine
//!   (`AddressSpace::fault`), which maps the page, or refuses. A refusal for want of memory leads
//!   to reclaim or the OOM killer ([`task::oom`]), one for a userfaultfd to its program
//!   ([`task::blocked`]), and any other to a signal ([`task::deliver::fault`]). Then the future
//!   enters user mode again, at the instruction that faulted.
//! - **In the kernel**, on a user address, only the copy instructions of `arch/*/user/touch.rs` may
//!   fault. The exception handler (`arch/*/trap.rs`) calls the hook, [`mem::uaccess::resolve`],
//!   which calls the engine. If the engine resolves the fault, the instruction is retried; if not,
//!   the copy ends early, and the system call returns `EFAULT`.
//! - Any other fault in the kernel is a bug: it is reported with a backtrace, and the machine
//!   stops.
//!
//! # A context switch
//!
//! A kernel stack belongs to a CPU and not to a thread, so there is nothing to switch but futures.
//!
//! 1. A thread's future gives way when it awaits: because a call waits, or because an interrupt
//!    ended user mode while other tasks are queued. The timer's interrupt comes after a time slice
//!    of 10 ms ([`task::time`]). The thread's general registers have been saved since it left user
//!    mode; its vector registers are saved now.
//! 2. The executor takes the task that has had the least CPU time from the one run queue that all
//!    CPUs share, and polls it. The wake of a task queues it there, and sends an interrupt
//!    (`arch::irq::KICK`) to a CPU that is idle.
//! 3. The next thread's future loads its address space, if this CPU has another one loaded
//!    ([`mem::space::load`]). The TLB keeps the translations of both where it has tags
//!    ([`vellum_kernel::tags`]).
//! 4. Interrupt handlers take no locks and only set this CPU's flag
//!    [`tick`](arch::percpu::ArchCpu::tick), answer shootdowns, or end a halt, so they never
//!    switch. The CPU checks the flag on the way to user mode, after each poll of a task, and while
//!    idle.

#![no_std]
#![no_main]

#[cfg(not(target_os = "none"))]
compile_error!("vellum-kernel is built for bare metal: run `./x boot`");

extern crate alloc;

mod arch;
mod checks;
mod files;
mod mem;
mod sys;
mod task;

use alloc::format;
use alloc::vec::Vec;
use arch::clock::Clock;
use arch::exit::{Outcome, exit};
use arch::serial::println;
use arch::{hooks, interrupts, paging, secondary, serial, smp};
use core::fmt::Display;
use core::panic::PanicInfo;
use mem::Machine;
use vellum_kernel::boot::Boot;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::tty::terminal::Window;
use vellum_kernel::parse::{self, BootOption};

/// The first Rust function. `arch::boot` calls it once, with interrupts off, on the boot CPU's
/// stack.
// SAFETY: `arch` declares the function with this name and signature, and no other item has the
// name.
#[unsafe(no_mangle)]
extern "C" fn kernel_start(handed_over: u64) -> ! {
    serial::init();
    // SAFETY: called once, here, before any CPU accesses its record.
    unsafe { task::percpu::provide() };
    // SAFETY: called once, here; the entry code passes on what the loader handed over.
    let boot = unsafe { arch::boot::prepare(handed_over) };
    let boot = boot.unwrap_or_else(|reason| fail(&reason));
    match main(&boot) {
        Ok(()) => {
            println!("vellum-kernel: success");
            exit(Outcome::Success)
        }
        Err(reason) => fail(&reason),
    }
}

/// Prints the reason for which the kernel cannot continue, and stops the machine.
fn fail(reason: &dyn Display) -> ! {
    println!("vellum-kernel: failed: {reason}");
    exit(Outcome::Failure)
}

/// Does the work that the command line names. Runs once the boot CPU is set up.
fn main(boot: &Boot) -> Result<(), &'static str> {
    let Boot { map, command_line, .. } = boot;
    println!("vellum-kernel {}\n{map}", env!("CARGO_PKG_VERSION"));
    let (command_line, levels) = paging::choose(command_line)?;
    if let Some(levels) = levels {
        println!("page tables of {levels} levels");
    }
    // Time is counted in instructions (QEMU's `-icount shift=0`): the same work takes the same
    // number of them every time.
    let (counted, command_line) = match command_line.strip_suffix("counted") {
        Some(rest) => (true, rest.trim_end()),
        None => (false, command_line),
    };
    match command_line.split_once(' ').unwrap_or((command_line, "")) {
        ("" | "check", story) => {
            checks::run(boot_engine(boot, start_clock(counted), 1)?, story, counted).map_err(|_| "a check failed")
        }
        ("processors", _) => {
            let (machine, cpus) = boot_all(boot, counted)?;
            checks::processors::prepare(machine, cpus).map_err(|_| "a check failed")?;
            smp::release(cpus, checks::processors::part);
            checks::processors::part()
        }
        ("run", option) => run(boot, option, counted),
        // Deliberate failures, by which `./x` checks that a failure is detected.
        ("fail", _) => Err("asked to"),
        ("panic", _) => panic!("asked to"),
        ("overflow", _) => Err(if overflow(0) == 0 { "no overflow" } else { "" }),
        ("stray", _) => stray(),
        ("hang", _) => loop {
            interrupts::halt();
        },
        _ => Err("unknown command line: [la57] [check [STORY] | processors | run [apart] | fail | panic | overflow | \
             stray | hang] [counted]"),
    }
}

fn start_clock(counted: bool) -> Clock {
    // SAFETY: called once, and nothing else uses the machine's timers.
    unsafe { Clock::start(counted) }
}

/// The orders of folios that continue a stretch of memory: 16, 32 and 64 KiB.
const GROWTH: u32 = 0b11100;

/// Hands the machine's memory to the engine.
fn boot_engine(boot: &Boot, clock: Clock, cpus: usize) -> Result<&'static Machine, &'static str> {
    mem::init(&boot.map, &boot.nodes, clock, cpus).map_err(|error| {
        println!("{error}");
        "the engine could not boot"
    })
}

/// Starts all CPUs, and hands the machine's memory to the engine.
fn boot_all(boot: &Boot, counted: bool) -> Result<(&'static Machine, usize), &'static str> {
    hooks::set_shootdown(mem::shootdown::answer);
    // SAFETY: called once, and nothing else uses the machine's timers.
    let (clock, cpus) = unsafe { secondary::start(counted) };
    println!("{cpus} CPUs");
    let machine = boot_engine(boot, clock, cpus)?;
    interrupts::enable();
    Ok((machine, cpus))
}

/// Runs the program that the archive names; the machine stops when it ends. With the option
/// `apart`, memory is mapped without cont blocks (PTEs with the contiguous bit, which share a TLB
/// entry).
fn run(boot: &Boot, option: &str, counted: bool) -> Result<(), &'static str> {
    let (machine, cpus) = boot_all(boot, counted)?;
    match option {
        "" => {}
        "apart" => machine.policy().set_cont_blocks(false),
        _ => return Err("unknown option of `run`: only `apart` is known"),
    }
    machine.policy().set_growth_orders(GROWTH);
    hooks::set_page_fault(mem::uaccess::resolve);
    let roots = files::root::unpack(boot.archive)?;
    files::kinds::init(roots).map_err(|_| "the root file system can't be set up")?;
    mem::space::init().map_err(|_| "no memory")?;
    let window = follow_options()?;
    mem::vdso::init(machine.platform()).map_err(|_| "no memory")?;
    let words = |name: &str| -> Vec<Vec<u8>> {
        let bytes = files::find(name.as_bytes()).and_then(|inode| sys::path::read_file(&inode)).unwrap_or_default();
        parse::strings(&bytes)
    };
    let mut arguments = words(".vellum/argv");
    if arguments.is_empty() {
        return Err("the archive names no program");
    }
    let path = arguments.remove(0);
    serial::stdio::init();
    let program = files::from_root(|view| files::executable(&view, &path, true)).and_then(sys::program::Program::open);
    let environment = words(".vellum/env");
    let started = program.and_then(|program| sys::process::first(program, &path, (&arguments, &environment), window));
    if let Err(error) = started {
        refuse(&path, error);
        return Ok(());
    }
    task::background::start();
    files::writeback::start();
    smp::release(cpus, task::executor::run);
    task::executor::run()
}

/// Applies the options in the archive: lines of the form `key=value`. Returns the size of the
/// window of the first program's terminal, if it has one.
fn follow_options() -> Result<Option<Window>, &'static str> {
    let mut window = None;
    let options = files::find(b".vellum/options").and_then(|inode| sys::path::read_file(&inode)).unwrap_or_default();
    let make_file = |store: &mem::swap::Store| files::make_block_device(store.path, store.number);
    parse::boot_options(&options).try_for_each(|option| match option? {
        BootOption::Swap(bytes) => {
            mem::swap::init_memory(bytes, make_file).map_err(|_| "not enough memory for the swap device")
        }
        BootOption::SwapDisk { checked } => {
            mem::swap::init_disk(checked, make_file).map_err(|_| "there is no disk, or no memory to swap to it")
        }
        // `files::root` has followed it.
        BootOption::Root(_) => Ok(()),
        BootOption::Time(now) => {
            mem::set_wall_clock(now);
            Ok(())
        }
        BootOption::Disk => files::block::init_disk().map_err(|_| "there is no disk, or no memory for it"),
        BootOption::RamDisk(bytes) => {
            files::block::init_memory(bytes).map_err(|_| "not enough memory for the disk in memory")
        }
        BootOption::Terminal { rows, columns } => {
            window = Some([rows, columns, 0, 0]);
            Ok(())
        }
    })?;
    Ok(window)
}

/// Reports that the program cannot be executed, with the exit status that a shell would return.
fn refuse(path: &[u8], error: Errno) {
    use serial::stdio::{Frame, send};
    send(Frame::Errors, path);
    send(Frame::Errors, format!(": {error:?}\n").as_bytes());
    let status: u32 = if error == Errno::ENOENT { 127 } else { 126 };
    send(Frame::Exit, &status.to_le_bytes());
}

/// Touches user memory outside of the copy instructions, as only a bug would.
fn stray() -> Result<(), &'static str> {
    hooks::set_page_fault(|_| panic!("the page-fault hook was called for a stray access"));
    // SAFETY: none, this is the bug. Nothing is mapped there, so the access faults, and the fault
    // stops the machine.
    unsafe { (0x1234_5678_9000 as *mut u64).write_volatile(1) };
    Err("a stray access to user memory raised no fault")
}

/// Overflows the stack into its guard page.
#[inline(never)]
#[allow(unconditional_recursion)]
fn overflow(depth: u64) -> u64 {
    let room = core::hint::black_box([depth; 64]);
    overflow(depth + 1) + room[0]
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    serial::seize();
    println!("\n{info}");
    arch::backtrace::print_here();
    exit(Outcome::Failure)
}
