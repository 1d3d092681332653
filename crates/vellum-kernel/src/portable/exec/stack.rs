//! The first stack of a program: argument strings, environment, and the auxiliary vector, laid out
//! as Linux does.
//!
//! From the top down: eight bytes of zeros; the path executed; the environment's strings; the
//! arguments' strings (these lie in ascending order, so that `/proc/PID/cmdline` is one piece); the
//! platform's name; sixteen random bytes; then, so that the stack pointer is a multiple of 16: the
//! count of arguments, their addresses, zero, the environment's addresses, zero, and the auxiliary
//! vector.

use crate::errno::Errno;
use alloc::vec::Vec;
use core::ops::Range;
use linux_raw_sys::auxvec;

/// The longest string, with its NUL (Linux: `MAX_ARG_STRLEN`).
pub const MAX_ARG_STRLEN: usize = 32 * 4096;
/// What strings and addresses may take at least (Linux: `ARG_MAX`).
const MIN_ARG_LIMIT: u64 = 128 * 1024;
/// What they may take at most, three quarters of the usual stack.
const MAX_ARG_LIMIT: u64 = 6 * 1024 * 1024;

/// The entries of the auxiliary vector whose values vary, apart from addresses on the stack. Every
/// other entry has one value in this kernel.
#[derive(Clone, Debug, Default)]
pub struct Aux {
    /// `AT_PLATFORM`: what the architecture is called.
    pub platform: &'static str,
    /// `AT_HWCAP`: on x86-64 what CPUID leaf 1 says in EDX.
    pub hwcap: u64,
    /// `AT_HWCAP2`.
    pub hwcap2: u64,
    /// `AT_PAGESZ`.
    pub page_size: u64,
    /// `AT_PHDR`: zero if the table of segments is not mapped.
    pub phdr: u64,
    /// `AT_PHNUM`.
    pub phnum: u64,
    /// `AT_BASE`: where the interpreter lies, zero without one.
    pub interpreter: u64,
    /// `AT_ENTRY`: the program's, not the interpreter's.
    pub entry: u64,
    /// `AT_UID`, `AT_EUID`, `AT_GID`, `AT_EGID`.
    pub ids: [u32; 4],
    /// `AT_SECURE`: whether the program has more rights than its caller.
    pub secure: bool,
    /// `AT_RANDOM`: the bytes.
    pub random: [u8; 16],
    /// `AT_MINSIGSTKSZ`: the least stack for a signal handler, with the vector registers of this
    /// machine.
    pub min_signal_stack: u64,
}

/// A stack, ready to be copied to `start`.
#[derive(Debug)]
pub struct Stack {
    /// The stack pointer, and the address of the first of `bytes`; these end at the stack's top.
    pub start: u64,
    /// What lies there.
    pub bytes: Vec<u8>,
    /// Where the arguments' strings are (`/proc/PID/cmdline`).
    pub arguments: Range<u64>,
    /// Where the environment's strings are (`/proc/PID/environ`).
    pub environment: Range<u64>,
    /// Where the auxiliary vector is (`/proc/PID/auxv`).
    pub aux: Range<u64>,
}

/// What strings and their addresses may take together, for a limit on the stack (`RLIMIT_STACK`).
pub fn arg_limit(stack_limit: u64) -> u64 {
    (stack_limit / 4).clamp(MIN_ARG_LIMIT, MAX_ARG_LIMIT)
}

/// Lay out a stack that ends at `top` (a multiple of 16), and takes at most `room` bytes for
/// strings and their addresses. Strings are without their NUL. A program that is given no arguments
/// gets an empty one.
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
    let arguments_or_one = arguments.len().max(1);
    // Strings, with their NULs.
    let size = |strings: &[S]| {
        strings.iter().try_fold(0u64, |sum, string| {
            let length = string.as_ref().len();
            (length < MAX_ARG_STRLEN).then_some(sum + length as u64 + 1)
        })
    };
    let argument_bytes = size(arguments).ok_or(Errno::E2BIG)?.max(1);
    let environment_bytes = size(environment).ok_or(Errno::E2BIG)?;
    let path_bytes = path.len() as u64 + 1;
    let addresses = (arguments_or_one + environment.len()) as u64 * 8;
    if argument_bytes + environment_bytes + path_bytes + addresses > limit {
        return Err(Errno::E2BIG);
    }

    // Addresses, from the top down.
    let path_at = top - 8 - path_bytes;
    let environment_at = path_at - environment_bytes;
    let arguments_at = environment_at - argument_bytes;
    let platform_at = (arguments_at & !15) - (aux.platform.len() as u64 + 1);
    let random_at = platform_at - 16;
    let vector = [
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
    let words = 1 + arguments_or_one + 1 + environment.len() + 1 + 2 * vector.len();
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
    word(arguments_or_one as u64);
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
    fn what_a_program_finds() {
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
    fn no_arguments_are_one_empty_argument() {
        let stack = build::<&str>(TOP, arg_limit(0), b"x", &[], &["A=b"], &Aux::default()).unwrap();
        let read = Reader(&stack);
        assert_eq!(read.word(stack.start), 1);
        let (found, at) = read.strings(stack.start + 8);
        assert_eq!(found, [b""]);
        assert_eq!(read.strings(at).0, [b"A=b"]);
    }

    #[test]
    fn too_much_is_refused() {
        let aux = Aux::default();
        let long = "x".repeat(MAX_ARG_STRLEN - 1);
        let longer = "x".repeat(MAX_ARG_STRLEN);
        assert!(build(TOP, MAX_ARG_LIMIT, b"x", &[&long], &[], &aux).is_ok());
        assert_eq!(build(TOP, MAX_ARG_LIMIT, b"x", &[&longer], &[], &aux).unwrap_err(), Errno::E2BIG);
        assert_eq!(build(TOP, MIN_ARG_LIMIT, b"x", &[&long], &[], &aux).unwrap_err(), Errno::E2BIG);
        // 100 strings of 9 bytes with NUL and an address of 8; the path is one byte and its NUL.
        let many = vec!["12345678"; 100];
        assert!(build(TOP, 1702, b"x", &many, &[], &aux).is_ok());
        assert_eq!(build(TOP, 1701, b"x", &many, &[], &aux).unwrap_err(), Errno::E2BIG);
        assert_eq!(
            (arg_limit(0), arg_limit(1 << 20), arg_limit(8 << 20), arg_limit(u64::MAX)),
            (MIN_ARG_LIMIT, 256 << 10, 2 << 20, MAX_ARG_LIMIT)
        );
    }
}
