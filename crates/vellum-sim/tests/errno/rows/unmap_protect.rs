//! `munmap` and `mprotect`.

use super::*;
use crate::fixtures::kernel::{END, USER_END};

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
        vec![k.unmap(BASE, PAGE + 1), k.vmas().len() as i64]
    }),
    row("unmap: a length past the last address", |k| {
        some(k, 2);
        [u64::MAX, u64::MAX - PAGE + 2, 0u64.wrapping_sub(BASE)].map(|len| k.unmap(BASE, len)).to_vec()
    }),
    row("unmap: beyond the end", |k| {
        vec![k.unmap(USER_END, PAGE), k.unmap(!0 << 12, PAGE), k.unmap(USER_END + PAGE, PAGE)]
    }),
    row("unmap: across the end", |k| vec![k.unmap(USER_END - PAGE, 2 * PAGE)]),
    row("unmap: nothing at all", |k| vec![k.unmap(BASE, PAGE), k.unmap(END - PAGE, PAGE)]),
    row("unmap: over a hole", |k| {
        holed(k);
        vec![k.unmap(BASE - PAGE, 6 * PAGE), k.vmas().len() as i64]
    }),
    row("unmap: in the middle", |k| {
        some(k, 3);
        vec![k.unmap(BASE + PAGE, PAGE), k.vmas().len() as i64, k.unmap(BASE + PAGE, PAGE)]
    }),
];

pub static PROTECT: [Row; 13] = [
    row("protect: at no page", |k| {
        some(k, 2);
        vec![k.protect(BASE + 1, PAGE, R), k.protect(BASE + 1, 0, R)]
    }),
    row("protect: no length", |k| vec![k.protect(BASE, 0, R), k.protect(!0 << 12, 0, R)]),
    row("protect: a part of a page is a page", |k| {
        some(k, 3);
        vec![k.protect(BASE, PAGE + 1, R), protections(k), k.vmas()[0].1 as i64]
    }),
    row("protect: a length past the last address", |k| {
        some(k, 2);
        [u64::MAX, u64::MAX - PAGE + 2, 0u64.wrapping_sub(BASE), 0u64.wrapping_sub(BASE) + PAGE]
            .map(|len| k.protect(BASE, len, R))
            .to_vec()
    }),
    row("protect: nothing", |k| {
        vec![k.protect(BASE, PAGE, R), k.protect(USER_END, PAGE, R), k.protect(!0 << 13, PAGE, R)]
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
        "the engine checks first and changes nothing; Linux changes the pages before the error",
    ),
    row("protect: a hole behind", |k| {
        some(k, 2);
        vec![k.protect(BASE + PAGE, 2 * PAGE, R), protections(k)]
    })
    .differs(&[ENOMEM, 4], &[ENOMEM, 42], "as in the middle"),
    row("protect: as it is", |k| {
        some(k, 3);
        vec![k.protect(BASE + PAGE, PAGE, RW), k.vmas().len() as i64]
    }),
    row("protect: changed and restored", |k| {
        some(k, 3);
        vec![k.protect(BASE + PAGE, PAGE, NONE), protections(k), k.protect(BASE + PAGE, PAGE, RW), protections(k)]
    }),
    row("protect: more than the machine's memory becomes writable", |k| {
        let at = k.map(0, VAST, R, ANYWHERE) as u64;
        vec![k.protect(at, VAST, RW)]
    })
    .differs(
        &[0],
        &[ENOMEM],
        "the engine checks the commitment when memory is mapped, and keeps no account of it",
    ),
    no_gain("protect: execute permission of executable memory", |k| {
        assert_eq!(k.map(BASE, 2 * PAGE, RX, FIXED), BASE as i64);
        let stays = [RX, RWX, R].map(|prot| k.protect(BASE, PAGE, prot));
        [&stays[..], &[k.protect(BASE, PAGE, RX), protections(k)]].concat()
    }),
    no_gain("protect: to execute, where a part is not executable", |k| {
        some(k, 2);
        assert_eq!(k.map(BASE, PAGE, RX, FIXED), BASE as i64);
        vec![k.protect(BASE, 2 * PAGE, Prot::EXEC), protections(k)]
    })
    .differs(
        &[EACCES, 64],
        &[EACCES, 54],
        "the engine checks first and changes nothing; Linux changes the pages before the error",
    ),
];
