//! The page of clocks and the shared object that every program has mapped (Linux: vDSO), so that
//! reading a clock takes no system call.
//!
//! Both are pages of one page-cache object: first the page that [`vvar`] describes, then the shared
//! object, which `build.rs` makes of `vdso/`. A program may move the two, as checkpointing does;
//! the code finds the page before itself.

use crate::arch::percpu::MAX_CPUS;
use crate::mem::platform::Host;
use crate::mem::{self, Object, Space, started_at};
use core::ops::Range;
use spin::Once;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::MemcgId;
use vellum::page_cache::ObjectError;
use vellum::platform::Cpus;
use vellum::space::{MapError, MapFlags, MapRequest};
use vellum::vma::{Prot, Vma};
use vellum_kernel::exec::vvar;

/// The shared object.
static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vdso.so"));
/// The tag of the page-cache object, by which its VMAs are found. Files never have it.
const TAG: u64 = u64::MAX;
/// The object's size in bytes: the page of clocks, and the shared object.
pub const SIZE: u64 = FRAME_SIZE + (IMAGE.len() as u64).next_multiple_of(FRAME_SIZE);

const _: () = assert!(MAX_CPUS <= vvar::CPUS, "programs can't find the NUMA node of each CPU");

static OBJECT: Once<Object> = Once::new();

/// Creates the object. Called once, after the wall clock was set.
///
/// # Errors
///
/// Memory is short.
pub fn init(host: &Host) -> Result<(), ObjectError> {
    let object = mem::new_object(MemcgId::ROOT, TAG)?;
    let [start, scale] = host.counter();
    let nodes = (0..host.count()).map(|cpu| host.node(cpu) as u8);
    let clocks = vvar::bytes(start, scale, started_at(), nodes);
    for (page, bytes) in core::iter::once(&clocks[..]).chain(IMAGE.chunks(FRAME_SIZE as usize)).enumerate() {
        let page = object.page_or_new(page as u64, MemcgId::ROOT)?;
        page.write(0, bytes);
        page.written();
    }
    // The object was empty: growing removes no pages.
    let _ = object.set_size(SIZE)?;
    OBJECT.call_once(|| object);
    Ok(())
}

/// Maps both parts at `addr`, and returns the address of the shared object.
///
/// # Errors
///
/// Those of the engine's `map_object`. The first part may be mapped.
///
/// # Panics
///
/// Before [`init`].
pub fn map(space: &Space, addr: u64) -> Result<u64, MapError> {
    let object = OBJECT.get().expect("vdso::init must be called before vdso::map");
    let code = addr + FRAME_SIZE;
    let parts = [(addr..code, Prot::READ), (code..addr + SIZE, Prot::READ | Prot::EXEC)];
    for (Range { start, end }, prot) in parts {
        let request = MapRequest { addr: start, len: end - start, prot, flags: MapFlags::FIXED };
        space.map_object(request, object, start - addr)?;
    }
    Ok(code)
}

/// Returns the name in `/proc/PID/maps` of a VMA that maps one of the parts.
pub fn name(vma: &Vma) -> Option<&'static [u8]> {
    let is_ours = !vma.backing.is_anonymous() && vma.backing.tag() == TAG;
    is_ours.then(|| if vma.backing.offset(vma.range.start) == 0 { &b"[vvar]"[..] } else { b"[vdso]" })
}

/// Returns the address of the shared object in a space in which the VMAs from `from` on were moved
/// to `to`, `len` bytes of them, if it was at `before`.
pub fn moved(before: u64, from: u64, len: u64, to: u64) -> u64 {
    let offset = before.wrapping_sub(from);
    if before != 0 && offset < len { to.wrapping_add(offset) } else { before }
}
