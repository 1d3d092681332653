//! `mlock` and its variants, and `mseal`.

use super::*;
use crate::fixtures::file::Call;
use crate::fixtures::kernel::USER_END;

const ELSEWHERE: u64 = BASE + 1000 * PAGE;
const TO: RemapFlags = RemapFlags::MAYMOVE.union(RemapFlags::FIXED);

/// Returns the answer of `MADV_COLD`, which is refused for locked pages.
fn is_locked(k: &dyn Kernel, at: u64) -> i64 {
    k.advise(at, PAGE, Advise::Cold)
}

pub static LOCK: [Row; 17] = [
    row("lock: no length", |k| {
        some(k, 2);
        vec![k.lock(BASE, 0, false), k.unlock(BASE, 0), k.lock(!0 << 12, 0, false), k.lock(USER_END, 0, false)]
    }),
    row("lock: at no page", |k| {
        some(k, 4);
        let mut all = vec![k.lock(BASE + PAGE + 1, PAGE, false), k.resident(BASE, 4 * PAGE, 4)];
        all.extend((0..4).map(|page| is_locked(k, BASE + page * PAGE)));
        all.push(k.unlock(BASE + 2 * PAGE - 1, 2));
        all.extend((0..4).map(|page| is_locked(k, BASE + page * PAGE)));
        all
    }),
    row("lock: a length past the last address", |k| {
        some(k, 2);
        [0u64.wrapping_sub(BASE), 0u64.wrapping_sub(BASE) + PAGE].map(|len| k.unlock(BASE, len)).to_vec()
    }),
    row("lock: nothing", |k| {
        vec![k.lock(BASE, PAGE, false), k.lock(BASE, PAGE, true), k.unlock(BASE, PAGE), k.lock(USER_END, PAGE, false)]
    }),
    row("lock: over a hole", |k| {
        holed(k);
        vec![k.lock(BASE, 5 * PAGE, false), k.lock(BASE - PAGE, 2 * PAGE, false), k.unlock(BASE, 5 * PAGE)]
    }),
    row("lock: faults in writable and readable pages", |k| {
        some(k, 4);
        k.protect(BASE + 2 * PAGE, 2 * PAGE, R);
        vec![k.lock(BASE, 4 * PAGE, false), k.resident(BASE, 4 * PAGE, 4), k.vmas().len() as i64]
    }),
    row("lock: memory with PROT_NONE", |k| {
        some(k, 2);
        k.protect(BASE, PAGE, NONE);
        let answer = k.lock(BASE, 2 * PAGE, false);
        k.protect(BASE, PAGE, RW);
        vec![answer, is_locked(k, BASE), is_locked(k, BASE + PAGE)]
    }),
    row("lock: nothing is faulted in before it is touched", |k| {
        some(k, 4);
        k.store(BASE);
        let mut all = vec![k.lock(BASE, 2 * PAGE, true), k.resident(BASE, 4 * PAGE, 4), is_locked(k, BASE + PAGE)];
        all.extend([k.lock(BASE, 2 * PAGE, false), k.resident(BASE, 4 * PAGE, 4)]);
        all
    }),
    row("lock: locked memory is not dropped until it is unlocked", |k| {
        some(k, 2);
        let mut all = vec![k.lock(BASE, PAGE, false), k.advise(BASE, PAGE, Advise::DontNeed)];
        all.extend([k.unlock(BASE, 2 * PAGE), k.advise(BASE, PAGE, Advise::DontNeed), k.resident(BASE, PAGE, 1)]);
        all
    }),
    locked("lock: no more than allowed", 4, |k| {
        some(k, 8);
        let mut all = vec![k.lock(BASE, 5 * PAGE, false), k.lock(BASE, 3 * PAGE, false)];
        // Memory that is locked already counts once.
        all.extend([k.lock(BASE + PAGE, 3 * PAGE, false), k.lock(BASE + PAGE, 4 * PAGE, false)]);
        all.extend([k.unlock(BASE, PAGE), k.lock(BASE + PAGE, 4 * PAGE, true), k.lock(BASE + 6 * PAGE, PAGE, true)]);
        all
    }),
    locked("lock: nothing at all is allowed", 0, |k| {
        some(k, 2);
        let all = [LockAll::CURRENT, LockAll::FUTURE, LockAll::ONFAULT].map(|flags| k.lock_all(flags));
        let mut all = all.to_vec();
        all.extend([k.lock(BASE, PAGE, false), k.lock(BASE, 0, false), k.unlock(BASE, PAGE), k.unlock_all()]);
        all
    }),
    row("lock all: flags that make no sense", |k| {
        let flags = [LockAll::empty(), LockAll::ONFAULT, LockAll::from_bits_retain(8), LockAll::from_bits_retain(9)];
        flags.map(|flags| k.lock_all(flags)).to_vec()
    }),
    row("lock all: future mappings", |k| {
        some(k, 2);
        let mut all = vec![k.lock_all(LockAll::FUTURE), is_locked(k, BASE)];
        k.map(ELSEWHERE, 2 * PAGE, RW, FIXED);
        all.extend([
            is_locked(k, ELSEWHERE),
            k.resident(ELSEWHERE, 2 * PAGE, 2),
            k.unlock_all(),
            is_locked(k, ELSEWHERE),
        ]);
        k.map(ELSEWHERE, 2 * PAGE, RW, FIXED);
        all.extend([is_locked(k, ELSEWHERE), k.resident(ELSEWHERE, 2 * PAGE, 2)]);
        all
    }),
    row("lock all: future mappings, on fault", |k| {
        let mut all = vec![k.lock_all(LockAll::FUTURE | LockAll::ONFAULT)];
        k.map(BASE, 2 * PAGE, RW, FIXED);
        k.map(ELSEWHERE, 2 * PAGE, RW, FIXED | MapFlags::LOCKED);
        all.extend([BASE, ELSEWHERE].map(|at| k.resident(at, 2 * PAGE, 2)));
        all.extend([is_locked(k, BASE), k.remap(BASE, 2 * PAGE, 4 * PAGE, RemapFlags::empty(), 0)]);
        all.push(k.resident(BASE, 4 * PAGE, 4));
        all
    }),
    locked("lock all: no more than allowed", 4, |k| {
        // The memory that is mapped already is above the limit, and is not to be locked.
        let mut all = vec![k.lock_all(LockAll::FUTURE)];
        all.extend([k.map(BASE, 5 * PAGE, RW, FIXED), k.map(BASE, 3 * PAGE, RW, FIXED)]);
        all.extend([k.map(ELSEWHERE, 2 * PAGE, NONE, FIXED), k.map(ELSEWHERE, PAGE, NONE, FIXED)]);
        all
    }),
    row("lock: guards are not faulted in", |k| {
        some(k, 2);
        vec![k.advise(BASE, PAGE, Advise::GuardInstall), k.lock(BASE, 2 * PAGE, false), is_locked(k, BASE + PAGE)]
    }),
    row("lock: a file beyond its end", |k| {
        k.file(Call::Open(PAGE));
        let flags = FIXED | MapFlags::SHARED;
        k.file(Call::Map { addr: BASE, len: 2 * PAGE, prot: RW, flags, offset: 0 });
        vec![k.lock(BASE, PAGE, false), k.lock(BASE, 2 * PAGE, false), k.resident(BASE, PAGE, 1)]
    }),
];

