//! `madvise` and `mincore`.

use super::*;
use crate::fixtures::kernel::USER_END;

pub static ADVISE: [Row; 12] = [
    row("advise: at no page", |k| {
        some(k, 2);
        [Advise::DontNeed, Advise::NoHuge].map(|advise| k.advise(BASE + 1, PAGE, advise)).to_vec()
    }),
    row("advise: at no page, no length", |k| vec![k.advise(BASE + 1, 0, Advise::DontNeed)]),
    row("advise: no length", |k| vec![k.advise(BASE, 0, Advise::DontNeed), k.advise(!0 << 12, 0, Advise::NoHuge)]),
    row("advise: a part of a page is a page", |k| {
        some(k, 3);
        (0..3).for_each(|page| k.store(BASE + page * PAGE));
        vec![k.advise(BASE, PAGE + 1, Advise::DontNeed), k.resident(BASE, 3 * PAGE, 3)]
    }),
    row("advise: a length past the last address", |k| {
        some(k, 2);
        let all = [u64::MAX, u64::MAX - PAGE + 2, 0u64.wrapping_sub(BASE) + PAGE];
        all.map(|len| k.advise(BASE, len, Advise::DontNeed)).to_vec()
    }),
    row("advise: nothing", |k| {
        let all = [(BASE, PAGE), (USER_END, PAGE), (!0 << 13, PAGE), (1 << 63, 1 << 62)];
        all.map(|(addr, len)| k.advise(addr, len, Advise::DontNeed)).to_vec()
    }),
    row("advise: drop over a hole", |k| {
        holed(k);
        [0, 1, 3, 4].iter().for_each(|page| k.store(BASE + page * PAGE));
        let answer = k.advise(BASE, 5 * PAGE, Advise::DontNeed);
        vec![answer, k.resident(BASE, 2 * PAGE, 2), k.resident(BASE + 3 * PAGE, 2 * PAGE, 2)]
    }),
    row("advise: drop with a hole before and behind", |k| {
        some(k, 2);
        k.store(BASE);
        vec![k.advise(BASE - PAGE, 4 * PAGE, Advise::DontNeed), k.resident(BASE, 2 * PAGE, 2)]
    }),
    row("advise: drop locked memory", |k| {
        some(k, 4);
        k.map(BASE + PAGE, PAGE, RW, FIXED | MapFlags::LOCKED);
        [0, 1, 2].iter().for_each(|page| k.store(BASE + page * PAGE));
        vec![k.advise(BASE, 4 * PAGE, Advise::DontNeed), k.resident(BASE, 4 * PAGE, 4)]
    }),
    row("advise: drop memory with PROT_NONE", |k| {
        some(k, 2);
        k.store(BASE);
        let protect = k.protect(BASE, 2 * PAGE, NONE);
        let before = k.resident(BASE, 2 * PAGE, 2);
        vec![protect, before, k.advise(BASE, 2 * PAGE, Advise::DontNeed), k.resident(BASE, 2 * PAGE, 2)]
    }),
    row("advise: dropped memory is zero", |k| {
        some(k, 2);
        k.store(BASE);
        vec![k.load(BASE), k.advise(BASE, PAGE, Advise::DontNeed), k.load(BASE)]
    }),
    row("advise: small pages over a hole", |k| {
        assert_eq!(k.map(BASE, 5 * PAGE, RW, FIXED), BASE as i64);
        k.unmap(BASE + 2 * PAGE, PAGE);
        // VMAs merge if the advice was taken.
        let answer = k.advise(BASE, 5 * PAGE, Advise::NoHuge);
        vec![answer, k.map(BASE + 2 * PAGE, PAGE, RW, FIXED), k.vmas().len() as i64]
    }),
];

/// Advice that is neither about huge pages nor `MADV_DONTNEED`.
const HINTS: [Advise; 15] = [
    Advise::Free,
    Advise::DontFork,
    Advise::DoFork,
    Advise::WipeOnFork,
    Advise::KeepOnFork,
    Advise::DontDump,
    Advise::DoDump,
    Advise::Reads(Expected::Unknown),
    Advise::Reads(Expected::Sequential),
    Advise::Reads(Expected::Random),
    Advise::WillNeed,
    Advise::Cold,
    Advise::PageOut,
    Advise::Mergeable,
    Advise::Unmergeable,
];

const ACTS: [Advise; 5] =
    [Advise::DontNeedLocked, Advise::PopulateRead, Advise::PopulateWrite, Advise::GuardInstall, Advise::GuardRemove];

