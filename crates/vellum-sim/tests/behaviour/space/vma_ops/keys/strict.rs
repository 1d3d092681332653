//! Protection keys: each leaf PTE has the key of its VMA, whatever becomes of the memory.

use vellum::arch::{Arch, Attrs, Kind};
use vellum::frame::policy::Knob;
use vellum::space::{Advise, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::vma::{Prot, Vma};
use vellum_sim::Silicon;

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, on};

in_every_format! {
    ptes_have_the_keys_of_their_vmas => keys,
}

const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Returns the keys of the VMAs, in order, and checks those of the PTEs.
fn keys_of<A: Silicon>(on: &Bench<'_, A>, space: &Space<'_, A>) -> Vec<u8> {
    let mut vmas = Vec::new();
    space.vmas(0, |vma| {
        vmas.push(*vma);
        true
    });
    for vma in &vmas {
        space.runs(*vma.range, |run| {
            if run.kind == Kind::Leaf {
                let key = (run.attrs(&on.arch) & Attrs::KEY).bits() >> 12;
                let stored = if has_keys(&on.arch) { vma.prot.key() } else { 0 };
                assert_eq!(key, stored.into(), "at {:#x}", run.va);
            }
        });
    }
    vmas.iter().map(|vma| vma.prot.key()).collect()
}

/// Returns whether a format's PTEs have keys.
fn has_keys<A: Arch>(arch: &A) -> bool {
    arch.attrs(arch.leaf(vellum::addr::PhysAddr(0), Attrs::KEY | Attrs::READ, 1), 1).contains(Attrs::KEY)
}

fn keys<A: Silicon>(arch: A) {
    for order in [0, 9] {
        on(arch, Setup { slots: 4096, ..USUAL }, |on| {
            on.machine.policy().set(order, Knob::Always);
            let space = on.space();
            let prot = RW.with_key(3);
            assert_eq!((prot.key(), prot.with_key(0), Prot::empty().with_key(9).is_none()), (3, RW, true));
            space.map(MapRequest { addr: BASE, len: 3 * HUGE, prot, flags: MapFlags::FIXED }).unwrap();
            let pages = || (BASE..BASE + 3 * HUGE).step_by(on.page as usize);
            pages().for_each(|va| on.store(&space, va, va));
            assert_eq!(keys_of(on, &space), [3]);
            // A part gets another key, and loses it again. A change of the protection keeps keys.
            let middle = BASE + HUGE + 4 * on.page;
            space.protect(middle, HUGE, |_: &Vma| RW.with_key(5)).unwrap();
            assert_eq!(keys_of(on, &space), [3, 5, 3]);
            for prot in [Prot::READ, Prot::empty(), RW] {
                space.protect(BASE, 3 * HUGE, prot).unwrap();
                assert_eq!(keys_of(on, &space), [3, 5, 3], "{prot:?}");
            }
            // A child has them, after a copy of a page too.
            let child = space.fork().unwrap();
            assert_eq!(keys_of(on, &child), [3, 5, 3]);
            on.store(&child, middle, 1);
            on.store(&space, middle + on.page, 1);
            assert_eq!((keys_of(on, &child), keys_of(on, &space)), (vec![3, 5, 3], vec![3, 5, 3]));
            drop(child);
            // Pages that come back from swap have the key that their VMA has by then.
            space.advise(BASE, 3 * HUGE, Advise::PageOut).unwrap();
            space.protect(BASE, HUGE, |vma: &Vma| RW.with_key(vma.prot.key() + 1)).unwrap();
            pages().for_each(|va| assert!([va, 1].contains(&on.load(&space, va))));
            assert_eq!(keys_of(on, &space), [4, 3, 5, 3]);
            let (old_len, new_addr) = (3 * HUGE, BASE + 8 * HUGE);
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            space.remap(RemapRequest { addr: BASE, old_len, new_len: old_len, flags, new_addr }).unwrap();
            assert_eq!(keys_of(on, &space), [4, 3, 5, 3]);
            space.protect(new_addr, old_len, |_: &Vma| RW.with_key(15)).unwrap();
            assert_eq!(keys_of(on, &space), [15]);
        });
    }
}
