//! The table.

use vellum::space::{Advise, MapFlags};
use vellum::vma::Prot;

use super::kernel::{Answers, BASE, END, Expect, Given, Kernel, PAGE, Row, USER_END};
use super::linux::lowest;

const R: Prot = Prot::READ;
const RW: Prot = Prot::READ.union(Prot::WRITE);
const NONE: Prot = Prot::empty();
const ANYWHERE: MapFlags = MapFlags::empty();
const FIXED: MapFlags = MapFlags::FIXED;
const NOREPLACE: MapFlags = MapFlags::FIXED_NOREPLACE;
/// More than any machine has, and less than the address space.
const VAST: u64 = 1 << 46;

const ENOMEM: i64 = -12;
const EPERM: i64 = -1;
const EAGAIN: i64 = -11;
const EFAULT: i64 = -14;

const fn row(name: &'static str, calls: fn(&dyn Kernel) -> Answers) -> Row {
    Row {
        name,
        given: Given {
            address_space: None,
            locked: None,
        },
        calls,
        expect: Expect::Same,
    }
}

const fn locked(name: &'static str, pages: u64, calls: fn(&dyn Kernel) -> Answers) -> Row {
    Row {
        given: Given {
            address_space: None,
            locked: Some(pages * PAGE),
        },
        ..row(name, calls)
    }
}

const fn room(name: &'static str, pages: u64, calls: fn(&dyn Kernel) -> Answers) -> Row {
    Row {
        given: Given {
            address_space: Some(pages * PAGE),
            locked: None,
        },
        ..row(name, calls)
    }
}

impl Row {
    const fn differs(self, engine: &'static [i64], linux: &'static [i64], why: &'static str) -> Row {
        Row {
            expect: Expect::Differ { engine, linux, why },
            ..self
        }
    }
}

/// So many pages at `BASE`.
fn some(k: &dyn Kernel, pages: u64) {
    assert_eq!(k.map(BASE, pages * PAGE, RW, FIXED), BASE as i64);
    // Pages one by one, whatever the machine is set to.
    k.advise(BASE, pages * PAGE, Advise::NoHuge);
}

/// Two pages, a hole of one, two pages.
fn holed(k: &dyn Kernel) {
    some(k, 5);
    assert_eq!(k.unmap(BASE + 2 * PAGE, PAGE), 0);
}

/// The protections of the areas, as digits of a number.
fn protections(k: &dyn Kernel) -> i64 {
    k.areas()
        .iter()
        .fold(0, |all, (.., prot)| all * 10 + i64::from(*prot) + 1)
}

