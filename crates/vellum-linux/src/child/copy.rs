//! A copy of what a process has mapped, in a helper process, and timing what is done to it.
//!
//! Contents are the helper's own, the process itself is not touched. Folios of a size need the
//! machine's settings for as long as memory is touched: the helper says so, and the benchmark,
//! which has the right to, changes them.

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
use super::{Helper, Message, path_for_helper, say};
use crate::COMPACT;
use crate::Skip;
use crate::cpu::now_ns;
use crate::settings::group;
use crate::settings::knobs::Knobs;
use crate::settings::lent::{Lent, Thing};
use crate::settings::mthp::Mthp;
use crate::workload::case::{Case, PAGE, TABLE_SPAN};
use crate::workload::data::{Data, Page};
use crate::workload::layout::{Backing, Deed, Done, Folios, Layout, Run, Vma, What, tables_in};

/// How often what did not go is asked to go again.
const TRIES: usize = 8;
/// What a copy begins at a multiple of.
const ALIGN: u64 = 1 << 30;

/// Makes copies of one layout.
pub struct Copies {
    layout: File,
    /// Bytes of files, and of all memory.
    files: u64,
    bytes: u64,
    mthp: Mthp,
    knobs: Knobs,
    group: Option<(Lent, String)>,
    swap: Option<Lent>,
}

impl Copies {
    /// Of this. `thp_root` is where the huge-page settings are.
    pub fn of(layout: &Layout, thp_root: &Path) -> Result<Copies, Skip> {
        let failed = |error: &dyn ToString| Skip::system("memfd_create", error.to_string());
        let mut file = File::from(memfd_create("vellum-layout", MemfdFlags::CLOEXEC).map_err(|error| failed(&error))?);
        let text = serde_json::to_vec(layout).map_err(|error| failed(&error))?;
        file.write_all(&text).map_err(|error| failed(&error))?;
        Ok(Copies {
            layout: file,
            files: layout.files(),
            bytes: layout.bytes(Folios::AsIs),
            mthp: Mthp::at(thp_root),
            knobs: Knobs::guarded(thp_root),
            group: None,
            swap: None,
        })
    }

    /// Makes one and does something to it.
    pub fn deed(&mut self, folios: Folios, deed: Deed) -> Result<Done, Skip> {
        if deed == Deed::Out && self.swap.is_none() {
            self.swap = Some(Lent::of(&Thing::Zram { bytes: 2 * self.bytes.max(TABLE_SPAN) })?);
        }
        if deed == Deed::Reclaim && self.group.is_none() {
            let name = format!("vellum-{}", std::process::id());
            self.group = Some((Lent::of(&Thing::Group { name: name.clone() })?, name));
        }
        let memory = |error: rustix::io::Errno| Skip::system("memfd_create", error);
        // It outlives the copy, as what stands behind VMAs outlives a process.
        let files = memfd_create("vellum-copy", MemfdFlags::CLOEXEC).map_err(memory)?;
        ftruncate(&files, self.files).map_err(memory)?;
        let (stamp, stamped) = Stamp::new().map_err(memory)?;
        let path = |file: &dyn std::os::fd::AsFd| path_for_helper(&file.as_fd()).display().to_string();
        let mut args = vec![
            "copy".to_owned(),
            format!("--layout={}", path(&self.layout)),
            format!("--files={}", path(&files)),
            format!("--stamp={}", path(&stamped)),
            format!("--deed={}", deed.word()),
        ];
        if let Folios::Of(kib) = folios {
            args.push(format!("--folio-kib={kib}"));
        }
        if let (Deed::Reclaim, Some((_, name))) = (deed, &self.group) {
            args.push(format!("--group={name}"));
        }
        let mut helper = Helper::start(&args)?;
        let (resident, tables) = loop {
            match helper.hear()? {
                Message::Wants { folio_kib } => {
                    let _ = std::fs::write(COMPACT, "1");
                    let wanted = self.mthp.plan(&Case { bytes: TABLE_SPAN, folio_kib, huge: false })?;
                    let settings = self.knobs.apply(&wanted)?;
                    helper.nod()?;
                    match helper.hear()? {
                        Message::Touched { .. } => settings.restore()?,
                        other => return Err(Skip::Child(format!("said {other:?}"))),
                    }
                }
                Message::Copied { resident, tables } => break (resident, tables),
                other => return Err(Skip::Child(format!("said {other:?}"))),
            }
        };
        let ns = match deed {
            Deed::Exit => helper.go_and_wait().map(|()| stamp.since()),
            _ => helper.go().and_then(|()| helper.took()),
        }?;
        Ok(Done { ns, resident, tables })
    }
}

/// What the helper is to do.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The layout, as JSON.
    #[arg(long)]
    layout: PathBuf,
    /// What stands behind VMAs that are not anonymous, one after the other.
    #[arg(long)]
    files: PathBuf,
    /// Where the time is noted when it ends.
    #[arg(long)]
    stamp: PathBuf,
    /// What to do.
    #[arg(long, value_enum)]
    deed: Deed,
    /// The folios to have, instead of those of the layout.
    #[arg(long)]
    folio_kib: Option<u32>,
    /// Its group.
    #[arg(long)]
    group: Option<String>,
}

