//! zram devices for a benchmark: block devices in memory, of which one can be swap.
//!
//! While a swap device exists, the kernel swaps out pages of any process to it first; its removal
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
        return Err(Skip::Missing("compressed block devices (zram)"));
    }
    if root { Ok(()) } else { Err(Skip::NotRoot("set up a block device in memory")) }
}

/// A zram device with the engine's compression algorithm.
pub struct Device {
    number: u32,
}

impl Device {
    /// Adds a device of `bytes`.
    ///
    /// # Errors
    /// A step failed; the device is removed.
    pub fn add(bytes: u64) -> anyhow::Result<Device> {
        let number = fs::read_to_string(format!("{CONTROL}/hot_add")).context("no new zram device")?;
        let device = Device { number: number.trim().parse().context("the number of a new zram device")? };
        let made = device.write("comp_algorithm", "lz4").and_then(|()| device.write("disksize", &bytes.to_string()));
        if made.is_err() {
            device.remove_after(|| Ok(()));
        }
        made.map(|()| device)
    }

    /// Returns the device's file.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/zram{}", self.number))
    }

    /// Writes to a setting of the device.
    ///
    /// # Errors
    /// The setting can't be written.
    pub fn write(&self, file: &str, value: &str) -> anyhow::Result<()> {
        let path = format!("/sys/block/zram{}/{file}", self.number);
        fs::write(&path, value).with_context(|| format!("'{value}' to {path}"))
    }

    /// Removes the device once `release`, which ends its use, and the removal have succeeded; tries
    /// both again while the device is busy. Writes a failure to standard error.
    pub fn remove_after(&self, mut release: impl FnMut() -> anyhow::Result<()>) {
        let mut result = Ok(());
        for _ in 0..TRIES {
            result = release().and_then(|()| self.remove());
            if result.is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Err(error) = result {
            // Ignore an error: the reader of standard error may be gone.
            let _ = writeln!(std::io::stderr(), "{} could not be removed: {error:#}", self.path().display());
        }
    }

    fn remove(&self) -> anyhow::Result<()> {
        self.write("reset", "1")?;
        fs::write(format!("{CONTROL}/hot_remove"), self.number.to_string()).context("hot_remove")
    }
}

/// A zram device that is swap. Dropping it removes it.
pub struct Swap {
    device: Device,
    swapped_on: bool,
    zswap: Option<String>,
}

impl Swap {
    /// Sets up a device of `bytes`, with the highest swap priority.
    ///
    /// # Errors
    /// A step of the setup failed; the device is removed.
    pub fn set_up(bytes: u64) -> anyhow::Result<Swap> {
        // From here on, dropping `swap` removes the device, whichever step fails.
        let mut swap = Swap { device: Device::add(bytes)?, swapped_on: false, zswap: None };
        swap.make_swap(bytes)?;
        let was = knobs::read(Path::new(ZSWAP)).ok().filter(|enabled| enabled != "N");
        if was.is_some() {
            fs::write(ZSWAP, "N").context(ZSWAP)?;
            swap.zswap = was;
        }
        swap.swap_on()?;
        Ok(swap)
    }

    /// Writes the header of a swap area to the device's first page.
    fn make_swap(&self, bytes: u64) -> anyhow::Result<()> {
        const HEADER: u64 = 1024;
        const SIGNATURE: &[u8] = b"SWAPSPACE2";
        let (version, last_page) = (1u32, (bytes / PAGE - 1) as u32);
        let path = self.device.path();
        let device = File::options().write(true).open(&path).with_context(|| path.display().to_string())?;
        device.write_all_at(&version.to_ne_bytes(), HEADER)?;
        device.write_all_at(&last_page.to_ne_bytes(), HEADER + 4)?;
        device.write_all_at(SIGNATURE, PAGE - SIGNATURE.len() as u64)?;
        Ok(device.sync_all()?)
    }

    fn swap_on(&mut self) -> anyhow::Result<()> {
        const PREFER: i32 = 0x8000;
        const HIGHEST: i32 = 0x7fff;
        let path = CString::new(self.device.path().into_os_string().into_encoded_bytes())?;
        // SAFETY: the pointer is to a zero-terminated path that lives until the call returns.
        let failed = unsafe { libc::swapon(path.as_ptr(), PREFER | HIGHEST) } != 0;
        ensure!(!failed, "swapon: {}", std::io::Error::last_os_error());
        self.swapped_on = true;
        Ok(())
    }

    fn swap_off(&self) -> anyhow::Result<()> {
        let path = CString::new(self.device.path().into_os_string().into_encoded_bytes())?;
        // SAFETY: the pointer is to a zero-terminated path that lives until the call returns.
        let failed = unsafe { libc::swapoff(path.as_ptr()) } != 0;
        ensure!(!failed, "swapoff: {}", std::io::Error::last_os_error());
        Ok(())
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let mut swapped_on = self.swapped_on;
        self.device.remove_after(|| {
            if swapped_on {
                self.swap_off()?;
                swapped_on = false;
            }
            Ok(())
        });
        if let Some(was) = &self.zswap
            && let Err(error) = fs::write(ZSWAP, was)
        {
            // Ignore an error: the reader of standard error may be gone.
            let _ = writeln!(std::io::stderr(), "{ZSWAP} could not be restored: {error}");
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
