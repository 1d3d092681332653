//! Runs one operation of the engine once, in a function that a profiler can find. `./x profile`
//! builds it, and counts the instructions of the operation by function.
//!
//! `cargo run --release -p vellum-sim --example profile -- fork random 4 64`: fork a space with 64
//! MiB of 4 KiB folios that were touched in random order.

use std::error::Error;
use std::hint::black_box;

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::frame::HUGE_ORDER;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::page_cache::{Changes, Object, ObjectError, Overwrite, Readahead, Writeback};
use vellum::space::{Advise, Limits, MapFlags, MapRequest, write_back};
use vellum::swap::Compressed;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Access, Config, Fast, Program, Simulated};

const USAGE: &str =
    "usage: profile touch|unmap|discard|fork|exit|protect|free|pageout|swap-in [ascending|random|pieces [KIB [MIB]]]
MIB of memory, 64 without it, are touched in folios of KIB, 4 without it: the operation is then run on them.
pieces: in random order, in memory of which another program holds all but about MIB, in pieces of up to 4 MiB.
touch: the touching itself. discard: MADV_DONTNEED. exit: of a child that shares all of it. free: MADV_FREE.
swap-in: of same-filled pages, by reads.
Or of a file that a disk has, in folios of at most KIB: file-fill (the host writes it, 64 KiB at a time),
file-read (of pages in memory, 64 KiB at a time), file-touch (of pages in memory), file-dirty (of clean pages),
file-write-back, file-pageout (of clean pages, which are mapped).";

const PAGE: u64 = 4096;

/// The function whose instructions are counted.
#[inline(never)]
fn measured<R>(operation: impl FnOnce() -> R) -> R {
    black_box(operation())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| args.get(at).map_or(Ok(or), |arg| arg.parse());
    let arm = args.get(1).map_or("ascending", String::as_str);
    match (args.first(), number(2, 4), number(3, 64)) {
        (Some(operation), Ok(folio_kib), Ok(mib))
            if ["ascending", "random", "pieces"].contains(&arm) && mib > 0 && folio_kib.is_power_of_two() =>
        {
            run(operation, arm, folio_kib << 10, mib << 20)
        }
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(2)
}

/// Runs an operation on a file.
fn run_file(operation: &str, arm: &str, folio: u64, len: u64) -> Result<(), Box<dyn Error>> {
    const CHUNK: u64 = 16;
    let chunk = folio / PAGE;
    let mut order: Vec<u64> = (0..len / PAGE / chunk).map(|n| n * chunk).collect();
    if arm != "ascending" {
        let mut dice = oorandom::Rand64::new(1);
        (1..order.len()).rev().for_each(|n| order.swap(n, dice.rand_range(0..n as u64 + 1) as usize));
    }
    let host = Config::new(2 * len + (64 << 20)).cpus(1).prefault().fast()?;
    let cpu = host.cpu(0);
    let machine = Machine::boot(&host, Default::default())?;
    machine.policy().set_global(Knob::Always);
    machine.policy().set_file_orders(((2 * folio / PAGE) - 1) as u32);
    let arch = X86_64::four_levels();
    let object = Object::with_store(&machine, &arch, MemcgId::ROOT, 1, len, Changes::ToStore)?;
    let (space, mut opener) =
        (AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default())?, Readahead::new(128));
    let flags = MapFlags::NORESERVE | MapFlags::SHARED;
    let start = space.map_object(MapRequest { addr: 0, len, prot: Prot::READ | Prot::WRITE, flags }, &object, 0)?;
    let all = VirtRange { start, end: start + len };
    let fill = || {
        order.iter().try_for_each(|page| {
            let mut at = *page;
            while at < page + chunk {
                let over = Overwrite::begin(&object, at..page + chunk, MemcgId::ROOT)?.ok_or(ObjectError::Busy)?;
                let pages = over.pages();
                over.finish(pages.end - pages.start, 0);
                at = pages.end;
            }
            Ok::<_, ObjectError>(())
        })
    };
    let write_back = || {
        write_back(&[&space][..], &object, &mut Writeback::start(0..u64::MAX))?;
        Ok::<_, ObjectError>(())
    };
    let finish = || while host.hardware().files().finish_any_write(&machine).is_some() {};
    let mut read = || {
        (0..len / PAGE).step_by(CHUNK as usize).try_for_each(|page| {
            object.read_ahead(&mut opener, page..page + CHUNK, MemcgId::ROOT)?;
            let mut at = page;
            while at < page + CHUNK {
                let pages = object.pages(at..page + CHUNK)?.ok_or(ObjectError::Busy)?;
                at += pages.len() as u64 / PAGE;
            }
            Ok::<_, ObjectError>(())
        })
    };
    if operation == "file-fill" {
        measured(fill)?;
    } else {
        fill()?;
    }
    if operation == "file-write-back" {
        measured(write_back)?;
    } else {
        write_back()?;
    }
    finish();
    let program = cpu.enter(&space);
    let touch = |access| program.touch(all, PAGE, access).map_err(|_| "an access was refused");
    match operation {
        "file-fill" | "file-write-back" => {}
        "file-read" => measured(&mut read)?,
        "file-touch" => drop(measured(|| touch(Access::Read))?),
        "file-dirty" => {
            touch(Access::Read)?;
            measured(|| touch(Access::Write))?;
            write_back()?;
            finish();
        }
        "file-pageout" => {
            touch(Access::Read)?;
            measured(|| space.advise(start, len, Advise::PageOut))?;
            measured(|| space.advise(start, len, Advise::PageOut))?;
        }
        _ => usage(),
    }
    println!("{}", len / PAGE);
    Ok(())
}

