//! The initial stack of a program: argument strings, environment and auxiliary vector, laid out as
//! on Linux.
//!
//! From the top down: eight zero bytes; the executed path; the environment strings; the argument
//! strings (each of the two groups in ascending order, because `/proc/PID/environ` and
//! `/proc/PID/cmdline` each show one range); the platform's name; sixteen random bytes; then, at a
//! stack pointer that is a multiple of 16: the argument count, the addresses of the arguments,
//! zero, the addresses of the environment strings, zero, and the auxiliary vector.

use crate::errno::Errno;
use alloc::vec::Vec;
use core::ops::Range;
use linux_raw_sys::auxvec;

/// The longest string in bytes, with its NUL (Linux: `MAX_ARG_STRLEN`).
pub const MAX_ARG_STRLEN: usize = 32 * 4096;
/// The smallest limit in bytes for strings and their addresses (Linux: `ARG_MAX`).
const MIN_ARG_LIMIT: u64 = 128 * 1024;
/// The largest limit in bytes for strings and their addresses: three quarters of the default stack
/// limit of 8 MiB.
const MAX_ARG_LIMIT: u64 = 6 * 1024 * 1024;

/// The entries of the auxiliary vector with variable values, except addresses on the stack. All
/// other entries are constants of this kernel.
#[derive(Clone, Debug, Default)]
pub struct Aux {
    /// `AT_PLATFORM`: the architecture's name.
    pub platform: &'static str,
    /// `AT_HWCAP`: on x86-64 EDX of CPUID leaf 1.
    pub hwcap: u64,
    /// `AT_HWCAP2`.
    pub hwcap2: u64,
    /// `AT_PAGESZ`.
    pub page_size: u64,
    /// `AT_PHDR`: zero if the program headers are not mapped.
    pub phdr: u64,
    /// `AT_PHNUM`.
    pub phnum: u64,
    /// `AT_BASE`: the interpreter's address, zero without one.
    pub interpreter: u64,
    /// `AT_SYSINFO_EHDR`: the address of the shared object that the kernel maps.
    pub vdso: u64,
    /// `AT_ENTRY`: the entry point of the program, not of the interpreter.
    pub entry: u64,
    /// `AT_UID`, `AT_EUID`, `AT_GID`, `AT_EGID`.
    pub ids: [u32; 4],
    /// `AT_SECURE`: whether the program has more privileges than the program that executed it.
    pub secure: bool,
    /// The bytes to which `AT_RANDOM` points.
    pub random: [u8; 16],
    /// `AT_MINSIGSTKSZ`: the smallest stack for a signal handler, with this machine's vector
    /// registers.
    pub min_signal_stack: u64,
}

/// A stack, ready to be copied to `start`.
#[derive(Debug)]
pub struct Stack {
    /// The stack pointer, and the address of the first of `bytes`, which end at the stack's top.
    pub start: u64,
    /// The contents.
    pub bytes: Vec<u8>,
    /// The range of the argument strings (`/proc/PID/cmdline`).
    pub arguments: Range<u64>,
    /// The range of the environment strings (`/proc/PID/environ`).
    pub environment: Range<u64>,
    /// The range of the auxiliary vector (`/proc/PID/auxv`).
    pub aux: Range<u64>,
}

/// Returns the most bytes that strings and their addresses may take together under a stack limit
/// (`RLIMIT_STACK`).
pub fn arg_limit(stack_limit: u64) -> u64 {
    (stack_limit / 4).clamp(MIN_ARG_LIMIT, MAX_ARG_LIMIT)
}

