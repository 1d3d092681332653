//! Reads whether the kernel reports free memory to a hypervisor, and how much it reported.
//!
//! The hypervisor takes reported memory back. The kernel's next touch of it faults in the
//! hypervisor, which finds memory and zeroes it: that is in the kernel's times, and not in those of
//! an engine whose simulated memory stays in place.
//!
//! This module changes nothing. How a virtual machine returns memory is for the machine's owner to
//! decide, because others use what it returns. Linux: `mm/page_reporting.c`.

use std::path::{Path, PathBuf};

/// The most memory that may be reported during a measurement without a warning.
const MOST: u64 = 64 << 20;

/// The reporting of a kernel.
pub struct PageReporting {
    /// The parameters of the kernel's module.
    parameters: PathBuf,
    /// The bytes that were reported when this value was made. `None` if the kernel doesn't count
    /// them.
    before: Option<u64>,
}

impl PageReporting {
    /// Reads the state of the kernel whose sysfs is at `sys`.
    pub fn at(sys: &Path) -> PageReporting {
        let parameters = sys.join("module/page_reporting/parameters");
        let before = reported(&parameters);
        PageReporting { parameters, before }
    }

    /// Returns which free memory the kernel reports, for a reader.
    pub fn state(&self) -> String {
        match number(&self.parameters.join("page_reporting_order")) {
            // Linux 5.7 to 5.13 reports without this parameter.
            None => "none, or the kernel does not tell".to_owned(),
            // The order is -1 until a device asks for reports.
            Some(..0) => "none".to_owned(),
            Some(order) => format!("on, of free blocks of order {order} and more"),
        }
    }

    /// Returns the bytes reported since this value was made, of the whole machine. `None` if the
    /// kernel doesn't count them.
    pub fn reported_since(&self) -> Option<u64> {
        reported(&self.parameters)?.checked_sub(self.before?)
    }

    /// Returns a warning if the kernel reported so much since this value was made that its times
    /// are in doubt.
    pub fn warning(&self) -> Option<String> {
        let bytes = self.reported_since().filter(|bytes| *bytes > MOST)?;
        Some(format!(
            "The kernel reported {} MiB of free memory to the hypervisor during the run (page reporting). Linux's next \
             touch of that memory includes the hypervisor's work; the engine's memory stays in place. Benchmarks of \
             regions and of threads have Linux touch and free as much memory as a step allocates, before they time it. \
             The times of other steps favour the engine.",
            bytes >> 20
        ))
    }
}

/// Returns the bytes that were reported since boot. Only some kernels count them.
fn reported(parameters: &Path) -> Option<u64> {
    u64::try_from(number(&parameters.join("reported_kib"))?).ok()?.checked_mul(1024)
}

fn number(path: &Path) -> Option<i64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a sysfs with these parameters of page reporting.
    fn sys(parameters: &[(&str, &str)]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let folder = sys.path().join("module/page_reporting/parameters");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, value) in parameters {
            std::fs::write(folder.join(name), format!("{value}\n")).unwrap();
        }
        sys
    }

    #[test]
    fn without_a_device_nothing_is_reported() {
        let state = |parameters: &[(&str, &str)]| PageReporting::at(sys(parameters).path()).state();
        assert_eq!(state(&[]), "none, or the kernel does not tell");
        assert_eq!(state(&[("page_reporting_order", "-1")]), "none");
        assert_eq!(state(&[("page_reporting_order", "9")]), "on, of free blocks of order 9 and more");
    }

    #[test]
    fn more_than_64_mib_reported_during_a_measurement_is_a_warning() {
        let sys = sys(&[("page_reporting_order", "9"), ("reported_kib", "1000000")]);
        let reporting = PageReporting::at(sys.path());
        let set = |kib: u64| {
            let file = sys.path().join("module/page_reporting/parameters/reported_kib");
            std::fs::write(file, format!("{kib}\n")).unwrap();
        };
        assert_eq!((reporting.reported_since(), reporting.warning()), (Some(0), None));
        set(1_000_000 + (64 << 10));
        assert_eq!((reporting.reported_since(), reporting.warning()), (Some(64 << 20), None));
        set(1_000_000 + (65 << 10));
        assert!(reporting.warning().unwrap().contains("reported 65 MiB"));
    }

    #[test]
    fn a_kernel_that_does_not_count_gives_no_warning() {
        let reporting = PageReporting::at(sys(&[("page_reporting_order", "9")]).path());
        assert_eq!((reporting.reported_since(), reporting.warning()), (None, None));
    }
}
