//! Computes the huge-page settings that give folios of one size.
//!
//! `/sys/kernel/mm/transparent_hugepage/` has a global `enabled` and, since Linux 6.8, one for each
//! folio size. A fault takes the largest enabled size that fits. So the plan enables the wanted
//! size and disables all others. For files in memory it is the same with `shmem_enabled`, by size
//! since Linux 6.11.

use std::path::{Path, PathBuf};

use super::knobs::{self, Change};
use crate::Skip;
use crate::workload::case::Case;

/// The huge-page settings of this machine.
pub struct Mthp {
    root: PathBuf,
    /// The folio sizes of anonymous memory, in KiB.
    sizes: Vec<u32>,
    /// The folio sizes of files in memory, in KiB.
    shmem_sizes: Vec<u32>,
}

impl Mthp {
    /// Reads the sizes that exist below `root`.
    pub fn at(root: &Path) -> Mthp {
        let sizes = |setting: &str| {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            let mut sizes: Vec<u32> = entries
                .filter(|entry| entry.path().join(setting).exists())
                .filter_map(|entry| {
                    entry.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()
                })
                .collect();
            sizes.sort_unstable();
            sizes
        };
        Mthp { root: root.to_owned(), sizes: sizes("enabled"), shmem_sizes: sizes("shmem_enabled") }
    }

    /// Returns the changes after which the case's region gets folios of its size. Leaves out
    /// settings that already have the right value, so that a case that needs no change can be
    /// measured without root.
    ///
    /// # Errors
    /// The kernel lacks the size, or a setting can't be read.
    pub fn plan(&self, case: &Case) -> Result<Vec<Change>, Skip> {
        if case.mapping.is_file() { self.plan_of_file(case) } else { self.plan_of_anonymous(case) }
    }

    fn plan_of_file(&self, case: &Case) -> Result<Vec<Change>, Skip> {
        let (small, path) = (case.folio_kib == 4, self.root.join("shmem_enabled"));
        if !small && !self.shmem_sizes.contains(&case.folio_kib) {
            return Err(Skip::NoFileFolio(case.folio_kib));
        }
        let mut changes = Vec::new();
        let global = if path.exists() { value(&path)? } else { "never".to_owned() };
        let global_on = matches!(global.as_str(), "always" | "within_size" | "force");
        // `force` and `deny` override the settings of the sizes.
        if matches!(global.as_str(), "force" | "deny") || self.shmem_sizes.is_empty() && global_on {
            changes.push(Change { path, value: "never".into() });
        }
        for &kib in &self.shmem_sizes {
            let path = self.root.join(format!("hugepages-{kib}kB/shmem_enabled"));
            let on = match value(&path)?.as_str() {
                "always" => true,
                // Not enough for the wanted size, too much for the others.
                "within_size" => kib != case.folio_kib,
                "inherit" => global_on,
                _ => false,
            };
            want(&mut changes, path, kib == case.folio_kib, on);
        }
        self.compact_at_faults(small, &mut changes)?;
        Ok(changes)
    }

    fn plan_of_anonymous(&self, case: &Case) -> Result<Vec<Change>, Skip> {
        let (small, global) = (case.folio_kib == 4, self.root.join("enabled"));
        if !global.exists() {
            // A kernel without these settings has only 4 KiB folios.
            return if small { Ok(Vec::new()) } else { Err(Skip::NoThp) };
        }
        let known = if self.sizes.is_empty() { case.folio_kib == 2048 } else { self.sizes.contains(&case.folio_kib) };
        if !small && !known {
            return Err(Skip::NoFolio(case.folio_kib));
        }
        let mut changes = Vec::new();
        // The setting's value `madvise` counts as off: the benchmark does not call
        // `madvise(MADV_HUGEPAGE)` on its regions.
        let global_on = value(&global)? == "always";
        if self.sizes.is_empty() {
            want(&mut changes, global, !small, global_on);
        } else {
            for &kib in &self.sizes {
                let path = self.root.join(format!("hugepages-{kib}kB/enabled"));
                let on = match value(&path)?.as_str() {
                    "always" => true,
                    "inherit" => global_on,
                    _ => false,
                };
                want(&mut changes, path, kib == case.folio_kib, on);
            }
        }
        self.compact_at_faults(small, &mut changes)?;
        Ok(changes)
    }

    /// Appends the change after which a fault that finds no contiguous memory compacts memory
    /// before it falls back to small folios.
    fn compact_at_faults(&self, small: bool, changes: &mut Vec<Change>) -> Result<(), Skip> {
        let defrag = self.root.join("defrag");
        if !small && value(&defrag)? != "always" {
            changes.push(Change { path: defrag, value: "always".into() });
        }
        Ok(())
    }
}

