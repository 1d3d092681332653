//! Swap-out, swap-in, emptying devices, a child under pressure, lazily freed memory, and a memcg without memory.

use vellum::space::{Access, Advise, RemapFlags, RemapRequest};
use vellum::vma::Prot;
use vellum_sim::Silicon;

use super::world::{RW, World};

/// What a scenario prepares, and what it does when things fail.
pub struct Scenario<A: Silicon> {
    pub name: &'static str,
    pub before: fn(&mut World<'_, A>),
    pub act: fn(&mut World<'_, A>),
}

pub fn scenarios<A: Silicon>() -> Vec<Scenario<A>> {
    fn nothing<A: Silicon>(_: &mut World<'_, A>) {}
    fn out<A: Silicon>(w: &mut World<'_, A>) {
        w.out(0);
    }
    fn family<A: Silicon>(w: &mut World<'_, A>) {
        w.out(0);
        w.fork(0);
    }
    let scenario = |name, before, act| Scenario { name, before, act };
    vec![
        scenario("all goes out", nothing, |w| w.out(0)),
        scenario("a part goes out that begins and ends anywhere", nothing, |w| {
            w.advise(0, 1, 2 * w.pages - 3, Advise::PageOut);
        }),
        scenario("what is read comes back", out, |w| w.read_all(0)),
        scenario("what is written comes back", out, |w| w.write_all(0, 1000)),
        scenario("one page in the middle comes back", out, |w| w.store(0, w.pages / 2 + 1, 7)),
        scenario("out, in, and out again", nothing, |w| {
            w.out(0);
            w.read_all(0);
            w.write_all(0, 2000);
            w.out(0);
        }),
        scenario("a child of what is swapped out", out, |w| w.fork(0)),
        scenario("a child of what is out in part", nothing, |w| {
            w.advise(0, 2, w.pages, Advise::PageOut);
            w.fork(0);
        }),
        scenario("what is only read goes out again", out, |w| {
            w.read_all(0);
            w.out(0);
            w.read_all(0);
            w.write_some(0, 30_000);
            w.out(0);
            w.read_all(0);
        }),
        scenario("what was only read is forgotten in part, and goes with a child", out, |w| {
            w.read_all(0);
            if w.advise(0, 3, w.pages, Advise::DontNeed) {
                (3..3 + w.pages).for_each(|page| _ = w.family[0].pages.insert(page, 0));
            }
            w.fork(0);
            w.reclaim();
            w.read_all(w.family.len() - 1);
        }),
        scenario("a family brings back what it has together, and it goes again", family, |w| {
            w.reclaim();
            (0..w.family.len()).for_each(|who| w.read_all(who));
            w.reclaim();
            (0..w.family.len()).rev().for_each(|who| w.read_all(who));
            w.write_some(w.family.len() - 1, 31_000);
            w.write_some(0, 32_000);
            w.reclaim();
        }),
        scenario("the devices are emptied of what a family has in memory in part", family, |w| {
            w.reclaim();
            w.read_all(0);
            (0..w.family.len()).for_each(|who| w.swap_off(who));
        }),
        scenario("parent and child bring back what both had", family, |w| {
            w.read_all(0);
            if w.family.len() > 1 {
                w.write_all(1, 3000);
            }
            w.write_all(0, 4000);
        }),
        scenario("a child swaps out what it copied", nothing, |w| {
            w.fork(0);
            if w.family.len() > 1 {
                w.write_all(1, 5000);
                w.out(1);
                w.read_all(1);
            }
            w.out(0);
        }),
        scenario("what a child leaves is its parent's alone", nothing, |w| {
            w.fork(0);
            w.out(0);
            w.ends();
            w.out(0);
            w.write_all(0, 6000);
        }),
        scenario("three generations with the same slots", family, |w| {
            w.fork(w.family.len() - 1);
            w.read_all(w.family.len() - 1);
            w.ends();
            w.write_all(0, 100);
        }),
        scenario("the devices are emptied", out, |w| w.swap_off(0)),
        scenario("the devices are emptied of a family", family, |w| {
            (0..w.family.len()).for_each(|who| w.swap_off(who));
        }),
        scenario("a part is unmapped", out, |w| {
            let (addr, len) = (w.at(3), (w.pages - 2) * w.page());
            if w.family[0].space.unmap(addr, len).is_ok() {
                (3..1 + w.pages).for_each(|page| _ = w.family[0].pages.remove(&page));
            }
        }),
        scenario("a part is forgotten", out, |w| {
            if w.advise(0, 5, w.pages, Advise::DontNeed) {
                (5..5 + w.pages).for_each(|page| _ = w.family[0].pages.insert(page, 0));
            }
        }),
        scenario("a part is guarded", out, |w| {
            let installed = w.advise(0, w.pages + 1, 2, Advise::GuardInstall);
            assert!(w.advise(0, w.pages + 1, 2, Advise::GuardRemove));
            for page in w.pages + 1..w.pages + 3 {
                // Otherwise it ended halfway, and the page holds what it held or nothing.
                let va = w.at(page);
                if installed || w.cpu.enter(&w.family[0].space).load_u64(va) == Ok(0) {
                    w.family[0].pages.insert(page, 0);
                }
            }
        }),
        scenario("all of it moves", out, |w| {
            let len = 2 * w.pages * w.page();
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let request =
                RemapRequest { addr: w.at(0), old_len: len, new_len: len, flags, new_addr: w.at(4 * w.pages) };
            if w.family[0].space.remap(request).is_ok() {
                let by = 4 * w.pages;
                w.family[0].pages = w.family[0].pages.iter().map(|(page, value)| (page + by, *value)).collect();
            }
        }),
        scenario("a part moves to where tables differ", out, |w| {
            let len = w.pages * w.page();
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let to = 4 * w.pages + 1;
            let request = RemapRequest { addr: w.at(3), old_len: len, new_len: len, flags, new_addr: w.at(to) };
            if w.family[0].space.remap(request).is_ok() {
                for page in 3..3 + w.pages {
                    let value = w.family[0].pages.remove(&page).unwrap();
                    w.family[0].pages.insert(page - 3 + to, value);
                }
            }
            w.read_all(0);
        }),
        scenario("a part is protected while it is away", out, |w| {
            let (addr, len) = (w.at(1), 2 * w.page());
            let _ = w.family[0].space.protect(addr, len, Prot::READ);
            w.load(0, 1);
            w.load(0, 2);
            w.family[0].space.protect(addr, len, RW).unwrap_or(());
        }),
        scenario("all is locked", out, |w| {
            let (addr, len) = (w.at(0), 2 * w.pages * w.page());
            let _ = w.family[0].space.lock(addr, len, false);
            w.advise(0, 0, 2 * w.pages, Advise::PageOut);
            w.family[0].space.unlock_all();
            w.out(0);
        }),
        scenario("what is pinned stays", nothing, |w| {
            let pin = w.family[0].space.pin(w.at(2), Access::Write);
            w.out(0);
            if let Ok(pin) = pin {
                pin.write(0, &77u64.to_ne_bytes());
                w.family[0].pages.insert(2, 77);
                w.load(0, 2);
            }
            w.out(0);
        }),
        scenario("what is away is pinned", out, |w| {
            if let Ok(pin) = w.family[0].space.pin(w.at(2), Access::Write) {
                pin.write(0, &78u64.to_ne_bytes());
                w.family[0].pages.insert(2, 78);
                w.out(0);
                w.load(0, 2);
            }
        }),
        scenario("memory is populated where it was away", out, |w| {
            w.advise(0, 0, 2 * w.pages, Advise::PopulateWrite);
            w.read_all(0);
        }),
        scenario("what was written is asked for meanwhile", out, |w| {
            if w.family[0].space.track_writes().is_ok() {
                w.store(0, 1, 9);
                w.out(0);
            }
            w.write_all(0, 7000);
        }),
        scenario(
            "what was freed lazily is written again in part, and goes",
            |w| w.free(0),
            |w| {
                w.write_some(0, 20_000);
                w.reclaim();
                w.read_all(0);
            },
        ),
        scenario(
            "it is written again between two turns",
            |w| w.free(0),
            |w| {
                w.reclaim();
                w.write_some(0, 21_000);
                w.reclaim();
                w.free(0);
                w.out(0);
            },
        ),
        scenario(
            "a child writes what its parent has freed",
            |w| w.free(0),
            |w| {
                w.fork(0);
                let last = w.family.len() - 1;
                w.write_some(last, 22_000);
                w.reclaim();
                w.read_all(0);
                w.write_some(0, 23_000);
                w.reclaim();
                w.read_all(last);
            },
        ),
        scenario("what is away is freed lazily", out, |w| {
            w.free(0);
            w.write_some(0, 24_000);
            w.out(0);
            w.reclaim();
        }),
        scenario(
            "freed memory is pinned and written",
            |w| w.free(0),
            |w| {
                if let Ok(pin) = w.family[0].space.pin(w.at(2), Access::Write) {
                    w.reclaim();
                    pin.write(0, &79u64.to_ne_bytes());
                    w.family[0].pages.insert(2, 79);
                    w.family[0].free.remove(&2);
                }
                w.reclaim();
                w.load(0, 2);
            },
        ),
        scenario("a family is reclaimed", nothing, |w| {
            w.fork(0);
            w.write_some(w.family.len() - 1, 25_000);
            w.reclaim();
            w.write_all(0, 26_000);
            w.reclaim();
        }),
        scenario("a group that has no more reclaims and goes on", nothing, |w| {
            let pages = (2 * w.pages) << w.family[0].space.arch().page_order();
            w.machine.memcgs().set_limit(w.memcg, pages).unwrap();
            w.fork(0);
            let last = w.family.len() - 1;
            for page in 0..2 * w.pages {
                w.store(last, page, 27_000 + page);
                if w.family[last].pages[&page] != 27_000 + page {
                    w.reclaim();
                    w.store(last, page, 27_000 + page);
                }
            }
            w.machine.memcgs().set_limit(w.memcg, u64::MAX).unwrap();
        }),
        scenario("a group runs out of memory", out, |w| {
            let half = w.pages << w.family[0].space.arch().page_order();
            w.machine.memcgs().set_limit(w.memcg, half + 8).unwrap();
            w.write_all(0, 8000);
            w.out(0);
            w.read_all(0);
            w.machine.memcgs().set_limit(w.memcg, u64::MAX).unwrap();
        }),
        scenario("a family under pressure", nothing, |w| {
            w.fork(0);
            let all = (3 * w.pages) << w.family[0].space.arch().page_order();
            w.machine.memcgs().set_limit(w.memcg, all).unwrap();
            for round in 0..2 {
                for who in 0..w.family.len() {
                    w.write_all(who, 10_000 * (round + 1) + 500 * who as u64);
                    w.out(who);
                }
                w.fork(0);
            }
            w.machine.memcgs().set_limit(w.memcg, u64::MAX).unwrap();
        }),
    ]
}
