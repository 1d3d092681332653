//! Regions that map a file in memory: a page-cache object.

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::frame::policy::ShmemKnob;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{MapFlags, MapRequest};
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::case::{Case, PAGE};
use vellum_linux::workload::mapping::Mapping;
use vellum_sim::Access;

use super::{Booted, Fast, READ_WRITE, Space, Touched, unmap};
use crate::bench::contender::Skip;

/// A mapped region, and the object that it maps, if it maps one.
pub struct Region {
    /// The addresses.
    pub range: VirtRange,
    /// The object. It outlives the mapping, so that unmapping it frees no folio.
    object: Option<Object<'static, Fast>>,
}

impl Region {
    /// Returns an anonymous region that is mapped at `range`.
    pub fn anonymous(range: VirtRange) -> Region {
        Region { range, object: None }
    }

    /// Maps an empty object as a shared region, whose faults allocate folios of the case's size.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn of_file(booted: &Booted, space: &Space<'static>, case: &Case) -> Result<Region, Skip> {
        booted.machine.policy().shmem().set(case.pages_per_folio().ilog2() as u8, ShmemKnob::WithinSize);
        let object = Object::new(booted.machine, &X86_64::four_levels(), MemcgId::ROOT, 0, case.bytes);
        let object = object.map_err(|error| Skip::system("object", format!("{error:?}")))?;
        let range = map(space, &object, 0, case.bytes, MapFlags::SHARED)?;
        Ok(Region { range, object: Some(object) })
    }

    /// Finishes the touch of a region of the case, which took `touched`: for
    /// [`Mapping::PrivateFile`], maps the filled object privately, and reads a byte in each page,
    /// folio by folio in the order of the case's arm. The result has the time of the reads.
    ///
    /// # Errors
    /// The mapping or a fault failed.
    pub fn finish_touch(
        &self,
        booted: &Booted,
        space: &Space<'static>,
        case: &Case,
        touched: Touched,
    ) -> Result<Touched, Skip> {
        let Some(object) = self.object.as_ref().filter(|_| case.mapping == Mapping::PrivateFile) else {
            return Ok(touched);
        };
        unmap(space, self.range)?;
        map(space, object, self.range.start, case.bytes, MapFlags::FIXED)?;
        let (order, folio) = (case.arm.order(case.folios()), case.folio_bytes());
        let program = booted.cpu.enter(space);
        let watch = Stopwatch::start();
        for start in order.into_iter().map(|n| self.range.start + n * folio) {
            let read = program.touch(VirtRange { start, end: start + folio }, PAGE, Access::Read);
            read.map_err(|error| Skip::system("touch", format!("{error:?}")))?;
        }
        let time = Some(watch.time());
        Ok(Touched { time, ..touched })
    }
}

fn map(
    space: &Space<'static>,
    object: &Object<'static, Fast>,
    addr: u64,
    len: u64,
    flags: MapFlags,
) -> Result<VirtRange, Skip> {
    let request = MapRequest { addr, len, prot: READ_WRITE, flags: flags | MapFlags::NORESERVE };
    let start = space.map_object(request, object, 0).map_err(|error| Skip::system("map", error))?;
    Ok(VirtRange { start, end: start + len })
}

/// Returns the share of a file that got single pages instead of the case's folios, as it has this
/// number of folios.
pub fn small_share(case: &Case, folios: u64) -> f64 {
    let (surplus, most) = (folios.saturating_sub(case.folios()), case.pages() - case.folios());
    if most == 0 { 0.0 } else { (surplus as f64 / most as f64).min(1.0) }
}
