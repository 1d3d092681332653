//! Copies the mappings of a process into a helper, and times operations on the copy.
//!
//! The helper fills the pages with contents of its own, and does not touch the process. Folios of a
//! size need machine-wide settings while memory is touched: the helper requests them from the
//! benchmark, which has the right to change them.

use std::ffi::c_void;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::ptr::{null_mut, without_provenance_mut};

use procfs::process::Process;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};

use super::exit::Stamp;
use super::fork;
use super::{Helper, Message, path_for_helper, send};
use crate::COMPACT;
use crate::Skip;
use crate::settings::knobs::Knobs;
use crate::settings::mthp::Mthp;
use crate::settings::resource::{HeldResource, Resource};
use crate::time::{Stopwatch, Time};
use crate::workload::case::{Case, PAGE, TABLE_SPAN};
use crate::workload::data::{Data, Page};
use crate::workload::layout::{Backing, Folios, Layout, Operation, PageKind, Run, Timed, Vma, table_spans_in};

/// The most calls of page-out for one operation: one call does not remove all pages.
const TRIES: usize = 8;
/// The alignment of the address at which a copy maps the layout's address 0.
const ALIGN: u64 = 1 << 30;

/// Makes copies of one layout.
pub struct ProcessCopier {
    layout: File,
    /// The bytes of all backing files; `bytes` are those of all memory.
    files: u64,
    bytes: u64,
    mthp: Mthp,
    knobs: Knobs,
    swap: Option<HeldResource>,
}

impl ProcessCopier {
    /// Returns a copier of `layout`. `thp_root` is the directory of the huge-page settings.
    ///
    /// # Errors
    /// The layout can't be written to a memfd.
    pub fn new(layout: &Layout, thp_root: &Path) -> Result<ProcessCopier, Skip> {
        let failed = |error: &dyn ToString| Skip::system("memfd_create", error.to_string());
        let mut file = File::from(memfd_create("vellum-layout", MemfdFlags::CLOEXEC).map_err(|error| failed(&error))?);
        let text = serde_json::to_vec(layout).map_err(|error| failed(&error))?;
        file.write_all(&text).map_err(|error| failed(&error))?;
        Ok(ProcessCopier {
            layout: file,
            files: layout.files(),
            bytes: layout.bytes(Folios::AsIs),
            mthp: Mthp::at(thp_root),
            knobs: Knobs::guarded(thp_root),
            swap: None,
        })
    }

    /// Makes a copy of the layout with these folio sizes, and times `operation` on it.
    ///
    /// # Errors
    /// A setting can't be changed, a resource can't be made, or the helper failed.
    pub fn time(&mut self, folios: Folios, operation: Operation) -> Result<Timed, Skip> {
        if operation == Operation::SwapOut && self.swap.is_none() {
            self.swap = Some(HeldResource::new(&Resource::Zram { bytes: 2 * self.bytes.max(TABLE_SPAN) })?);
        }
        let memory = |error: rustix::io::Errno| Skip::system("memfd_create", error);
        // Make the files in this process, so that the helper's exit does not free their pages.
        let files = memfd_create("vellum-copy", MemfdFlags::CLOEXEC).map_err(memory)?;
        ftruncate(&files, self.files).map_err(memory)?;
        let (stamp, stamped) = Stamp::new().map_err(memory)?;
        let path = |file: &dyn std::os::fd::AsFd| path_for_helper(&file.as_fd()).display().to_string();
        let mut args = vec![
            "copy".to_owned(),
            format!("--layout={}", path(&self.layout)),
            format!("--files={}", path(&files)),
            format!("--stamp={}", path(&stamped)),
            format!("--deed={}", operation.argument()),
        ];
        if let Folios::Of(kib) = folios {
            args.push(format!("--folio-kib={kib}"));
        }
        let mut helper = Helper::start(&args)?;
        let (resident, tables) = loop {
            match helper.receive()? {
                Message::Wants { folio_kib } => {
                    let _ = std::fs::write(COMPACT, "1");
                    let wanted = self.mthp.plan(&Case::of(TABLE_SPAN, folio_kib))?;
                    let settings = self.knobs.apply(&wanted)?;
                    helper.resume()?;
                    match helper.receive()? {
                        Message::Touched { .. } => settings.restore()?,
                        other => return Err(Skip::Child(format!("unexpected message {other:?}"))),
                    }
                }
                Message::Copied { resident, tables } => break (resident, tables),
                other => return Err(Skip::Child(format!("unexpected message {other:?}"))),
            }
        };
        let time = match operation {
            Operation::Exit => helper.resume_and_wait().map(|()| stamp.since()),
            _ => helper.resume_last().and_then(|()| helper.took()),
        }?;
        Ok(Timed { ns: time.cpu_ns, resident, tables })
    }
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The layout, as JSON.
    #[arg(long)]
    layout: PathBuf,
    /// The backing of all VMAs that are not anonymous, one after the other.
    #[arg(long)]
    files: PathBuf,
    /// The file with the page for the time of exit.
    #[arg(long)]
    stamp: PathBuf,
    /// The operation.
    #[arg(long = "deed", value_name = "DEED", value_enum)]
    operation: Operation,
    /// The folio size to use instead of the layout's.
    #[arg(long)]
    folio_kib: Option<u32>,
}

