//! Descriptors on their way from one process to another (`SCM_RIGHTS`).
//!
//! A program can send a socket over a socket that it sends over a third one, and so on: the end of
//! the first would end all others, each within the end of the one before. So descriptors that
//! no process receives are closed one after another: the task that ends the first closes all.

use crate::errno::Errno;
use crate::fs::Open;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::Mutex;

/// The open files of one message.
pub struct Rights {
    /// `None` while they are being closed.
    parcel: Option<Box<Parcel>>,
    sender: Sender,
}

/// The user that sends descriptors.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Sender {
    pub uid: u32,
    /// The number of descriptors in flight beyond which it may send no more (`RLIMIT_NOFILE`);
    /// `None`: privileged.
    pub most: Option<u64>,
}

struct Parcel {
    files: Vec<Arc<Open>>,
    /// The parcel that is closed after this one.
    next: Option<Box<Parcel>>,
}

/// The parcels to close.
struct Closing {
    first: Option<Box<Parcel>>,
    /// True while a task closes them.
    busy: bool,
}

static CLOSING: Mutex<Closing> = Mutex::new(Closing { first: None, busy: false });

impl Rights {
    /// Returns these open files on their way.
    pub fn new(files: Vec<Arc<Open>>, sender: Sender) -> Rights {
        Rights { parcel: Some(Box::new(Parcel { files, next: None })), sender }
    }

    /// Returns the user that sends them.
    pub const fn sender(&self) -> Sender {
        self.sender
    }

    /// Returns the open files.
    pub fn files(&self) -> &[Arc<Open>] {
        self.parcel.as_ref().map_or(&[], |parcel| &parcel.files)
    }

    /// Returns other rights to the same files, for `MSG_PEEK`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn copy(&self) -> Result<Rights, Errno> {
        let mut files = Vec::new();
        files.try_reserve_exact(self.files().len())?;
        files.extend_from_slice(self.files());
        Ok(Rights::new(files, self.sender))
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        let Some(mut parcel) = self.parcel.take() else { return };
        let mut closing = CLOSING.lock();
        parcel.next = closing.first.take();
        closing.first = Some(parcel);
        if closing.busy {
            return;
        }
        closing.busy = true;
        while let Some(mut parcel) = closing.first.take() {
            closing.first = parcel.next.take();
            drop(closing);
            drop(parcel);
            closing = CLOSING.lock();
        }
        closing.busy = false;
    }
}