pub static MAP: [Row; 35] = [
    row("map: no length", |k| vec![k.map(0, 0, RW, ANYWHERE), k.map(BASE, 0, RW, FIXED)]),
    row("map: a part of a page is a page", |k| vec![k.map(BASE, 1, RW, FIXED), k.areas()[0].1 as i64]),
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
        vec![k.map(BASE + PAGE, 2 * PAGE, RW, FIXED), k.load(BASE + PAGE), k.areas().len() as i64]
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
        [USER_END, USER_END - PAGE, !0 << 12].map(|hint| i64::from(k.map(hint, 2 * PAGE, RW, ANYWHERE) > END as i64)).to_vec()
    }),
    row("map: a hint inside page 0 is none", |k| vec![i64::from(k.map(0x800, PAGE, RW, ANYWHERE) > END as i64)]),
    row("map: a hint of the lowest address", |k| vec![k.map(lowest(), PAGE, RW, ANYWHERE)]),
    row("map: a hint below the lowest address", |k| vec![k.map(lowest() - PAGE, PAGE, RW, ANYWHERE)]),
    row("map: a hint right below a stack", |k| {
        k.map(BASE + 600 * PAGE, PAGE, RW, FIXED | MapFlags::GROWSDOWN);
        // In its guard gap, just below that, and fixed in it all the same.
        let near = k.map(BASE + 400 * PAGE, PAGE, RW, ANYWHERE);
        vec![
            i64::from(near > END as i64),
            k.map(BASE + 343 * PAGE, PAGE, RW, ANYWHERE),
            k.map(BASE + 500 * PAGE, PAGE, RW, NOREPLACE),
        ]
    }),
    row("map: more than the machine has", |k| vec![k.map(0, VAST, RW, ANYWHERE), k.map(BASE, VAST, RW, FIXED)]),
    row("map: more than the machine has, not reserved", |k| {
        vec![i64::from(k.map(0, VAST, RW, MapFlags::NORESERVE) > 0)]
    }),
    row("map: more than the machine has, only to be read", |k| {
        vec![i64::from(k.map(0, VAST, R, ANYWHERE) > 0)]
    }),
    room("map: no more address space than allowed", 8, |k| {
        let two = k.map(BASE + 8 * PAGE, 2 * PAGE, RW, NOREPLACE);
        vec![k.map(BASE, 6 * PAGE, RW, NOREPLACE), two, k.map(BASE + 20 * PAGE, PAGE, RW, NOREPLACE)]
    }),
    room("map: what is replaced doesn't count", 8, |k| {
        some(k, 8);
        vec![k.map(BASE + 4 * PAGE, 4 * PAGE, RW, FIXED), k.map(BASE + 5 * PAGE, 4 * PAGE, RW, FIXED), k.areas().len() as i64]
    })
    .differs(
        &[BASE as i64 + 4 * PAGE as i64, ENOMEM, 2],
        &[BASE as i64 + 4 * PAGE as i64, ENOMEM, 3],
        "Linux leaves split what it would have replaced; the engine leaves it as it was",
    ),
    locked("map: no more locked memory than allowed", 4, |k| {
        let lock = FIXED | MapFlags::LOCKED;
        let three = k.map(BASE, 3 * PAGE, RW, lock);
        vec![three, k.map(BASE + 8 * PAGE, 2 * PAGE, RW, lock), k.map(BASE + 8 * PAGE, PAGE, RW, lock)]
    }),
    locked("map: locked memory that is replaced counts", 4, |k| {
        let lock = FIXED | MapFlags::LOCKED;
        vec![k.map(BASE, 3 * PAGE, RW, lock), k.map(BASE, 2 * PAGE, RW, lock), k.areas().len() as i64]
    }),
    locked("map: no memory may be locked", 0, |k| vec![k.map(BASE, PAGE, RW, FIXED | MapFlags::LOCKED)]).differs(
        &[EAGAIN],
        &[EPERM],
        "Linux asks first whether the process may lock memory at all; to the engine a limit of nothing is a limit",
    ),
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
];

pub static UNMAP: [Row; 9] = [
    row("unmap: at no page", |k| {
        some(k, 2);
        vec![k.unmap(BASE + 1, PAGE), k.unmap(BASE + 1, 0)]
    }),
    row("unmap: no length", |k| {
        some(k, 2);
        vec![k.unmap(BASE, 0), k.unmap(END, 0)]
    }),
    row("unmap: a part of a page is a page", |k| {
        some(k, 2);
        vec![k.unmap(BASE, PAGE + 1), k.areas().len() as i64]
    }),
    row("unmap: a length past the last address", |k| {
        some(k, 2);
        [u64::MAX, u64::MAX - PAGE + 2, 0u64.wrapping_sub(BASE)]
            .map(|len| k.unmap(BASE, len))
            .to_vec()
    }),
    row("unmap: beyond the end", |k| {
        vec![
            k.unmap(USER_END, PAGE),
            k.unmap(!0 << 12, PAGE),
            k.unmap(USER_END + PAGE, PAGE),
        ]
    }),
    row("unmap: across the end", |k| {
        vec![k.unmap(USER_END - PAGE, 2 * PAGE)]
    }),
    row("unmap: nothing at all", |k| {
        vec![k.unmap(BASE, PAGE), k.unmap(END - PAGE, PAGE)]
    }),
    row("unmap: over a hole", |k| {
        holed(k);
        vec![k.unmap(BASE - PAGE, 6 * PAGE), k.areas().len() as i64]
    }),
    row("unmap: in the middle", |k| {
        some(k, 3);
        vec![
            k.unmap(BASE + PAGE, PAGE),
            k.areas().len() as i64,
            k.unmap(BASE + PAGE, PAGE),
        ]
    }),
];

