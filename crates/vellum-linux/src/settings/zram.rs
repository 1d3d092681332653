//! A zram swap device for a benchmark, with the engine's compression algorithm.
//!
//! While the device exists, the kernel swaps out pages of any process to it first; its removal
//! swaps them in. zswap is disabled for as long as the device exists, because zswap would keep the
//! measured pages from the device.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::knobs;
use crate::Skip;
use crate::workload::case::PAGE;

/// The directory in which devices are added and removed.
const CONTROL: &str = "/sys/class/zram-control";
const ZSWAP: &str = "/sys/module/zswap/parameters/enabled";
/// The most attempts to remove the device, which fail while it is busy.
const TRIES: usize = 200;

/// Checks that a device can be made.
///
/// # Errors
/// The kernel has no zram, or this user may not set it up.
pub fn available() -> Result<(), Skip> {
    available_in(Path::new(CONTROL), rustix::process::geteuid().is_root())
}

fn available_in(control: &Path, root: bool) -> Result<(), Skip> {
    if !control.join("hot_add").exists() {
        return Err(Skip::Missing("compressed swap devices (zram)"));
    }
    if root { Ok(()) } else { Err(Skip::NotRoot("set up a swap device")) }
}

/// A zram device in use. Dropping it removes it.
pub struct Zram {
    number: u32,
    swapped_on: bool,
    zswap: Option<String>,
}

impl Zram {
    /// Sets up a device of `bytes`, with the highest swap priority.
    ///
    /// # Errors
    /// A step of the setup failed; the device is removed.
    pub fn set_up(bytes: u64) -> anyhow::Result<Zram> {
        let number = fs::read_to_string(format!("{CONTROL}/hot_add")).context("no new zram device")?;
        let number = number.trim().parse().context("the number of a new zram device")?;
        // From here on, dropping `zram` removes the device, whichever step fails.
        let mut zram = Zram { number, swapped_on: false, zswap: None };
        zram.write("comp_algorithm", "lz4")?;
        zram.write("disksize", &bytes.to_string())?;
        zram.make_swap(bytes)?;
        let was = knobs::read(Path::new(ZSWAP)).ok().filter(|enabled| enabled != "N");
        if was.is_some() {
            fs::write(ZSWAP, "N").context(ZSWAP)?;
            zram.zswap = was;
        }
        zram.swap_on()?;
        Ok(zram)
    }

    fn device(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }

    fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = format!("/sys/block/zram{}/{file}", self.number);
        fs::write(&path, value).with_context(|| format!("'{value}' to {path}"))
    }

    /// Writes the header of a swap area to the device's first page.
    fn make_swap(&self, bytes: u64) -> anyhow::Result<()> {
        const HEADER: u64 = 1024;
        const SIGNATURE: &[u8] = b"SWAPSPACE2";
        let (version, last_page) = (1u32, (bytes / PAGE - 1) as u32);
        let path = self.device();
        let device = File::options().write(true).open(&path).with_context(|| path.display().to_string())?;
        device.write_all_at(&version.to_ne_bytes(), HEADER)?;
        device.write_all_at(&last_page.to_ne_bytes(), HEADER + 4)?;
        device.write_all_at(SIGNATURE, PAGE - SIGNATURE.len() as u64)?;
        Ok(device.sync_all()?)
    }

    fn swap_on(&mut self) -> anyhow::Result<()> {
        const PREFER: i32 = 0x8000;
        const HIGHEST: i32 = 0x7fff;
        let path = CString::new(self.device().into_os_string().into_encoded_bytes())?;
        // SAFETY: the pointer is to a zero-terminated path that lives until the call returns.
        let failed = unsafe { libc::swapon(path.as_ptr(), PREFER | HIGHEST) } != 0;
        ensure!(!failed, "swapon: {}", std::io::Error::last_os_error());
        self.swapped_on = true;
        Ok(())
    }

    fn swap_off(&mut self) -> anyhow::Result<()> {
        let path = CString::new(self.device().into_os_string().into_encoded_bytes())?;
        // SAFETY: the pointer is to a zero-terminated path that lives until the call returns.
        let failed = self.swapped_on && unsafe { libc::swapoff(path.as_ptr()) } != 0;
        ensure!(!failed, "swapoff: {}", std::io::Error::last_os_error());
        self.swapped_on = false;
        Ok(())
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        self.swap_off()?;
        self.write("reset", "1")?;
        fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string()).context("hot_remove")
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let mut result = Ok(());
        for _ in 0..TRIES {
            result = self.remove();
            if result.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(was) = &self.zswap {
            result = result.and(fs::write(ZSWAP, was).context(ZSWAP));
        }
        if let Err(error) = result {
            // Ignore an error: the reader of standard error may be gone.
            let _ = writeln!(std::io::stderr(), "{} could not be removed: {error:#}", self.device().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_for_no_device_is_returned() {
        let control = tempfile::tempdir().unwrap();
        assert!(matches!(available_in(control.path(), true), Err(Skip::Missing(_))));
        fs::write(control.path().join("hot_add"), "").unwrap();
        assert!(matches!(available_in(control.path(), false), Err(Skip::NotRoot(_))));
        assert_eq!(available_in(control.path(), true), Ok(()));
    }
}
