//! Descriptors: so far the three streams that a program begins with.

use super::Answer;
use crate::arch::serial::wire;
use crate::mem::uaccess;
use crate::task::Thread;
use alloc::sync::Arc;
use vellum_kernel::errno::Errno;

/// `read`.
pub async fn read(_thread: &Arc<Thread>, fd: u64, _to: u64, _len: u64) -> Answer {
    if fd == 0 { Ok(0) } else { Err(Errno::EBADF) }
}

/// `write`.
pub fn write(thread: &Arc<Thread>, fd: u64, from: u64, len: u64) -> Answer {
    let stream = match fd {
        1 => wire::Frame::Output,
        2 => wire::Frame::Errors,
        _ => return Err(Errno::EBADF),
    };
    let mut buffer = [0; 1024];
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(buffer.len() as u64) as usize;
        let copied = uaccess::read_some(&thread.memory(), from + done, &mut buffer[..piece]);
        wire::send(stream, &buffer[..copied]);
        done += copied as u64;
        if copied < piece {
            return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
        }
    }
    Ok(done)
}

/// `writev`.
pub fn writev(thread: &Arc<Thread>, fd: u64, vectors: u64, count: u64) -> Answer {
    if count > 1024 {
        return Err(Errno::EINVAL);
    }
    let mut done = 0;
    for index in 0..count {
        let mut vector = [0; 16];
        uaccess::read(&thread.memory(), vectors + 16 * index, &mut vector)?;
        let (base, len) = (u128::from_le_bytes(vector) as u64, (u128::from_le_bytes(vector) >> 64) as u64);
        match write(thread, fd, base, len) {
            Ok(n) => done += n,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// `ioctl`: nothing here is a terminal.
pub fn ioctl(fd: u64) -> Answer {
    Err(if fd < 3 { Errno::ENOTTY } else { Errno::EBADF })
}
