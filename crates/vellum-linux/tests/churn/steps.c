// steps MIB: prints the churn of programs/churn.h before a region of this length.
#include "churn.h"
#include <inttypes.h>
#include <stdio.h>

static void print_round(uint32_t folio_kib) {
    printf("round %" PRIu32 "\n", folio_kib);
}

static void print_piece(size_t at, size_t length, void *context) {
    (void)context;
    printf(" %zu+%zu", at, length);
}

static void print_step(size_t space, struct step step) {
    static const char *const names[] = {"Fill", "Unmap", "Discard", "Reclaim"};
    printf("%zu %" PRIu32 " %s", space, step.slot, names[step.act]);
    each_piece(step, print_piece, NULL);
    printf("\n");
}

int main(int argc, char **argv) {
    static const struct churner printer = {print_round, print_step};
    return argc != 2 || !run_churn(strtoull(argv[1], NULL, 10) << 20, &printer);
}
