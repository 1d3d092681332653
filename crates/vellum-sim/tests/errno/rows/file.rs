//! Shared memory, and files in memory: `mmap`, `mprotect`, `madvise`, `mincore`, `msync`, seals,
//! truncation.

use vellum::addr::VirtRange;

use super::*;
use crate::fixtures::file::{Call, map};

const SHARED: MapFlags = MapFlags::SHARED;
const READ_ONLY: MapFlags = MapFlags::SHARED.union(MapFlags::READ_ONLY);

fn pages(first: u64, count: u64) -> VirtRange {
    VirtRange { start: BASE + first * PAGE, end: BASE + (first + count) * PAGE }
}

fn flat(k: &dyn Kernel) -> Answers {
    k.vmas().iter().flat_map(|(start, end, prot)| [*start as i64, *end as i64, i64::from(*prot)]).collect()
}

/// Opens a file of this many pages, and maps it whole.
fn mapped(k: &dyn Kernel, count: u64, prot: Prot, flags: MapFlags) -> Answers {
    vec![k.file(Call::Open(count * PAGE)), k.file(map(pages(0, count), prot, flags, 0))]
}

fn and<const N: usize>(mut all: Answers, more: [i64; N]) -> Answers {
    all.extend(more);
    all
}

pub const FILE: [Row; 30] = [
    row("file: shared, written, seen through another mapping", |k| {
        let mut all = mapped(k, 4, RW, SHARED);
        all.push(k.file(map(pages(8, 4), R, ANYWHERE, 0)));
        k.store(BASE + PAGE);
        and(all, [k.load(BASE + 9 * PAGE), k.load(BASE + 8 * PAGE)])
    }),
    row("file: private, written, not seen", |k| {
        let mut all = mapped(k, 4, RW, SHARED);
        all.push(k.file(map(pages(8, 4), RW, ANYWHERE, 0)));
        all.push(k.load(BASE + 8 * PAGE));
        k.store(BASE + 8 * PAGE);
        k.store(BASE + 9 * PAGE);
        and(all, [k.load(BASE), k.load(BASE + PAGE), k.load(BASE + 8 * PAGE)])
    }),
    row("file: written, not through a mapping", |k| {
        let mut all = mapped(k, 4, RW, ANYWHERE);
        all.push(k.load(BASE));
        all.push(k.file(Call::Write(0)));
        and(all, [k.load(BASE), k.load(BASE + PAGE)])
    }),
    row("file: no length", |k| {
        and(
            vec![k.file(Call::Open(PAGE))],
            [k.file(map(pages(0, 0), R, SHARED, 0)), k.file(map(pages(0, 0), R, ANYWHERE, 0))],
        )
    }),
    row("file: an offset inside of a page", |k| {
        vec![k.file(Call::Open(PAGE)), k.file(map(pages(0, 1), R, SHARED, 512))]
    }),
    row("file: beyond the largest offset", |k| {
        let offset = (i64::MAX as u64) & !(PAGE - 1);
        vec![
            k.file(Call::Open(PAGE)),
            k.file(map(pages(0, 2), R, SHARED, offset)),
            k.file(map(pages(0, 1), R, SHARED, offset - PAGE)),
        ]
    }),
    row("file: beyond its end", |k| {
        let mut all = mapped(k, 2, RW, SHARED);
        all.push(k.file(map(pages(2, 2), RW, SHARED, 2 * PAGE)));
        and(all, [k.file(Call::Reach(BASE + PAGE)), k.file(Call::Reach(BASE + 2 * PAGE))])
    }),
    row("file: a stack", |k| {
        let all = vec![k.file(Call::Open(PAGE))];
        let down = MapFlags::GROWSDOWN;
        and(all, [k.file(map(pages(0, 1), RW, SHARED | down, 0)), k.file(map(pages(0, 1), RW, down, 0))])
    }),
    row("shared anonymous: a stack", |k| vec![k.map(BASE, PAGE, RW, FIXED | SHARED | MapFlags::GROWSDOWN)]),
    row("shared anonymous: contents survive MADV_DONTNEED", |k| {
        let mut all = vec![k.map(BASE, 4 * PAGE, RW, FIXED | SHARED)];
        k.store(BASE + PAGE);
        all.push(k.advise(BASE, 4 * PAGE, Advise::DontNeed));
        and(all, [k.load(BASE + PAGE), k.load(BASE), k.resident(BASE, 4 * PAGE, 4)])
    }),
    row("shared anonymous: no length", |k| vec![k.map(BASE, 0, RW, FIXED | SHARED)]),
    row("shared anonymous: adjacent VMAs do not merge", |k| {
        let mut all = vec![k.map(BASE, PAGE, RW, FIXED | SHARED), k.map(BASE + PAGE, PAGE, RW, FIXED | SHARED)];
        all.extend(flat(k));
        all
    }),
    row("file: contiguous offsets merge into one VMA", |k| {
        let mut all = mapped(k, 4, RW, SHARED);
        all.push(k.file(map(pages(4, 2), RW, SHARED, 4 * PAGE)));
        all.extend(flat(k));
        all
    }),
    row("file: side by side, not continued", |k| {
        let mut all = mapped(k, 4, RW, SHARED);
        all.push(k.file(map(pages(4, 2), RW, SHARED, 5 * PAGE)));
        all.push(k.file(map(pages(6, 2), RW, ANYWHERE, 7 * PAGE)));
        all.extend(flat(k));
        all
    }),
    row("file: split and joined again", |k| {
        let mut all = mapped(k, 4, RW, SHARED);
        all.push(k.protect(BASE + PAGE, PAGE, R));
        all.extend(flat(k));
        all.push(k.protect(BASE + PAGE, PAGE, RW));
        all.extend(flat(k));
        all.push(k.unmap(BASE + PAGE, PAGE));
        all.push(k.file(map(pages(1, 1), RW, SHARED, PAGE)));
        all.extend(flat(k));
        all
    }),
    row("file open to be read: shared, to be written", |k| mapped(k, 1, RW, READ_ONLY)),
    row("file open to be read: shared, then to be written", |k| {
        let all = mapped(k, 4, R, READ_ONLY);
        and(all, [k.protect(BASE + PAGE, PAGE, RW), k.protect(BASE, 8 * PAGE, RW), k.protect(BASE, 4 * PAGE, R)])
    }),
    row("file open to be read: private, to be written", |k| {
        let all = mapped(k, 1, RW, MapFlags::READ_ONLY);
        k.store(BASE);
        and(all, [k.load(BASE)])
    }),
    row("seal: mapped shared, to be written", |k| and(mapped(k, 1, RW, SHARED), [k.file(Call::Seal)])),
    row("seal: mapped shared, to be read", |k| and(mapped(k, 1, R, SHARED), [k.file(Call::Seal)])),
    row("seal: mapped through a read-only descriptor", |k| and(mapped(k, 1, R, READ_ONLY), [k.file(Call::Seal)])),
    row("seal: split, and one part unmapped", |k| {
        let mut all = mapped(k, 3, RW, SHARED);
        all.push(k.unmap(BASE + PAGE, PAGE));
        all.push(k.unmap(BASE, PAGE));
        all.push(k.file(Call::Seal));
        and(all, [k.unmap(BASE, 3 * PAGE), k.file(Call::Seal), k.file(Call::Seal)])
    }),
    row("seal: then mapped", |k| {
        let all = vec![k.file(Call::Open(4 * PAGE)), k.file(Call::Seal)];
        let all = and(all, [k.file(map(pages(0, 1), RW, SHARED, 0)), k.file(map(pages(1, 1), R, SHARED, 0))]);
        and(all, [k.protect(BASE + PAGE, PAGE, RW), k.file(map(pages(3, 1), RW, ANYWHERE, 0))])
    }),
    row("remove: shared, private, anonymous, nothing", |k| {
        let mut all = mapped(k, 4, RW, SHARED);
        k.store(BASE);
        k.store(BASE + PAGE);
        all.push(k.file(Call::Remove { addr: BASE, len: PAGE }));
        all.extend([k.load(BASE), k.load(BASE + PAGE)]);
        all.push(k.file(Call::Remove { addr: BASE + 1, len: PAGE }));
        all.push(k.file(Call::Remove { addr: BASE, len: 8 * PAGE }));
        all.push(k.file(map(pages(4, 2), RW, ANYWHERE, 0)));
        all.push(k.file(Call::Remove { addr: BASE + 4 * PAGE, len: PAGE }));
        all.push(k.map(BASE + 8 * PAGE, PAGE, RW, FIXED));
        all.push(k.file(Call::Remove { addr: BASE + 8 * PAGE, len: PAGE }));
        all.push(k.file(map(pages(9, 1), R, READ_ONLY, 0)));
        all.push(k.file(Call::Remove { addr: BASE + 9 * PAGE, len: PAGE }));
        all
    }),
    row("remove: read-only for now", |k| {
        and(mapped(k, 4, R, SHARED), [k.file(Call::Remove { addr: BASE, len: PAGE })])
    }),
    row("mincore: in the file, not mapped", |k| {
        let all = vec![k.file(Call::Open(6 * PAGE)), k.file(Call::Write(0)), k.file(Call::Write(3 * PAGE + 1))];
        and(all, [k.file(map(pages(0, 6), RW, SHARED, 0)), k.resident(BASE, 6 * PAGE, 6)])
    }),
    row("mincore: a private copy of a truncated page", |k| {
        let mut all = mapped(k, 4, RW, ANYWHERE);
        k.store(BASE);
        k.store(BASE + PAGE);
        all.push(k.file(Call::Punch(0..4 * PAGE)));
        all.extend([k.resident(BASE, PAGE, 1), k.load(BASE)]);
        all.push(k.file(Call::Resize(PAGE)));
        all.extend([k.load(BASE), k.file(Call::Reach(BASE + PAGE))]);
        and(all, [k.file(Call::Resize(4 * PAGE)), k.load(BASE + PAGE)])
    }),
    row("file: smaller and larger", |k| {
        let mut all = mapped(k, 4, RW, SHARED);
        k.store(BASE + PAGE + 100);
        k.store(BASE + PAGE + 10);
        k.store(BASE + 2 * PAGE);
        all.push(k.file(Call::Resize(PAGE + 50)));
        all.extend([k.file(Call::Reach(BASE + PAGE)), k.file(Call::Reach(BASE + 2 * PAGE))]);
        all.push(k.file(Call::Resize(4 * PAGE)));
        and(all, [k.load(BASE + PAGE + 10), k.load(BASE + PAGE + 100), k.load(BASE + 2 * PAGE)])
    }),
    locked("msync", 100, |k| {
        let mut all = mapped(k, 4, RW, SHARED);
        let sync = |addr, len, invalidate| k.file(Call::Sync { addr, len, invalidate });
        all.extend([sync(BASE, 4 * PAGE, false), sync(BASE, 3 * PAGE + 1, true), sync(BASE, 0, false)]);
        all.extend([sync(BASE + 1, PAGE, false), sync(BASE, 5 * PAGE, false), sync(BASE + 6 * PAGE, PAGE, false)]);
        all.push(sync(BASE, u64::MAX - PAGE + 1, false));
        all.push(k.map(BASE + 4 * PAGE, PAGE, RW, FIXED | MapFlags::LOCKED));
        and(all, [sync(BASE, 5 * PAGE, false), sync(BASE, 5 * PAGE, true), sync(BASE, 4 * PAGE, true)])
    }),
    row("file: private, dropped", |k| {
        let mut all = vec![k.file(Call::Open(2 * PAGE)), k.file(Call::Write(0))];
        all.push(k.file(map(pages(0, 2), RW, ANYWHERE, 0)));
        k.store(BASE + 8);
        k.store(BASE + PAGE);
        all.push(k.advise(BASE, 2 * PAGE, Advise::DontNeed));
        and(all, [k.load(BASE), k.load(BASE + 8), k.load(BASE + PAGE)])
    }),
];
