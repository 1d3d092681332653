//! Fixed pseudo-random numbers and orders, the same in every run and for every contender.

/// The seed, fixed so that every run discards in the same order.
pub const SEED: u64 = 0x76_656c_6c75_6d00;

/// Returns the next number of a SplitMix64 sequence, and advances `state`.
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a seed for `name`: the same for the same name, and unrelated for others.
pub fn seed_of(name: &str) -> u64 {
    name.bytes().fold(SEED, |state, byte| next(&mut (state ^ u64::from(byte))))
}

/// Returns a number below `end`, and advances `state`.
pub fn below(end: u64, state: &mut u64) -> u64 {
    next(state) % end
}

/// Shuffles `items` (Fisher-Yates) and advances `state`.
pub fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(last as u64 + 1, state) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_seeds_of_their_own() {
        let names = ["", "a", "b", "ab", "ba", "aa"];
        let mut seeds = names.map(seed_of).to_vec();
        assert_eq!(seeds, names.map(seed_of));
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), names.len());
    }

    #[test]
    fn a_shuffle_is_a_deterministic_permutation() {
        let shuffled = || {
            let (mut items, mut state) = ((0..32).collect::<Vec<u64>>(), SEED);
            shuffle(&mut items, &mut state);
            items
        };
        let items = shuffled();
        assert_eq!(items, shuffled());
        assert_ne!(items, (0..32).collect::<Vec<u64>>());
        let mut sorted = items;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..32).collect::<Vec<u64>>());
    }
}
