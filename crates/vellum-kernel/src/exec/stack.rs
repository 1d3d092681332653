//! A program's first stack: arguments, environment and auxiliary vector (System V ABI, "Initial Stack and Register State").

use super::elf::Program;
use crate::errno::Errno;
use alloc::vec::Vec;
use linux_raw_sys::auxvec;

/// Arguments and environment may take so much (Linux: a quarter of the stack's limit of 8 MiB).
pub const MOST: usize = 2 << 20;

/// What a program is started with.
pub struct Start<'a> {
    /// The arguments, without their final zero bytes.
    pub arguments: &'a [Vec<u8>],
    /// The environment, likewise.
    pub environment: &'a [Vec<u8>],
    /// The path it was started by (`AT_EXECFN`).
    pub path: &'a [u8],
    /// Random bytes (`AT_RANDOM`).
    pub random: [u8; 16],
    /// User and group, real and effective: uid, euid, gid, egid.
    pub ids: [u32; 4],
    /// What the processor can do (`AT_HWCAP`, `AT_HWCAP2`).
    pub capabilities: [u64; 2],
    /// The name of the processor's kind (`AT_PLATFORM`).
    pub platform: &'a [u8],
    /// The least stack for a signal (`AT_MINSIGSTKSZ`).
    pub signal_stack: u64,
}

/// The bytes below `top`, and the address of the first of them: the stack pointer.
///
/// # Errors
///
/// `E2BIG`: more than [`MOST`] bytes. `ENOMEM`: none for the bytes.
pub fn build(start: &Start, program: &Program, top: u64) -> Result<(u64, Vec<u8>), Errno> {
    let strings = || {
        let all = start.arguments.iter().chain(start.environment);
        all.map(Vec::as_slice).chain([start.path, start.platform])
    };
    let bytes: usize = strings().map(|s| s.len() + 1).sum();
    let pointers = start.arguments.len() + start.environment.len() + 3;
    let auxiliary = auxiliary(start, program);
    let words = pointers + 2 * (auxiliary.len() + 4);
    if bytes.saturating_add(8 * words) > MOST {
        return Err(Errno::E2BIG);
    }
    // From the top down: eight zero bytes, the strings, the random bytes, and then words.
    let strings_at = top - 8 - bytes as u64;
    let random_at = (strings_at - 16) & !15;
    let sp = (random_at - 8 * words as u64) & !15;
    let mut stack = Vec::new();
    stack.try_reserve_exact((top - sp) as usize).map_err(|_| Errno::ENOMEM)?;
    let mut word = |value: u64| stack.extend_from_slice(&value.to_le_bytes());
    let mut at = strings_at;
    let mut next = |s: &[u8]| {
        let this = at;
        at += s.len() as u64 + 1;
        this
    };
    word(start.arguments.len() as u64);
    for list in [start.arguments, start.environment] {
        list.iter().for_each(|s| word(next(s)));
        word(0);
    }
    let (path, platform) = (next(start.path), next(start.platform));
    let addresses = [
        (auxvec::AT_EXECFN, path),
        (auxvec::AT_PLATFORM, platform),
        (auxvec::AT_RANDOM, random_at),
        (auxvec::AT_NULL, 0),
    ];
    for (key, value) in auxiliary.into_iter().chain(addresses) {
        word(u64::from(key));
        word(value);
    }
    stack.resize((random_at - sp) as usize, 0);
    stack.extend_from_slice(&start.random);
    stack.resize((strings_at - sp) as usize, 0);
    for s in strings() {
        stack.extend_from_slice(s);
        stack.push(0);
    }
    stack.resize((top - sp) as usize, 0);
    Ok((sp, stack))
}

/// The entries whose values are known before anything has an address.
fn auxiliary(start: &Start, program: &Program) -> [(u32, u64); 17] {
    let [uid, euid, gid, egid] = start.ids.map(u64::from);
    [
        (auxvec::AT_HWCAP, start.capabilities[0]),
        (auxvec::AT_PAGESZ, 4096),
        (auxvec::AT_CLKTCK, 100),
        (auxvec::AT_PHDR, program.headers),
        (auxvec::AT_PHENT, program.header_size),
        (auxvec::AT_PHNUM, program.header_count),
        (auxvec::AT_BASE, 0),
        (auxvec::AT_FLAGS, 0),
        (auxvec::AT_ENTRY, program.entry),
        (auxvec::AT_UID, uid),
        (auxvec::AT_EUID, euid),
        (auxvec::AT_GID, gid),
        (auxvec::AT_EGID, egid),
        (auxvec::AT_SECURE, 0),
        (auxvec::AT_HWCAP2, start.capabilities[1]),
        (auxvec::AT_MINSIGSTKSZ, start.signal_stack),
        (auxvec::AT_IGNORE, 0),
    ]
}
