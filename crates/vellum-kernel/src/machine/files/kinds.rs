//! Mounts file systems by type, and sets up those that exist from boot.

use super::contents::HUGE_PAGE;
use super::root::Roots;
use super::stream;
use super::{HUGE, Host, begin, cgroupfs, ext4, proc, sys, terminals, uffd};
use crate::arch::random::random;
use crate::mem::storage_task;
use crate::task::time;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vellum::frame::policy::{ShmemFolios, ShmemKnob};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::cgroup::parse_amount;
use vellum_kernel::fs::device::{Full, Null, Random, Zero, number};
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::names::{Mount, View};
use vellum_kernel::fs::tree::Tree;
use vellum_kernel::fs::{FileCredentials, Inode, Kind, Namespace};
use vellum_kernel::parse;

/// Sets up the devices in the root file system, and the file systems of the kernel.
///
/// # Errors
///
/// Memory is short; those of reading the root file system.
pub fn init(roots: Roots) -> Result<(), Errno> {
    let above: Arc<dyn Inode> = roots.root.clone();
    let names = Namespace::default();
    let cred = FileCredentials::root();
    let view = View { names: &names, root: &above, current: &above, cred: &cred };
    let make = |path, mode| match view.make(path, Kind::Directory, mode, Default::default(), &[]) {
        Err(Errno::EEXIST) => view.set_mode(&*view.get(path, true)?, mode),
        made => made,
    };
    make(b"/dev", 0o755)?;
    if !Arc::ptr_eq(&roots.root, &roots.memory) {
        // The host's device files are not those of this machine.
        let (source, on, kind): (&[u8], &[u8], &[u8]) = (b"tmpfs", b"/dev", b"tmpfs");
        mount(&view, &Mounting { source, on, kind, options: b"mode=755", read_only: false })?;
    }
    let directories: [(&[u8], u32); 5] =
        [(b"/dev/shm", 0o1777), (b"/dev/pts", 0o755), (b"/tmp", 0o1777), (b"/proc", 0o755), (b"/sys", 0o755)];
    directories.iter().try_for_each(|(path, mode)| make(path, *mode))?;
    let device = || Random(Box::new(|to: &mut [u8]| to.fill_with(|| random() as u8)));
    let devices: [(&[u8], Device, Arc<dyn vellum_kernel::fs::File>); 5] = [
        (b"/dev/null", number::NULL, Arc::new(Null)),
        (b"/dev/zero", number::ZERO, Arc::new(Zero)),
        (b"/dev/full", number::FULL, Arc::new(Full)),
        (b"/dev/random", number::RANDOM, Arc::new(device())),
        (b"/dev/urandom", number::URANDOM, Arc::new(device())),
    ];
    for (path, number, file) in devices {
        view.make(path, Kind::Char, 0o666, number, &[])?;
        names.add_device(number, file)?;
    }
    // Only processes that may open the file may create a userfaultfd for faults of the kernel.
    view.make(b"/dev/userfaultfd", Kind::Char, 0o600, number::USERFAULTFD, &[])?;
    names.add_device(number::USERFAULTFD, Arc::new(uffd::Factory))?;
    terminals::add_drivers(&names)?;
    let terminals: [(&[u8], Device, u32); 3] = [
        (b"/dev/tty", number::TTY, 0o666),
        (b"/dev/ptmx", number::PTMX, 0o666),
        (b"/dev/console", number::CONSOLE, 0o600),
    ];
    terminals.iter().try_for_each(|(path, number, mode)| view.make(path, Kind::Char, *mode, *number, &[]))?;
    let links: [(&[u8], &[u8]); 4] = [
        (b"/dev/fd", b"/proc/self/fd"),
        (b"/dev/stdin", b"/proc/self/fd/0"),
        (b"/dev/stdout", b"/proc/self/fd/1"),
        (b"/dev/stderr", b"/proc/self/fd/2"),
    ];
    links.iter().try_for_each(|(path, target)| view.make(path, Kind::Link, 0o777, Device::default(), target))?;
    mount_first(&view)?;
    time::set_input(|| {
        stream::tell();
        storage_task::look();
    });
    begin(names, roots);
    Ok(())
}

