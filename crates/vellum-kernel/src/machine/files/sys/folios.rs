//! Serves `/sys/kernel/mm/transparent_hugepage`: the folio sizes that faults may use (the engine's
//! policy), and per-size statistics.
//!
//! `khugepaged/defrag` is stored only: khugepaged does not compact.

use crate::mem::machine;
use crate::task::collapse::{self, Setting};
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn};
use vellum::frame::policy::{Defrag, Knob, ShmemKnob};
use vellum::frame::{FrameKind, HUGE_ORDER, LARGEST_FOLIO, flag};
use vellum::platform::Memory;
use vellum::stats::SizeCounter;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::text::{Show, Store, Text};
use vellum_kernel::proc::{Text as Words, choice};

/// The smallest folio order that has a directory, as on Linux.
const SMALLEST: u8 = 2;

/// The values of the global setting, and the engine's policy for each.
const GLOBAL: ([&str; 3], [Knob; 3]) = (["always", "madvise", "never"], [Knob::Always, Knob::Madvise, Knob::Never]);
/// The values of the setting of compaction, in the order of [`Defrag::ALL`].
static DEFRAG: [&str; 5] = {
    let mut names = [""; 5];
    let mut at = 0;
    while at < names.len() {
        names[at] = Defrag::ALL[at].name();
        at += 1;
    }
    names
};
/// The values of a size's setting.
const SIZE: ([&str; 4], [Knob; 4]) =
    (["always", "inherit", "madvise", "never"], [Knob::Always, Knob::Inherit, Knob::Madvise, Knob::Never]);

/// The values of the setting of shared memory, of the machine and of a size.
const SHMEM: ([&str; 6], [ShmemKnob; 6]) = named([
    ShmemKnob::Always,
    ShmemKnob::WithinSize,
    ShmemKnob::Advise,
    ShmemKnob::Never,
    ShmemKnob::Deny,
    ShmemKnob::Force,
]);
const SHMEM_SIZE: ([&str; 5], [ShmemKnob; 5]) =
    named([ShmemKnob::Always, ShmemKnob::Inherit, ShmemKnob::WithinSize, ShmemKnob::Advise, ShmemKnob::Never]);

/// Returns settings with their names.
const fn named<const N: usize>(knobs: [ShmemKnob; N]) -> ([&'static str; N], [ShmemKnob; N]) {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = knobs[at].name();
        at += 1;
    }
    (names, knobs)
}

/// Adds the file of a setting with a fixed set of values.
fn knob(
    directory: &Arc<PseudoDirectory>,
    name: &str,
    words: &'static [&'static str],
    get: impl Fn() -> usize + Send + Sync + 'static,
    set: impl Fn(usize) + Send + Sync + 'static,
) -> Result<(), Errno> {
    let make: Show = Box::new(move || Words::of(|text| choice::show(text, words, get())));
    let take: Store = Box::new(move |written| choice::find(words, written).map(&set).ok_or(Errno::EINVAL));
    directory.add(name, Text::new(directory.system(), 0o644, Some(make), Some(take)))
}

/// Adds the file of a numeric setting.
fn number(
    directory: &Arc<PseudoDirectory>,
    name: &str,
    [least, most]: [u64; 2],
    get: impl Fn() -> u64 + Send + Sync + 'static,
    set: impl Fn(u64) + Send + Sync + 'static,
) -> Result<(), Errno> {
    let make: Show = Box::new(move || Ok(format!("{}\n", get()).into_bytes()));
    let take: Store = Box::new(move |written| {
        let value = vellum_kernel::parse::number(written)?;
        set((least..=most).contains(&value).then_some(value).ok_or(Errno::EINVAL)?);
        Ok(())
    });
    directory.add(name, Text::new(directory.system(), 0o644, Some(make), Some(take)))
}

/// Adds the file of a boolean setting that is stored and has no effect.
fn remembered_bit(directory: &Arc<PseudoDirectory>, name: &str) -> Result<(), Errno> {
    let holds = Arc::new(AtomicU64::new(1));
    let sets = holds.clone();
    number(directory, name, [0, 1], move || holds.load(Relaxed), move |value| sets.store(value, Relaxed))
}

fn position<K: PartialEq>(knobs: &[K], knob: K) -> usize {
    knobs.iter().position(|own| *own == knob).unwrap_or(knobs.len())
}

