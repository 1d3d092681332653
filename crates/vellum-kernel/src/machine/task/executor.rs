//! The scheduler: runs tasks (futures) on the CPUs from one run queue.
//!
//! The queue is ordered by virtual runtime: the task that has had the least CPU time runs first. A
//! task with long system calls thus gets no more CPU time than one with short calls, and a task
//! that sleeps a lot runs soon after it wakes. Sleeping saves up no CPU time: a waking task's
//! virtual runtime is raised to the queue's minimum. A new task starts with a virtual runtime one
//! time slice greater than its creator's, so that a stream of new tasks starves no other.
//!
//! A CPU that finds the queue empty sets its bit in `IDLE`, checks the queue once more, and halts.
//! A CPU that queues a task does so before it reads `IDLE`. So either that check finds the task, or
//! the queueing CPU finds the bit and sends the idle CPU an interrupt.

use crate::arch::cause::Cause;
use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::{interrupts, irq};
use crate::mem::payer::Shared;
use crate::mem::{now_ns, space};
use crate::task::time;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use async_task::{Builder, Runnable, ScheduleInfo, WithInfo};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use vellum::addr::FRAME_SIZE;

pub use vellum_kernel::wait::yield_now;

/// The scheduler's record of a task (Linux: `sched_entity`).
#[derive(Default)]
pub struct SchedEntity {
    /// The virtual runtime in nanoseconds: the CPU time taken, plus what its placement in the queue
    /// added.
    vruntime: AtomicU64,
    /// True if the task runs before all others regardless of its virtual runtime.
    first: bool,
    /// The number of times the task was queued, less the number of its runs that ended. A wake
    /// counts at once, and a wake during a run counts before that run ends; so a task that was
    /// woken never appears to sleep.
    runnable: AtomicU32,
}

impl SchedEntity {
    /// Returns whether the task waits for an event: it is neither running nor queued.
    pub fn sleeps(&self) -> bool {
        self.runnable.load(Ordering::SeqCst) == 0
    }
}

type Task = Runnable<Arc<SchedEntity>>;

/// The queue of runnable tasks.
struct RunQueue {
    /// The tasks by virtual runtime, and by order of arrival among equals.
    tasks: BTreeMap<(u64, u64), Task>,
    /// The number of tasks queued so far.
    arrivals: u64,
    /// The highest virtual runtime among tasks that left the queue (Linux: `min_vruntime`).
    min_vruntime: u64,
}

static RUN_QUEUE: Shared<RunQueue> = Shared::new(RunQueue { tasks: BTreeMap::new(), arrivals: 0, min_vruntime: 0 });
/// The time at which each CPU began to run its present task.
static STARTED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// The virtual runtime that each CPU's present task had at that time.
static VRUNTIME: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// The CPUs that halt or are about to, a bit each.
static IDLE: AtomicU64 = AtomicU64::new(0);
/// The number of queued tasks.
static QUEUED: AtomicUsize = AtomicUsize::new(0);

/// Starts a task. Its virtual runtime is one time slice greater than the current task's.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    spawn_with(Arc::default(), future);
}

/// Starts a task whose scheduler record the caller shares, to see whether the task sleeps.
pub fn spawn_with(entity: Arc<SchedEntity>, future: impl Future<Output = ()> + Send + 'static) {
    start_later(future, entity).detach();
}

/// Starts a task that ends when the caller drops the returned value, at its next wait if it runs.
/// The drop takes the run queue's lock only.
#[must_use = "the task ends when this is dropped"]
pub fn spawn_owned(future: impl Future<Output = ()> + Send + 'static) -> Owned {
    Owned(start_later(future, Arc::default()))
}

/// A task that ends with this value ([`spawn_owned`]).
pub struct Owned(#[expect(dead_code, reason = "its drop ends the task")] Handle);

type Handle = async_task::Task<(), Arc<SchedEntity>>;

/// Starts a task. Its virtual runtime is one time slice greater than the current task's.
fn start_later(future: impl Future<Output = ()> + Send + 'static, entity: Arc<SchedEntity>) -> Handle {
    let creator = VRUNTIME[percpu::current().index].load(Ordering::Relaxed) + elapsed();
    let vruntime = RUN_QUEUE.lock().min_vruntime.max(creator) + time::TIME_SLICE;
    entity.vruntime.store(vruntime, Ordering::Relaxed);
    start(future, entity)
}

/// Starts a task that runs before all others whenever it is runnable, because it works for all of
/// them.
pub fn spawn_first(future: impl Future<Output = ()> + Send + 'static) {
    start(future, Arc::new(SchedEntity { first: true, ..SchedEntity::default() })).detach();
}

/// Creates the task and queues it. Its future has one frame at most: more than that may not be free
/// in one piece, and the kernel has a reserve of frames only.
fn start<F: Future<Output = ()> + Send + 'static>(future: F, entity: Arc<SchedEntity>) -> Handle {
    const { assert!(size_of::<F>() <= FRAME_SIZE as usize) };
    let (task, handle) = Builder::new().metadata(entity).spawn(|_| future, WithInfo(enqueue));
    task.schedule();
    handle
}