/// Returns the root directory of a file system. A tmpfs is created, with a root of the mode that
/// the options name; the kernel's own file systems exist once.
fn root(view: &View, mounting: &Mounting<'_>) -> Result<(Arc<dyn Inode>, &'static str), Errno> {
    /// The minor number of the next tmpfs.
    static MINORS: AtomicU32 = AtomicU32::new(30);
    match mounting.kind {
        b"ext4" => {
            let file = view.get(mounting.source, true)?;
            Ok((ext4::mount(&file, mounting.read_only)?, "ext4"))
        }
        b"proc" => Ok((proc::root()?, "proc")),
        b"sysfs" => Ok((sys::root()?, "sysfs")),
        b"cgroup2" => Ok((cgroupfs::root()?, "cgroup2")),
        b"devpts" => Ok((terminals::root()?, "devpts")),
        b"tmpfs" => {
            let mode = parse::mount_mode(mounting.options)?.unwrap_or(0o1777);
            let folios = Some(ShmemFolios::Own(tmpfs_folios(mounting.options)?));
            Ok((Tree::root(Arc::new(Host { folios }), MINORS.fetch_add(1, Relaxed), mode), "tmpfs"))
        }
        b"hugetlbfs" => Ok((hugetlbfs(view, mounting.options, MINORS.fetch_add(1, Relaxed))?, "hugetlbfs")),
        _ => Err(Errno::ENODEV),
    }
}

/// Creates a hugetlbfs whose device has this minor number, with the options `mode=`, `uid=`, `gid=`
/// and `pagesize=` of `mount`.
///
/// # Errors
///
/// `EINVAL`: malformed options, or there is no pool of such pages.
fn hugetlbfs(view: &View, options: &[u8], minor: u32) -> Result<Arc<dyn Inode>, Errno> {
    if let Some(size) = parse::mount_option(options, b"pagesize")
        && parse_amount(size)? != Some(HUGE_PAGE)
    {
        return Err(Errno::EINVAL);
    }
    let number = |name| parse::mount_option(options, name).map(parse::number::<u32>).transpose();
    let root = Tree::root(Arc::new(HUGE), minor, parse::mount_mode(options)?.unwrap_or(0o755));
    view.set_owner(&*root, number(b"uid")?, number(b"gid")?)?;
    Ok(root)
}

/// Returns the setting of the folios of a tmpfs in the options of `mount` (`huge=`).
fn tmpfs_folios(options: &[u8]) -> Result<ShmemKnob, Errno> {
    let Some(huge) = parse::mount_option(options, b"huge") else { return Ok(ShmemKnob::Never) };
    let knobs = [ShmemKnob::Never, ShmemKnob::Advise, ShmemKnob::WithinSize, ShmemKnob::Always];
    knobs.into_iter().find(|knob| knob.name().as_bytes() == huge).ok_or(Errno::EINVAL)
}

/// Mounts the file systems that exist from boot.
fn mount_first(view: &View) -> Result<(), Errno> {
    let first: [(&[u8], &[u8]); 4] =
        [(b"proc", b"/proc"), (b"sysfs", b"/sys"), (b"cgroup2", b"/sys/fs/cgroup"), (b"devpts", b"/dev/pts")];
    first
        .iter()
        .try_for_each(|&(kind, on)| mount(view, &Mounting { source: kind, on, kind, options: b"", read_only: false }))
}

/// The arguments of `mount`.
pub struct Mounting<'a> {
    /// The path of a device, or any text for a file system without one.
    pub source: &'a [u8],
    /// The path of the directory.
    pub on: &'a [u8],
    /// The type of the file system.
    pub kind: &'a [u8],
    /// The options of the type, separated by commas.
    pub options: &'a [u8],
    /// Programs may not change it.
    pub read_only: bool,
}

/// Mounts a file system on a directory. Only the options `mode=` and `huge=` of a tmpfs, and those
/// of [`hugetlbfs`], have an effect: memory alone, and the pool of huge pages, limit what is in
/// them.
///
/// # Errors
///
/// `ENODEV`: no such type. `EINVAL`: malformed options. Those of resolving the path and of
/// mounting.
pub fn mount(view: &View, mounting: &Mounting<'_>) -> Result<(), Errno> {
    let on = view.get(mounting.on, true)?;
    let (root, kind) = root(view, mounting)?;
    let mount = Mount { on, root: root.clone(), kind, source: mounting.source.into(), read_only: mounting.read_only };
    // Nothing was written to what can't be mounted here.
    view.names.mount(mount).inspect_err(|_| {
        let _ = ext4::end(root.meta().device);
    })
}
