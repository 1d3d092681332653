//! Every call with addresses above the user half: kernel addresses, non-canonical ones, and ranges
//! that begin in the user half and end above it.

use super::*;
use crate::fixtures::file::Call;
use crate::fixtures::kernel::USER_END;

/// The last pages of the user half, which the rows map.
const LAST: u64 = USER_END - 2 * PAGE;

/// Addresses and lengths of which at most a part lies in the user half.
const PLACES: [(u64, u64); 17] = [
    (USER_END, PAGE),
    (USER_END, 2 << 20),
    (LAST, 3 * PAGE),
    (LAST + PAGE, 2 << 20),
    (LAST, 1 << 46),
    (LAST, 1 << 47),
    (LAST, 1 << 63),
    (1 << 47, PAGE),
    (BASE | 1 << 48, PAGE),
    (BASE | 1 << 63, 2 * PAGE),
    (0xffff_8880_0000_1000, PAGE),
    (0xffff_8880_0000_0000, 2 << 20),
    (0xffff_ffff_8000_0000, 1 << 30),
    (!0 << 12, PAGE),
    (!0 << 13, PAGE),
    (!0 << 12, 1 << 30),
    (BASE, !0 << 13),
];

/// Maps two pages at the end of the user half, and two at `BASE`.
fn pages(k: &dyn Kernel) {
    some(k, 2);
    assert_eq!(k.map(LAST, 2 * PAGE, RW, FIXED), LAST as i64);
    k.advise(LAST, 2 * PAGE, Advise::NoHuge);
    [BASE, BASE + PAGE, LAST, LAST + PAGE].iter().for_each(|page| k.store(*page));
}

/// Makes a call at each of the places. Returns its answers, and the resident pages after each.
fn at_each(k: &dyn Kernel, call: impl Fn(u64, u64) -> i64) -> Answers {
    let one = |&(addr, len): &(u64, u64)| {
        pages(k);
        let answer = call(addr, len);
        [answer, k.resident(BASE, 2 * PAGE, 2), k.resident(LAST, 2 * PAGE, 2)]
    };
    PLACES.iter().flat_map(one).collect()
}

pub static BEYOND: [Row; 23] = [
    row("beyond: mmap", |k| at_each(k, |addr, len| k.map(addr, len, RW, FIXED))),
    row("beyond: mmap where nothing is", |k| at_each(k, |addr, len| k.map(addr, len, RW, NOREPLACE))),
    row("beyond: munmap", |k| at_each(k, |addr, len| k.unmap(addr, len))),
    row("beyond: mprotect", |k| at_each(k, |addr, len| k.protect(addr, len, RW))),
    locked("beyond: mlock", 16, |k| at_each(k, |addr, len| k.lock(addr, len, true))),
    row("beyond: munlock", |k| at_each(k, |addr, len| k.unlock(addr, len))),
    locked("beyond: mlock where none is allowed", 0, |k| at_each(k, |addr, len| k.lock(addr, len, false))),
    row("beyond: mseal", |k| PLACES.map(|(addr, len)| k.seal(addr, len)).to_vec()),
    row("beyond: mincore", |k| at_each(k, |addr, len| k.resident(addr, len.min(4 * PAGE), 4))),
    row("beyond: msync", |k| at_each(k, |addr, len| k.file(Call::Sync { addr, len, invalidate: false }))),
    row("beyond: MADV_DONTNEED", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::DontNeed))),
    row("beyond: MADV_DONTNEED_LOCKED", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::DontNeedLocked))),
    row("beyond: MADV_FREE", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::Free))),
    row("beyond: MADV_DONTFORK", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::DontFork))),
    row("beyond: MADV_WILLNEED", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::WillNeed))),
    row("beyond: MADV_COLD", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::Cold))),
    row("beyond: MADV_HUGEPAGE", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::Huge))),
    row("beyond: MADV_POPULATE_READ", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::PopulateRead))),
    row("beyond: MADV_POPULATE_WRITE", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::PopulateWrite))),
    row("beyond: MADV_GUARD_REMOVE", |k| at_each(k, |addr, len| k.advise(addr, len, Advise::GuardRemove))),
    row("beyond: MADV_REMOVE", |k| at_each(k, |addr, len| k.file(Call::Remove { addr, len }))),
    row("beyond: mremap in place", |k| {
        let smaller = |k: &dyn Kernel, addr, len| k.remap(addr, len, PAGE, RemapFlags::empty(), 0);
        let larger = |k: &dyn Kernel, addr, len| k.remap(addr, PAGE, len, RemapFlags::empty(), 0);
        let mut all = at_each(k, |addr, len| smaller(k, addr, len));
        all.extend(at_each(k, |addr, len| larger(k, addr, len)));
        all
    }),
    row("beyond: mremap to another place", |k| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let elsewhere = BASE + (1 << 30);
        let mut all = Vec::new();
        for (addr, len) in PLACES {
            pages(k);
            all.extend([
                k.remap(addr, len, len, flags, elsewhere),
                k.remap(addr, len, PAGE, flags, elsewhere),
                k.remap(addr, PAGE, len, flags, elsewhere),
                k.remap(BASE, len, len, flags, addr),
                k.remap(BASE, PAGE, PAGE, flags, addr),
                k.remap(addr, len, len, flags | RemapFlags::DONTUNMAP, elsewhere),
                k.remap(addr, 0, len, flags, elsewhere),
            ]);
            k.unmap(elsewhere, 2 << 20);
        }
        all
    }),
];