/// Appends the change that enables or disables the size of the setting `path`, unless `is`, its
/// current state, equals `want`.
fn want(changes: &mut Vec<Change>, path: PathBuf, want: bool, is: bool) {
    if want != is {
        changes.push(Change { path, value: if want { "always" } else { "never" }.into() });
    }
}

fn value(path: &Path) -> Result<String, Skip> {
    knobs::read(path).map_err(|error| Skip::Setting { path: path.to_owned(), error: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::mapping::Mapping;

    /// Makes a directory like sysfs's from (file, contents).
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, contents) in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, contents).unwrap();
        }
        root
    }

    const USUAL: &[(&str, &str)] = &[
        ("enabled", "always [madvise] never"),
        ("defrag", "always defer defer+madvise [madvise] never"),
        ("hugepages-8kB/stats/shmem_alloc", "0"),
        ("hugepages-64kB/enabled", "always inherit madvise [never]"),
        ("hugepages-2048kB/enabled", "always [inherit] madvise never"),
    ];

    fn plan(files: &[(&str, &str)], folio_kib: u32) -> Result<Vec<String>, Skip> {
        plan_of(files, &Case::of(2 << 20, folio_kib))
    }

    fn plan_of(files: &[(&str, &str)], case: &Case) -> Result<Vec<String>, Skip> {
        let root = root(files);
        let changes = Mthp::at(root.path()).plan(case)?;
        let show = |c: Change| format!("{}={}", c.path.strip_prefix(root.path()).unwrap().display(), c.value);
        Ok(changes.into_iter().map(show).collect())
    }

    #[test]
    fn the_wanted_size_is_enabled_and_all_others_disabled() {
        assert_eq!(plan(USUAL, 64).unwrap(), ["hugepages-64kB/enabled=always", "defrag=always"]);
        let mut files = USUAL.to_vec();
        files[0].1 = "[always] madvise never";
        assert_eq!(
            plan(&files, 64).unwrap(),
            ["hugepages-64kB/enabled=always", "hugepages-2048kB/enabled=never", "defrag=always"],
            "a size that inherits 'always' is on"
        );
        assert_eq!(plan(&files, 2048).unwrap(), ["defrag=always"]);
        assert_eq!(plan(&files, 4).unwrap(), ["hugepages-2048kB/enabled=never"]);
    }

    #[test]
    fn files_get_their_folios_by_settings_of_their_own() {
        let with = |global: &'static str, of_64: &'static str| {
            let own = [
                ("shmem_enabled", global),
                ("hugepages-8kB/shmem_enabled", "always [inherit] within_size advise never"),
                ("hugepages-64kB/shmem_enabled", of_64),
            ];
            [USUAL, &own].concat()
        };
        let plan = |files: &[_], folio_kib, mapping| plan_of(files, &Case { mapping, ..Case::of(2 << 20, folio_kib) });
        let never = with("always within_size advise [never] deny force", "always inherit advise [never]");
        for mapping in [Mapping::Shared, Mapping::PrivateFile] {
            assert_eq!(plan(&never, 4, mapping).unwrap(), [""; 0]);
            assert_eq!(plan(&never, 64, mapping).unwrap(), ["hugepages-64kB/shmem_enabled=always", "defrag=always"]);
            assert_eq!(plan(&never, 2048, mapping), Err(Skip::NoFileFolio(2048)));
        }
        let forced = with("always within_size advise never deny [force]", "[always] inherit advise never");
        let changes =
            ["shmem_enabled=never", "hugepages-8kB/shmem_enabled=never", "hugepages-64kB/shmem_enabled=never"];
        assert_eq!(plan(&forced, 4, Mapping::Shared).unwrap(), changes);
        let within = with("always within_size [advise] never deny force", "always inherit [within_size] never");
        assert_eq!(plan(&within, 4, Mapping::Shared).unwrap(), ["hugepages-64kB/shmem_enabled=never"]);
    }

    #[test]
    fn settings_that_already_fit_are_left_alone() {
        assert_eq!(plan(USUAL, 4), Ok(vec![]));
    }

    #[test]
    fn a_missing_folio_size_is_an_error() {
        assert_eq!(plan(USUAL, 8), Err(Skip::NoFolio(8)), "a directory without 'enabled' is for shared memory");
        assert_eq!(plan(USUAL, 16), Err(Skip::NoFolio(16)));
        assert_eq!(plan(&[], 2048), Err(Skip::NoThp));
        assert_eq!(plan(&[], 4), Ok(vec![]));
    }

    #[test]
    fn kernels_before_mthp_have_two_sizes() {
        assert_eq!(plan(&USUAL[..2], 2048).unwrap(), ["enabled=always", "defrag=always"]);
        assert_eq!(plan(&USUAL[..2], 64), Err(Skip::NoFolio(64)));
    }
}
