//! `mmap`.

use vellum::space::MapFlags;

use super::*;
use crate::fixtures::kernel::{BASE, END, PAGE, Row, USER_END};
use crate::fixtures::linux::lowest;

pub static MAP: [Row; 36] = [
    row("map: no length", |k| vec![k.map(0, 0, RW, ANYWHERE), k.map(BASE, 0, RW, FIXED)]),
    row("map: a part of a page is a page", |k| vec![k.map(BASE, 1, RW, FIXED), k.vmas()[0].1 as i64]),
    row("map: a length past the last address", |k| vec![k.map(0, u64::MAX, RW, ANYWHERE)]),
    row("map: a length that rounds up past the last address", |k| vec![k.map(0, u64::MAX - PAGE + 2, RW, ANYWHERE)]),
    row("map: longer than user space", |k| vec![k.map(0, USER_END + PAGE, R, ANYWHERE)]),
    row("map: as long as user space", |k| vec![k.map(0, USER_END, R, ANYWHERE), k.map(0, USER_END, R, FIXED)]),
    row("map: fixed at no page", |k| vec![k.map(BASE + 1, PAGE, RW, FIXED), k.map(BASE + 1, PAGE, RW, NOREPLACE)]),
    row("map: fixed at the end", |k| vec![k.map(USER_END, PAGE, RW, FIXED)]),
    row("map: fixed across the end", |k| vec![k.map(USER_END - PAGE, 2 * PAGE, RW, FIXED)]),
    row("map: fixed beyond the end and at no page", |k| vec![k.map(USER_END + 1, PAGE, RW, FIXED)]),
    row("map: fixed in the other half", |k| vec![k.map(!0 << 47, PAGE, RW, FIXED), k.map(!0 << 12, PAGE, RW, FIXED)]),
    row("map: fixed at 0", |k| vec![k.map(0, PAGE, RW, FIXED), k.map(0, PAGE, RW, NOREPLACE)]),
    row("map: fixed at no page below the lowest", |k| vec![k.map(1, PAGE, RW, FIXED)]),
    row("map: fixed where something is", |k| {
        some(k, 2);
        k.store(BASE + PAGE);
        vec![k.map(BASE + PAGE, 2 * PAGE, RW, FIXED), k.load(BASE + PAGE), k.vmas().len() as i64]
    }),
    row("map: not replacing, where something is", |k| {
        some(k, 3);
        let at = |page: i64| BASE.wrapping_add_signed(page * PAGE as i64);
        let tries = [(0, 1), (1, 1), (-1, 2), (2, 2), (-1, 5)];
        tries.map(|(page, pages)| k.map(at(page), pages * PAGE, RW, NOREPLACE)).to_vec()
    }),
    row("map: not replacing, beside something", |k| {
        some(k, 3);
        vec![k.map(BASE + 3 * PAGE, PAGE, RW, NOREPLACE), k.map(BASE - PAGE, PAGE, RW, NOREPLACE)]
    }),
    row("map: not replacing wins over fixed", |k| {
        some(k, 1);
        vec![k.map(BASE, PAGE, RW, FIXED | NOREPLACE)]
    }),
    row("map: a hint that is free", |k| vec![k.map(BASE, 3 * PAGE, RW, ANYWHERE)]),
    row("map: a hint inside a page", |k| vec![k.map(BASE + 123, PAGE, RW, ANYWHERE)]),
    row("map: a hint where something is", |k| {
        some(k, 3);
        let at = [(2, 1), (0, 1)].map(|(page, pages)| k.map(BASE + page * PAGE, pages * PAGE, RW, ANYWHERE));
        at.map(|at| i64::from(at > END as i64)).to_vec()
    }),
    row("map: a hint with too little room", |k| {
        holed(k);
        vec![k.map(BASE + 2 * PAGE, PAGE, RW, ANYWHERE), i64::from(k.map(BASE + 5 * PAGE, PAGE, RW, ANYWHERE) > 0)]
    }),
    row("map: a hint beyond the end", |k| {
        [USER_END, USER_END - PAGE, !0 << 12]
            .map(|hint| i64::from(k.map(hint, 2 * PAGE, RW, ANYWHERE) > END as i64))
            .to_vec()
    }),
    row("map: a hint inside page 0 is none", |k| vec![i64::from(k.map(0x800, PAGE, RW, ANYWHERE) > END as i64)]),
    row("map: a hint of the lowest address", |k| vec![k.map(lowest(), PAGE, RW, ANYWHERE)]),
    row("map: a hint below the lowest address", |k| vec![k.map(lowest() - PAGE, PAGE, RW, ANYWHERE)]),
    row("map: a hint right below a stack", |k| {
        k.map(BASE + 600 * PAGE, PAGE, RW, FIXED | MapFlags::GROWSDOWN);
        // In its guard gap, just below the gap, and fixed inside the gap.
        let near = k.map(BASE + 400 * PAGE, PAGE, RW, ANYWHERE);
        vec![
            i64::from(near > END as i64),
            k.map(BASE + 343 * PAGE, PAGE, RW, ANYWHERE),
            k.map(BASE + 500 * PAGE, PAGE, RW, NOREPLACE),
        ]
    }),
    row("map: more than the machine's memory", |k| vec![k.map(0, VAST, RW, ANYWHERE), k.map(BASE, VAST, RW, FIXED)]),
    row("map: more than the machine's memory, MAP_NORESERVE", |k| {
        vec![i64::from(k.map(0, VAST, RW, MapFlags::NORESERVE) > 0)]
    }),
    row("map: more than the machine's memory, read-only", |k| vec![i64::from(k.map(0, VAST, R, ANYWHERE) > 0)]),
    room("map: no more address space than allowed", 8, |k| {
        let two = k.map(BASE + 8 * PAGE, 2 * PAGE, RW, NOREPLACE);
        vec![k.map(BASE, 6 * PAGE, RW, NOREPLACE), two, k.map(BASE + 20 * PAGE, PAGE, RW, NOREPLACE)]
    }),
    room("map: replaced memory does not count", 8, |k| {
        some(k, 8);
        vec![
            k.map(BASE + 4 * PAGE, 4 * PAGE, RW, FIXED),
            k.map(BASE + 5 * PAGE, 4 * PAGE, RW, FIXED),
            k.vmas().len() as i64,
        ]
    })
    .differs(
        &[BASE as i64 + 4 * PAGE as i64, ENOMEM, 2],
        &[BASE as i64 + 4 * PAGE as i64, ENOMEM, 3],
        "Linux leaves the VMA split that it would have replaced; the engine leaves it unchanged",
    ),
    locked("map: no more locked memory than allowed", 4, |k| {
        let lock = FIXED | MapFlags::LOCKED;
        let three = k.map(BASE, 3 * PAGE, RW, lock);
        vec![three, k.map(BASE + 8 * PAGE, 2 * PAGE, RW, lock), k.map(BASE + 8 * PAGE, PAGE, RW, lock)]
    }),
    locked("map: locked memory that is replaced counts", 4, |k| {
        let lock = FIXED | MapFlags::LOCKED;
        vec![k.map(BASE, 3 * PAGE, RW, lock), k.map(BASE, 2 * PAGE, RW, lock), k.vmas().len() as i64]
    }),
    locked("map: no memory may be locked", 0, |k| vec![k.map(BASE, PAGE, RW, FIXED | MapFlags::LOCKED)]),
    row("map: populated is resident", |k| {
        vec![
            k.map(BASE, 3 * PAGE, RW, FIXED | MapFlags::POPULATE),
            k.resident(BASE, 3 * PAGE, 3),
            k.map(BASE + 8 * PAGE, 3 * PAGE, R, FIXED | MapFlags::POPULATE),
            k.resident(BASE + 8 * PAGE, 3 * PAGE, 3),
            k.map(BASE + 16 * PAGE, PAGE, NONE, FIXED | MapFlags::POPULATE),
            k.resident(BASE + 16 * PAGE, PAGE, 1),
        ]
    }),
    no_gain("map: to execute and to write, where that is forbidden", |k| {
        let writes = k.map(BASE, PAGE, RW, FIXED);
        vec![k.map(BASE, PAGE, RWX, FIXED), writes, k.map(BASE, PAGE, RX, FIXED), protections(k)]
    }),
];
