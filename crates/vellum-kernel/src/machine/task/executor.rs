//! Who may run, and on which processor.
//!
//! One line serves all processors, and who has been worked for least goes first: so a task that makes long system calls gets
//! no more than one that makes short ones, and one that sleeps a lot goes ahead when it wakes. It does not save up time
//! while it sleeps: it stands no further ahead than at the front. A new task stands a turn behind whoever made it, so that a stream
//! of new ones holds up nobody.
//!
//! A processor that finds the line empty halts, and says so before it looks a last time; so whoever joins the line either is
//! seen or sees an idle processor to kick.

use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::{interrupts, irq};
use crate::mem::payer::Shared;
use crate::mem::{now_ns, space};
use crate::task::time;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use async_task::{Builder, Runnable, ScheduleInfo, WithInfo};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub use vellum_kernel::wait::give_way;

/// A task's place among the others.
#[derive(Default)]
pub struct Rank {
    /// How long processors have worked for it, in nanoseconds, and how far it was put back for other reasons.
    used: AtomicU64,
    /// It goes first whatever it has used.
    first: bool,
    /// How often it has joined the line, less how often a processor has finished with it. It counts
    /// from the wake itself, and a wake while it runs counts before that run ends: so a task that
    /// was woken is never taken for one that sleeps.
    runnable: AtomicU32,
}

impl Rank {
    /// Returns whether the task waits for something: it neither runs nor wants a processor.
    pub fn sleeps(&self) -> bool {
        self.runnable.load(Ordering::SeqCst) == 0
    }
}

type Task = Runnable<Arc<Rank>>;

/// Those who want a processor.
struct Line {
    /// By what each has used; and by when they came.
    tasks: BTreeMap<(u64, u64), Task>,
    /// How many have come so far.
    came: u64,
    /// What the last to leave it had used, or one before that, if it was more.
    front: u64,
}

static LINE: Shared<Line> = Shared::new(Line { tasks: BTreeMap::new(), came: 0, front: 0 });
/// When each processor began with the task that it has.
static BEGAN: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// What that task had used then.
static USED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// The processors that halt, or are about to, a bit each.
static IDLE: AtomicU64 = AtomicU64::new(0);
/// How many are in line.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Starts a task.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    spawn_ranked(Arc::default(), future);
}

/// Starts a task whose rank the caller keeps, to ask whether it sleeps.
pub fn spawn_ranked(rank: Arc<Rank>, future: impl Future<Output = ()> + Send + 'static) {
    let maker = USED[percpu::current().index].load(Ordering::Relaxed) + elapsed();
    let used = LINE.lock().front.max(maker) + time::TURN;
    rank.used.store(used, Ordering::Relaxed);
    start(future, rank);
}

/// Starts a task that goes first whenever it wants a processor: it works for all others.
pub fn spawn_first(future: impl Future<Output = ()> + Send + 'static) {
    start(future, Arc::new(Rank { first: true, ..Rank::default() }));
}

fn start(future: impl Future<Output = ()> + Send + 'static, rank: Arc<Rank>) {
    let (task, handle) = Builder::new().metadata(rank).spawn(|_| future, WithInfo(join));
    handle.detach();
    task.schedule();
}

/// How long this processor has had its task.
fn elapsed() -> u64 {
    now_ns().saturating_sub(BEGAN[percpu::current().index].load(Ordering::Relaxed))
}

/// Returns whether the task that this processor has may go on before others have their turn.
#[inline]
pub fn turn_lasts() -> bool {
    elapsed() < time::TURN
}

/// A task joins the line: it was woken, or this processor is done with it for now and it wants to go on.
fn join(task: Task, info: ScheduleInfo) {
    if info.woken_while_running {
        task.metadata().used.fetch_add(elapsed(), Ordering::Relaxed);
    }
    task.metadata().runnable.fetch_add(1, Ordering::SeqCst);
    let mut line = LINE.lock();
    let used = task.metadata().used.fetch_max(line.front, Ordering::Relaxed).max(line.front);
    line.came += 1;
    let place = if task.metadata().first { (0, line.came) } else { (used, line.came) };
    line.tasks.insert(place, task);
    drop(line);
    WAITING.fetch_add(1, Ordering::SeqCst);
    let idle = IDLE.load(Ordering::SeqCst);
    if idle != 0 {
        // Struck off by whoever kicks it, so that the next to be woken finds another.
        let chosen = idle & idle.wrapping_neg();
        if IDLE.fetch_and(!chosen, Ordering::SeqCst) & chosen != 0 {
            irq::send(chosen.trailing_zeros() as usize, irq::KICK);
        }
    }
}

/// Whether somebody waits for a processor.
#[inline]
pub fn others_wait() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

fn next() -> Option<Task> {
    if !others_wait() {
        return None;
    }
    let mut line = LINE.lock();
    let ((used, _), task) = line.tasks.pop_first()?;
    line.front = line.front.max(used);
    drop(line);
    WAITING.fetch_sub(1, Ordering::SeqCst);
    Some(task)
}

/// What a processor does from now on.
pub fn run() -> ! {
    loop {
        while let Some(task) = next() {
            BEGAN[percpu::current().index].store(now_ns(), Ordering::Relaxed);
            let rank = task.metadata().clone();
            USED[percpu::current().index].store(rank.used.load(Ordering::Relaxed), Ordering::Relaxed);
            #[cfg(feature = "holds")]
            crate::mem::holds::begin(crate::mem::holds::Kind::Work);
            let joined_again = task.run();
            #[cfg(feature = "holds")]
            crate::mem::holds::end(crate::mem::holds::Kind::Work);
            rank.runnable.fetch_sub(1, Ordering::SeqCst);
            if !joined_again {
                rank.used.fetch_add(elapsed(), Ordering::Relaxed);
            }
            time::expire();
        }
        space::unload();
        interrupts::disable();
        time::arm_for_sleepers();
        let me = 1 << percpu::current().index;
        IDLE.fetch_or(me, Ordering::SeqCst);
        if WAITING.load(Ordering::SeqCst) > 0 || percpu::current().tick.load(Ordering::Relaxed) {
            interrupts::enable();
        } else {
            interrupts::enable_and_wait();
        }
        IDLE.fetch_and(!me, Ordering::SeqCst);
        time::expire();
    }
}
