//! The machine-independent part of the file layer: the VFS, tmpfs, pseudo file systems and special
//! files. The kernel supplies user memory ([`Sink`], [`Source`]), the contents of files in memory
//! ([`Pages`], which the engine's page-cache objects implement), time, random bytes, and the
//! contents of generated files.
//!
//! | file | subject |
//! |---|---|
//! | [`io`] | sources and sinks of bytes, which may fail part of the way |
//! | [`notify`] | events of files and directories (`inotify`) |
//! | [`pages`] | the contents of a file in memory |
//! | [`meta`] | inode attributes, and permission checks |
//! | [`inode`] | the traits: an inode, a directory, an open file |
//! | [`names`] | path lookup, mounts, and the system calls on paths |
//! | [`open`] | open file descriptions: offset, flags, blocking |
//! | [`table`] | file descriptor tables |
//! | [`files`] | a process's descriptors, working directory and umask |
//! | [`lock`] | file locks |
//! | [`write_access`] | write access, and its denial while a program runs |
//! | [`poll`] | the waits of `poll`, `ppoll` and `select`, and sets of files for `epoll`, signals for `signalfd` |
//! | [`bytes`] | queues of bytes, for pipes and sockets |
//! | [`pipe`], [`event`], [`uffd`], [`device`] | special files: they have no pages |
//! | [`tree`] | tmpfs, and the cache of a file system on a disk |
//! | `ext4` | ext4, on a disk |
//! | [`p9`] | a folder of another machine |
//! | [`text`] | files whose contents are generated when they are read |
//! | [`pseudo`] | directories of generated files, for `/proc`, `/sys` and cgroup2 |
//! | [`cgroup`] | the cgroup2 file system |
//! | [`tty`] | terminals |
//! | [`archive`] | the initramfs |

pub mod archive;
pub mod bytes;
pub mod cgroup;
pub mod device;
pub mod event;
#[cfg(feature = "ext4")]
pub mod ext4;
pub mod files;
pub mod inode;
pub mod io;
pub mod lock;
pub mod meta;
pub mod names;
pub mod notify;
pub mod open;
pub mod p9;
pub mod pages;
pub mod pipe;
pub mod poll;
pub mod pseudo;
pub mod table;
pub mod text;
pub mod tree;
pub mod tty;
pub mod uffd;
pub mod write_access;

pub use files::Files;
pub use inode::{Directory, File, Inode};
pub use io::{Sink, Source};
pub use meta::{FileCredentials, Kind, Meta};
pub use names::Namespace;
pub use open::Open;
pub use pages::Pages;
pub use table::Table;
