// symbols NAME...: prints the addresses of kernel functions, from /proc/kallsyms: a line `ADDRESS
// SIZE NAME` for each symbol with one of the names, hexadecimal. A NAME with * at its end is of all
// symbols that begin so. The size reaches up to the next symbol that has another address.
#include "common.h"

static int is_wanted(const char *name, int count, char **wanted) {
    for (int i = 0; i < count; i++) {
        size_t length = strlen(wanted[i]);
        if (wanted[i][length - 1] == '*' ? !strncmp(name, wanted[i], length - 1) : !strcmp(name, wanted[i]))
            return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    enum { MOST = 64, LENGTH = 512 };
    static char line[2 * LENGTH], names[MOST][LENGTH];
    unsigned long long address, before = 0;
    FILE *symbols = fopen("/proc/kallsyms", "re");
    int pending = 0;

    if (!symbols)
        die("/proc/kallsyms");
    while (fgets(line, sizeof line, symbols)) {
        char name[LENGTH], module[LENGTH];
        int words = sscanf(line, "%llx %*c %511s %511s", &address, name, module);

        // Modules come last.
        if (words == 3)
            break;
        if (words != 2)
            die("a line of /proc/kallsyms: %s", line);
        // A place in per-CPU memory, or an address that the kernel hides.
        if (address < 1ull << 63)
            continue;
        for (; pending > 0 && address != before; pending--)
            printf("%llx %llx %s\n", before, address - before, names[pending - 1]);
        before = address;
        if (pending < MOST && is_wanted(name, argc - 1, argv + 1))
            strcpy(names[pending++], name);
    }
    return 0;
}
