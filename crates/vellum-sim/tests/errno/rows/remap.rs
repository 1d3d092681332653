//! `mremap`.

use super::*;
use crate::fixtures::kernel::{END, USER_END};

const HERE: RemapFlags = RemapFlags::empty();
const MAY: RemapFlags = RemapFlags::MAYMOVE;
const TO: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);
const LEAVE: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::DONTUNMAP);

/// The destination of moves.
const THERE: u64 = BASE + 1000 * PAGE;

/// Returns 1 if the kernel chose an address above `END`, else the answer.
fn elsewhere(answer: i64) -> i64 {
    if answer > END as i64 { 1 } else { answer }
}

/// Returns the VMAs as page numbers from `BASE` on.
fn shape(k: &dyn Kernel) -> Vec<i64> {
    k.vmas().iter().flat_map(|(start, end, _)| [start, end].map(|at| ((at - BASE) / PAGE) as i64)).collect()
}

/// Maps two adjacent VMAs, of two pages and of three.
fn two(k: &dyn Kernel) {
    some(k, 5);
    k.protect(BASE + 2 * PAGE, 3 * PAGE, R);
}

/// Maps shared memory at `BASE`.
fn shared(k: &dyn Kernel, pages: u64) {
    assert_eq!(k.map(BASE, pages * PAGE, RW, FIXED | MapFlags::SHARED), BASE as i64);
}

