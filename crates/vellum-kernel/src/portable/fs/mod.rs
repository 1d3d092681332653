//! Files, as far as they need no machine. What the kernel supplies: user memory ([`Sink`],
//! [`Source`]), the contents of files in memory ([`Pages`], which the engine's memory objects are),
//! time and random bytes, and what generated files say.
//!
//! | file | story |
//! |---|---|
//! | [`io`] | bytes that come and go, of which a part may fail |
//! | [`pages`] | the contents of a file in memory |
//! | [`meta`] | what `stat` says; who may do what |
//! | [`inode`] | the interfaces: an inode, a directory, an open file |
//! | [`names`] | paths: lookup, mounts, and what system calls do with names |
//! | [`open`] | open file descriptions: offset, flags, to block or not |
//! | [`table`] | descriptors |
//! | [`files`] | what a process has of files |
//! | [`lock`] | locks on files |
//! | [`poll`] | to wait for one of many |
//! | [`pipe`], [`event`], [`uffd`], [`device`] | files without contents of their own |
//! | [`tmpfs`] | the file system in memory |
//! | [`text`] | files whose contents are made when they are read |
//! | [`folder`] | folders of such files |
//! | [`cgroup`] | the file system of control groups |
//! | [`archive`] | the archive of first files |

pub mod archive;
mod bytes;
pub mod cgroup;
pub mod device;
pub mod event;
pub mod files;
pub mod folder;
pub mod inode;
pub mod io;
pub mod lock;
pub mod meta;
pub mod names;
pub mod open;
pub mod pages;
pub mod pipe;
pub mod poll;
pub mod table;
pub mod text;
pub mod tmpfs;
pub mod uffd;

pub use files::Files;
pub use inode::{Directory, File, Inode};
pub use io::{Sink, Source};
pub use meta::{FileCredentials, Kind, Meta};
pub use names::Namespace;
pub use open::Open;
pub use pages::Pages;
pub use table::Table;
