//! What the victim does once, and what the others do again and again.

use vellum::addr::VirtRange;
use vellum::arch::Attrs;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::{Access, Advise, CollapseLimits, LockAll, MapFlags, MapRequest, RemapFlags, RemapRequest, discard};
use vellum::vma::Prot;
use vellum_sim::Silicon;

use super::world::{OWN, RW, World};

/// Something that a CPU does, with this number.
pub type Act<A> = fn(&World<'_, A>, usize);

/// What the victim does.
pub struct Victim<A: Silicon> {
    pub name: &'static str,
    /// What it finds.
    pub before: Act<A>,
    pub act: Act<A>,
    /// How often it may have to do by what the others do what it does once alone.
    pub pieces: u64,
}

/// What the others do.
pub struct Other<A: Silicon> {
    pub name: &'static str,
    pub act: Act<A>,
}

/// Alone, reclaim is done with the first pages that it looks at; if nothing goes, it looks at all
/// pages in each of its rounds, and for each asks every space that may have it.
fn pieces(name: &str) -> u64 {
    if name == "reclaim" { 40 } else { 1 }
}

fn nothing<A: Silicon>(_: &World<'_, A>, _: usize) {}

fn remap<A: Silicon>(on: &World<'_, A>, from: u64, to: u64) {
    let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let _ = on.space.remap(RemapRequest { addr: from, old_len: on.bytes(), new_len: on.bytes(), flags, new_addr: to });
}

fn truncate<A: Silicon>(on: &World<'_, A>) {
    let gone = on.object.set_size(0).unwrap();
    discard(on, &on.object, &gone);
    let _ = on.object.set_size(on.bytes());
}

fn punch<A: Silicon>(on: &World<'_, A>, page: u64) {
    let gone = on.object.punch_hole(page * on.page..(page + 1) * on.page).unwrap();
    discard(on, &on.object, &gone);
}

macro_rules! named {
    ($kind:ident: $($name:ident $(after $before:expr)?, $act:expr;)*) => { vec![$(named!(@ $kind $name ($($before)?) $act),)*] };
    (@ Victim $name:ident () $act:expr) => { named!(@ Victim $name (nothing) $act) };
    (@ Victim $name:ident ($before:expr) $act:expr) => {
        Victim { name: stringify!($name), before: $before, act: $act, pieces: pieces(stringify!($name)) }
    };
    (@ Other $name:ident () $act:expr) => { Other { name: stringify!($name), act: $act } };
}

/// Maps the block, and touches a part of it.
fn block<A: Silicon>(on: &World<'_, A>, _: usize) {
    on.map(on.block(), on.huge);
    on.write(on.block(), on.bytes());
}

fn watched<A: Silicon>(on: &World<'_, A>) -> VirtRange {
    on.range(on.watched(), on.bytes())
}

/// Fills what is watched. `uses` is part of making the contents, and uses the same space.
fn fill<A: Silicon>(on: &World<'_, A>, uses: impl Fn(&World<'_, A>)) {
    let _ = on.space.fill(watched(on), false, |_, bytes| {
        uses(on);
        bytes.fill(0xaa);
        Ok(())
    });
}

pub fn victims<A: Silicon>() -> Vec<Victim<A>> {
    named! { Victim:
        fork, |on, _| { on.fork(); };
        mlockall, |on, _| _ = on.space.lock_all(LockAll::CURRENT);
        mlock, |on, _| _ = on.space.lock(on.common(), on.bytes(), false);
        guard, |on, _| on.advise(on.own(0), on.bytes(), Advise::GuardInstall);
        munmap, |on, _| _ = on.space.unmap(on.own(0), on.bytes());
        mmap_over, |on, _| on.map(on.own(0), on.bytes());
        mmap_far, |on, _| on.map(on.far(0), on.page);
        mremap, |on, cpu| remap(on, on.own(0), on.far(cpu) + on.huge);
        mprotect, |on, _| _ = on.space.protect(on.common(), on.bytes(), Prot::READ);
        read_common, |on, _| _ = on.space.fault(on.common(), Access::Read);
        write_common, |on, _| _ = on.space.fault(on.common(), Access::Write);
        read_own after |on, _| on.advise(on.own(0), on.bytes(), Advise::DontNeed),
            |on, _| _ = on.space.fault(on.own(0), Access::Read);
        write_own after |on, _| on.advise(on.own(0), on.bytes(), Advise::DontNeed),
            |on, _| _ = on.space.fault(on.own(0), Access::Write);
        write_zeros after |on, _| {
            on.advise(on.own(0), on.bytes(), Advise::DontNeed);
            on.read(on.own(0), on.bytes());
        }, |on, _| _ = on.space.fault(on.own(0), Access::Write);
        write_far after |on, _| on.map(on.far(0), 16 * on.page),
            |on, _| _ = on.space.fault(on.far(0), Access::Write);
        cow after |on, _| _ = on.fork(),
            |on, _| _ = on.space.fault(on.own(0), Access::Write);
        cow_common after |on, _| _ = on.fork(),
            |on, _| _ = on.space.fault(on.common(), Access::Write);
        swapped_in after |on, _| on.advise(on.common(), on.bytes(), Advise::PageOut),
            |on, _| _ = on.space.fault(on.common(), Access::Read);
        read_shared, |on, _| _ = on.space.fault(on.shared(), Access::Read);
        write_private, |on, _| _ = on.space.fault(on.private(), Access::Write);
        dontneed, |on, _| on.advise(on.common(), on.bytes(), Advise::DontNeed);
        free, |on, _| on.advise(on.common(), on.bytes(), Advise::Free);
        pageout, |on, _| on.advise(on.common(), on.bytes(), Advise::PageOut);
        collapse after block, |on, _| on.advise(on.block(), on.huge, Advise::Collapse);
        khugepaged after block, |on, _| _ = on.space.collapse_some(on.block(), 512, &CollapseLimits::default());
        willneed after |on, _| on.advise(on.common(), on.bytes(), Advise::PageOut),
            |on, _| on.advise(on.common(), on.bytes(), Advise::WillNeed);
        populate, |on, _| on.advise(on.common(), on.bytes(), Advise::PopulateWrite);
        truncate, |on, _| truncate(on);
        punch, |on, _| punch(on, 0);
        page_of_object, |on, _| _ = on.object.page_or_new(0, MemcgId::ROOT);
        swap_off after |on, _| on.advise(on.common(), on.bytes(), Advise::PageOut),
            |on, _| _ = on.space.swap_off(0);
        soft_dirty, |on, _| on.space.track_writes().unwrap_or(());
        forget_accessed, |on, _| on.space.forget_recorded(on.range(on.own(0), 6 * on.bytes()), Attrs::ACCESSED, |_, _| ());
        reclaim, |on, _| _ = reclaim(on.machine, on, MemcgId::ROOT, 4);
        exit after |on, _| _ = on.fork(), |on, _| {
            let child = on.children.lock().unwrap().first().cloned();
            child.into_iter().for_each(|child| on.end(child));
        };
        pin, |on, _| _ = on.space.pin(on.common(), Access::Write);
        mincore, |on, _| _ = on.space.resident(on.common(), on.bytes(), &mut [false; OWN as usize]);
        smaps, |on, _| _ = on.space.usage(on.range(on.own(0), 8 * on.bytes()));
        fill, |on, _| fill(on, |on| _ = on.space.fault(on.common(), Access::Read));
        fill_with_changes, |on, _| fill(on, |on| on.space.write_unprotect(watched(on)).unwrap());
        fill_far, |on, _| on.fill(on.watched_far(0));
        fill_zeros, |on, _| _ = on.space.fill_zeros(watched(on));
        poison, |on, _| _ = on.space.poison(watched(on));
    }
}

pub fn others<A: Silicon>() -> Vec<Other<A>> {
    named! { Other:
        faults, |on, cpu| {
            on.write(on.own(cpu), on.page);
            on.advise(on.own(cpu), on.page, Advise::DontNeed);
        };
        faults_common, |on, _| {
            on.write(on.common(), on.page);
            on.advise(on.common(), on.page, Advise::DontNeed);
        };
        zeros_common, |on, _| {
            on.read(on.common(), on.page);
            on.write(on.common(), on.page);
            on.advise(on.common(), on.page, Advise::DontNeed);
        };
        touches, |on, _| {
            on.write(on.common(), on.bytes());
            on.read(on.common(), on.bytes());
        };
        protects, |on, cpu| {
            let _ = on.space.protect(on.own(cpu), on.page, Prot::READ);
            let _ = on.space.protect(on.own(cpu), on.page, RW);
        };
        protects_common, |on, _| {
            let _ = on.space.protect(on.common(), on.page, Prot::READ);
            let _ = on.space.protect(on.common(), on.page, RW);
        };
        maps_far, |on, cpu| {
            on.map(on.far(cpu), on.page);
            on.write(on.far(cpu), on.page);
            let _ = on.space.unmap(on.far(cpu), on.page);
        };
        tables, |on, cpu| {
            on.map(on.far(1), 15 * on.page);
            on.write(on.far(cpu), on.page);
            on.advise(on.far(cpu), on.page, Advise::DontNeed);
        };
        wide, |on, _| {
            let _ = on.space.lock_all(LockAll::CURRENT | LockAll::ONFAULT);
            on.space.unlock_all();
        };
        forks, |on, _| on.fork().into_iter().for_each(|child| on.end(child));
        forks_and_writes, |on, cpu| match cpu {
            1 => on.fork().into_iter().for_each(|child| on.end(child)),
            _ => on.write(on.common(), on.bytes()),
        };
        pageout, |on, cpu| match cpu {
            1 => on.advise(on.common(), on.bytes(), Advise::PageOut),
            _ => on.write(on.common(), on.bytes()),
        };
        lazy, |on, cpu| match cpu {
            1 => on.advise(on.common(), on.bytes(), Advise::Free),
            _ => on.write(on.common(), on.bytes()),
        };
        reclaims, |on, cpu| match cpu {
            1 => _ = reclaim(on.machine, on, MemcgId::ROOT, 4),
            _ => {
                on.write(on.common(), on.bytes());
                on.write(on.shared(), on.bytes());
            }
        };
        object_out, |on, cpu| match cpu {
            1 | 2 => _ = reclaim(on.machine, on, MemcgId::ROOT, u64::MAX),
            _ => on.write(on.shared(), on.bytes()),
        };
        out_of_children, |on, cpu| {
            let child = on.children.lock().unwrap().first().cloned();
            let Some(child) = child else { return drop(on.fork()) };
            match cpu {
                1 => _ = child.advise(on.common(), on.bytes(), Advise::PageOut),
                2 => on.advise(on.common(), on.bytes(), Advise::PageOut),
                _ => _ = (child.fault(on.common(), Access::Write), on.read(on.common(), on.bytes())),
            }
        };
        fork_chain, |on, _| {
            let parent = on.children.lock().unwrap().last().cloned();
            let Some(child) = parent.as_ref().unwrap_or(&on.space).fork().ok() else { return };
            on.children.lock().unwrap().push(child.into());
            parent.into_iter().for_each(|parent| on.end(parent));
        };
        truncates, |on, cpu| match cpu {
            1 => truncate(on),
            _ => {
                on.write(on.shared(), on.bytes());
                on.write(on.private(), on.bytes());
            }
        };
        punches, |on, cpu| {
            punch(on, cpu as u64 % OWN);
            on.write(on.shared(), on.bytes());
        };
        remaps, |on, cpu| {
            remap(on, on.own(cpu), on.far(0) + cpu as u64 * on.bytes());
            remap(on, on.far(0) + cpu as u64 * on.bytes(), on.own(cpu));
        };
        soft_dirty, |on, cpu| match cpu {
            1 => on.space.track_writes().unwrap_or(()),
            _ => on.write(on.common(), on.bytes()),
        };
        scans, |on, _| _ = on.space.usage(on.range(on.own(0), 8 * on.bytes()));
        maps_over, |on, _| {
            let flags = MapFlags::FIXED | MapFlags::POPULATE;
            let _ = on.space.map(MapRequest { addr: on.common(), len: on.bytes(), prot: RW, flags });
        };
        fills, |on, cpu| match cpu {
            1 => on.fill(on.watched()),
            _ => on.advise(on.watched(), on.page, Advise::DontNeed),
        };
        fills_far, |on, cpu| {
            on.fill(on.watched_far(cpu));
            on.advise(on.watched_far(cpu), on.page, Advise::DontNeed);
        };
        fills_zeros, |on, cpu| match cpu {
            1 => _ = on.space.fill_zeros(on.range(on.watched(), on.page)),
            2 => on.write(on.watched(), on.page),
            _ => on.advise(on.watched(), on.page, Advise::DontNeed),
        };
        poisons, |on, cpu| match cpu {
            1 => _ = on.space.poison(on.range(on.watched(), on.page)),
            _ => on.advise(on.watched(), on.page, Advise::DontNeed),
        };
        poisons_and_changes, |on, cpu| match cpu {
            1 => on.fork().into_iter().for_each(|child| on.end(child)),
            2 => {
                let _ = on.space.protect(on.common(), on.page, Prot::READ);
                let _ = on.space.protect(on.common(), on.page, RW);
            }
            _ => {
                let _ = on.space.poison(on.range(on.watched(), on.page));
                on.advise(on.watched(), on.page, Advise::DontNeed);
            }
        };
        marks, |on, _| {
            let _ = on.space.write_protect(watched(on), true);
            let _ = on.space.write_unprotect(watched(on));
        };
    }
}
