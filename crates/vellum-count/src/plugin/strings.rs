//! x86's string instructions with a prefix that repeats them.
//!
//! QEMU executes each iteration as an instruction. A processor counts the instruction once, however
//! often it is repeated (Intel SDM, volume 3B, "Pre-defined Architectural Performance Events",
//! "Instructions Retired"), and moves several words in a cycle. So it counts once here, too.

use std::sync::Mutex;

/// Returns whether an instruction is a string instruction with a prefix that repeats it. No
/// instruction of AArch64 is so short.
pub fn repeats((bytes, size): ([u8; 4], usize)) -> bool {
    const LONGEST: usize = 3;
    let is_string = |opcode: &u8| matches!(opcode, 0xa4..=0xa7 | 0xaa..=0xaf);
    let is_prefix = |byte: &u8| matches!(byte, 0x40..=0x4f);
    if size > LONGEST || !matches!(bytes[0], 0xf2 | 0xf3) {
        return false;
    }
    match &bytes[1..size] {
        [opcode] => is_string(opcode),
        [prefix, opcode] => is_prefix(prefix) && is_string(opcode),
        _ => false,
    }
}

/// The repetitions so far.
pub struct Repetitions {
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    count: u64,
    /// The address of the latest string instruction, and the executions that QEMU had counted then.
    latest: (usize, u64),
}

impl Repetitions {
    /// Returns the state before the first instruction.
    pub(super) const fn new() -> Self {
        Self { state: Mutex::new(State { count: 0, latest: (0, 0) }) }
    }

    /// Returns their number.
    pub fn count(&self) -> u64 {
        self.lock().count
    }

    /// A string instruction executes an iteration. `now` is the number of executions that QEMU has
    /// counted, of all CPUs, which take turns: if it has counted one since the latest call, that
    /// was the iteration before.
    pub fn iterates(&self, address: usize, now: u64) {
        let mut state = self.lock();
        if state.latest == (address, now.wrapping_sub(1)) {
            state.count += 1;
        }
        state.latest = (address, now);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_instructions_that_repeat_are_known_by_their_bytes() {
        let is = |bytes: &[u8]| {
            let mut padded = [0; 4];
            padded[..bytes.len()].copy_from_slice(bytes);
            repeats((padded, bytes.len()))
        };
        // rep movsb, rep stosq, repne scasb
        assert!(is(&[0xf3, 0xa4]) && is(&[0xf3, 0x48, 0xab]) && is(&[0xf2, 0xae]));
        // movsb, endbr64, pause, an instruction of AArch64
        assert!(!is(&[0xa4]) && !is(&[0xf3, 0x0f, 0x1e, 0xfa]) && !is(&[0xf3, 0x90]) && !is(&[0xf3, 0xa4, 0, 0xd4]));
    }

    #[test]
    fn iterations_after_the_first_are_repetitions() {
        let repetitions = Repetitions::new();
        for now in [10, 11, 12] {
            repetitions.iterates(0x1000, now);
        }
        assert_eq!(repetitions.count(), 2);
        // The instruction again, after another one; and another string instruction right after.
        repetitions.iterates(0x1000, 14);
        repetitions.iterates(0x2000, 15);
        assert_eq!(repetitions.count(), 2);
    }
}
