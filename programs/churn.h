// The churn of vellum_linux::workload::churn, step by step: work of other programs that leaves free
// memory in pieces. Several address spaces fill memory with folios of mixed sizes up to a bound,
// replace half of it, and free a third of it at random.
#ifndef CHURN_H
#define CHURN_H

#include "random.h"
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// SLOT: bytes of the addresses that a step maps or frees. PEAK and REST: the memory in use at the
// peak and at the end, in regions. ROUNDS: those in which memory is filled to its peak.
enum { SPACES = 4, SLOT = 2 << 20, PEAK = 3, REST = 2, ROUNDS = 16, SLOT_PAGES = SLOT / 4096 };

// The folio sizes of the rounds in turn, and the sizes of the pieces that are freed, in KiB.
static const uint32_t round_kib[] = {4, 64, 4, 16, 4, 2048, 4, 256}, piece_kib[] = {4, 8, 16, 32, 64, 128, 256};

enum act { FILL, UNMAP, DISCARD, RECLAIM };

// A step of one address space: the action, on pieces of `kib` KiB, of which the seed chooses about
// half, or on the whole slot if `kib` is 0.
struct step {
    uint32_t slot, kib;
    enum act act;
    uint64_t seed;
};

// The receivers of a churn: of the folio size of the next round, and of each step.
struct churner {
    void (*round)(uint32_t folio_kib);
    void (*step)(size_t space, struct step step);
};

// Calls `piece` for each piece of a step's slot, in ascending order.
static inline void each_piece(struct step step, void (*piece)(size_t at, size_t length, void *context), void *context) {
    size_t length = step.kib ? (size_t)step.kib << 10 : SLOT;
    for (size_t at = 0; at < SLOT; at += length)
        if (!step.kib || next_random(&step.seed) & 1)
            piece(at, length, context);
}

// A slot with memory. `held`: the bytes of folios of which any page is mapped. `partial`: a part
// was freed.
struct used {
    size_t space;
    uint32_t slot, folio_kib;
    uint64_t held;
    bool partial;
};

struct churn {
    const struct churner *churner;
    struct used *used;
    size_t count;
    uint64_t random, held;
};

static inline void mark_freed(size_t at, size_t length, void *freed) {
    memset((char *)freed + at / 4096, 1, length / 4096);
}

// Returns the bytes of the folios in a slot that have a page left once the pieces are freed.
static inline uint64_t held_after(struct step step, uint32_t folio_kib) {
    char freed[SLOT_PAGES] = {0};
    uint64_t held = 0;
    size_t pages = folio_kib / 4;
    each_piece(step, mark_freed, freed);
    for (size_t at = 0; at < SLOT_PAGES; at += pages)
        held += memchr(freed + at, 0, pages) ? pages * 4096 : 0;
    return held;
}

// Frees a part of a random slot, or all of it. Of four slots in which a part was freed before,
// three stay as they are.
static inline void free_some(struct churn *churn) {
    size_t at = below(churn->count, &churn->random);
    struct used *used = churn->used + at;
    uint64_t choice = below(8, &churn->random);
    if (used->partial && choice >= 2)
        return;
    struct step step = {.slot = used->slot, .act = choice < 4 ? UNMAP : choice < 7 ? DISCARD : RECLAIM};
    size_t space = used->space;
    if (choice < 2) {
        churn->held -= used->held;
        *used = churn->used[--churn->count];
    } else {
        step.kib = piece_kib[below(sizeof piece_kib / sizeof *piece_kib, &churn->random)];
        step.seed = next_random(&churn->random);
        uint64_t held = held_after(step, used->folio_kib);
        churn->held -= used->held - held;
        used->held = held;
        used->partial = true;
    }
    churn->churner->step(space, step);
}

// Has the churn before a region of this length done. Returns false if there is no memory for it.
static inline bool run_churn(uint64_t length, const struct churner *churner) {
    uint64_t peak = PEAK * length, fills = peak / SLOT, per_round = (fills + ROUNDS - 1) / ROUNDS;
    struct churn churn = {.churner = churner, .random = SEED};
    churn.used = calloc(fills + fills / 2 + 1, sizeof *churn.used);
    uint32_t folio_kib = 4;
    if (!churn.used)
        return false;
    for (uint64_t fill = 0; fill < fills + fills / 2; fill++) {
        if (fill % per_round == 0) {
            folio_kib = round_kib[fill / per_round % (sizeof round_kib / sizeof *round_kib)];
            churner->round(folio_kib);
        }
        while (churn.held + SLOT > peak)
            free_some(&churn);
        size_t space = below(SPACES, &churn.random);
        churn.used[churn.count++] = (struct used){space, (uint32_t)fill, folio_kib, SLOT, false};
        churn.held += SLOT;
        churner->step(space, (struct step){.slot = (uint32_t)fill, .act = FILL});
    }
    while (churn.held > REST * length)
        free_some(&churn);
    free(churn.used);
    return true;
}

#endif
