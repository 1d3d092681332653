//! Programs begin, and end.

use super::{Answer, misc};
use crate::arch::entry::Registers;
use crate::arch::exit::{Outcome, exit as stop};
use crate::arch::paging::user_end;
use crate::arch::serial::wire;
use crate::mem::{self, UserSpace, uaccess};
use crate::task::{Process, Thread};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU32, Ordering};
use vellum::group::GroupId;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum_kernel::errno::Errno;
use vellum_kernel::exec::elf::{self, Segment};
use vellum_kernel::exec::stack::{self, Start};
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{FsBase, KernelGsBase};

/// Bytes that a stack is mapped with; it grows from there.
const STACK: u64 = 132 << 10;

/// A space with a program in it, and the registers it begins with.
///
/// # Errors
///
/// What `execve` answers.
pub fn load(
    file: &[u8],
    path: &[u8],
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
) -> Result<(Arc<UserSpace>, Registers), Errno> {
    // The page before the end stays free, as on Linux: an instruction at the very end would go on beyond it.
    let top = user_end().min(1 << 47) - 4096;
    let program = elf::read(file, Limits::default().lowest, top)?;
    let limits = Limits { mmap_base: top - (8 << 20) - (1 << 20), ..Limits::default() };
    let space = mem::new_space(mem::machine(), GroupId::ROOT, limits).map_err(|_| Errno::ENOMEM)?;
    let space = Arc::new(UserSpace::new(space));
    for segment in &program.segments {
        map_segment(&space, segment, file)?;
    }
    *space.heap.lock() = mem::space::Heap { start: program.end, end: program.end };
    let request = MapRequest {
        addr: top - STACK,
        len: STACK,
        prot: Prot::READ | Prot::WRITE,
        flags: MapFlags::FIXED | MapFlags::GROWSDOWN,
    };
    space.engine.map(request).map_err(|error| Errno::from(error.errno()))?;
    let start = Start {
        arguments,
        environment,
        path,
        random: core::array::from_fn(|_| misc::random() as u8),
        ids: [0; 4],
        capabilities: [u64::from(__cpuid(1).edx), 0],
        platform: b"x86_64",
        signal_stack: 3632,
    };
    let (sp, bytes) = stack::build(&start, &program, top)?;
    uaccess::write(&space, sp, &bytes)?;
    Ok((space, Registers::start(program.entry, sp)))
}

fn map_segment(space: &Arc<UserSpace>, segment: &Segment, file: &[u8]) -> Result<(), Errno> {
    let flags = MapFlags::FIXED_NOREPLACE;
    let request = MapRequest { addr: segment.start, len: segment.len, prot: Prot::READ | Prot::WRITE, flags };
    space.engine.map(request).map_err(|error| Errno::from(error.errno()))?;
    let from = segment.file_offset as usize;
    let bytes = file.get(from..from + segment.data_len as usize).ok_or(Errno::EINVAL)?;
    uaccess::write(space, segment.data_start, bytes)?;
    let mut prot = Prot::empty();
    prot.set(Prot::READ, segment.read);
    prot.set(Prot::WRITE, segment.write);
    prot.set(Prot::EXEC, segment.execute);
    space.engine.protect(segment.start, segment.len, prot).map_err(|error| error.errno().into())
}

/// Starts the first program.
pub fn first(file: &[u8], path: &[u8], arguments: &[Vec<u8>], environment: &[Vec<u8>]) -> Result<(), Errno> {
    let (memory, registers) = load(file, path, arguments, environment)?;
    let process = Process { pid: 1, status: AtomicU32::new(0) };
    Thread::new(1, Arc::new(process), memory, registers).start();
    Ok(())
}

/// Ends the program.
pub fn exit_group(thread: &Thread, status: u32) {
    thread.process.status.store(status, Ordering::Relaxed);
    thread.ending.store(true, Ordering::Relaxed);
    if thread.process.pid == 1 {
        wire::send(wire::Frame::Exit, &status.to_le_bytes());
        stop(Outcome::Success);
    }
}

/// `exit`.
pub fn exit(thread: &Thread, status: u64) -> Answer {
    exit_group_call(thread, status)
}

/// `exit_group`.
pub fn exit_group_call(thread: &Thread, status: u64) -> Answer {
    exit_group(thread, status as u32 & 0xff);
    Ok(0)
}

/// `arch_prctl`.
pub fn arch_prctl(thread: &Arc<Thread>, code: u64, value: u64) -> Answer {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    // SAFETY: the thread's own future runs this.
    let context = unsafe { thread.context() };
    match code {
        SET_FS | SET_GS if value >= user_end() => Err(Errno::EPERM),
        SET_FS => {
            context.fs = value;
            FsBase::write(VirtAddr::new_truncate(value));
            Ok(0)
        }
        SET_GS => {
            context.gs = value;
            KernelGsBase::write(VirtAddr::new_truncate(value));
            Ok(0)
        }
        GET_FS => uaccess::write(&thread.memory, value, &context.fs.to_le_bytes()).map(|()| 0),
        GET_GS => uaccess::write(&thread.memory, value, &context.gs.to_le_bytes()).map(|()| 0),
        _ => Err(Errno::EINVAL),
    }
}

/// `set_tid_address`.
pub fn set_tid_address(thread: &Arc<Thread>, address: u64) -> Answer {
    // SAFETY: the thread's own future runs this.
    unsafe { thread.context() }.clear_tid = address;
    Ok(thread.tid.into())
}
