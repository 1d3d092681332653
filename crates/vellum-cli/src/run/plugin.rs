//! The plugin with which QEMU counts a kernel's instructions by cause (`vellum-count`).

use super::arch::Arch;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use vellum_count::plugin::PROBED;
use vellum_count::roles::Roles;
use vellum_count::tally::Tally;

/// The plugin's file, beside this command.
const FILE: &str = "libvellum_count.so";

/// The plugin, for one kernel.
pub struct Plugin {
    file: PathBuf,
    roles: Roles,
    profiles: bool,
}

impl Plugin {
    /// Returns the plugin for a kernel with these roles.
    ///
    /// # Errors
    /// The plugin is not there, or this machine's QEMU can't load it.
    pub fn new(arch: Arch, roles: Roles) -> anyhow::Result<Self> {
        let command = std::env::current_exe().context("finding this command's path")?;
        let file = command.parent().context("this command's path has no folder")?.join(FILE);
        if !file.is_file() {
            bail!("{} is missing: `cargo build -p vellum-count` makes it", file.display());
        }
        let [qemu, _] = arch.qemu();
        let mut probe = Command::new(qemu);
        probe.args(["-machine", "none", "-nodefaults", "-display", "none", "-plugin"]);
        probe.arg(argument(&file, &[("probe", Path::new("on"))])).stdin(Stdio::null());
        let probed = probe.output().with_context(|| format!("starting {qemu}"))?;
        if probed.status.code() != Some(PROBED) {
            let message = String::from_utf8_lossy(&probed.stderr);
            bail!("{qemu} can't load {}: {}", file.display(), message.trim());
        }
        Ok(Self { file, roles, profiles: false })
    }

    /// Makes the plugin count the executions of each instruction, too ([`profile`]).
    #[must_use]
    pub fn profiling(self, profiles: bool) -> Self {
        Self { profiles, ..self }
    }

    /// Adds the plugin to QEMU's arguments. Its files are in `folder`.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn add_to(&self, qemu: &mut Command, folder: &Path) -> anyhow::Result<()> {
        let [roles, out, profile] = files(folder);
        fs::write(&roles, self.roles.to_string()).context("writing the kernel's roles")?;
        let values = [("roles", &*roles), ("out", &out), ("profile", &profile)];
        let count = if self.profiles { 3 } else { 2 };
        qemu.arg("-plugin").arg(argument(&self.file, &values[..count]));
        Ok(())
    }
}

/// Returns what the plugin counted, once QEMU has ended.
///
/// # Errors
/// There are no counts, or they are not of the whole run.
pub fn tally(folder: &Path) -> anyhow::Result<Tally> {
    let [_, out, _] = files(folder);
    let text = fs::read_to_string(out).context("QEMU's plugin left no counts")?;
    match Tally::parse(&text) {
        Ok(tally) if tally.complete => Ok(tally),
        Ok(_) => bail!("the plugin did not see the program's end"),
        Err(line) => bail!("the plugin wrote a line that is no count: {line}"),
    }
}

/// Returns the executions by instruction, in the text form of
/// [`Profile`](vellum_count::profile::Profile), once QEMU has ended; `None` if they were not
/// counted.
pub fn profile(folder: &Path) -> Option<String> {
    let [_, _, profile] = files(folder);
    fs::read_to_string(profile).ok()
}

fn files(folder: &Path) -> [PathBuf; 3] {
    ["roles", "tally", "profile"].map(|name| folder.join(name))
}

/// Returns the argument of `-plugin`, in which a comma of a value is doubled.
fn argument(file: &Path, values: &[(&str, &Path)]) -> String {
    let doubled = |path: &Path| path.display().to_string().replace(',', ",,");
    let values = values.iter().map(|(key, value)| format!(",{key}={}", doubled(value)));
    format!("file={}{}", doubled(file), values.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_are_doubled() {
        let argument = argument(Path::new("/a,b/c.so"), &[("roles", Path::new("/tmp/r"))]);
        assert_eq!(argument, "file=/a,,b/c.so,roles=/tmp/r");
    }

    #[test]
    fn counts_of_a_part_of_the_run_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(tally(folder.path()).unwrap_err().to_string().contains("left no counts"));
        let write = |text| fs::write(folder.path().join("tally"), text).unwrap();
        write("1 20 read\n");
        assert!(tally(folder.path()).unwrap_err().to_string().contains("end"));
        write("1 20 read\ncomplete\n");
        assert!(tally(folder.path()).unwrap().complete);
        write("read\n");
        assert!(tally(folder.path()).unwrap_err().to_string().contains("read"));
    }
}
