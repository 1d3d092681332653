//! Classic BPF, as far as filters of system calls may use it: the checks of a new program, and its
//! execution. A program only jumps forward, so each execution ends.

use crate::errno::Errno;
use alloc::vec::Vec;

/// The most instructions of a program (Linux: `BPF_MAXINSNS`).
pub const MOST: usize = 4096;
/// The number of words of a program's memory.
const WORDS: usize = 16;
/// The size in bytes of the description of a call (`struct seccomp_data`).
pub const DATA_SIZE: usize = 64;
/// The number of bytes of the description that do not depend on the call's place and arguments: its
/// number and its architecture.
const KNOWN: usize = 8;

/// An instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// The instructions to skip if a comparison is true.
    pub if_true: u8,
    /// The instructions to skip if it is false.
    pub if_false: u8,
    /// The constant.
    pub k: u32,
}

/// The size in bytes of an instruction.
pub const INSTRUCTION_SIZE: usize = 8;

impl Instruction {
    /// Returns the instruction that these bytes of a program's memory mean.
    pub fn from_bytes(bytes: &[u8; INSTRUCTION_SIZE]) -> Self {
        let [c0, c1, if_true, if_false, k @ ..] = *bytes;
        Instruction { code: u16::from_le_bytes([c0, c1]), if_true, if_false, k: u32::from_le_bytes(k) }
    }
}

/// The description of a call: its number, its architecture, and the place and the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number.
    pub number: u32,
    /// The architecture (`AUDIT_ARCH_*`).
    pub arch: u32,
    /// The address behind the instruction that makes the call.
    pub place: u64,
    /// The arguments.
    pub arguments: [u64; 6],
}

impl Call {
    /// Returns the word at a multiple of 4 in the description.
    fn word(&self, at: u32) -> u32 {
        let half = |value: u64| if at & 4 == 0 { value as u32 } else { (value >> 32) as u32 };
        match at {
            0 => self.number,
            4 => self.arch,
            8 | 12 => half(self.place),
            _ => self.arguments.get((at as usize - 16) / 8).map_or(0, |argument| half(*argument)),
        }
    }
}

/// The operations, as instructions encode them.
mod code {
    pub const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    pub const LOAD_LENGTH: u16 = 0x80; // BPF_LD | BPF_W | BPF_LEN
    pub const LOAD_LENGTH_X: u16 = 0x81;
    pub const SET: u16 = 0x00; // BPF_LD | BPF_IMM
    pub const SET_X: u16 = 0x01;
    pub const LOAD_MEMORY: u16 = 0x60;
    pub const LOAD_MEMORY_X: u16 = 0x61;
    pub const STORE: u16 = 0x02;
    pub const STORE_X: u16 = 0x03;
    pub const RETURN: u16 = 0x06;
    pub const RETURN_A: u16 = 0x16;
    pub const TAX: u16 = 0x07;
    pub const TXA: u16 = 0x87;
    pub const JUMP: u16 = 0x05;
    pub const NEGATE: u16 = 0x84;
    /// The class of arithmetic, with the operation in the upper half and [`X`] or not.
    pub const ARITHMETIC: u16 = 0x04;
    /// The class of comparisons, likewise.
    pub const COMPARE: u16 = 0x05;
    /// The operand is X instead of the constant.
    pub const X: u16 = 0x08;
    pub const OPERATION: u16 = 0xf0;
    pub const ADD: u16 = 0x00;
    pub const SUBTRACT: u16 = 0x10;
    pub const MULTIPLY: u16 = 0x20;
    pub const DIVIDE: u16 = 0x30;
    pub const OR: u16 = 0x40;
    pub const AND: u16 = 0x50;
    pub const SHIFT_LEFT: u16 = 0x60;
    pub const SHIFT_RIGHT: u16 = 0x70;
    pub const XOR: u16 = 0xa0;
    pub const EQUAL: u16 = 0x10;
    pub const GREATER: u16 = 0x20;
    pub const GREATER_OR_EQUAL: u16 = 0x30;
    pub const ANY_BIT: u16 = 0x40;
}

