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
use vellum_kernel::exec::elf::{self, Contents, Mapping};
use vellum_kernel::exec::stack::{self, Aux};
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{FsBase, KernelGsBase};

/// Where a program goes that may lie anywhere (Linux, without randomization: two thirds of the address space).
const DYNAMIC_BASE: u64 = 0x5555_5555_4000;
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
    let known =
        elf::Limits { addresses: Limits::default().lowest..top, page_size: 4096, machine: ::elf::abi::EM_X86_64 };
    let head = elf::head(file, known.machine)?;
    let table = file.get(head.table.start as usize..head.table.end as usize).ok_or(Errno::ENOEXEC)?;
    let plan = elf::plan(&head, table, file.len() as u64, &known)?;
    if plan.interpreter.is_some() {
        // No loader to hand it to yet.
        return Err(Errno::ENOEXEC);
    }
    let base = if plan.relocatable { DYNAMIC_BASE.next_multiple_of(plan.align) } else { 0 };
    if base.checked_add(plan.span.end).is_none_or(|end| end > top) {
        return Err(Errno::ENOMEM);
    }
    let limits = Limits { mmap_base: top - (8 << 20) - (1 << 20), ..Limits::default() };
    let space = mem::new_space(mem::machine(), GroupId::ROOT, limits).map_err(|_| Errno::ENOMEM)?;
    let space = Arc::new(UserSpace::new(space));
    for mapping in &plan.mappings {
        map(&space, base, mapping, file)?;
    }
    let end = (base + plan.end).next_multiple_of(4096);
    *space.heap.lock() = mem::space::Heap { start: end, end };
    let request = MapRequest {
        addr: top - STACK,
        len: STACK,
        prot: Prot::READ | Prot::WRITE,
        flags: MapFlags::FIXED | MapFlags::GROWSDOWN,
    };
    space.engine.map(request).map_err(|error| Errno::from(error.errno()))?;
    let aux = Aux {
        hwcap: __cpuid(1).edx.into(),
        page_size: 4096,
        table: plan.table.map_or(0, |table| base + table),
        entries: plan.entries,
        entry: base + plan.entry,
        random: core::array::from_fn(|_| misc::random() as u8),
        least_signal_stack: 3632,
        ..Aux::default()
    };
    let stack = stack::build(top, stack::room(8 << 20), path, arguments, environment, &aux)?;
    uaccess::write(&space, stack.start, &stack.bytes)?;
    Ok((space, Registers::start(aux.entry, stack.start)))
}

fn map(space: &Arc<UserSpace>, base: u64, mapping: &Mapping, file: &[u8]) -> Result<(), Errno> {
    let (start, len) = (base + mapping.range.start, mapping.range.end - mapping.range.start);
    let request = MapRequest { addr: start, len, prot: Prot::READ | Prot::WRITE, flags: MapFlags::FIXED };
    space.engine.map(request).map_err(|error| Errno::from(error.errno()))?;
    if let Contents::File { offset, clear } = &mapping.contents {
        let bytes = len - (clear.end - clear.start);
        let end = (offset + bytes).min(file.len() as u64);
        uaccess::write(space, start, file.get(*offset as usize..end as usize).ok_or(Errno::EINVAL)?)?;
    }
    let mut prot = Prot::empty();
    prot.set(Prot::READ, mapping.rights.read);
    prot.set(Prot::WRITE, mapping.rights.write);
    prot.set(Prot::EXEC, mapping.rights.execute);
    space.engine.protect(start, len, prot).map_err(|error| error.errno().into())
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
