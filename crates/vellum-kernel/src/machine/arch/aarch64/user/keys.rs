//! Protection keys, which this architecture has only with FEAT_S1POE. The kernel does not use it.

/// Returns the number of keys: the default one.
pub fn count() -> u8 {
    1
}

/// Runs `body`: all memory has the default key.
pub fn with_all<T>(body: impl FnOnce() -> T) -> T {
    body()
}
