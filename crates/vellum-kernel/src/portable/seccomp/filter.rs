//! Filters, and the chains that they form.

use super::action::{self, ALLOW, MODE_DISABLED, MODE_FILTER};
use super::bpf::{Call, Program};
use crate::errno::Errno;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The most instructions of a chain, with [`PENALTY`] for each filter (Linux:
/// `MAX_INSNS_PER_PATH`).
const MOST_INSTRUCTIONS: usize = 32768;
/// The instructions that a filter counts for besides its own.
const PENALTY: usize = 4;
/// The system calls for which a chain remembers that it permits them.
const REMEMBERED: usize = 512;

/// A filter, and those that were installed before it.
pub struct Filter {
    program: Arc<Program>,
    /// The filter before this one.
    before: Option<Arc<Filter>>,
    /// The number of filters in the chain.
    pub count: u32,
    /// The instructions of the chain, with the penalties.
    instructions: usize,
    /// The calls that the chain permits whatever their arguments, a bit each.
    permitted: [u64; REMEMBERED / 64],
    /// Actions other than `ALLOW` are logged (`SECCOMP_FILTER_FLAG_LOG`).
    pub logs: bool,
    has_logged: AtomicBool,
}

impl Filter {
    /// Returns a chain that begins with a program and goes on with `before`. `arch`: the
    /// architecture of the calls.
    ///
    /// # Errors
    /// `ENOMEM`: the chain would have too many instructions.
    pub fn new(
        program: Arc<Program>,
        arch: u32,
        logs: bool,
        before: Option<Arc<Filter>>,
    ) -> Result<Arc<Filter>, Errno> {
        let own = program.len() + before.as_ref().map_or(0, |before| before.instructions);
        if own > MOST_INSTRUCTIONS {
            return Err(Errno::ENOMEM);
        }
        let mut permitted = [0; REMEMBERED / 64];
        for number in 0..REMEMBERED {
            let others = before.as_ref().is_none_or(|before| before.always_permits(number as u32));
            if others && program.constant(number as u32, arch) == Some(ALLOW) {
                permitted[number / 64] |= 1 << (number % 64);
            }
        }
        let count = 1 + before.as_ref().map_or(0, |before| before.count);
        Ok(Arc::new(Filter {
            program,
            before,
            count,
            instructions: own + PENALTY,
            permitted,
            logs,
            has_logged: AtomicBool::new(false),
        }))
    }

    /// Returns true if the chain permits all calls of this number, as far as it remembers.
    pub fn always_permits(&self, number: u32) -> bool {
        self.permitted.get(number as usize / 64).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// Runs the chain for a call. Returns the value with the strictest action, of several such the
    /// newest filter's, and that filter.
    pub fn decide(&self, call: &Call) -> (u32, &Filter) {
        let mut decision = (ALLOW, self);
        let mut at = Some(self);
        while let Some(filter) = at {
            let value = filter.program.run(call);
            if action::is_stricter(value, decision.0) {
                decision = (value, filter);
            }
            at = filter.before.as_deref();
        }
        decision
    }

    /// Returns true the first time.
    pub fn begin_log(&self) -> bool {
        !self.has_logged.swap(true, Relaxed)
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // A chain may be long: its filters are dropped one after the other, not one in the other.
        let mut next = self.before.take();
        while let Some(mut filter) = next.and_then(Arc::into_inner) {
            next = filter.before.take();
        }
    }
}

/// The calls that a thread may make: all, four, or those that its filters permit.
#[derive(Clone, Default)]
pub struct Seccomp {
    /// `MODE_DISABLED`, `MODE_STRICT` or `MODE_FILTER`.
    pub mode: u32,
    /// The newest filter.
    pub filter: Option<Arc<Filter>>,
}

impl Seccomp {
    /// Returns true if this is the same mode with the same filters.
    pub fn is_same(&self, other: &Seccomp) -> bool {
        let address = |state: &Seccomp| state.filter.as_ref().map(Arc::as_ptr);
        (self.mode, address(self)) == (other.mode, address(other))
    }

    /// Returns true if another thread of the process, of which this is the state, may get `newest`
    /// in its place: it has none of its own that the other lacks.
    pub fn may_follow(&self, newest: Option<&Arc<Filter>>) -> bool {
        match (&self.filter, self.mode) {
            (_, MODE_DISABLED) => true,
            (None, mode) => mode == MODE_FILTER,
            (Some(own), _) => {
                let mut at = newest;
                while let Some(filter) = at {
                    if Arc::ptr_eq(filter, own) {
                        return true;
                    }
                    at = filter.before.as_ref();
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::action::{ERRNO, KILL_PROCESS, LOG, MODE_STRICT};
    use super::super::bpf::Instruction;
    use super::*;
    use std::vec;
    use std::vec::Vec;

    const CALL: Call = Call { number: 5, arch: 9, place: 0, arguments: [0; 6] };

    fn returns(value: u32, more: usize) -> Arc<Program> {
        let end = Instruction { code: 0x06, if_true: 0, if_false: 0, k: value };
        Arc::new(Program::new(vec![end; 1 + more]).unwrap())
    }

    fn chain(values: &[u32]) -> Arc<Filter> {
        let add = |before, value: &u32| Some(Filter::new(returns(*value, 0), 9, false, before).unwrap());
        values.iter().fold(None, add).unwrap()
    }

    #[test]
    fn the_strictest_action_counts_and_of_equal_ones_the_newest() {
        let decision = |values: &[u32]| chain(values).decide(&CALL).0;
        assert_eq!(decision(&[ALLOW, LOG, ALLOW]), LOG);
        assert_eq!(decision(&[ERRNO | 1, ERRNO | 2, LOG]), ERRNO | 2);
        assert_eq!(decision(&[ERRNO | 1, KILL_PROCESS, 0]), KILL_PROCESS);
        assert_eq!(chain(&[ALLOW, LOG, ALLOW]).count, 3);
    }

    #[test]
    fn a_chain_remembers_what_all_its_filters_permit() {
        // Permits call 5, and others by their first argument.
        let program = |number| {
            let one = |code, if_true, if_false, k| Instruction { code, if_true, if_false, k };
            Program::new(vec![one(0x20, 0, 0, 0), one(0x15, 1, 0, number), one(0x20, 0, 0, 16), one(0x06, 0, 0, ALLOW)])
        };
        let first = Filter::new(Arc::new(program(5).unwrap()), 9, false, None).unwrap();
        assert_eq!(
            [4, 5, 6, 511, 512, u32::MAX].map(|number| first.always_permits(number)),
            [false, true, false, false, false, false]
        );
        let second = Filter::new(Arc::new(program(6).unwrap()), 9, false, Some(first)).unwrap();
        assert!(!second.always_permits(5) && !second.always_permits(6));
        assert!(chain(&[ALLOW, ALLOW]).always_permits(511) && !chain(&[ALLOW, LOG]).always_permits(511));
    }

    #[test]
    fn a_chain_has_no_more_instructions_than_a_call_may_take() {
        let mut newest = None;
        for _ in 0..7 {
            newest = Some(Filter::new(returns(ALLOW, 4095), 9, false, newest).unwrap());
        }
        assert_eq!(Filter::new(returns(ALLOW, 4068), 9, false, newest.clone()).err(), Some(Errno::ENOMEM));
        assert!(Filter::new(returns(ALLOW, 4067), 9, false, newest).is_ok());
    }

    /// Filters in a row are dropped without a call in a call.
    #[test]
    fn a_long_chain_is_dropped_on_a_small_stack() {
        let drops = || drop(chain(&vec![ALLOW; 6500]));
        std::thread::Builder::new().stack_size(64 << 10).spawn(drops).unwrap().join().unwrap();
    }

    #[test]
    fn a_thread_follows_if_it_has_no_filter_of_its_own() {
        let first = chain(&[ALLOW]);
        let second = Filter::new(returns(ALLOW, 0), 9, false, Some(first.clone())).unwrap();
        let with = |mode, filter: Option<&Arc<Filter>>| Seccomp { mode, filter: filter.cloned() };
        let states = [with(MODE_DISABLED, None), with(MODE_FILTER, Some(&first)), with(MODE_STRICT, None)];
        assert_eq!(states.iter().map(|state| state.may_follow(Some(&second))).collect::<Vec<_>>(), [true, true, false]);
        assert!(!with(MODE_FILTER, Some(&second)).may_follow(Some(&first)));
        assert!(with(MODE_FILTER, Some(&second)).may_follow(Some(&second)));
    }
}
