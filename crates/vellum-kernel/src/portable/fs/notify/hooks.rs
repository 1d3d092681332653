//! The events that system calls report, once they have done their work.

use super::watch::Watches;
pub use super::watch::any;
use crate::fs::inode::{FIRST, Inode};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use linux_raw_sys::general::{IN_ATTRIB, IN_CREATE, IN_DELETE, IN_ISDIR, IN_MOVE_SELF, IN_MOVED_FROM, IN_MOVED_TO};

/// The directory entry by which a file was found: its directory and its name.
pub type Entry<'a> = (&'a Arc<dyn Inode>, &'a [u8]);

/// Reports an event of a file, to the watches of its directory and to its own. `entry`: the entry
/// by which the file was found, if it has one. A caller that is frequent first checks that there
/// are watches ([`any`]).
#[cold]
pub fn event(inode: &Arc<dyn Inode>, entry: Option<Entry<'_>>, event: u32) {
    if any() {
        report(inode, entry, event);
    }
}

/// Returns the flag of events about a directory.
fn kind(is_directory: bool) -> u32 {
    if is_directory { IN_ISDIR } else { 0 }
}

fn is_same(one: &Arc<dyn Inode>, other: &Arc<dyn Inode>) -> bool {
    core::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

fn report(inode: &Arc<dyn Inode>, entry: Option<Entry<'_>>, event: u32) {
    let own = inode.watches(false);
    let mask = event | kind(inode.directory().is_some());
    let tell = |directory: &Watches, name: &[u8]| {
        if directory.wants(event) {
            directory.report(mask, 0, name, inode.meta().links == 0);
        }
    };
    if inode.directory().is_some() {
        report_to_parent(inode, event, mask);
    } else if let Some((directory, name)) = own.and_then(|own| own.place())
        && !entry.is_some_and(|(directory, name)| leads_to(directory, name, inode))
    {
        tell(&directory, &name);
    } else if let Some((directory, name)) = entry
        && let Some(directory) = directory.watches(false)
    {
        tell(directory, name);
    }
    if let Some(own) = own {
        own.report(mask, 0, &[], false);
    }
}

/// Returns true if a directory has the inode under this name.
fn leads_to(directory: &Arc<dyn Inode>, name: &[u8], inode: &Arc<dyn Inode>) -> bool {
    let found = directory.directory().and_then(|directory| directory.find(name).ok());
    found.is_some_and(|found| is_same(&found, inode))
}

/// Reports an event of a directory to the watches of its parent, by the name that it has there now.
fn report_to_parent(inode: &Arc<dyn Inode>, event: u32, mask: u32) {
    let Some(parent) = inode.directory().and_then(|directory| directory.parent()) else { return };
    let (Some(watches), Some(entries)) = (parent.watches(false), parent.directory()) else { return };
    if !watches.wants(event) {
        return;
    }
    let number = inode.meta().inode;
    let mut name = Vec::new();
    let listed = entries.list(FIRST, &mut |entry| {
        let is_it = entry.inode == number;
        if is_it && name.try_reserve_exact(entry.name.len()).is_ok() {
            name.extend_from_slice(entry.name);
        }
        !is_it
    });
    if listed.is_ok() && !name.is_empty() {
        watches.report(mask, 0, &name, false);
    }
}

/// Reports an event of a directory's entry to the directory's watches.
fn entry_event((directory, name): Entry<'_>, mask: u32, cookie: u32) {
    if let Some(watches) = directory.watches(false) {
        watches.report(mask, cookie, name, false);
    }
}

/// Reports an event of an inode to its own watches alone.
fn own_event(inode: &Arc<dyn Inode>, event: u32) {
    if let Some(watches) = inode.watches(false) {
        watches.report(event | kind(inode.directory().is_some()), 0, &[], false);
    }
}

/// Reports a new entry.
#[inline]
pub fn created(entry: Entry<'_>, is_directory: bool) {
    if any() {
        entry_event(entry, IN_CREATE | kind(is_directory), 0);
    }
}

/// Reports that a file has one name more.
pub fn linked(inode: &Arc<dyn Inode>, entry: Entry<'_>) {
    if any() {
        own_event(inode, IN_ATTRIB);
        entry_event(entry, IN_CREATE, 0);
    }
}

/// Reports that an entry was removed. The inode ends here, if it has no other name and is not open.
pub fn removed(inode: Arc<dyn Inode>, entry: Entry<'_>) {
    if any() {
        let is_directory = inode.directory().is_some();
        if !is_directory {
            own_event(&inode, IN_ATTRIB);
        }
        // The inode reports its own end first.
        drop(inode);
        entry_event(entry, IN_DELETE | kind(is_directory), 0);
    }
}

/// Reports that an inode was moved from one entry to another, where it replaced `replaced`.
pub fn moved(inode: &Arc<dyn Inode>, from: Entry<'_>, to: Entry<'_>, replaced: Option<Arc<dyn Inode>>) {
    static COOKIES: AtomicU32 = AtomicU32::new(1);
    if !any() {
        return;
    }
    let mut cookie = 0;
    while cookie == 0 {
        cookie = COOKIES.fetch_add(1, Relaxed);
    }
    let is_directory = inode.directory().is_some();
    if !is_directory && let (Some(own), Some(directory)) = (inode.watches(true), to.0.watches(true)) {
        own.set_place(directory, to.1);
    }
    entry_event(from, IN_MOVED_FROM | kind(is_directory), cookie);
    entry_event(to, IN_MOVED_TO | kind(is_directory), cookie);
    if let Some(replaced) = &replaced
        && replaced.directory().is_none()
    {
        own_event(replaced, IN_ATTRIB);
    }
    own_event(inode, IN_MOVE_SELF);
}
