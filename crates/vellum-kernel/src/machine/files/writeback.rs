//! The tasks of the page cache's storage: one that carries out requests, and one that has all dirty
//! pages written every 5 s (Linux: the flusher threads, which write pages that are 30 s old).

use super::{block, contents, ext4};
use crate::mem::{now_ns, storage};
use crate::task::{executor, time};
use vellum::page_cache::Writeback;

/// The time between two rounds of the flusher: 5 s (Linux: `dirty_writeback_centisecs`).
const ROUND: u64 = 5_000_000_000;

/// Starts the tasks, if a file has a store.
pub fn start() {
    if !storage::begin_tasks() {
        return;
    }
    executor::spawn_first(async {
        loop {
            storage::carry_out_next().await;
            executor::yield_now().await;
        }
    });
    executor::spawn(async {
        loop {
            time::until(now_ns() + ROUND).await;
            for contents in contents::all_stored() {
                // A later round writes the pages for which memory is short now.
                let _ = contents.write_back(&mut Writeback::start(0..u64::MAX));
                executor::yield_now().await;
            }
            // `fsync` reports the errors of a file's own. (Linux: jbd2 commits every 5 s.)
            let _ = ext4::sync_all();
        }
    });
}

/// Has everything written that a disk is to keep, and unmounts: the machine is about to stop.
pub async fn finish() {
    write_all().await;
    ext4::end_all();
    block::flush_all();
}

/// Has all dirty pages written, and waits.
pub async fn write_all() {
    for contents in contents::all_stored() {
        contents.write_all().await;
    }
}
