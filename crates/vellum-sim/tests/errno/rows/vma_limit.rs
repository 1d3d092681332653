//! As many VMAs as there may be.

use super::*;

/// Pages to make VMAs of.
const MANY_PAGES: u64 = 1 << 18;

fn page(n: u64) -> u64 {
    BASE + n * PAGE
}

/// Make as many VMAs as there may be: every other page is made another one, until that fails, and then one is made at a
/// time. The answer is the first of many pages that are still one VMA.
fn fill(k: &dyn Kernel) -> u64 {
    k.map(BASE, MANY_PAGES * PAGE, R, FIXED);
    let full = (0..MANY_PAGES / 4).find(|n| k.protect(page(2 * n + 1), PAGE, NONE) != 0).expect("a limit");
    let prot = |n: u64| if n.is_multiple_of(2) { RW } else { NONE };
    (1..9).find(|n| k.protect(page(MANY_PAGES - n), PAGE, prot(*n)) != 0).expect("a limit");
    2 * full
}

pub static MANY: [Row; 2] = [
    row("many VMAs: what still may be split, and what not", |k| {
        // Two VMAs side by side, for later.
        k.map(page(2 * MANY_PAGES), 8 * PAGE, RW, FIXED);
        k.protect(page(2 * MANY_PAGES), 4 * PAGE, R);
        let first = fill(k);
        let inside = page(first + 1000);
        vec![
            k.protect(inside, PAGE, NONE),
            k.advise(inside, PAGE, Advise::NoHuge),
            k.unmap(inside, PAGE),
            // The end of a VMA may always go, and the ends of two that are side by side.
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
    row("many VMAs: the border between two moves", |k| {
        let first = fill(k);
        vec![k.protect(page(first), PAGE, NONE)]
    })
    .differs(&[ENOMEM], &[0], "the engine splits before it merges"),
];
