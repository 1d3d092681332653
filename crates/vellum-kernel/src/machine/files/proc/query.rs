//! Implements `PROCMAP_QUERY`: finds one VMA of a process, without the text of `maps`.

use super::memory::{describe, space};
use super::process::Subject;
use super::reader;
use crate::mem::{UserSpace, uaccess};
use core::mem::offset_of;
use linux_raw_sys::general::procmap_query;
use vellum::addr::FRAME_SIZE;
use vellum::vma::{Prot, Vma};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::names::LONGEST_PATH;

/// The request number, which the crate lacks.
const PROCMAP_QUERY: u32 = 0xc068_6611;
/// The flags of a query: the rights that the VMA must have, and which VMAs fit.
mod flag {
    pub const READABLE: u64 = 1;
    pub const WRITABLE: u64 = 1 << 1;
    pub const EXECUTABLE: u64 = 1 << 2;
    pub const SHARED: u64 = 1 << 3;
    pub const COVERING_OR_NEXT: u64 = 1 << 4;
    pub const FILE_BACKED: u64 = 1 << 5;
    pub const RIGHTS: u64 = READABLE | WRITABLE | EXECUTABLE | SHARED;
    pub const ALL: u64 = RIGHTS | COVERING_OR_NEXT | FILE_BACKED;
}

/// The size of the struct.
const SIZE: usize = size_of::<procmap_query>();

/// Handles an `ioctl` on `maps`. No VMA has a build ID.
///
/// # Errors
///
/// `ENOTTY`: unknown request. `ENOENT`: no VMA fits. `ESRCH`: the process has exited.
/// `ENAMETOOLONG`: the name does not fit. `E2BIG`: unknown fields that are not zero. `EINVAL`,
/// `EFAULT`.
pub fn request(subject: &Subject, request: u32, at: u64) -> Result<u64, Errno> {
    if request != PROCMAP_QUERY {
        return Err(Errno::ENOTTY);
    }
    let mine = reader()?.memory();
    let mut bytes = [0; SIZE];
    uaccess::read(&mine, at, &mut bytes[..8])?;
    let size = u64::from_le_bytes(core::array::from_fn(|i| bytes[i]));
    let least = offset_of!(procmap_query, vma_start) as u64;
    if !(least..=FRAME_SIZE).contains(&size) {
        return Err(if size < least { Errno::EINVAL } else { Errno::E2BIG });
    }
    let known = SIZE.min(size as usize);
    uaccess::read(&mine, at, &mut bytes[..known])?;
    if !uaccess::are_zero(&mine, at.wrapping_add(known as u64), size - known as u64)? {
        return Err(Errno::E2BIG);
    }
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let half = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let (flags, address) = (word(offset_of!(procmap_query, query_flags)), word(offset_of!(procmap_query, query_addr)));
    let (name_at, name_room) =
        (word(offset_of!(procmap_query, vma_name_addr)), half(offset_of!(procmap_query, vma_name_size)) as usize);
    let (id_at, id_room) =
        (word(offset_of!(procmap_query, build_id_addr)), half(offset_of!(procmap_query, build_id_size)));
    if flags & !flag::ALL != 0 || (name_at == 0) != (name_room == 0) || (id_at == 0) != (id_room == 0) {
        return Err(Errno::EINVAL);
    }
    let memory = space(subject)?.ok_or(Errno::ESRCH)?;
    let vma = find(&memory, address, flags).ok_or(Errno::ENOENT)?;
    let mut answer = procmap_query {
        size,
        query_flags: flags,
        query_addr: address,
        vma_start: vma.range.start,
        vma_end: vma.range.end,
        vma_flags: rights(&vma),
        vma_page_size: FRAME_SIZE,
        vma_offset: 0,
        inode: 0,
        dev_major: 0,
        dev_minor: 0,
        vma_name_size: 0,
        build_id_size: 0,
        vma_name_addr: name_at,
        build_id_addr: id_at,
    };
    describe(&memory, &vma, |shown| {
        (answer.vma_offset, answer.inode) = (shown.offset, shown.inode);
        (answer.dev_major, answer.dev_minor) = (shown.device.major, shown.device.minor);
        if name_room == 0 || shown.name.is_empty() {
            return Ok(());
        }
        let len = shown.name.len() + 1;
        if len > name_room.min(LONGEST_PATH) {
            return Err(Errno::ENAMETOOLONG);
        }
        answer.vma_name_size = len as u32;
        uaccess::write(&mine, name_at, shown.name)?;
        uaccess::write(&mine, name_at.wrapping_add(len as u64 - 1), &[0])
    })?;
    uaccess::write(&mine, at, &uaccess::bytes_of(&answer)[..known])?;
    Ok(0)
}

/// Returns the rights of a VMA as flags.
fn rights(vma: &Vma) -> u64 {
    let all = [
        (vma.prot.contains(Prot::READ), flag::READABLE),
        (vma.prot.contains(Prot::WRITE), flag::WRITABLE),
        (vma.prot.contains(Prot::EXEC), flag::EXECUTABLE),
        (vma.backing.is_shared(), flag::SHARED),
    ];
    all.into_iter().filter(|(has, _)| *has).map(|(_, flag)| flag).sum()
}

/// Returns the VMA with an address, or, if the flags permit it, the next one that fits.
fn find(memory: &UserSpace, address: u64, flags: u64) -> Option<Vma> {
    let mut found = None;
    memory.engine.vmas(address, |vma| {
        let may_follow = flags & flag::COVERING_OR_NEXT != 0;
        let has_rights = rights(vma) & flags & flag::RIGHTS == flags & flag::RIGHTS;
        let fits = has_rights && (flags & flag::FILE_BACKED == 0 || !vma.backing.is_anonymous());
        if fits && (may_follow || vma.range.start <= address) {
            found = Some(*vma);
        }
        found.is_none() && may_follow
    });
    found
}
