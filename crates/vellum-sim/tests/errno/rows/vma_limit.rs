//! The limit on the number of VMAs.

use super::*;

/// Pages to make VMAs of.
const MANY_PAGES: u64 = 1 << 18;

fn page(n: u64) -> u64 {
    BASE + n * PAGE
}

/// Makes as many VMAs as the limit allows: changes the protection of every other page until that
/// fails, and then of one page at a time. Returns the first of many pages that are still one VMA.
fn fill(k: &dyn Kernel) -> u64 {
    k.map(BASE, MANY_PAGES * PAGE, R, FIXED);
    let full = (0..MANY_PAGES / 4).find(|n| k.protect(page(2 * n + 1), PAGE, NONE) != 0).expect("a limit");
    let prot = |n: u64| if n.is_multiple_of(2) { RW } else { NONE };
    (1..9).find(|n| k.protect(page(MANY_PAGES - n), PAGE, prot(*n)) != 0).expect("a limit");
    2 * full
}

pub static MANY: [Row; 2] = [
    row("many VMAs: allowed and refused splits", |k| {
        // Two adjacent VMAs, for later.
        k.map(page(2 * MANY_PAGES), 8 * PAGE, RW, FIXED);
        k.protect(page(2 * MANY_PAGES), 4 * PAGE, R);
        let first = fill(k);
        let inside = page(first + 1000);
        vec![
            k.protect(inside, PAGE, NONE),
            k.advise(inside, PAGE, Advise::NoHuge),
            k.unmap(inside, PAGE),
            // The end of a VMA may always be unmapped, and the adjacent ends of two VMAs.
            k.unmap(page(2 * MANY_PAGES), PAGE),
            k.unmap(page(2 * MANY_PAGES + 2), 4 * PAGE),
            // `mmap` may exceed the limit for splits by one VMA, and then fails.
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
