//! Events of files and directories (`inotify`).
//!
//! A watch is a program's request for events of one inode. The inode lists its watches, and each
//! watch puts events into the queue of its instance, which is the file that the program reads.
//! System calls report what they did by the hooks. While no inode has a watch, a hook is one load
//! and one branch.
//!
//! A watch does not keep its inode in memory: the tree of inodes does, as long as the inode has a
//! name or is open. The end of the inode is the end of its watches.
//!
//! # Lock order
//! 1. An inode's list of watches.
//! 2. The state of an instance: its watches by number, and its queue.
//!
//! No lock is held while tasks are woken, nor while a reference is dropped that may be the last one
//! of an inode or of an instance.
//!
//! | file | subject |
//! |---|---|
//! | [`limits`] | the settings, and the numbers of instances and watches of each user |
//! | [`queue`] | an instance's queue of events |
//! | [`watch`] | the watches of an inode and of an instance |
//! | [`instance`] | an instance as a file |
//! | [`hooks`] | the events that system calls report |

pub mod hooks;
pub mod instance;
pub mod limits;
pub mod queue;
#[cfg(test)]
mod tests;
pub mod watch;
