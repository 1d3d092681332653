//! The protection keys of an address space: which are allocated (Linux: `mm_context_t`).
//!
//! A key is a number that memory has. What a thread may do to memory with a key is the thread's own
//! choice, for which the kernel is not asked (x86-64: PKRU).

/// The key of memory to which a program has given none. It is allocated from the start.
pub const DEFAULT: u8 = 0;

/// The keys of an address space, below 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// A bit for each allocated key.
    allocated: u16,
    /// The allocated key of memory that can be executed only. Programs don't own it.
    execute_only: Option<u8>,
}

impl Default for Keys {
    fn default() -> Self {
        Self { allocated: 1 << DEFAULT, execute_only: None }
    }
}

impl Keys {
    /// Allocates the lowest free key below `count`. Returns `None` if all are allocated.
    pub fn allocate(&mut self, count: u8) -> Option<u8> {
        let key = self.allocated.trailing_ones() as u8;
        if key >= count {
            return None;
        }
        self.allocated |= 1 << key;
        Some(key)
    }

    /// Returns true if the program owns a key: it may give the key to memory.
    pub fn owns(&self, key: u8) -> bool {
        key < 16 && self.allocated >> key & 1 != 0 && self.execute_only != Some(key)
    }

    /// Frees a key. Memory keeps it. Returns false if the program does not own it.
    pub fn free(&mut self, key: u8) -> bool {
        let owned = self.owns(key);
        if owned {
            self.allocated &= !(1 << key);
        }
        owned
    }

    /// Returns the key of memory that can be executed only, and allocates it at the first call.
    /// Returns `None` if all keys below `count` are allocated.
    pub fn execute_only(&mut self, count: u8) -> Option<u8> {
        if self.execute_only.is_none() {
            self.execute_only = self.allocate(count);
        }
        self.execute_only
    }

    /// Returns true if this is the key of memory that can be executed only.
    pub fn is_execute_only(&self, key: u8) -> bool {
        self.execute_only == Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_allocated_from_the_lowest() {
        let mut keys = Keys::default();
        assert_eq!((1..16).map(|_| keys.allocate(16)).collect::<Option<std::vec::Vec<_>>>(), Some((1..16).collect()));
        assert_eq!(keys.allocate(16), None);
        assert!(keys.free(7) && !keys.free(7) && !keys.owns(7));
        assert_eq!(keys.allocate(16), Some(7));
    }

    #[test]
    fn a_machine_without_keys_has_the_default_alone() {
        let mut keys = Keys::default();
        assert_eq!((keys.allocate(1), keys.execute_only(1)), (None, None));
        assert!(keys.owns(DEFAULT) && !keys.owns(1) && !keys.owns(16) && !keys.owns(u8::MAX));
    }

    #[test]
    fn the_key_of_executable_memory_is_not_the_programs() {
        let mut keys = Keys::default();
        let key = keys.execute_only(16).unwrap();
        assert_eq!(keys.execute_only(16), Some(key));
        assert!(keys.is_execute_only(key) && !keys.owns(key) && !keys.free(key));
        assert_eq!(keys.allocate(16), Some(key + 1));
    }
}