/// The helper's life.
pub fn live(args: &Args) -> anyhow::Result<()> {
    if let Some(group) = &args.group {
        group::join(group)?;
    }
    let stamp = Stamp::open(&File::options().read(true).write(true).open(&args.stamp)?)?;
    let files = File::options().read(true).write(true).open(&args.files)?;
    let layout: Layout = serde_json::from_slice(&std::fs::read(&args.layout)?)?;
    let folios = args.folio_kib.map_or(Folios::AsIs, Folios::Of);
    let before = memory()?;
    let copy = Copy::map(&layout, &files)?;
    for size in layout.sizes(folios) {
        // Without leave: no folio of this process is large.
        rustix::thread::disable_transparent_huge_pages(size <= 4)?;
        if size > 4 && layout.runs().any(|(vma, run)| vma.folio(run, folios) == size && !vma.is_huge(run, folios)) {
            say(Message::Wants { folio_kib: size })?;
            if !told_to_go_on()? {
                return Ok(());
            }
            copy.fill(size, folios, args.deed)?;
            say(Message::Touched { ns: 0, fallback: 0.0 })?;
        } else {
            copy.fill(size, folios, args.deed)?;
        }
    }
    let (resident, tables) = memory()?;
    say(Message::Copied { resident: resident.saturating_sub(before.0), tables: tables.saturating_sub(before.1) })?;
    if !told_to_go_on()? {
        return Ok(());
    }
    let ns = match args.deed {
        Deed::Exit => stamp.exit(),
        Deed::Munmap => copy.unmap()?,
        Deed::Fork => fork::timed()?,
        Deed::Out => copy.page_out()?,
        Deed::Reclaim => copy.reclaim(args.group.as_deref().unwrap_or_default())?,
    };
    say(Message::Took { ns })
}

fn told_to_go_on() -> std::io::Result<bool> {
    Ok(std::io::stdin().read(&mut [0])? == 1)
}

/// What this process has in memory, and of page tables.
fn memory() -> anyhow::Result<(u64, u64)> {
    let status = Process::myself()?.status()?;
    Ok((status.vmrss.unwrap_or(0) << 10, status.vmpte.unwrap_or(0) << 10))
}

/// A layout, mapped. It is never unmapped but as the last thing that is done to it.
struct Copy<'a> {
    layout: &'a Layout,
    /// Where its address 0 is.
    base: u64,
}

impl<'a> Copy<'a> {
    /// Maps its VMAs.
    fn map(layout: &'a Layout, files: &File) -> anyhow::Result<Self> {
        let len = (layout.end() + ALIGN) as usize;
        // SAFETY: no address is asked for, so that nothing that exists is replaced; and it goes
        // again at once: this process has one thread, so nobody takes what is free meanwhile.
        let base = unsafe {
            let found = mmap_anonymous(null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)?;
            munmap(found, len)?;
            (found as u64).next_multiple_of(ALIGN)
        };
        let copy = Copy { layout, base };
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let mut offset = 0;
        for (n, vma) in layout.vmas.iter().enumerate() {
            let (at, len) = (copy.at(vma.start), (vma.end - vma.start) as usize);
            let flags = MapFlags::FIXED_NOREPLACE | MapFlags::NORESERVE;
            // SAFETY: nothing is replaced.
            unsafe {
                match vma.backing {
                    Backing::Anonymous => mmap_anonymous(at, len, rights, flags | MapFlags::PRIVATE)?,
                    Backing::Private => mmap(at, len, rights, flags | MapFlags::PRIVATE, files, offset)?,
                    Backing::Shared => mmap(at, len, rights, flags | MapFlags::SHARED, files, offset)?,
                }
            };
            offset += if vma.backing == Backing::Anonymous { 0 } else { len as u64 };
            if n % 2 == 1 {
                // SAFETY: a mark of the VMA, that keeps apart what would become one.
                unsafe { madvise(at, len, Advice::LinuxDontDump)? };
            }
        }
        Ok(copy)
    }

    /// Where an address of the layout is here.
    fn at(&self, address: u64) -> *mut c_void {
        without_provenance_mut((self.base + address) as usize)
    }

    /// Touches what is in folios of a size.
    fn fill(&self, size: u32, folios: Folios, deed: Deed) -> anyhow::Result<()> {
        for (vma, run) in self.layout.runs().filter(|(vma, run)| vma.folio(run, folios) == size) {
            if vma.is_huge(run, folios) {
                self.fill_huge(vma, run, deed)?;
                continue;
            }
            self.touch(run, deed)?;
            if size == 2048 {
                for start in tables_in(run.start, run.end) {
                    // One page with other rights needs an entry for each page.
                    for rights in [MprotectFlags::READ, MprotectFlags::READ | MprotectFlags::WRITE] {
                        // SAFETY: a page of the copy, to which no reference exists.
                        unsafe { mprotect(self.at(start), PAGE as usize, rights)? };
                    }
                }
            }
        }
        Ok(())
    }