/// Runs the helper.
///
/// # Errors
/// A system call failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let stamp = Stamp::open(&File::options().read(true).write(true).open(&args.stamp)?)?;
    let files = File::options().read(true).write(true).open(&args.files)?;
    let layout: Layout = serde_json::from_slice(&std::fs::read(&args.layout)?)?;
    let folios = args.folio_kib.map_or(Folios::AsIs, Folios::Of);
    let before = Footprint::now()?;
    let copy = MappedLayout::map(&layout, &files)?;
    for size in layout.sizes(folios) {
        // For 4 KiB, disable large folios for this process, which needs no privilege.
        rustix::thread::disable_transparent_huge_pages(size <= 4)?;
        if size > 4 && layout.runs().any(|(vma, run)| vma.folio(run, folios) == size && !vma.is_huge(run, folios)) {
            send(Message::Wants { folio_kib: size })?;
            if !wait_for_byte()? {
                return Ok(());
            }
            copy.fill(size, folios, args.operation)?;
            send(Message::Touched { time: Time::default(), fallback: 0.0 })?;
        } else {
            copy.fill(size, folios, args.operation)?;
        }
    }
    let after = Footprint::now()?;
    send(Message::Copied {
        resident: after.resident.saturating_sub(before.resident),
        tables: after.tables.saturating_sub(before.tables),
    })?;
    if !wait_for_byte()? {
        return Ok(());
    }
    let time = match args.operation {
        Operation::Exit => stamp.exit(),
        Operation::Munmap => copy.unmap()?,
        Operation::Fork => fork::timed()?,
        Operation::SwapOut => copy.page_out()?,
        Operation::Reclaim => copy.reclaim()?,
    };
    send(Message::Took { time })
}

/// Waits for a byte from the benchmark. Returns `false` at the end of standard input.
fn wait_for_byte() -> std::io::Result<bool> {
    Ok(std::io::stdin().read(&mut [0])? == 1)
}

/// The memory of this process, in bytes: resident, and of page tables.
struct Footprint {
    resident: u64,
    tables: u64,
}

impl Footprint {
    /// Reads the footprint of this process.
    fn now() -> anyhow::Result<Footprint> {
        let status = Process::myself()?.status()?;
        Ok(Footprint { resident: status.vmrss.unwrap_or(0) << 10, tables: status.vmpte.unwrap_or(0) << 10 })
    }
}

