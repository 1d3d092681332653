//! Copies the mappings of a process into the engine, and times an operation on the copy.

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{Advise, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::case::PAGE;
use vellum_linux::workload::data::Data;
use vellum_linux::workload::layout::{Backing, Folios, Layout, Operation, PageKind, Run, Timed, Vma, table_spans_in};
use vellum_sim::{Access, Program};

use super::{Booted, Engine, Fast, READ_WRITE, Space, folios_of, split, swapped};
use crate::bench::contender::Skip;

/// The address in the copy that stands for a layout's address 0.
const BASE: u64 = 1 << 40;

impl Engine {
    /// Makes a copy of the layout with these folio sizes, and times `operation` on it.
    ///
    /// # Errors
    /// The engine can't map the layout, or the operation fails.
    pub fn time(&self, layout: &Layout, folios: Folios, operation: Operation) -> Result<Timed, Skip> {
        let booted = self.booted()?;
        if operation == Operation::SwapOut && !booted.swap.replace(true) {
            swapped::attach(booted.machine, self.bytes)?;
        }
        // Make the file outside the copy, so that the timed exit does not free the file's pages.
        let files = Object::new(booted.machine, &X86_64::four_levels(), MemcgId::ROOT, 0, layout.files().max(PAGE))
            .map_err(|error| Skip::system("object", format!("{error:?}")))?;
        let space = booted.space(4, MemcgId::ROOT)?;
        map(&space, layout, &files)?;
        fill(booted, &space, layout, folios, operation)?;
        let stats = space.stats();
        let resident = layout.vmas.iter().map(|vma| space.usage(range(vma.start, vma.end)).resident).sum();
        let ns = timed(booted, space, layout, operation)?;
        Ok(Timed { ns, resident, tables: stats.tables })
    }
}

fn range(start: u64, end: u64) -> VirtRange {
    VirtRange { start: BASE + start, end: BASE + end }
}

fn map<'m>(space: &Space<'m>, layout: &Layout, files: &Object<'m, Fast>) -> Result<(), Skip> {
    let mut offset = 0;
    for (n, vma) in layout.vmas.iter().enumerate() {
        // A different protection keeps adjacent VMAs from merging.
        let prot = if n % 2 == 1 { READ_WRITE | Prot::EXEC } else { READ_WRITE };
        let len = vma.end - vma.start;
        let flags = MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
        let request = MapRequest { addr: BASE + vma.start, len, prot, flags };
        let mapped = match vma.backing {
            Backing::Anonymous => space.map(request),
            Backing::Private => space.map_object(request, files, offset),
            Backing::Shared => {
                space.map_object(MapRequest { flags: flags | MapFlags::SHARED, ..request }, files, offset)
            }
        };
        mapped.map_err(|error| Skip::system("map", error))?;
        offset += if vma.backing == Backing::Anonymous { 0 } else { len };
    }
    Ok(())
}

fn fill(booted: &Booted, space: &Space<'_>, layout: &Layout, folios: Folios, operation: Operation) -> Result<(), Skip> {
    let program = booted.cpu.enter(space);
    for size in layout.sizes(folios) {
        folios_of(booted.machine, size.max(4));
        for (vma, run) in layout.runs().filter(|(vma, run)| vma.folio(run, folios) == size) {
            touch(&program, run, operation)?;
            if size == 2048 && !vma.is_huge(run, folios) {
                table_spans_in(run.start, run.end).try_for_each(|start| split(space, BASE + start))?;
            }
        }
    }
    Ok(())
}

fn touch(program: &Program<'_, Fast, Space<'_>>, run: &Run, operation: Operation) -> Result<(), Skip> {
    let here = range(run.start, run.end);
    let failed = |error| Skip::system("touch", format!("{error:?}"));
    match run.kind {
        // The engine keeps no empty page tables.
        PageKind::Table => Ok(()),
        PageKind::Zero | PageKind::File => program.touch(here, PAGE, Access::Read).map(drop).map_err(failed),
        _ if operation == Operation::SwapOut => (here.start..here.end).step_by(PAGE as usize).try_for_each(|at| {
            let page = Data::Compressible.page(at / PAGE);
            program.write(at, page.bytes()).map_err(|error| Skip::system("touch", format!("{error:?}")))
        }),
        _ => super::touch(program, here).map(drop),
    }
}

fn timed(booted: &Booted, space: Space<'static>, layout: &Layout, operation: Operation) -> Result<u64, Skip> {
    if operation == Operation::Exit {
        let watch = Stopwatch::start();
        drop(space);
        return Ok(watch.time().cpu_ns);
    }
    let anonymous = || layout.vmas.iter().filter(|vma| vma.backing == Backing::Anonymous);
    let advise = |vma: &Vma, advice| {
        let advised = space.advise(BASE + vma.start, vma.end - vma.start, advice);
        advised.map_err(|error| Skip::system("advise", error))
    };
    if operation == Operation::Reclaim {
        anonymous().try_for_each(|vma| advise(vma, Advise::Free))?;
    }
    let _program = booted.cpu.enter(&space);
    let watch = Stopwatch::start();
    let elapsed = || watch.time().cpu_ns;
    match operation {
        Operation::Fork => {
            let child = space.fork();
            let ns = elapsed();
            child.map(|_| ns).map_err(|error| Skip::system("fork", error))
        }
        Operation::SwapOut | Operation::Reclaim => {
            anonymous().try_for_each(|vma| advise(vma, Advise::PageOut)).map(|()| elapsed())
        }
        _ => {
            layout.vmas.iter().try_for_each(|vma| super::unmap(&space, range(vma.start, vma.end)))?;
            Ok(elapsed())
        }
    }
}