    /// Has whole tables' spans mapped huge, as far as the VMA goes that far. That needs no setting,
    /// and nobody's leave.
    fn fill_huge(&self, vma: &Vma, run: &Run, deed: Deed) -> anyhow::Result<()> {
        for start in (run.start / TABLE_SPAN * TABLE_SPAN..run.end).step_by(TABLE_SPAN as usize) {
            let inside = vma.start <= start && start + TABLE_SPAN <= vma.end;
            let (from, to) = if inside { (start, start + TABLE_SPAN) } else { (run.start.max(start), run.end) };
            let to = to.min(start + TABLE_SPAN);
            self.touch(&Run { start: from, end: if inside { from + PAGE } else { to }, what: What::Huge }, deed)?;
            if inside {
                // SAFETY: changes no contents. Where no memory is found that is contiguous, pages
                // stay small.
                unsafe { libc::madvise(self.at(start), TABLE_SPAN as usize, libc::MADV_COLLAPSE) };
            }
            if deed == Deed::Out {
                self.touch(&Run { start: from, end: to, what: What::Huge }, deed)?;
            }
        }
        Ok(())
    }

    /// Touches each page as it has to be.
    fn touch(&self, run: &Run, deed: Deed) -> anyhow::Result<()> {
        for address in (run.start..run.end).step_by(PAGE as usize) {
            let at = self.at(address);
            // SAFETY: a page of the copy, which is mapped and writable, and to whose contents there
            // is no reference. Volatile, since nobody ever reads what is written.
            unsafe {
                match run.what {
                    What::Zero | What::File => drop(at.cast::<u8>().read_volatile()),
                    What::Table => {
                        at.cast::<u8>().write_volatile(1);
                        madvise(at, PAGE as usize, Advice::LinuxDontNeed)?;
                        break;
                    }
                    _ if deed == Deed::Out => at.cast::<Page>().write_volatile(Data::Compressible.page(address / PAGE)),
                    _ => at.cast::<u8>().write_volatile(1),
                }
            }
        }
        Ok(())
    }

    /// VMAs of anonymous memory.
    fn anonymous(&self) -> impl Iterator<Item = (*mut c_void, usize)> {
        let anonymous = self.layout.vmas.iter().filter(|vma| vma.backing == Backing::Anonymous);
        anonymous.map(|vma| (self.at(vma.start), (vma.end - vma.start) as usize))
    }

    /// Pages of anonymous memory that are there.
    fn present(&self) -> anyhow::Result<u64> {
        let mut present = 0;
        for (vma, run) in self.layout.runs() {
            if vma.backing == Backing::Anonymous && run.is_anonymous() {
                let mut pages = vec![0u8; ((run.end - run.start) / PAGE) as usize];
                // SAFETY: a byte a page is written to the array, which has so many.
                let asked =
                    unsafe { libc::mincore(self.at(run.start), (run.end - run.start) as usize, pages.as_mut_ptr()) };
                anyhow::ensure!(asked == 0, "mincore: {}", std::io::Error::last_os_error());
                present += pages.iter().filter(|&&page| page & 1 == 1).count() as u64;
            }
        }
        Ok(present)
    }

    fn unmap(&self) -> anyhow::Result<u64> {
        let start = now_ns();
        for vma in &self.layout.vmas {
            // SAFETY: the copy is this process's own, and no reference to it exists.
            unsafe { munmap(self.at(vma.start), (vma.end - vma.start) as usize)? };
        }
        Ok(now_ns() - start)
    }

    fn page_out(&self) -> anyhow::Result<u64> {
        self.until_gone(|_| {
            for (at, len) in self.anonymous() {
                // SAFETY: the advice changes no contents.
                unsafe { madvise(at, len, Advice::LinuxPageOut)? };
            }
            Ok(())
        })
    }

    fn reclaim(&self, group: &str) -> anyhow::Result<u64> {
        for (at, len) in self.anonymous() {
            // SAFETY: contents of which nobody has a reference, and that nobody reads again.
            unsafe { madvise(at, len, Advice::LinuxFree)? };
        }
        self.until_gone(|left| group::reclaim(group, left * PAGE))
    }

    /// Has anonymous memory go, which some of it may refuse at first; nanoseconds.
    fn until_gone(&self, go: impl Fn(u64) -> anyhow::Result<()>) -> anyhow::Result<u64> {
        let all = self.present()?;
        let (mut ns, mut left) = (0, all);
        for _ in 0..TRIES {
            let start = now_ns();
            go(left)?;
            ns += now_ns() - start;
            left = self.present()?;
            if left == 0 {
                break;
            }
        }
        // Single pages that somebody else is looking at do not matter.
        anyhow::ensure!(left <= all / 1000, "{left} of {all} pages stayed in memory");
        Ok(ns)
    }
}