/// An arithmetic operation, if the code is one.
fn arithmetic(code: u16) -> Option<(u16, bool)> {
    use code::*;
    let operation = code & OPERATION;
    let known = [ADD, SUBTRACT, MULTIPLY, DIVIDE, OR, AND, SHIFT_LEFT, SHIFT_RIGHT, XOR].contains(&operation);
    (known && code & !(OPERATION | X) == ARITHMETIC).then_some((operation, code & X != 0))
}

/// A comparison, if the code is one.
fn comparison(code: u16) -> Option<(u16, bool)> {
    use code::*;
    let operation = code & OPERATION;
    let known = [EQUAL, GREATER, GREATER_OR_EQUAL, ANY_BIT].contains(&operation);
    (known && code & !(OPERATION | X) == COMPARE).then_some((operation, code & X != 0))
}

/// A program whose instructions were checked.
#[derive(Debug)]
pub struct Program(Vec<Instruction>);

impl Program {
    /// Checks a program. Its loads are within the description of a call, its jumps lead forward and
    /// to an instruction, its constants divide and shift, what it loads from its memory was stored
    /// there on each way, and it ends with a return.
    ///
    /// # Errors
    /// `EINVAL`; `ENOMEM`.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, Errno> {
        let len = instructions.len();
        if !(1..=MOST).contains(&len) {
            return Err(Errno::EINVAL);
        }
        let is_good = |(at, one): (usize, &Instruction)| {
            // The number of instructions behind this one.
            let behind = (len - at - 1) as u64;
            match one.code {
                code::LOAD => (one.k as usize) < DATA_SIZE && one.k & 3 == 0,
                code::LOAD_MEMORY | code::LOAD_MEMORY_X | code::STORE | code::STORE_X => (one.k as usize) < WORDS,
                code::JUMP => u64::from(one.k) < behind,
                code::LOAD_LENGTH | code::LOAD_LENGTH_X | code::SET | code::SET_X | code::TAX | code::TXA => true,
                code::RETURN | code::RETURN_A | code::NEGATE => true,
                code => match (arithmetic(code), comparison(code)) {
                    (Some((code::DIVIDE, false)), _) => one.k != 0,
                    (Some((code::SHIFT_LEFT | code::SHIFT_RIGHT, false)), _) => one.k < 32,
                    (Some(_), _) => true,
                    (_, Some(_)) => u64::from(one.if_true.max(one.if_false)) < behind,
                    _ => false,
                },
            }
        };
        let ends = matches!(instructions[len - 1].code, code::RETURN | code::RETURN_A);
        if !instructions.iter().enumerate().all(is_good) || !ends || !stores_before_loads(&instructions)? {
            return Err(Errno::EINVAL);
        }
        Ok(Program(instructions))
    }

    /// Returns the number of instructions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the program has no instruction, which no program is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Runs the program for a call, and returns its result.
    pub fn run(&self, call: &Call) -> u32 {
        self.execute(call, DATA_SIZE).unwrap_or(0)
    }

    /// Returns the program's result for all calls of this number, or `None` if it depends on more
    /// than the number and the architecture.
    pub fn constant(&self, number: u32, arch: u32) -> Option<u32> {
        self.execute(&Call { number, arch, place: 0, arguments: [0; 6] }, KNOWN)
    }

    /// Runs the program until it returns, or loads what lies behind the first `known` bytes of the
    /// description of the call.
    fn execute(&self, call: &Call, known: usize) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; WORDS]);
        let mut at = 0;
        // The checks make sure that a return comes before the end.
        while let Some(one) = self.0.get(at) {
            at += 1;
            let k = one.k;
            // Constants are below the number of words.
            let slot = k as usize % WORDS;
            match one.code {
                code::LOAD if k as usize >= known => return None,
                code::LOAD => a = call.word(k),
                code::LOAD_LENGTH => a = DATA_SIZE as u32,
                code::LOAD_LENGTH_X => x = DATA_SIZE as u32,
                code::SET => a = k,
                code::SET_X => x = k,
                code::LOAD_MEMORY => a = memory[slot],
                code::LOAD_MEMORY_X => x = memory[slot],
                code::STORE => memory[slot] = a,
                code::STORE_X => memory[slot] = x,
                code::RETURN => return Some(k),
                code::RETURN_A => return Some(a),
                code::TAX => x = a,
                code::TXA => a = x,
                code::NEGATE => a = a.wrapping_neg(),
                code::JUMP => at += k as usize,
                code if code & 7 == code::COMPARE => {
                    let operand = if code & code::X != 0 { x } else { k };
                    let is_true = match code & code::OPERATION {
                        code::EQUAL => a == operand,
                        code::GREATER => a > operand,
                        code::GREATER_OR_EQUAL => a >= operand,
                        _ => a & operand != 0,
                    };
                    at += usize::from(if is_true { one.if_true } else { one.if_false });
                }
                code => {
                    let operand = if code & code::X != 0 { x } else { k };
                    a = match code & code::OPERATION {
                        code::ADD => a.wrapping_add(operand),
                        code::SUBTRACT => a.wrapping_sub(operand),
                        code::MULTIPLY => a.wrapping_mul(operand),
                        // A division by zero ends the program with the strictest action.
                        code::DIVIDE => match a.checked_div(operand) {
                            Some(quotient) => quotient,
                            None => return Some(0),
                        },
                        code::OR => a | operand,
                        code::AND => a & operand,
                        code::SHIFT_LEFT => a.wrapping_shl(operand),
                        code::SHIFT_RIGHT => a.wrapping_shr(operand),
                        _ => a ^ operand,
                    };
                }
            }
        }
        Some(0)
    }
}

