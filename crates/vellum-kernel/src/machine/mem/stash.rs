//! Blocks of several frames for allocations of the kernel that are never refused ([`payer`]).
//!
//! The engine's reserve has as many frames as these need, but perhaps in pieces. Here are some in
//! one piece, for the time that compaction would take, for which those allocations can't wait.

use super::{Machine, payer};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use spin::Mutex;
use vellum::addr::Pfn;
use vellum::memcg::MemcgId;

/// The number of blocks of an order.
const COUNT: usize = 8;

/// True once programs run: the checks of a booted kernel count free frames.
static IS_IN_USE: AtomicBool = AtomicBool::new(false);

/// The blocks of an order, the first of `blocks`. They are charged to the root memcg.
struct Blocks {
    blocks: [Pfn; COUNT],
    count: usize,
}

/// The blocks, by their order less 1.
static BLOCKS: [Mutex<Blocks>; payer::MOST_BEYOND as usize] =
    [const { Mutex::new(Blocks { blocks: [Pfn(0); COUNT], count: 0 }) }; payer::MOST_BEYOND as usize];

/// Returns the blocks of an order, if there are any of that order.
fn of(order: u8) -> Option<&'static Mutex<Blocks>> {
    BLOCKS.get(usize::from(order).checked_sub(1)?)
}

/// Fills up the blocks of all orders, before the first program runs.
pub fn start(machine: &'static Machine) {
    IS_IN_USE.store(true, Relaxed);
    (1..=payer::MOST_BEYOND).for_each(|order| fill(machine, order));
}

/// Fills up the blocks of an order, as far as memory allows. Called after a block of this order was
/// freed, too. Does nothing before [`start`].
pub fn fill(machine: &'static Machine, order: u8) {
    let Some(blocks) = of(order).filter(|_| IS_IN_USE.load(Relaxed)) else { return };
    while blocks.lock().count < COUNT {
        let Ok(block) = machine.memcgs().alloc_for_host(machine.frames(), MemcgId::ROOT, order) else { return };
        let mut had = blocks.lock();
        let count = had.count;
        if let Some(free) = had.blocks.get_mut(count) {
            *free = block;
            had.count += 1;
            continue;
        }
        drop(had);
        // Other CPUs have filled them up. SAFETY: the block was just allocated.
        unsafe { machine.memcgs().free_for_host(machine.frames(), block, order) };
    }
}

/// Takes a block, which stays charged to the root memcg until `Memcgs::free_for_host`.
pub fn take(order: u8) -> Option<Pfn> {
    let mut blocks = of(order)?.lock();
    blocks.count = blocks.count.checked_sub(1)?;
    Some(blocks.blocks[blocks.count])
}