pub static PROTECT: [Row; 11] = [
    row("protect: at no page", |k| {
        some(k, 2);
        vec![k.protect(BASE + 1, PAGE, R), k.protect(BASE + 1, 0, R)]
    }),
    row("protect: no length", |k| {
        vec![k.protect(BASE, 0, R), k.protect(!0 << 12, 0, R)]
    }),
    row("protect: a part of a page is a page", |k| {
        some(k, 3);
        vec![
            k.protect(BASE, PAGE + 1, R),
            protections(k),
            k.areas()[0].1 as i64,
        ]
    }),
    row("protect: a length past the last address", |k| {
        some(k, 2);
        [
            u64::MAX,
            u64::MAX - PAGE + 2,
            0u64.wrapping_sub(BASE),
            0u64.wrapping_sub(BASE) + PAGE,
        ]
        .map(|len| k.protect(BASE, len, R))
        .to_vec()
    }),
    row("protect: nothing", |k| {
        vec![
            k.protect(BASE, PAGE, R),
            k.protect(USER_END, PAGE, R),
            k.protect(!0 << 13, PAGE, R),
        ]
    }),
    row("protect: a hole before", |k| {
        some(k, 2);
        vec![k.protect(BASE - PAGE, 2 * PAGE, R), protections(k)]
    }),
    row("protect: a hole in the middle", |k| {
        holed(k);
        vec![k.protect(BASE, 5 * PAGE, R), protections(k)]
    })
    .differs(
        &[ENOMEM, 44],
        &[ENOMEM, 24],
        "the engine finds out first and changes nothing; Linux changes what lies before",
    ),
    row("protect: a hole behind", |k| {
        some(k, 2);
        vec![k.protect(BASE + PAGE, 2 * PAGE, R), protections(k)]
    })
    .differs(&[ENOMEM, 4], &[ENOMEM, 42], "as in the middle"),
    row("protect: as it is", |k| {
        some(k, 3);
        vec![k.protect(BASE + PAGE, PAGE, RW), k.areas().len() as i64]
    }),
    row("protect: there and back", |k| {
        some(k, 3);
        vec![
            k.protect(BASE + PAGE, PAGE, NONE),
            protections(k),
            k.protect(BASE + PAGE, PAGE, RW),
            protections(k),
        ]
    }),
    row("protect: more than the machine has becomes writable", |k| {
        let at = k.map(0, VAST, R, ANYWHERE) as u64;
        vec![k.protect(at, VAST, RW)]
    })
    .differs(
        &[0],
        &[ENOMEM],
        "the engine checks what is promised when it is mapped, and keeps no account of it",
    ),
];

