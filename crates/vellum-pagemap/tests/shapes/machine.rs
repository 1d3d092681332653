//! Settings of the machine that a test changes while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A larger hugetlbfs pool, restored when dropped.
pub struct Pool {
    file: PathBuf,
    was: u64,
}

impl Pool {
    pub fn more(size: u64, count: u64) -> Option<Pool> {
        let folder = PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{}kB", size >> 10));
        let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        let pool = Pool { file: folder.join("nr_hugepages"), was: number("nr_hugepages")? };
        let enough =
            fs::write(&pool.file, (pool.was + count).to_string()).is_ok() && number("free_hugepages")? >= count;
        enough.then_some(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A user who may not write the file has not changed it.
        let _ = fs::write(&self.file, self.was.to_string());
    }
}

/// A swap file, in use until dropped.
pub struct SwapFile(PathBuf);

impl SwapFile {
    pub fn new(len: u64) -> Result<SwapFile, String> {
        let file = SwapFile(Path::new(env!("CARGO_TARGET_TMPDIR")).join("swap"));
        fs::write(&file.0, vec![0; len as usize]).map_err(|error| error.to_string())?;
        file.run("mkswap")?;
        file.run("swapon")?;
        Ok(file)
    }

    fn run(&self, command: &str) -> Result<(), String> {
        let output = Command::new(command).arg(&self.0).output().map_err(|error| format!("{command}: {error}"))?;
        output.status.success().then_some(()).ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        let _ = self.run("swapoff");
        let _ = fs::remove_file(&self.0);
    }
}
