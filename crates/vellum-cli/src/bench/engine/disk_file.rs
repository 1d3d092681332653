//! Times operations on a file of the simulated machine's disk.

use std::ops::Range;

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::page_cache::{Changes, Object, ObjectError, Overwrite, Readahead, Writeback, drop_clean};
use vellum::platform::PendingPage;
use vellum::space::{Advise, FaultError, MapFlags, MapRequest, write_back};
use vellum_linux::region::evict_caches;
use vellum_linux::time::{Stopwatch, Time};
use vellum_linux::workload::case::{Case, PAGE};
use vellum_linux::workload::files::{Contents, FileOp, READ, WINDOW, check, random_pages};
use vellum_sim::{Access, Fast, Files, Program, Simulated, Touched};

use super::file::small_share;
use super::{Booted, Counted, READ_WRITE, Sample, Space};
use crate::bench::contender::Skip;

/// The host's name for the file.
const TAG: u64 = 1;

/// A file, and the disk, whose requests end as soon as the engine has made them.
struct File<'a> {
    booted: &'a Booted,
    object: Object<'static, Fast>,
    files: &'a Files,
    contents: &'a Contents,
    case: &'a Case,
}

/// Writes a file of the case's length by calls with the bytes of a folio each, and times `op` on
/// it, through a mapping in `space`. Afterwards its contents are checked.
///
/// # Errors
/// The engine failed, pages stayed, or the file has other contents.
pub fn measure(
    booted: &Booted,
    space: &Space<'static>,
    contents: &Contents,
    case: &Case,
    op: FileOp,
) -> Result<Sample, Skip> {
    // Folios of at most the case's size.
    booted.machine.policy().set_file_orders((2 * case.pages_per_folio() - 1) as u32);
    let object = Object::with_store(booted.machine, &X86_64::four_levels(), MemcgId::ROOT, TAG, 0, Changes::ToStore);
    let object = object.map_err(failed("object"))?;
    let file = File { booted, object, files: booted.machine.platform().hardware().files(), contents, case };
    let folio = case.folio_bytes();
    let offsets = case.arm.order(case.folios()).into_iter().map(|n| n * folio);
    booted.compact(case);
    evict_caches()?;
    let before = Counted::now(booted.machine);
    let watch = Stopwatch::start();
    let folios = offsets.map(|at| file.write(at, folio)).sum::<Result<u64, Skip>>()?;
    let write = watch.time();
    let small = small_share(case, folios);
    evict_caches()?;
    let watch = Stopwatch::start();
    file.sync(space)?;
    let back = Some(watch.time());
    if op.is_cold() {
        drop_clean(&file.object, 0..u64::MAX);
    }
    let sample = match op {
        FileOp::Write | FileOp::Fsync => {
            let work = Some(before.work(&Counted::now(booted.machine)));
            Sample { op: write, back, work, ..Sample::default() }
        }
        FileOp::Read | FileOp::ReadAgain | FileOp::ReadRandom => Sample { op: file.read(op)?, ..Sample::default() },
        FileOp::Map | FileOp::MapAgain | FileOp::Pageout | FileOp::PageoutDirty => file.mapped(space, op)?,
    };
    let (mut opener, mut buffer) = (opener(), vec![0; PAGE as usize]);
    check(case.pages(), op, |number, page| {
        file.copy(&mut opener, number..number + 1, &mut buffer)?;
        page.bytes_mut().copy_from_slice(&buffer);
        Ok(())
    })?;
    // The pages of cold operations are read into other folios.
    let small = if op.is_cold() { 0.0 } else { small };
    Ok(Sample { fallback: sample.fallback.max(small), ..sample })
}

fn opener() -> Readahead {
    Readahead::new((WINDOW / PAGE) as u32)
}