pub static ADVISE: [Row; 12] = [
    row("advise: at no page", |k| {
        some(k, 2);
        [Advise::DontNeed, Advise::NoHuge]
            .map(|advise| k.advise(BASE + 1, PAGE, advise))
            .to_vec()
    }),
    row("advise: at no page, no length", |k| {
        vec![k.advise(BASE + 1, 0, Advise::DontNeed)]
    }),
    row("advise: no length", |k| {
        vec![
            k.advise(BASE, 0, Advise::DontNeed),
            k.advise(!0 << 12, 0, Advise::NoHuge),
        ]
    }),
    row("advise: a part of a page is a page", |k| {
        some(k, 3);
        (0..3).for_each(|page| k.store(BASE + page * PAGE));
        vec![
            k.advise(BASE, PAGE + 1, Advise::DontNeed),
            k.resident(BASE, 3 * PAGE, 3),
        ]
    }),
    row("advise: a length past the last address", |k| {
        some(k, 2);
        let all = [u64::MAX, u64::MAX - PAGE + 2, 0u64.wrapping_sub(BASE) + PAGE];
        all.map(|len| k.advise(BASE, len, Advise::DontNeed)).to_vec()
    }),
    row("advise: nothing", |k| {
        let all = [
            (BASE, PAGE),
            (USER_END, PAGE),
            (!0 << 13, PAGE),
            (1 << 63, 1 << 62),
        ];
        all.map(|(addr, len)| k.advise(addr, len, Advise::DontNeed))
            .to_vec()
    }),
    row("advise: forget over a hole", |k| {
        holed(k);
        [0, 1, 3, 4].iter().for_each(|page| k.store(BASE + page * PAGE));
        let answer = k.advise(BASE, 5 * PAGE, Advise::DontNeed);
        vec![
            answer,
            k.resident(BASE, 2 * PAGE, 2),
            k.resident(BASE + 3 * PAGE, 2 * PAGE, 2),
        ]
    }),
    row("advise: forget with a hole before and behind", |k| {
        some(k, 2);
        k.store(BASE);
        vec![
            k.advise(BASE - PAGE, 4 * PAGE, Advise::DontNeed),
            k.resident(BASE, 2 * PAGE, 2),
        ]
    }),
    row("advise: forget what is locked", |k| {
        some(k, 4);
        k.map(BASE + PAGE, PAGE, RW, FIXED | MapFlags::LOCKED);
        [0, 1, 2].iter().for_each(|page| k.store(BASE + page * PAGE));
        vec![
            k.advise(BASE, 4 * PAGE, Advise::DontNeed),
            k.resident(BASE, 4 * PAGE, 4),
        ]
    }),
    row("advise: forget what may not be touched", |k| {
        some(k, 2);
        k.store(BASE);
        let protect = k.protect(BASE, 2 * PAGE, NONE);
        let before = k.resident(BASE, 2 * PAGE, 2);
        vec![
            protect,
            before,
            k.advise(BASE, 2 * PAGE, Advise::DontNeed),
            k.resident(BASE, 2 * PAGE, 2),
        ]
    }),
    row("advise: what was forgotten is zero", |k| {
        some(k, 2);
        k.store(BASE);
        vec![k.load(BASE), k.advise(BASE, PAGE, Advise::DontNeed), k.load(BASE)]
    }),
    row("advise: small pages over a hole", |k| {
        assert_eq!(k.map(BASE, 5 * PAGE, RW, FIXED), BASE as i64);
        k.unmap(BASE + 2 * PAGE, PAGE);
        // Whether it was taken shows where areas no longer merge.
        let answer = k.advise(BASE, 5 * PAGE, Advise::NoHuge);
        vec![
            answer,
            k.map(BASE + 2 * PAGE, PAGE, RW, FIXED),
            k.areas().len() as i64,
        ]
    })
    .differs(
        &[ENOMEM, BASE as i64 + 2 * 4096, 1],
        &[ENOMEM, BASE as i64 + 2 * 4096, 3],
        "the engine takes all or nothing of it",
    ),
];