/// A mapped layout. [`MappedLayout::unmap`] may only be the last operation on it.
struct MappedLayout<'a> {
    layout: &'a Layout,
    /// The address at which the layout's address 0 is mapped.
    base: u64,
}

impl<'a> MappedLayout<'a> {
    /// Maps the VMAs of `layout`.
    fn map(layout: &'a Layout, files: &File) -> anyhow::Result<Self> {
        let len = (layout.end() + ALIGN) as usize;
        // SAFETY: the kernel chooses the address, so no mapping is replaced. The mapping is removed
        // at once; this process has one thread, so the addresses stay free.
        let base = unsafe {
            let found = mmap_anonymous(null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?;
            munmap(found, len)?;
            (found as u64).next_multiple_of(ALIGN)
        };
        let copy = MappedLayout { layout, base };
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let mut offset = 0;
        for (n, vma) in layout.vmas.iter().enumerate() {
            let (at, len) = (copy.at(vma.start), (vma.end - vma.start) as usize);
            let flags = MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
            // SAFETY: FIXED_NOREPLACE replaces no mapping.
            unsafe {
                match vma.backing {
                    Backing::Anonymous => mmap_anonymous(at, len, rights, flags | MapFlags::PRIVATE)?,
                    Backing::Private => mmap(at, len, rights, flags | MapFlags::PRIVATE, files, offset)?,
                    Backing::Shared => mmap(at, len, rights, flags | MapFlags::SHARED, files, offset)?,
                }
            };
            offset += if vma.backing == Backing::Anonymous { 0 } else { len as u64 };
            if n % 2 == 1 {
                // SAFETY: the advice changes no contents. It sets a flag of the VMA, which keeps
                // adjacent VMAs from merging.
                unsafe { madvise(at, len, Advice::LinuxDontDump)? };
            }
        }
        Ok(copy)
    }

    /// Returns the address at which address `address` of the layout is mapped.
    fn at(&self, address: u64) -> *mut c_void {
        without_provenance_mut((self.base + address) as usize)
    }

    /// Touches the pages that the copy has in folios of `size` KiB.
    fn fill(&self, size: u32, folios: Folios, operation: Operation) -> anyhow::Result<()> {
        for (vma, run) in self.layout.runs().filter(|(vma, run)| vma.folio(run, folios) == size) {
            if vma.is_huge(run, folios) {
                self.fill_huge(vma, run, operation)?;
                continue;
            }
            self.touch(run, operation)?;
            if size == 2048 {
                for start in table_spans_in(run.start, run.end) {
                    // Split the huge PTE: change one page's protection, which needs a PTE for each
                    // page, and restore it.
                    for rights in [MprotectFlags::READ, MprotectFlags::READ | MprotectFlags::WRITE] {
                        // SAFETY: a page of the copy, to which no reference exists.
                        unsafe { mprotect(self.at(start), PAGE as usize, rights)? };
                    }
                }
            }
        }
        Ok(())
    }

    /// Maps each 2 MiB range of the run that the VMA covers by a huge PTE (`MADV_COLLAPSE`), which
    /// needs no setting and no privilege.
    fn fill_huge(&self, vma: &Vma, run: &Run, operation: Operation) -> anyhow::Result<()> {
        for start in (run.start / TABLE_SPAN * TABLE_SPAN..run.end).step_by(TABLE_SPAN as usize) {
            let inside = vma.start <= start && start + TABLE_SPAN <= vma.end;
            let (from, to) = if inside { (start, start + TABLE_SPAN) } else { (run.start.max(start), run.end) };
            let to = to.min(start + TABLE_SPAN);
            self.touch(
                &Run { start: from, end: if inside { from + PAGE } else { to }, kind: PageKind::Huge },
                operation,
            )?;
            if inside {
                // SAFETY: the advice changes no contents. It fails without contiguous memory; the
                // pages then stay small.
                unsafe { libc::madvise(self.at(start), TABLE_SPAN as usize, libc::MADV_COLLAPSE) };
            }
            if operation == Operation::SwapOut {
                self.touch(&Run { start: from, end: to, kind: PageKind::Huge }, operation)?;
            }
        }
        Ok(())
    }

    /// Touches each page of a run: reads zero and file pages, and writes anonymous ones. For an
    /// empty page table, writes a page and discards it.
    fn touch(&self, run: &Run, operation: Operation) -> anyhow::Result<()> {
        for address in (run.start..run.end).step_by(PAGE as usize) {
            let at = self.at(address);
            // SAFETY: a page of the copy, which is mapped and writable, and to whose contents no
            // reference exists. Volatile, as the value is never read.
            unsafe {
                match run.kind {
                    PageKind::Zero | PageKind::File => drop(at.cast::<u8>().read_volatile()),
                    PageKind::Table => {
                        at.cast::<u8>().write_volatile(1);
                        madvise(at, PAGE as usize, Advice::LinuxDontNeed)?;
                        break;
                    }
                    _ if operation == Operation::SwapOut => {
                        at.cast::<Page>().write_volatile(Data::Compressible.page(address / PAGE))
                    }
                    _ => at.cast::<u8>().write_volatile(1),
                }
            }
        }
        Ok(())
    }

    /// Returns the address and length of each anonymous VMA.
    fn anonymous(&self) -> impl Iterator<Item = (*mut c_void, usize)> {
        let anonymous = self.layout.vmas.iter().filter(|vma| vma.backing == Backing::Anonymous);
        anonymous.map(|vma| (self.at(vma.start), (vma.end - vma.start) as usize))
    }

    /// Returns the number of anonymous pages in memory.
    fn present(&self) -> anyhow::Result<u64> {
        let mut present = 0;
        for (vma, run) in self.layout.runs() {
            if vma.backing == Backing::Anonymous && run.is_anonymous() {
                let mut pages = vec![0u8; ((run.end - run.start) / PAGE) as usize];
                // SAFETY: the kernel writes a byte for each page of the run to the array, which has
                // as many bytes.
                let asked =
                    unsafe { libc::mincore(self.at(run.start), (run.end - run.start) as usize, pages.as_mut_ptr()) };
                anyhow::ensure!(asked == 0, "mincore: {}", std::io::Error::last_os_error());
                present += pages.iter().filter(|&&page| page & 1 == 1).count() as u64;
            }
        }
        Ok(present)
    }

    /// Unmaps all VMAs. Returns the time.
    fn unmap(&self) -> anyhow::Result<Time> {
        let watch = Stopwatch::start();
        for vma in &self.layout.vmas {
            // SAFETY: the copy is this process's own, and no reference to it exists.
            unsafe { munmap(self.at(vma.start), (vma.end - vma.start) as usize)? };
        }
        Ok(watch.time())
    }

    /// Swaps out all anonymous memory; discards it where it is lazyfree. Returns the time.
    fn page_out(&self) -> anyhow::Result<Time> {
        let all = self.present()?;
        let (mut time, mut left) = (Time::default(), all);
        for _ in 0..TRIES {
            let watch = Stopwatch::start();
            for (at, len) in self.anonymous() {
                // SAFETY: the advice changes no contents.
                unsafe { madvise(at, len, Advice::LinuxPageOut)? };
            }
            time += watch.time();
            left = self.present()?;
            if left == 0 {
                break;
            }
        }
        // A few pages may stay because another context holds a reference.
        anyhow::ensure!(left <= all / 1000, "{left} of {all} pages stayed in memory");
        Ok(time)
    }

    /// Makes all anonymous memory lazyfree and reclaims it. Returns the time of the reclaim.
    fn reclaim(&self) -> anyhow::Result<Time> {
        for (at, len) in self.anonymous() {
            // SAFETY: no reference to the contents exists, and they are not used again.
            unsafe { madvise(at, len, Advice::LinuxFree)? };
        }
        self.page_out()
    }
}
