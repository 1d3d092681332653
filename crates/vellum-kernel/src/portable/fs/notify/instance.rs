//! An instance of inotify as a file.

use super::watch::Instance;
use crate::errno::Errno;
use crate::fs::inode::File;
use crate::fs::io::Sink;
use crate::wait::Queue;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt::Write;
use linux_raw_sys::general::{POLLIN, POLLRDNORM};

/// The text of a file, as much of it as there is memory for.
struct Lines(Vec<u8>);

impl Write for Lines {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| core::fmt::Error)?;
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl File for Instance {
    fn ignores_seeks(&self) -> bool {
        true
    }

    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.with_queue(|queue| queue.read(to))
    }

    fn ready(&self) -> u32 {
        if self.with_queue(|queue| queue.is_empty()) { 0 } else { POLLIN | POLLRDNORM }
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.arrived)
    }

    fn unread(&self, _at: u64) -> Result<u64, Errno> {
        Ok(self.with_queue(|queue| queue.size() as u64))
    }

    fn facts(&self) -> Vec<u8> {
        let mut lines = Lines(Vec::new());
        self.each_watch(|number, [inode, device], mask| {
            let _ =
                writeln!(lines, "inotify wd:{number:x} ino:{inode:x} sdev:{device:x} mask:{mask:x} ignored_mask:0 ");
        });
        lines.0
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
