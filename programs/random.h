// Fixed pseudo-random numbers and orders, those of vellum_linux::workload::shuffle.
#ifndef RANDOM_H
#define RANDOM_H

#include <stddef.h>
#include <stdint.h>

static const uint64_t SEED = 0x76656c6c756d00;

// Returns the next number of a SplitMix64 sequence, and advances the state.
static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static inline uint64_t below(uint64_t end, uint64_t *state) {
    return next_random(state) % end;
}

// Shuffles the numbers from 0 on (Fisher and Yates).
static inline void shuffle(size_t *order, size_t count) {
    uint64_t state = SEED;
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    for (size_t i = count; i-- > 1;) {
        size_t j = below(i + 1, &state), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}

#endif
