// Patterns that pages are filled with, so that a later read can check them.
#ifndef CONTENTS_H
#define CONTENTS_H

#include "common.h"

enum { WORDS = PAGE / sizeof(uint64_t) };

// Fills a page with the pattern of page number `page`.
typedef void Contents(uint64_t *words, uint64_t page);

// Repeats one word, another one in each page.
static inline void same_filled(uint64_t *words, uint64_t page) {
    for (int word = 0; word < WORDS; word++)
        words[word] = UINT64_C(0x9e3779b97f4a7c15) * (page + 1);
}

// Fills a third with noise and two thirds with text.
static inline void compressible(uint64_t *words, uint64_t page) {
    uint64_t noise = page + 1;
    for (int word = 0; word < WORDS; word++) {
        // xorshift
        noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
        words[word] = word % 3 ? UINT64_C(0x2074786574206120) : noise;
    }
}

#endif