pub static MORE_ADVICE: [Row; 11] = [
    row("advise: populate memory without read permission", |k| {
        let mut all = Vec::new();
        for prot in [Prot::WRITE, Prot::EXEC, NONE, R] {
            k.map(BASE, PAGE, prot, FIXED);
            all.extend([Advise::PopulateRead, Advise::PopulateWrite].map(|advise| k.advise(BASE, PAGE, advise)));
        }
        all
    }),
    row("advise: hints", |k| {
        some(k, 2);
        HINTS.map(|advise| k.advise(BASE, 2 * PAGE, advise)).to_vec()
    }),
    row("advise: hints over a hole", |k| {
        holed(k);
        HINTS.map(|advise| k.advise(BASE, 5 * PAGE, advise)).to_vec()
    }),
    row("advise: hints for locked memory", |k| {
        k.map(BASE, 2 * PAGE, RW, FIXED | MapFlags::LOCKED);
        HINTS.map(|advise| k.advise(BASE, 2 * PAGE, advise)).to_vec()
    }),
    row("advise: acts over a hole", |k| {
        holed(k);
        ACTS.map(|advise| k.advise(BASE, 5 * PAGE, advise)).to_vec()
    }),
    row("advise: several tables, and a hole in the second", |k| {
        // Pages at both ends of each page table, and on both sides of the hole.
        let looked = [0, 510, 610, 613, 1022, 1024, 1534];
        let mut all = vec![];
        for advise in HINTS.into_iter().chain(ACTS) {
            some(k, 1536);
            k.unmap(BASE + 612 * PAGE, PAGE);
            looked.iter().for_each(|page| k.store(BASE + page * PAGE));
            all.push(k.advise(BASE, 1536 * PAGE, advise));
            if advise != Advise::PageOut {
                all.extend(looked.map(|page| k.resident(BASE + page * PAGE, 2 * PAGE, 2)));
            }
            k.unmap(BASE, 1536 * PAGE);
        }
        all
    }),
    row("advise: guards over a hole", |k| {
        holed(k);
        [0, 4].iter().for_each(|page| k.store(BASE + page * PAGE));
        let answer = k.advise(BASE, 5 * PAGE, Advise::GuardInstall);
        vec![answer, k.resident(BASE, 2 * PAGE, 2), k.resident(BASE + 3 * PAGE, 2 * PAGE, 2)]
    }),
    row("advise: actions on locked memory", |k| {
        k.map(BASE, 2 * PAGE, RW, FIXED | MapFlags::LOCKED);
        let mut all = ACTS.map(|advise| k.advise(BASE, 2 * PAGE, advise)).to_vec();
        all.push(k.resident(BASE, 2 * PAGE, 2));
        all
    }),
    row("advise: collapse without large folios", |k| {
        // Each VMA is smaller than a huge page, or has `MADV_NOHUGEPAGE`.
        some(k, 4);
        k.store(BASE);
        let mut all = vec![k.advise(BASE, 4 * PAGE, Advise::Collapse), k.advise(BASE + 1, PAGE, Advise::Collapse)];
        k.map(BASE, 1024 * PAGE, RW, FIXED);
        k.advise(BASE, 1024 * PAGE, Advise::NoHuge);
        k.store(BASE);
        all.push(k.advise(BASE, 1024 * PAGE, Advise::Collapse));
        k.unmap(BASE, 1024 * PAGE);
        all.push(k.advise(BASE, 1024 * PAGE, Advise::Collapse));
        all
    }),
    row("advise: populate memory with PROT_NONE", |k| {
        some(k, 2);
        let mut all = vec![];
        for prot in [R, NONE] {
            k.protect(BASE, 2 * PAGE, prot);
            all.push(k.advise(BASE, 2 * PAGE, Advise::PopulateWrite));
            all.push(k.advise(BASE, 2 * PAGE, Advise::PopulateRead));
        }
        all
    }),
    row("advise: guards", |k| {
        some(k, 4);
        (0..4).for_each(|page| k.store(BASE + page * PAGE));
        let mut all = vec![k.advise(BASE + PAGE, 2 * PAGE, Advise::GuardInstall), k.resident(BASE, 4 * PAGE, 4)];
        all.push(k.advise(BASE, 4 * PAGE, Advise::PopulateRead));
        all.push(k.advise(BASE, 4 * PAGE, Advise::DontNeed));
        all.push(k.advise(BASE + 2 * PAGE, PAGE, Advise::PopulateWrite));
        all.push(k.advise(BASE, 4 * PAGE, Advise::GuardRemove));
        all.push(k.advise(BASE, 4 * PAGE, Advise::PopulateWrite));
        all.push(k.load(BASE + PAGE));
        all
    }),
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
    row("resident: beyond the end", |k| vec![k.resident(USER_END, PAGE, 1), k.resident(!0 << 12, PAGE, 1)]),
    row("resident: no room for the answer", |k| {
        some(k, 4);
        vec![k.resident(BASE, 4 * PAGE, 3)]
    }),
    row("resident: no room for the answer, and a hole", |k| {
        holed(k);
        vec![k.resident(BASE, 5 * PAGE, 3), k.resident(BASE - PAGE, 5 * PAGE, 3)]
    })
    .differs(
        &[EFAULT, EFAULT],
        &[EFAULT, ENOMEM],
        "Linux checks the range before it copies; the engine checks the vector's length first",
    ),
    row("resident: a part of a page is a page", |k| {
        some(k, 3);
        k.store(BASE + 2 * PAGE);
        vec![k.resident(BASE, 2 * PAGE + 1, 3)]
    }),
    row("mincore: touched pages", |k| {
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