pub static RESIDENT: [Row; 9] = [
    row("resident: at no page", |k| {
        some(k, 2);
        vec![k.resident(BASE + 1, PAGE, 1), k.resident(BASE + 1, 0, 0)]
    }),
    row("resident: no length", |k| vec![k.resident(BASE, 0, 0)]),
    row("resident: nothing is mapped", |k| vec![k.resident(BASE, PAGE, 1)]),
    row("resident: a hole", |k| {
        holed(k);
        vec![
            k.resident(BASE, 5 * PAGE, 5),
            k.resident(BASE - PAGE, 2 * PAGE, 2),
            k.resident(BASE + 4 * PAGE, 2 * PAGE, 2),
        ]
    }),
    row("resident: beyond the end", |k| {
        vec![k.resident(USER_END, PAGE, 1), k.resident(!0 << 12, PAGE, 1)]
    }),
    row("resident: no room for the answer", |k| {
        some(k, 4);
        vec![k.resident(BASE, 4 * PAGE, 3)]
    }),
    row("resident: no room for the answer, and a hole", |k| {
        holed(k);
        vec![
            k.resident(BASE, 5 * PAGE, 3),
            k.resident(BASE - PAGE, 5 * PAGE, 3),
        ]
    })
    .differs(
        &[EFAULT, EFAULT],
        &[EFAULT, ENOMEM],
        "Linux looks before it copies; the engine is given the room and looks at that first",
    ),
    row("resident: a part of a page is a page", |k| {
        some(k, 3);
        k.store(BASE + 2 * PAGE);
        vec![k.resident(BASE, 2 * PAGE + 1, 3)]
    }),
    row("resident: what was touched", |k| {
        some(k, 8);
        k.store(BASE + PAGE);
        k.load(BASE + 3 * PAGE);
        k.store(BASE + 4 * PAGE);
        k.store(BASE + 5 * PAGE);
        k.protect(BASE + 4 * PAGE, PAGE, NONE);
        k.advise(BASE + 5 * PAGE, PAGE, Advise::DontNeed);
        vec![k.resident(BASE, 8 * PAGE, 8)]
    }),
];

/// Pages to make areas of.
const MANY_PAGES: u64 = 1 << 18;

fn page(n: u64) -> u64 {
    BASE + n * PAGE
}

/// Make as many areas as there may be: every other page is made another one, until that fails, and then one is made at a
/// time. The answer is the first of many pages that are still one area.
fn fill(k: &dyn Kernel) -> u64 {
    k.map(BASE, MANY_PAGES * PAGE, R, FIXED);
    let full = (0..MANY_PAGES / 4)
        .find(|n| k.protect(page(2 * n + 1), PAGE, NONE) != 0)
        .expect("a limit");
    let prot = |n: u64| if n.is_multiple_of(2) { RW } else { NONE };
    (1..9)
        .find(|n| k.protect(page(MANY_PAGES - n), PAGE, prot(*n)) != 0)
        .expect("a limit");
    2 * full
}

pub static MANY: [Row; 2] = [
    row("many areas: what still may be split, and what not", |k| {
        // Two areas side by side, for later.
        k.map(page(2 * MANY_PAGES), 8 * PAGE, RW, FIXED);
        k.protect(page(2 * MANY_PAGES), 4 * PAGE, R);
        let first = fill(k);
        let inside = page(first + 1000);
        vec![
            k.protect(inside, PAGE, NONE),
            k.advise(inside, PAGE, Advise::NoHuge),
            k.unmap(inside, PAGE),
            // The end of an area may always go, and the ends of two that are side by side.
            k.unmap(page(2 * MANY_PAGES), PAGE),
            k.unmap(page(2 * MANY_PAGES + 2), 4 * PAGE),
            // One more than may be had by splitting may be mapped, and then none.
            k.map(page(3 * MANY_PAGES), PAGE, NONE, NOREPLACE),
            k.map(page(3 * MANY_PAGES + 2), PAGE, NONE, NOREPLACE),
            k.unmap(inside, PAGE),
            k.unmap(page(3 * MANY_PAGES), PAGE),
            k.map(page(3 * MANY_PAGES + 4), PAGE, NONE, NOREPLACE),
        ]
    }),
    row("many areas: the border between two moves", |k| {
        let first = fill(k);
        vec![k.protect(page(first), PAGE, NONE)]
    })
    .differs(&[ENOMEM], &[0], "the engine splits before it merges"),
];