fn run(operation: &str, arm: &str, folio: u64, len: u64) -> Result<(), Box<dyn Error>> {
    if operation.starts_with("file-") {
        return run_file(operation, arm, folio, len);
    }
    // Twice the memory, for copies or compressed pages, and some for page tables.
    let host = Config::new(2 * len + len / 8 + (64 << 20)).cpus(1).prefault().fast()?;
    let cpu = host.cpu(0);
    let machine = Machine::boot(&host, Default::default())?;
    machine.policy().set_global(Knob::Always);
    for order in 1..=HUGE_ORDER {
        machine.policy().set(order, if PAGE << order == folio { Knob::Always } else { Knob::Never });
    }
    let slots = (len / PAGE) as u32;
    let swap: &'static Compressed = Box::leak(Box::new(Compressed::new(machine.frames(), slots)?));
    // SAFETY: the store lives for ever, and nothing else uses it.
    unsafe { machine.swaps().attach(machine.frames(), swap, slots, 0) }.map_err(|_| "no room for swap")?;
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default())?;
    let request = MapRequest { addr: 0, len, prot: Prot::READ | Prot::WRITE, flags: MapFlags::NORESERVE };
    let start = space.map(request)?;
    let all = VirtRange { start, end: start + len };

    let mut folios: Vec<u64> = (0..len / folio).map(|n| start + n * folio).collect();
    let mut dice = oorandom::Rand64::new(1);
    let other = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default())?;
    if arm == "pieces" {
        hold_pieces(&machine, &cpu.enter(&other), &other, len, &mut dice)?;
    }
    if arm != "ascending" {
        (1..folios.len()).rev().for_each(|n| folios.swap(n, dice.rand_range(0..n as u64 + 1) as usize));
    }
    let program = cpu.enter(&space);
    let touch_all = || folios.iter().try_for_each(|at| touch(&program, VirtRange { start: *at, end: at + folio }));
    match operation {
        "touch" => measured(touch_all)?,
        _ => touch_all()?,
    }
    match operation {
        "touch" => {}
        "unmap" => measured(|| space.unmap(start, len))?,
        "discard" => measured(|| space.advise(start, len, Advise::DontNeed))?,
        "fork" => drop(measured(|| space.fork())?),
        "exit" => {
            let child = space.fork()?;
            measured(|| drop(child));
        }
        "protect" => measured(|| space.protect(start, len, Prot::READ))?,
        "free" => measured(|| space.advise(start, len, Advise::Free))?,
        "pageout" => measured(|| space.advise(start, len, Advise::PageOut))?,
        "swap-in" => {
            let page = [7; PAGE as usize];
            (start..all.end)
                .step_by(PAGE as usize)
                .try_for_each(|at| program.write(at, &page))
                .map_err(|_| "refused")?;
            space.advise(start, len, Advise::PageOut)?;
            measured(|| program.touch(all, PAGE, Access::Read)).map_err(|_| "a read was refused")?;
        }
        _ => usage(),
    }
    println!("{}", len / PAGE);
    Ok(())
}

/// Fills memory, and then unmaps pieces of 64 KiB to 4 MiB at random places until a quarter more
/// than `len` bytes are free.
fn hold_pieces(
    machine: &Machine<'_, Fast>,
    program: &Program<'_, Fast, AddressSpace<'_, Fast>>,
    other: &AddressSpace<'_, Fast>,
    len: u64,
    dice: &mut oorandom::Rand64,
) -> Result<(), Box<dyn Error>> {
    let free = || machine.frames().free_frames() * PAGE;
    let all = (free() - (8 << 20)) & !((2 << 20) - 1);
    let request = MapRequest { addr: 0, len: all, prot: Prot::READ | Prot::WRITE, flags: MapFlags::NORESERVE };
    let start = other.map(request)?;
    touch(program, VirtRange { start, end: start + all })?;
    while free() < len + len / 4 {
        let piece = (64 << 10) << dice.rand_range(0..7);
        let at = start + dice.rand_range(0..all / piece) * piece;
        other.unmap(at, piece)?;
    }
    Ok(())
}

/// Writes a byte in each page of a folio.
fn touch(program: &Program<'_, Fast, AddressSpace<'_, Fast>>, folio: VirtRange) -> Result<(), Box<dyn Error>> {
    program.touch(folio, PAGE, Access::Write).map_err(|_| "a write was refused")?;
    Ok(())
}