impl File<'_> {
    /// Ends all requests of the engine.
    fn finish(&self) {
        while self.files.finish_nth(self.booted.machine, 0).is_some() {}
        while self.files.finish_any_write(self.booted.machine).is_some() {}
    }

    /// Ends the request with a page.
    fn wait(&self, page: PendingPage) -> Result<(), Skip> {
        let machine = self.booted.machine;
        let ended =
            self.files.finish_with(machine, page).is_some() || self.files.finish_write_with(machine, page).is_some();
        if ended { Ok(()) } else { Err(Skip::system("read", format!("{page} is not being read"))) }
    }

    /// Writes bytes where the file has none yet. Returns the number of folios that have them.
    fn write(&self, at: u64, len: u64) -> Result<u64, Skip> {
        let (mut page, end, mut folios) = (at / PAGE, (at + len) / PAGE, 0);
        while page < end {
            let over = Overwrite::begin(&self.object, page..end, MemcgId::ROOT).map_err(failed("write"))?;
            let over = over.ok_or_else(|| Skip::system("write", "the page exists"))?;
            let pages = over.pages();
            let mut from = page * PAGE;
            for folio in over.folios() {
                let bytes = self.contents.bytes(from, folio.len() as u64);
                // SAFETY: the slices have the same length. The machine has one CPU, which is this
                // thread, so that no other code uses the folio meanwhile. As a kernel's copy from a
                // program.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), folio.as_ptr().cast_mut().cast(), bytes.len()) };
                from += folio.len() as u64;
                folios += 1;
            }
            over.finish(pages.end - pages.start, pages.end * PAGE);
            page = pages.end;
        }
        Ok(folios)
    }

    /// Writes all dirty pages to the disk.
    fn sync(&self, space: &Space<'static>) -> Result<(), Skip> {
        write_back(&[space][..], &self.object, &mut Writeback::start(0..u64::MAX)).map_err(failed("write back"))?;
        self.finish();
        Ok(())
    }

    /// Copies pages to `buffer`, which has as many bytes.
    fn copy(&self, opener: &mut Readahead, pages: Range<u64>, buffer: &mut [u8]) -> Result<(), Skip> {
        self.object.read_ahead(opener, pages.clone(), MemcgId::ROOT).map_err(failed("read"))?;
        let (mut page, mut at) = (pages.start, 0);
        while page < pages.end {
            match self.object.pages(page..pages.end) {
                Ok(Some(found)) => {
                    let (from, to) = (found.bytes(), &mut buffer[at..at + found.len()]);
                    // SAFETY: the slices have the same length. The machine has one CPU, which is
                    // this thread, so that no other code writes to the pages meanwhile. As a
                    // kernel's copy to a program.
                    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr(), to.len()) };
                    (page, at) = (page + to.len() as u64 / PAGE, at + to.len());
                }
                Ok(None) => return Err(Skip::system("read", "a hole")),
                Err(ObjectError::Pending(pending)) => self.wait(pending)?,
                Err(error) => return Err(failed("read")(error)),
            }
        }
        Ok(())
    }

    /// Reads the file as `op` says. Returns the time.
    fn read(&self, op: FileOp) -> Result<Time, Skip> {
        let (mut opener, mut buffer) = (opener(), vec![0; READ as usize]);
        let order = if op == FileOp::ReadRandom { random_pages(self.case) } else { Vec::new() };
        evict_caches()?;
        let watch = Stopwatch::start();
        if op == FileOp::ReadRandom {
            let buffer = &mut buffer[..PAGE as usize];
            order.iter().try_for_each(|page| self.copy(&mut opener, *page..page + 1, buffer))?;
        } else {
            const CHUNK: u64 = READ / PAGE;
            let mut chunks = (0..self.case.pages()).step_by(CHUNK as usize);
            chunks.try_for_each(|page| self.copy(&mut opener, page..page + CHUNK, &mut buffer))?;
        }
        Ok(watch.time())
    }

    /// Maps the file, and times `op`.
    fn mapped(&self, space: &Space<'static>, op: FileOp) -> Result<Sample, Skip> {
        let (machine, len) = (self.booted.machine, self.case.bytes);
        let request = MapRequest { addr: 0, len, prot: READ_WRITE, flags: MapFlags::NORESERVE | MapFlags::SHARED };
        let start = space.map_object(request, &self.object, 0).map_err(failed("map"))?;
        let range = VirtRange { start, end: start + len };
        let program = self.booted.cpu.enter(space);
        evict_caches()?;
        let before = Counted::now(machine);
        let watch = Stopwatch::start();
        self.touch(&program, range, op.step(self.case), Access::Read)?;
        let mut time = watch.time();
        let not_mapped = || {
            let usage = space.usage(range);
            (len - if op.maps_huge(self.case) { usage.huge_file } else { usage.resident }) as f64 / len as f64
        };
        if not_mapped() > 0.0 {
            // Faults for the pages that those at the steps left out are a part of the operation.
            let watch = Stopwatch::start();
            self.touch(&program, range, PAGE, Access::Read)?;
            time += watch.time();
        }
        let work = Some(before.work(&Counted::now(machine)));
        if matches!(op, FileOp::Map | FileOp::MapAgain) {
            return Ok(Sample { op: time, fallback: not_mapped(), work, ..Sample::default() });
        }
        if op == FileOp::PageoutDirty {
            for number in 0..self.case.pages() {
                program.write(start + number * PAGE, op.page_after(number).bytes()).map_err(failed("touch"))?;
            }
        }
        let fallback = not_mapped();
        evict_caches()?;
        let before = Counted::now(machine);
        let watch = Stopwatch::start();
        if op == FileOp::PageoutDirty {
            self.sync(space)?;
        }
        space.advise(start, len, Advise::PageOut).map_err(failed("advise"))?;
        let time = watch.time();
        let work = Some(before.work(&Counted::now(machine)));
        match self.object.resident() {
            0 => Ok(Sample { op: time, fallback, work, ..Sample::default() }),
            left => Err(Skip::NotReclaimed(left)),
        }
    }

    /// Accesses a byte every `step` bytes.
    fn touch(
        &self,
        program: &Program<'_, Fast, Space<'static>>,
        range: VirtRange,
        step: u64,
        access: Access,
    ) -> Result<Touched, Skip> {
        let mut at = range.start;
        loop {
            match program.touch(VirtRange { start: at, end: range.end }, step, access) {
                Ok(touched) => return Ok(touched),
                Err(vellum_sim::Fault::Handler(FaultError::Pending(page))) => {
                    self.wait(page)?;
                    // All bytes before the page that was waited for are done.
                    at = at.max(range.start + page.page * PAGE / step * step);
                }
                Err(error) => return Err(failed("touch")(error)),
            }
        }
    }
}

fn failed<E: std::fmt::Debug>(what: &'static str) -> impl Fn(E) -> Skip {
    move |error| Skip::system(what, format!("{error:?}"))
}