/// Returns true if each load from the program's memory comes behind a store to the same word, on
/// each way to it. As on Linux, what stands behind a return counts as reached from there.
fn stores_before_loads(instructions: &[Instruction]) -> Result<bool, Errno> {
    // For each instruction, the words that all jumps to it have stored, a bit each.
    let mut stored: Vec<u16> = Vec::new();
    stored.try_reserve_exact(instructions.len())?;
    stored.resize(instructions.len(), u16::MAX);
    let mut here = 0u16;
    let arrive = |stored: &mut [u16], at: usize, here: u16| {
        if let Some(words) = stored.get_mut(at) {
            *words &= here;
        }
    };
    for (at, one) in instructions.iter().enumerate() {
        here &= stored[at];
        let bit = 1u16 << (one.k % WORDS as u32);
        match one.code {
            code::STORE | code::STORE_X => here |= bit,
            code::LOAD_MEMORY | code::LOAD_MEMORY_X if here & bit == 0 => return Ok(false),
            code::JUMP => {
                arrive(&mut stored, at + 1 + one.k as usize, here);
                here = u16::MAX;
            }
            code if comparison(code).is_some() => {
                arrive(&mut stored, at + 1 + usize::from(one.if_true), here);
                arrive(&mut stored, at + 1 + usize::from(one.if_false), here);
                here = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn one(code: u16, if_true: u8, if_false: u8, k: u32) -> Instruction {
        Instruction { code, if_true, if_false, k }
    }

    fn plain(code: u16, k: u32) -> Instruction {
        one(code, 0, 0, k)
    }

    const CALL: Call =
        Call { number: 7, arch: 0xc000_003e, place: 0x1_0000_0002, arguments: [1, 2, 3 << 40 | 4, 5, 6, u64::MAX] };

    fn run(instructions: &[Instruction]) -> u32 {
        Program::new(instructions.to_vec()).unwrap().run(&CALL)
    }

    fn is_refused(instructions: &[Instruction]) -> bool {
        Program::new(instructions.to_vec()).err() == Some(Errno::EINVAL)
    }

    #[test]
    fn loads_read_the_description_of_the_call() {
        let load = |at| run(&[plain(code::LOAD, at), plain(code::RETURN_A, 0)]);
        assert_eq!([0, 4, 8, 12, 16, 20].map(load), [7, 0xc000_003e, 2, 1, 1, 0]);
        assert_eq!([32, 36, 56, 60].map(load), [4, 3 << 8, u32::MAX, u32::MAX]);
        assert_eq!(run(&[plain(code::LOAD_LENGTH, 9), plain(code::RETURN_A, 0)]), 64);
        for wrong in [1, 2, 62, 64, 68, u32::MAX - 3] {
            assert!(is_refused(&[plain(code::LOAD, wrong), plain(code::RETURN_A, 0)]), "{wrong}");
        }
    }

    #[test]
    fn arithmetic_wraps_and_a_division_by_zero_ends_the_program() {
        let of = |operation: u16, a: u32, operand: u32| {
            let constant =
                [plain(code::SET, a), plain(code::ARITHMETIC | operation, operand), plain(code::RETURN_A, 0)];
            let with_x = [
                plain(code::SET, a),
                plain(code::SET_X, operand),
                plain(code::ARITHMETIC | code::X | operation, 99),
                plain(code::RETURN_A, 0),
            ];
            let result = run(&with_x);
            if Program::new(constant.to_vec()).is_ok() {
                assert_eq!(run(&constant), result, "{operation:#x}");
            }
            result
        };
        assert_eq!(of(code::ADD, u32::MAX, 2), 1);
        assert_eq!(of(code::SUBTRACT, 1, 2), u32::MAX);
        assert_eq!(of(code::MULTIPLY, 1 << 31, 6), 0);
        assert_eq!([of(code::DIVIDE, 17, 5), of(code::DIVIDE, 17, 0)], [3, 0]);
        assert_eq!([of(code::OR, 5, 3), of(code::AND, 5, 3), of(code::XOR, 5, 3)], [7, 1, 6]);
        assert_eq!(
            [of(code::SHIFT_LEFT, 3, 31), of(code::SHIFT_LEFT, 3, 33), of(code::SHIFT_RIGHT, 9, 2)],
            [1 << 31, 6, 2]
        );
        assert_eq!(run(&[plain(code::SET, 1), plain(code::NEGATE, 0), plain(code::RETURN_A, 0)]), u32::MAX);
        let end = plain(code::RETURN, 0);
        assert!(is_refused(&[plain(code::ARITHMETIC | code::DIVIDE, 0), end]));
        assert!(is_refused(&[plain(code::ARITHMETIC | code::SHIFT_LEFT, 32), end]));
        assert!(is_refused(&[plain(code::ARITHMETIC | 0x90, 3), end]), "a remainder");
    }

    #[test]
    fn comparisons_choose_and_jumps_stay_in_the_program() {
        let compare = |operation: u16, a: u32, k: u32| {
            run(&[
                plain(code::SET, a),
                one(code::COMPARE | operation, 1, 0, k),
                plain(code::RETURN, 10),
                plain(code::JUMP, 1),
                plain(code::RETURN, 11),
                plain(code::RETURN, 12),
            ])
        };
        assert_eq!([compare(code::EQUAL, 3, 3), compare(code::EQUAL, 3, 4)], [12, 10]);
        assert_eq!([compare(code::GREATER, 4, 3), compare(code::GREATER, 3, 3)], [12, 10]);
        assert_eq!([compare(code::GREATER_OR_EQUAL, 3, 3), compare(code::GREATER_OR_EQUAL, 2, 3)], [12, 10]);
        assert_eq!([compare(code::ANY_BIT, 6, 4), compare(code::ANY_BIT, 2, 4)], [12, 10]);
        let end = plain(code::RETURN, 0);
        for wrong in [one(code::JUMP, 0, 0, 1), one(code::JUMP, 0, 0, u32::MAX), one(0x15, 1, 0, 0), one(0x15, 0, 1, 0)]
        {
            assert!(is_refused(&[wrong, end]), "{wrong:?}");
        }
        assert!(!is_refused(&[one(0x15, 0, 0, 0), end]));
    }

    #[test]
    fn a_program_has_an_end_and_a_length() {
        let end = plain(code::RETURN, 1);
        assert!(is_refused(&[]) && is_refused(&[plain(code::SET, 1)]) && is_refused(&[end, plain(code::TAX, 0)]));
        assert!(!is_refused(&vec![end; 4096]) && is_refused(&vec![end; 4097]));
        for unknown in [0x28, 0x30, 0x40, 0x48, 0xb1, 0x0e, 0x94, 0x8c, 0xffff] {
            assert!(is_refused(&[plain(unknown, 0), end]), "{unknown:#x}");
        }
    }

    #[test]
    fn memory_is_read_only_where_it_was_written_on_each_way() {
        let (store, load) = (plain(code::STORE, 3), plain(code::LOAD_MEMORY, 3));
        let end = plain(code::RETURN_A, 0);
        assert_eq!(run(&[plain(code::SET, 5), store, plain(code::SET, 0), load, end]), 5);
        assert!(is_refused(&[load, end]) && is_refused(&[plain(code::STORE, 2), load, end]));
        assert!(is_refused(&[plain(code::STORE, 16), end]));
        // One of two ways leaves the store out.
        assert!(is_refused(&[one(0x15, 1, 0, 0), store, load, end]));
        assert!(!is_refused(&[one(0x15, 0, 1, 0), store, plain(code::STORE, 3), load, end][2..]));
        assert!(!is_refused(&[store, one(0x15, 1, 0, 0), plain(code::TAX, 0), load, end]));
    }

    #[test]
    fn a_result_is_constant_if_no_argument_is_read_on_the_way() {
        let program = Program::new(vec![
            plain(code::LOAD, 0),
            one(0x15, 0, 2, 7),
            plain(code::LOAD, 16),
            plain(code::RETURN_A, 0),
            plain(code::RETURN, 9),
        ])
        .unwrap();
        assert_eq!((program.constant(7, 0), program.constant(8, 0), program.run(&CALL)), (None, Some(9), 1));
    }

    /// Random programs either are refused, or end with a result.
    #[test]
    fn each_program_that_passes_the_checks_ends() {
        let mut random = oorandom::Rand32::new(7);
        let codes = [
            0x20, 0x80, 0x00, 0x01, 0x60, 0x61, 0x02, 0x03, 0x06, 0x16, 0x07, 0x87, 0x05, 0x84, 0x15, 0x2d, 0x45, 0x0c,
            0x3c, 0x6c,
        ];
        let mut accepted = 0;
        for _ in 0..20_000 {
            let len = random.rand_range(1..12);
            let mut instructions: vec::Vec<_> = (0..len)
                .map(|_| {
                    let code = codes[random.rand_range(0..codes.len() as u32) as usize];
                    let (k, jump) = (random.rand_range(0..8), random.rand_u32());
                    one(code, jump as u8 & 3, (jump >> 8) as u8 & 3, if code == 0x20 { 4 * k } else { k })
                })
                .collect();
            instructions.push(plain(code::RETURN_A, 0));
            if let Ok(program) = Program::new(instructions) {
                accepted += 1;
                let (result, constant) = (program.run(&CALL), program.constant(CALL.number, CALL.arch));
                assert!(constant.is_none_or(|constant| constant == result));
            }
        }
        assert!(accepted > 1000, "{accepted}");
    }
}
