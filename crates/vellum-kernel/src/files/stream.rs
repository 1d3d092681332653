//! The streams of the first program, over the wire.

use crate::arch::serial::wire;
use core::any::Any;
use linux_raw_sys::general::{POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::{File, Sink, Source};

/// Which of them.
pub enum Stream {
    /// Standard input: empty so far.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Errors,
}

impl File for Stream {
    fn read(&self, _at: u64, _to: &mut dyn Sink) -> Result<usize, Errno> {
        Ok(0)
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let frame = match self {
            Stream::Input => return Err(Errno::EBADF),
            Stream::Output => wire::Frame::Output,
            Stream::Errors => wire::Frame::Errors,
        };
        let mut buffer = [0; 1024];
        let mut done = 0;
        while from.left() > 0 {
            let wanted = from.left().min(buffer.len());
            match from.take(&mut buffer[..wanted]) {
                Ok(taken) => {
                    wire::send(frame, &buffer[..taken]);
                    done += taken;
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn ready(&self) -> u32 {
        POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