/// Returns the nanoseconds for which this CPU has run its present task.
fn elapsed() -> u64 {
    now_ns().saturating_sub(STARTED[percpu::current().index].load(Ordering::Relaxed))
}

/// Returns whether the current task's time slice has not ended.
#[inline]
pub fn has_time_slice() -> bool {
    elapsed() < time::TIME_SLICE
}

/// The lead in virtual runtime by which a task that is woken makes the current task of this CPU
/// yield, when it enters user mode next, so that a task which waits for another seldom waits for
/// a time slice (Linux: wakeup preemption).
const LEAD: u64 = 1_000_000;

/// Puts a task on the run queue: it was woken, or it yielded. Wakes an idle CPU if there is one.
fn enqueue(task: Task, info: ScheduleInfo) {
    if info.woken_while_running {
        task.metadata().vruntime.fetch_add(elapsed(), Ordering::Relaxed);
    }
    task.metadata().runnable.fetch_add(1, Ordering::SeqCst);
    let mut queue = RUN_QUEUE.lock();
    let vruntime = task.metadata().vruntime.fetch_max(queue.min_vruntime, Ordering::Relaxed).max(queue.min_vruntime);
    queue.arrivals += 1;
    let place = if task.metadata().first { (0, queue.arrivals) } else { (vruntime, queue.arrivals) };
    queue.tasks.insert(place, task);
    drop(queue);
    QUEUED.fetch_add(1, Ordering::SeqCst);
    let idle = IDLE.load(Ordering::SeqCst);
    let cpu = percpu::current();
    if idle == 0 && vruntime + LEAD < VRUNTIME[cpu.index].load(Ordering::Relaxed) + elapsed() {
        cpu.tick.store(true, Ordering::Relaxed);
    }
    if idle != 0 {
        // The waker clears the bit, so that the next waker picks another CPU.
        let chosen = idle & idle.wrapping_neg();
        if IDLE.fetch_and(!chosen, Ordering::SeqCst) & chosen != 0 {
            irq::send(chosen.trailing_zeros() as usize, irq::KICK);
        }
    }
}

/// Returns whether a task waits for a CPU.
#[inline]
pub fn is_contended() -> bool {
    QUEUED.load(Ordering::Relaxed) > 0
}

/// Takes the first task off the run queue.
fn next() -> Option<Task> {
    if !is_contended() {
        return None;
    }
    let mut queue = RUN_QUEUE.lock();
    let ((vruntime, _), task) = queue.tasks.pop_first()?;
    queue.min_vruntime = queue.min_vruntime.max(vruntime);
    drop(queue);
    QUEUED.fetch_sub(1, Ordering::SeqCst);
    Some(task)
}

/// Runs tasks on this CPU forever.
pub fn run() -> ! {
    loop {
        while let Some(task) = next() {
            STARTED[percpu::current().index].store(now_ns(), Ordering::Relaxed);
            let entity = task.metadata().clone();
            VRUNTIME[percpu::current().index].store(entity.vruntime.load(Ordering::Relaxed), Ordering::Relaxed);
            // A thread's future notes its own cause.
            Cause::TASK.note();
            #[cfg(feature = "holds")]
            crate::mem::holds::begin(crate::mem::holds::Kind::Work);
            let requeued = task.run();
            #[cfg(feature = "holds")]
            crate::mem::holds::end(crate::mem::holds::Kind::Work);
            entity.runnable.fetch_sub(1, Ordering::SeqCst);
            if !requeued {
                entity.vruntime.fetch_add(elapsed(), Ordering::Relaxed);
            }
            time::expire();
        }
        Cause::IDLE.note();
        space::unload();
        interrupts::disable();
        time::arm_for_sleepers();
        let me = 1 << percpu::current().index;
        IDLE.fetch_or(me, Ordering::SeqCst);
        if QUEUED.load(Ordering::SeqCst) > 0 || percpu::current().tick.load(Ordering::Relaxed) {
            interrupts::enable();
        } else {
            interrupts::enable_and_wait();
        }
        IDLE.fetch_and(!me, Ordering::SeqCst);
        // What handlers leave to this loop.
        Cause::INTERRUPT.note();
        time::expire();
        Cause::IDLE.note();
    }
}