/// Adds the settings.
///
/// # Errors
///
/// `ENOMEM`.
pub fn fill(directory: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    let policy = machine().policy();
    let (words, knobs) = (&GLOBAL.0, &GLOBAL.1);
    let get = || position(knobs, policy.global());
    knob(directory, "enabled", words, get, |chosen| policy.set_global(knobs[chosen]))?;
    let get = || policy.defrag() as usize;
    knob(directory, "defrag", &DEFRAG, get, |chosen| policy.set_defrag(Defrag::ALL[chosen]))?;
    let (words, knobs) = (&SHMEM.0, &SHMEM.1);
    let get = || position(knobs, policy.shmem().machine());
    knob(directory, "shmem_enabled", words, get, |chosen| policy.shmem().set_machine(knobs[chosen]))?;
    remembered_bit(directory, "use_zero_page")?;
    directory.add(
        "hpage_pmd_size",
        Text::read_only(directory.system(), || Ok(format!("{}\n", FRAME_SIZE << HUGE_ORDER).into_bytes())),
    )?;
    for order in SMALLEST..=LARGEST_FOLIO {
        let size = directory.add_directory(&format!("hugepages-{}kB", (FRAME_SIZE >> 10) << order))?;
        let (words, knobs) = (&SIZE.0, &SIZE.1);
        let get = move || position(knobs, policy.get(order));
        // An administrator who decides about a size decides about all.
        let set = move |chosen: usize| {
            policy.set(order, knobs[chosen]);
            policy.set_growth_orders(0);
        };
        knob(&size, "enabled", words, get, set)?;
        if order <= HUGE_ORDER {
            let (words, knobs) = (&SHMEM_SIZE.0, &SHMEM_SIZE.1);
            let get = move || position(knobs, policy.shmem().get(order));
            knob(&size, "shmem_enabled", words, get, move |chosen| policy.shmem().set(order, knobs[chosen]))?;
        }
        counters(&size.add_directory("stats")?, order)?;
    }
    let task = directory.add_directory("khugepaged")?;
    remembered_bit(&task, "defrag")?;
    let settings: [(&str, &'static Setting); 6] = [
        ("alloc_sleep_millisecs", &collapse::ALLOC_SLEEP),
        ("max_ptes_none", &collapse::MAX_NONE),
        ("max_ptes_shared", &collapse::MAX_SHARED),
        ("max_ptes_swap", &collapse::MAX_SWAP),
        ("pages_to_scan", &collapse::PAGES_TO_SCAN),
        ("scan_sleep_millisecs", &collapse::SCAN_SLEEP),
    ];
    for (name, setting) in settings {
        number(&task, name, setting.range, || setting.get(), |value| setting.set(value))?;
    }
    for (name, count) in [("full_scans", collapse::rounds as fn() -> u64), ("pages_collapsed", collapse::collapsed)] {
        task.add(name, Text::read_only(task.system(), move || Ok(format!("{}\n", count()).into_bytes())))?;
    }
    Ok(())
}

/// Adds the counter files of a folio size.
fn counters(directory: &Arc<PseudoDirectory>, order: u8) -> Result<(), Errno> {
    let counted = [
        ("anon_fault_alloc", SizeCounter::Faults),
        ("anon_fault_fallback", SizeCounter::Fallbacks),
        ("anon_fault_fallback_charge", SizeCounter::ChargeFallbacks),
        ("collapse_alloc", SizeCounter::Collapsed),
        ("collapse_alloc_failed", SizeCounter::CollapseFailed),
        ("split", SizeCounter::Split),
        ("split_failed", SizeCounter::SplitFailed),
        ("split_deferred", SizeCounter::SplitDeferred),
        ("swpin", SizeCounter::SwapIn),
    ];
    let add = |name: &str, count: Box<dyn Fn() -> u64 + Send + Sync>| {
        let make = move || Ok(format!("{}\n", count()).into_bytes());
        directory.add(name, Text::read_only(directory.system(), make))
    };
    for (name, counter) in counted {
        add(name, Box::new(move || machine().size_counter(counter, order)))?;
    }
    add("nr_anon", Box::new(move || in_use(order).0))?;
    add("nr_anon_partially_mapped", Box::new(move || in_use(order).1))?;
    // Pageout is not counted per folio, and files in memory have single pages.
    for name in [
        "swpin_fallback",
        "swpin_fallback_charge",
        "swpout",
        "swpout_fallback",
        "zswpout",
        "shmem_alloc",
        "shmem_fallback",
        "shmem_fallback_charge",
    ] {
        add(name, Box::new(|| 0))?;
    }
    Ok(())
}

/// Returns the number of anonymous folios of an order, and how many of them are partially mapped.
/// Scans all frames, so that faults and unmaps need no counters. Exact if nothing else runs.
fn in_use(order: u8) -> (u64, u64) {
    let (mut all, mut partial) = (0, 0);
    for region in machine().platform().regions() {
        let first = (region.base.0 >> FRAME_SHIFT) as u32;
        let end = ((region.base.0 + region.len) >> FRAME_SHIFT) as u32;
        let mut at = first.next_multiple_of(1 << order);
        while at < end {
            if let Some(frame) = machine().frames().get(Pfn(at)) {
                let state = frame.state();
                // The descriptor of a freed folio is left as it was, without references.
                let used = state.kind() == FrameKind::Folio && frame.counts().refs > 0;
                if used && state.order() == order && !state.has(flag::OBJECT | flag::ZERO_FOLIO) {
                    all += 1;
                    partial += u64::from(state.has(flag::PARTIALLY_MAPPED));
                }
            }
            at += 1 << order;
        }
    }
    (all, partial)
}