pub static REMAP: [Row; 36] = [
    row("remap: at no page", |k| {
        some(k, 2);
        vec![k.remap(BASE + 1, PAGE, PAGE, HERE, 0), k.remap(BASE, PAGE, PAGE, TO, THERE + 1)]
    }),
    row("remap: no new length", |k| {
        some(k, 2);
        vec![k.remap(BASE, PAGE, 0, HERE, 0), k.remap(BASE, PAGE, 0, TO, THERE)]
    }),
    row("remap: flags that make no sense", |k| {
        some(k, 2);
        let flags = [RemapFlags::FIXED, RemapFlags::DONTUNMAP, RemapFlags::from_bits_retain(8)];
        let mut all = flags.map(|flags| k.remap(BASE, PAGE, PAGE, flags, THERE)).to_vec();
        all.push(k.remap(BASE, PAGE, 2 * PAGE, LEAVE, THERE));
        all
    }),
    row("remap: nothing is mapped", |k| {
        let all = [HERE, MAY, TO, LEAVE];
        all.map(|flags| k.remap(BASE, PAGE, PAGE, flags, THERE)).to_vec()
    }),
    row("remap: nothing is mapped, of no length", |k| [0, PAGE].map(|len| k.remap(BASE, 0, len, MAY, 0)).to_vec()),
    row("remap: a new length beyond the end", |k| {
        some(k, 2);
        let lens = [USER_END, USER_END + PAGE, u64::MAX, u64::MAX - PAGE + 2];
        lens.map(|len| k.remap(BASE, PAGE, len, HERE, 0)).to_vec()
    }),
    row("remap: to beyond the end", |k| {
        some(k, 2);
        [USER_END, USER_END - PAGE, !0 << 12].map(|to| k.remap(BASE, 2 * PAGE, 2 * PAGE, TO, to)).to_vec()
    }),
    row("remap: fixed at 0", |k| {
        some(k, 2);
        vec![k.remap(BASE, PAGE, PAGE, TO, 0), k.vmas().len() as i64]
    }),
    row("remap: onto itself", |k| {
        some(k, 4);
        let to = [BASE, BASE + PAGE, BASE - PAGE, BASE + 2 * PAGE, BASE - 2 * PAGE];
        to.map(|to| k.remap(BASE, 2 * PAGE, 2 * PAGE, TO, to)).to_vec()
    }),
    row("remap: as it is", |k| {
        some(k, 2);
        let lens = [1, PAGE, 2 * PAGE, 9 * PAGE];
        lens.iter().flat_map(|len| [HERE, MAY].map(|flags| k.remap(BASE, *len, *len, flags, 0))).collect()
    }),
    row("remap: smaller", |k| {
        some(k, 6);
        let mut all = vec![k.remap(BASE, 6 * PAGE, 3 * PAGE, HERE, 0)];
        all.extend(shape(k));
        all.push(k.remap(BASE, 9 * PAGE, PAGE + 1, MAY, 0));
        all.extend(shape(k));
        all
    }),
    row("remap: smaller, over a hole and another VMA", |k| {
        holed(k);
        k.protect(BASE + 4 * PAGE, PAGE, R);
        let mut all = vec![k.remap(BASE, 5 * PAGE, PAGE, HERE, 0)];
        all.extend(shape(k));
        all
    }),
    row("remap: smaller, from an old length past the last address", |k| {
        some(k, 2);
        vec![k.remap(BASE, USER_END, PAGE, HERE, 0), k.remap(BASE, 0u64.wrapping_sub(BASE), PAGE, HERE, 0)]
    }),
    row("remap: larger, in place", |k| {
        some(k, 2);
        k.store(BASE + PAGE);
        let mut all =
            vec![k.remap(BASE, 2 * PAGE, 4 * PAGE, HERE, 0), k.remap(BASE + PAGE, 3 * PAGE, 5 * PAGE, MAY, 0)];
        all.extend(shape(k));
        all.extend([k.load(BASE + PAGE), k.load(BASE + 5 * PAGE), k.resident(BASE, 6 * PAGE, 6)]);
        all
    }),
    row("remap: larger, with no room", |k| {
        two(k);
        let all = [(BASE, 2), (BASE, 1), (BASE + PAGE, 1)];
        all.map(|(at, pages)| k.remap(at, pages * PAGE, 4 * PAGE, HERE, 0)).to_vec()
    }),
    row("remap: larger, from the middle of a VMA", |k| {
        some(k, 5);
        k.store(BASE + PAGE);
        let at = k.remap(BASE + PAGE, 2 * PAGE, 4 * PAGE, MAY, 0);
        let mut all = vec![elsewhere(at), k.load(at as u64), k.resident(at as u64, 4 * PAGE, 4)];
        all.extend(shape(k));
        all
    }),
    row("remap: larger, up to just below the next VMA", |k| {
        some(k, 2);
        k.map(BASE + 5 * PAGE, PAGE, R, FIXED);
        vec![k.remap(BASE, 2 * PAGE, 5 * PAGE, HERE, 0), k.remap(BASE, 5 * PAGE, 6 * PAGE, HERE, 0)]
    }),
    row("remap: more than the VMA", |k| {
        two(k);
        let all = [(3, 4, HERE), (3, 4, MAY), (3, 5, TO), (3, 3, LEAVE)];
        all.map(|(old, new, flags)| k.remap(BASE, old * PAGE, new * PAGE, flags, THERE)).to_vec()
    }),
    row("remap: elsewhere", |k| {
        some(k, 4);
        (0..4).for_each(|page| k.store(BASE + page * PAGE));
        let mut all = vec![k.remap(BASE + PAGE, 2 * PAGE, 2 * PAGE, TO, THERE)];
        all.extend(shape(k));
        all.extend([k.load(THERE), k.resident(THERE, 2 * PAGE, 2), k.resident(BASE, PAGE, 1)]);
        all
    }),
    row("remap: elsewhere and larger", |k| {
        some(k, 4);
        k.store(BASE);
        let mut all = vec![k.remap(BASE, 2 * PAGE, 5 * PAGE, TO, THERE)];
        all.extend(shape(k));
        all.push(k.resident(THERE, 5 * PAGE, 5));
        all
    }),
    row("remap: elsewhere and smaller", |k| {
        some(k, 8);
        (0..8).for_each(|page| k.store(BASE + page * PAGE));
        let mut all = vec![k.remap(BASE + PAGE, 5 * PAGE, 2 * PAGE, TO, THERE)];
        all.extend(shape(k));
        all.push(k.resident(THERE, 2 * PAGE, 2));
        all
    }),
    row("remap: over another VMA", |k| {
        some(k, 4);
        k.store(BASE);
        k.map(THERE - PAGE, 4 * PAGE, R, FIXED);
        let mut all = vec![k.remap(BASE, 2 * PAGE, 2 * PAGE, TO, THERE)];
        all.extend(shape(k));
        all.push(k.load(THERE));
        all
    }),
    row("remap: several VMAs, and a hole", |k| {
        holed(k);
        k.protect(BASE + 4 * PAGE, PAGE, R);
        [0, 1, 3].iter().for_each(|page| k.store(BASE + page * PAGE));
        // The hole has no destination: the VMAs there stay.
        k.map(THERE + PAGE, 3 * PAGE, NONE, FIXED);
        let mut all = vec![k.remap(BASE + PAGE, 4 * PAGE, 4 * PAGE, TO, THERE)];
        all.extend(shape(k));
        all.extend([k.load(THERE), k.load(THERE + 2 * PAGE), k.load(THERE + 3 * PAGE), protections(k)]);
        all
    }),
    row("remap: several VMAs, a hole first", |k| {
        some(k, 3);
        vec![k.remap(BASE - PAGE, 3 * PAGE, 3 * PAGE, TO, THERE), k.vmas().len() as i64]
    }),
    row("remap: several VMAs, a hole behind", |k| {
        two(k);
        let mut all = vec![k.remap(BASE, 9 * PAGE, 9 * PAGE, TO, THERE)];
        all.extend(shape(k));
        all
    }),
    row("remap: leaving it empty", |k| {
        some(k, 4);
        (0..4).for_each(|page| k.store(BASE + page * PAGE));
        let at = k.remap(BASE + PAGE, 2 * PAGE, 2 * PAGE, LEAVE, 0);
        let mut all = vec![elsewhere(at), k.resident(at as u64, 2 * PAGE, 2), k.resident(BASE, 4 * PAGE, 4)];
        all.extend([k.load(BASE + PAGE), k.load(at as u64)]);
        all
    }),
    row("remap: leaving it empty, to a hint", |k| {
        some(k, 2);
        k.store(BASE);
        vec![k.remap(BASE, 2 * PAGE, 2 * PAGE, LEAVE, THERE), k.load(THERE), k.load(BASE)]
    }),
    row("remap: MREMAP_DONTUNMAP over another VMA", |k| {
        some(k, 2);
        k.store(BASE);
        k.map(THERE, 4 * PAGE, R, FIXED);
        let mut all = vec![k.remap(BASE, 2 * PAGE, 2 * PAGE, LEAVE | TO, THERE)];
        all.extend(shape(k));
        all.extend([k.load(THERE), k.load(BASE)]);
        all
    }),
    row("remap: private memory of no length", |k| {
        some(k, 2);
        vec![k.remap(BASE, 0, PAGE, HERE, 0), k.remap(BASE, 0, PAGE, MAY, 0), k.remap(BASE, 0, PAGE, TO, THERE)]
    }),
    row("remap: shared memory of no length is mapped again", |k| {
        shared(k, 4);
        k.store(BASE + PAGE);
        let mut all = vec![
            k.remap(BASE + PAGE, 0, 2 * PAGE, HERE, 0),
            k.remap(BASE + PAGE, 0, 2 * PAGE, TO, THERE),
            k.remap(BASE + PAGE, 0, PAGE, TO, BASE + PAGE),
        ];
        all.extend([k.load(THERE), k.vmas().len() as i64]);
        k.store(THERE + PAGE);
        all.push(k.load(BASE + 2 * PAGE));
        all
    })
    .differs(
        &[ENOMEM, THERE as i64, EFAULT, 1, 2, 1],
        &[ENOMEM, THERE as i64, EFAULT, 1, 3, 1],
        "Linux unmaps the destination before it finds that the source is in it",
    ),
    row("remap: shared memory keeps its offset in the object", |k| {
        shared(k, 4);
        k.store(BASE + 2 * PAGE);
        let moved = k.remap(BASE + 2 * PAGE, PAGE, PAGE, TO, THERE);
        k.remap(THERE, 0, PAGE, TO, THERE + 8 * PAGE);
        vec![moved, k.load(THERE), k.advise(THERE, PAGE, Advise::DontNeed), k.load(THERE), k.load(THERE + 8 * PAGE)]
    }),
    room("remap: no more address space than allowed", 8, |k| {
        some(k, 6);
        let more = [(9, MAY), (9, HERE), (7, HERE), (8, MAY), (9, TO)];
        let mut all = vec![k.remap(BASE, 6 * PAGE, 6 * PAGE, LEAVE, THERE)];
        all.extend(more.map(|(pages, flags)| k.remap(BASE, 6 * PAGE, pages * PAGE, flags, THERE)));
        all
    }),
    locked("remap: no more locked memory than allowed", 4, |k| {
        k.map(BASE, 3 * PAGE, RW, FIXED | MapFlags::LOCKED);
        let more = [(5, HERE), (5, MAY), (5, TO), (4, HERE)];
        let mut all = more.map(|(pages, flags)| k.remap(BASE, 3 * PAGE, pages * PAGE, flags, THERE)).to_vec();
        all.push(k.resident(BASE, 4 * PAGE, 4));
        all
    }),
    row("remap: the locked source is unlocked after MREMAP_DONTUNMAP", |k| {
        k.map(BASE, 2 * PAGE, RW, FIXED | MapFlags::LOCKED);
        let mut all = vec![k.remap(BASE, 2 * PAGE, 2 * PAGE, LEAVE, THERE)];
        all.extend([BASE, THERE].map(|at| k.advise(at, 2 * PAGE, Advise::DontNeed)));
        all.push(k.resident(BASE, 2 * PAGE, 2));
        all
    }),
    row("remap: guards go along", |k| {
        some(k, 4);
        (0..4).for_each(|page| k.store(BASE + page * PAGE));
        let mut all = vec![k.advise(BASE + PAGE, PAGE, Advise::GuardInstall)];
        all.push(k.remap(BASE, 4 * PAGE, 4 * PAGE, TO, THERE));
        all.push(k.advise(THERE + PAGE, PAGE, Advise::PopulateRead));
        all.push(k.advise(THERE, 4 * PAGE, Advise::GuardRemove));
        all.extend([k.load(THERE + PAGE), k.resident(THERE, 4 * PAGE, 4)]);
        all
    }),
    row("remap: memory with PROT_NONE moves", |k| {
        some(k, 2);
        k.store(BASE);
        k.protect(BASE, 2 * PAGE, NONE);
        let moved = k.remap(BASE, 2 * PAGE, 3 * PAGE, TO, THERE);
        k.protect(THERE, PAGE, R);
        vec![moved, k.load(THERE), protections(k)]
    }),
];