pub static SEAL: [Row; 11] = [
    row("seal: at no page, no length, too much", |k| {
        some(k, 2);
        let mut all = vec![k.seal(BASE + 1, PAGE), k.seal(BASE, 0), k.seal(BASE, u64::MAX), k.seal(!0 << 12, 2 * PAGE)];
        all.extend([k.seal(ELSEWHERE, PAGE), k.seal(BASE, 3 * PAGE), k.unmap(BASE, 2 * PAGE)]);
        all
    }),
    row("seal: over a hole", |k| {
        holed(k);
        vec![k.seal(BASE, 5 * PAGE), k.unmap(BASE, 5 * PAGE)]
    }),
    row("seal: not to be unmapped, not in part", |k| {
        some(k, 4);
        let mut all = vec![k.seal(BASE + PAGE, PAGE), k.seal(BASE + PAGE, PAGE), k.vmas().len() as i64];
        all.extend([k.unmap(BASE, 4 * PAGE), k.unmap(BASE, PAGE), k.unmap(BASE + 2 * PAGE, PAGE)]);
        all.extend([k.unmap(BASE + PAGE, 1), k.vmas().len() as i64]);
        all
    }),
    row("seal: not to be replaced", |k| {
        some(k, 2);
        k.seal(BASE, PAGE);
        vec![k.map(BASE, PAGE, R, FIXED), k.map(BASE - PAGE, 2 * PAGE, R, FIXED), k.map(BASE + PAGE, PAGE, R, FIXED)]
    }),
    row("seal: not to be protected", |k| {
        some(k, 2);
        k.seal(BASE, PAGE);
        vec![
            k.protect(BASE, PAGE, R),
            k.protect(BASE, PAGE, RW),
            k.protect(BASE, 0, R),
            k.protect(BASE + PAGE, PAGE, R),
        ]
    }),
    row("seal: not to be remapped", |k| {
        some(k, 4);
        k.seal(BASE, 2 * PAGE);
        k.map(ELSEWHERE, PAGE, R, FIXED);
        let here = RemapFlags::empty();
        let mut all = vec![k.remap(BASE, PAGE, PAGE, here, 0), k.remap(BASE, 2 * PAGE, PAGE, here, 0)];
        all.extend([k.remap(BASE, PAGE, PAGE, TO, ELSEWHERE), k.remap(ELSEWHERE, PAGE, PAGE, TO, BASE)]);
        all.extend([k.remap(BASE, PAGE, PAGE, TO | RemapFlags::DONTUNMAP, ELSEWHERE), k.vmas().len() as i64]);
        all
    }),
    row("seal: writable memory may be dropped", |k| {
        some(k, 2);
        k.store(BASE);
        vec![k.seal(BASE, 2 * PAGE), k.advise(BASE, 2 * PAGE, Advise::DontNeed), k.load(BASE)]
    }),
    row("seal: read-only memory may not be dropped", |k| {
        some(k, 2);
        k.store(BASE);
        k.protect(BASE, 2 * PAGE, R);
        let mut all = vec![k.seal(BASE, 2 * PAGE)];
        let advice = [
            Advise::DontNeed,
            Advise::DontNeedLocked,
            Advise::Free,
            Advise::DontFork,
            Advise::WipeOnFork,
            Advise::GuardInstall,
            Advise::GuardRemove,
            Advise::DoFork,
            Advise::KeepOnFork,
            Advise::Cold,
            Advise::PageOut,
            Advise::Reads(Expected::Sequential),
            Advise::DontDump,
            Advise::NoHuge,
        ];
        all.extend(advice.map(|advise| k.advise(BASE, 2 * PAGE, advise)));
        all.push(k.load(BASE));
        all
    }),
    row("seal: shared memory may be dropped", |k| {
        k.map(BASE, 2 * PAGE, R, FIXED | MapFlags::SHARED);
        vec![k.seal(BASE, 2 * PAGE), k.advise(BASE, 2 * PAGE, Advise::DontNeed)]
    }),
    row("seal: private memory of a file", |k| {
        k.file(Call::Open(2 * PAGE));
        k.file(Call::Map { addr: BASE, len: 2 * PAGE, prot: R, flags: FIXED, offset: 0 });
        vec![k.seal(BASE, 2 * PAGE), k.advise(BASE, 2 * PAGE, Advise::DontNeed)]
    }),
    row("seal: may be locked, and used", |k| {
        some(k, 2);
        k.seal(BASE, 2 * PAGE);
        k.store(BASE);
        vec![k.lock(BASE, PAGE, false), k.unlock(BASE, PAGE), k.load(BASE), k.resident(BASE, 2 * PAGE, 2)]
    }),
];