/// Lays out a stack that ends at `top` (a multiple of 16), with at most `limit` bytes of strings
/// and their addresses. The caller passes strings without their NUL. A program without arguments
/// gets one empty argument.
///
/// # Errors
/// `E2BIG`: too many or too long strings. `ENOMEM`: the kernel's heap is exhausted.
pub fn build<S: AsRef<[u8]>>(
    top: u64,
    limit: u64,
    path: &[u8],
    arguments: &[S],
    environment: &[S],
    aux: &Aux,
) -> Result<Stack, Errno> {
    let argument_count = arguments.len().max(1);
    // The sizes of the strings, with their NULs.
    let size = |strings: &[S]| {
        strings.iter().try_fold(0u64, |sum, string| {
            let length = string.as_ref().len();
            (length < MAX_ARG_STRLEN).then_some(sum + length as u64 + 1)
        })
    };
    let argument_bytes = size(arguments).ok_or(Errno::E2BIG)?.max(1);
    let environment_bytes = size(environment).ok_or(Errno::E2BIG)?;
    let path_bytes = path.len() as u64 + 1;
    let addresses = (argument_count + environment.len()) as u64 * 8;
    if argument_bytes + environment_bytes + path_bytes + addresses > limit {
        return Err(Errno::E2BIG);
    }

    // The addresses of the strings, from the stack's top down.
    let path_at = top - 8 - path_bytes;
    let environment_at = path_at - environment_bytes;
    let arguments_at = environment_at - argument_bytes;
    let platform_at = (arguments_at & !15) - (aux.platform.len() as u64 + 1);
    let random_at = platform_at - 16;
    let vector = [
        (auxvec::AT_SYSINFO_EHDR, aux.vdso),
        (auxvec::AT_MINSIGSTKSZ, aux.min_signal_stack),
        (auxvec::AT_HWCAP, aux.hwcap),
        (auxvec::AT_PAGESZ, aux.page_size),
        (auxvec::AT_CLKTCK, 100),
        (auxvec::AT_PHDR, aux.phdr),
        (auxvec::AT_PHENT, super::elf::PHDR_SIZE),
        (auxvec::AT_PHNUM, aux.phnum),
        (auxvec::AT_BASE, aux.interpreter),
        (auxvec::AT_FLAGS, 0),
        (auxvec::AT_ENTRY, aux.entry),
        (auxvec::AT_UID, aux.ids[0].into()),
        (auxvec::AT_EUID, aux.ids[1].into()),
        (auxvec::AT_GID, aux.ids[2].into()),
        (auxvec::AT_EGID, aux.ids[3].into()),
        (auxvec::AT_SECURE, aux.secure.into()),
        (auxvec::AT_RANDOM, random_at),
        (auxvec::AT_HWCAP2, aux.hwcap2),
        (auxvec::AT_EXECFN, path_at),
        (auxvec::AT_PLATFORM, platform_at),
        (auxvec::AT_NULL, 0),
    ];
    let words = 1 + argument_count + 1 + environment.len() + 1 + 2 * vector.len();
    let start = (random_at - words as u64 * 8) & !15;

    let mut bytes = Vec::new();
    bytes.try_reserve_exact((top - start) as usize)?;
    let mut word = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
    let addresses_of = |strings: &[S], mut at: u64, word: &mut dyn FnMut(u64)| {
        for string in strings {
            word(at);
            at += string.as_ref().len() as u64 + 1;
        }
        word(0);
    };
    word(argument_count as u64);
    if arguments.is_empty() {
        word(arguments_at);
    }
    addresses_of(arguments, arguments_at, &mut word);
    addresses_of(environment, environment_at, &mut word);
    for (key, value) in vector {
        word(key.into());
        word(value);
    }
    let aux_end = start + bytes.len() as u64;
    let mut put = |at: u64, string: &[u8]| {
        bytes.resize((at - start) as usize, 0);
        bytes.extend_from_slice(string);
    };
    put(random_at, &aux.random);
    put(platform_at, aux.platform.as_bytes());
    let mut at = arguments_at;
    if arguments.is_empty() {
        at += 1;
    }
    for string in arguments.iter().chain(environment) {
        put(at, string.as_ref());
        at += string.as_ref().len() as u64 + 1;
    }
    put(path_at, path);
    put(top, &[]);
    Ok(Stack {
        start,
        bytes,
        arguments: arguments_at..environment_at,
        environment: environment_at..path_at,
        aux: aux_end - 16 * vector.len() as u64..aux_end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const TOP: u64 = 0x7fff_ffff_f000;

    /// Reads a stack as a program does.
    struct Reader<'a>(&'a Stack);

    impl Reader<'_> {
        fn word(&self, at: u64) -> u64 {
            let at = (at - self.0.start) as usize;
            u64::from_le_bytes(self.0.bytes[at..at + 8].try_into().unwrap())
        }

        fn string(&self, at: u64) -> &[u8] {
            self.0.bytes[(at - self.0.start) as usize..].split(|&byte| byte == 0).next().unwrap()
        }

        fn strings(&self, mut at: u64) -> (vec::Vec<&[u8]>, u64) {
            let mut strings = vec![];
            while self.word(at) != 0 {
                strings.push(self.string(self.word(at)));
                at += 8;
            }
            (strings, at + 8)
        }

        fn aux(&self, mut at: u64, key: u32) -> Option<u64> {
            while self.word(at) != 0 {
                if self.word(at) == key.into() {
                    return Some(self.word(at + 8));
                }
                at += 16;
            }
            None
        }
    }

    #[test]
    fn a_program_finds_its_strings_and_auxiliary_vector() {
        let aux = Aux {
            platform: "vax",
            random: *b"0123456789abcdef",
            entry: 0x40_1000,
            ids: [1, 2, 3, 4],
            ..Aux::default()
        };
        for odd in 0..4 {
            let (arguments, environment) = (["ls", "-l", "/"], ["A=b", "C=", "D=e"]);
            let stack =
                build(TOP, arg_limit(8 << 20), b"/bin/ls", &arguments, &environment[..odd.min(3)], &aux).unwrap();
            let read = Reader(&stack);
            assert_eq!(stack.start % 16, 0);
            assert_eq!(stack.start + stack.bytes.len() as u64, TOP);
            assert_eq!(read.word(stack.start), 3);
            let (found, at) = read.strings(stack.start + 8);
            assert_eq!(found, [b"ls".as_slice(), b"-l", b"/"]);
            assert_eq!(stack.arguments, read.word(stack.start + 8)..stack.environment.start);
            let (found, at) = read.strings(at);
            assert!(found.iter().copied().eq(environment[..odd.min(3)].iter().map(|string| string.as_bytes())));
            assert_eq!(stack.aux.start, at);
            let get = |key| read.aux(at, key).unwrap();
            assert_eq!(read.string(get(auxvec::AT_EXECFN)), b"/bin/ls");
            assert_eq!(read.string(get(auxvec::AT_PLATFORM)), b"vax");
            assert!(read.string(get(auxvec::AT_RANDOM)).starts_with(b"0123456789abcdef"));
            assert_eq!((get(auxvec::AT_ENTRY), get(auxvec::AT_EGID)), (0x40_1000, 4));
            assert_eq!(read.word(stack.aux.end - 16), 0);
            let cmdline = &stack.bytes[(stack.arguments.start - stack.start) as usize..][..8];
            assert_eq!(cmdline, b"ls\0-l\0/\0");
            assert_eq!(read.word(TOP - 8), 0);
        }
    }

    #[test]
    fn a_program_without_arguments_gets_an_empty_one() {
        let stack = build::<&str>(TOP, arg_limit(0), b"x", &[], &["A=b"], &Aux::default()).unwrap();
        let read = Reader(&stack);
        assert_eq!(read.word(stack.start), 1);
        let (found, at) = read.strings(stack.start + 8);
        assert_eq!(found, [b""]);
        assert_eq!(read.strings(at).0, [b"A=b"]);
    }

    #[test]
    fn strings_beyond_the_limits_are_refused() {
        let aux = Aux::default();
        let long = "x".repeat(MAX_ARG_STRLEN - 1);
        let longer = "x".repeat(MAX_ARG_STRLEN);
        assert!(build(TOP, MAX_ARG_LIMIT, b"x", &[&long], &[], &aux).is_ok());
        assert_eq!(build(TOP, MAX_ARG_LIMIT, b"x", &[&longer], &[], &aux).unwrap_err(), Errno::E2BIG);
        assert_eq!(build(TOP, MIN_ARG_LIMIT, b"x", &[&long], &[], &aux).unwrap_err(), Errno::E2BIG);
        // 100 strings of 9 bytes with their NUL, and addresses of 8; the path is one byte and its
        // NUL.
        let many = vec!["12345678"; 100];
        assert!(build(TOP, 1702, b"x", &many, &[], &aux).is_ok());
        assert_eq!(build(TOP, 1701, b"x", &many, &[], &aux).unwrap_err(), Errno::E2BIG);
        assert_eq!(
            (arg_limit(0), arg_limit(1 << 20), arg_limit(8 << 20), arg_limit(u64::MAX)),
            (MIN_ARG_LIMIT, 256 << 10, 2 << 20, MAX_ARG_LIMIT)
        );
    }
}
