// A plugin for QEMU's user-mode emulation. It records the pages that a program fetches from, loads from and stores to, in
// order, and the changes of its mappings. README.md describes the format.
//
// Accesses that hit every TLB of interest are omitted: a filter holds, separately for fetches and for data, the K most
// recently used pages, and an access to one of them is dropped. A TLB with LRU replacement and at least K entries in each
// set holds all of them. A record names the filter slot that its page took, so the reader of the trace knows at each
// record which K pages are the most recent: nothing that such a TLB does is lost.

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// The used part of the plugin interface, version 1, of QEMU 4.2 and later.
typedef uint64_t Id;
typedef struct Tb Tb;
typedef struct Insn Insn;
typedef struct {
    const char *target;
} Info;
int qemu_plugin_version = 1;
size_t qemu_plugin_tb_n_insns(const Tb *);
Insn *qemu_plugin_tb_get_insn(const Tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const Insn *);
size_t qemu_plugin_insn_size(const Insn *);
bool qemu_plugin_mem_is_store(uint32_t);
unsigned qemu_plugin_mem_size_shift(uint32_t);
void qemu_plugin_register_vcpu_tb_trans_cb(Id, void (*)(Id, Tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(Tb *, int op, void *, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(Insn *, void (*)(unsigned, void *), int flags, void *);
void qemu_plugin_register_vcpu_mem_cb(Insn *, void (*)(unsigned, uint32_t, uint64_t, void *), int flags, int rw, void *);
void qemu_plugin_register_vcpu_syscall_cb(Id, void (*)(Id, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                                       uint64_t, uint64_t, uint64_t, uint64_t));
void qemu_plugin_register_vcpu_syscall_ret_cb(Id, void (*)(Id, unsigned, int64_t, int64_t));
void qemu_plugin_register_atexit_cb(Id, void (*)(Id, void *), void *);

enum { FETCH, LOAD, STORE, DIRTY, VMA, END };
enum { EXISTING, MMAP, MUNMAP, MPROTECT, BRK, MREMAP, MADVISE, OPS };
enum { VERSION = 1, MOST = 16, PAGE = 12, FILES = 256 };

typedef struct {
    uint64_t page, used;
    bool stored;
} Slot;

static Slot slots[2][MOST];
static uint64_t last[2], now, instructions, loads, stores, args[6];
static unsigned filter = 4;
static const int *calls;
static FILE *out;

// The numbers of the system calls, in the order of the operations.
static const int X86_64[OPS] = {-1, 9, 11, 10, 12, 25, 28}, GENERIC[OPS] = {-1, 222, 215, 226, 214, 216, 233};

static void put(uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        putc_unlocked(value | 0x80, out);
    putc_unlocked(value, out);
}

// Returns the number of a file, counted in order of appearance; 0 is no file.
static uint64_t file_number(uint64_t device, uint64_t inode) {
    static uint64_t known[FILES][2];
    uint64_t at = 0;
    if (!inode)
        return 0;
    while (at < FILES && known[at][1] && (known[at][0] != device || known[at][1] != inode))
        at++;
    if (at == FILES)
        abort();
    known[at][0] = device;
    known[at][1] = inode;
    return at + 1;
}

// Records the mappings before the first instruction. The emulator's own memory is among them, and is never accessed.
static void put_existing_mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, end, offset, inode;
    unsigned major, minor;
    char line[4096], rights[5];
    if (!maps)
        abort();
    while (fgets(line, sizeof line, maps))
        // The vsyscall page belongs to no process: it lies above the user addresses, which a trace cannot name.
        if (sscanf(line, "%lx-%lx %4s %lx %x:%x %lu", &start, &end, rights, &offset, &major, &minor, &inode) == 7 &&
            end <= 1ul << 57) {
            put(VMA | EXISTING << 3);
            put(start);
            put(end - start);
            // The emulator does not map the program's text as executable.
            put(1 | (rights[1] == 'w') << 1 | 4);
            put(file_number((uint64_t)major << 32 | minor, inode));
            put(offset);
        }
    fclose(maps);
}

static void access_page(int side, int kind, uint64_t page) {
    Slot *all = slots[side], *oldest = all;
    now++;
    for (Slot *slot = all; slot < all + filter; slot++) {
        if (slot->used && slot->page == page) {
            slot->used = now;
            if (kind == STORE && !slot->stored) {
                slot->stored = true;
                put(DIRTY | (uint64_t)(slot - all) << 3);
            }
            return;
        }
        if (slot->used < oldest->used)
            oldest = slot;
    }
    *oldest = (Slot){page, now, kind == STORE};
    int64_t step = page - last[side];
    last[side] = page;
    put(kind | (uint64_t)(oldest - all) << 3 | ((uint64_t)step << 1 ^ step >> 63) << 7);
}

static void fetch(unsigned cpu, void *page) {
    (void)cpu;
    if (!now)
        put_existing_mappings();
    access_page(0, FETCH, (uintptr_t)page);
}

static void touch(unsigned cpu, uint32_t info, uint64_t at, void *nothing) {
    bool store = qemu_plugin_mem_is_store(info);
    uint64_t end = at + (1ull << qemu_plugin_mem_size_shift(info)) - 1;
    (void)cpu, (void)nothing;
    ++*(store ? &stores : &loads);
    for (uint64_t page = at >> PAGE; page <= end >> PAGE; page++)
        access_page(1, store ? STORE : LOAD, page);
}

static void translated(Id id, Tb *tb) {
    uint64_t before = -1;
    size_t count = qemu_plugin_tb_n_insns(tb);
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &instructions, count);
    for (size_t i = 0; i < count; i++) {
        Insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint64_t at = qemu_plugin_insn_vaddr(insn), end = at + qemu_plugin_insn_size(insn) - 1;
        for (uint64_t page = at >> PAGE; page <= end >> PAGE; page++)
            if (page != before) {
                before = page;
                qemu_plugin_register_vcpu_insn_exec_cb(insn, fetch, 0, (void *)(uintptr_t)page);
            }
        qemu_plugin_register_vcpu_mem_cb(insn, touch, 0, 3, NULL);
    }
}

static void called(Id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f,
                   uint64_t g, uint64_t h) {
    (void)id, (void)cpu, (void)number, (void)g, (void)h;
    memcpy(args, (uint64_t[]){a, b, c, d, e, f}, sizeof args);
}

static void returned(Id id, unsigned cpu, int64_t number, int64_t result) {
    int op = MMAP;
    struct stat file = {0};
    (void)id, (void)cpu;
    while (op < OPS && calls[op] != number)
        op++;
    if (op == OPS || (result < 0 && result > -4096))
        return;
    put(VMA | op << 3);
    switch (op) {
    case MMAP: // address, length, rights, flags, file, offset
        if (!(args[3] & 0x20) && fstat(args[4], &file))
            abort();
        put(result), put(args[1]), put(args[2]), put(args[3]);
        put(file_number(file.st_dev, file.st_ino)), put(args[5]);
        break;
    case BRK: // the end
        put(result);
        break;
    case MREMAP: // old address and length, new address and length
        put(args[0]), put(args[1]), put(result), put(args[2]);
        break;
    default: // address, length; rights or advice
        put(args[0]), put(args[1]);
        if (op != MUNMAP)
            put(args[2]);
    }
}

static void ended(Id id, void *nothing) {
    (void)id, (void)nothing;
    put(END), put(instructions), put(loads), put(stores);
    if (fclose(out))
        abort();
}

int qemu_plugin_install(Id id, const Info *info, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "out=", 4))
            out = fopen(argv[i] + 4, "wb");
        else if (!strncmp(argv[i], "filter=", 7))
            filter = atoi(argv[i] + 7);
    }
    if (!out || filter < 1 || filter > MOST) {
        fprintf(stderr, "pages: out=FILE is needed, and filter=K is 1 to %d\n", MOST);
        return -1;
    }
    calls = strcmp(info->target, "x86_64") ? GENERIC : X86_64;
    fwrite("VELLUM TRACE", 1, 12, out);
    putc(VERSION, out), putc(PAGE, out), putc(filter, out), putc(0, out);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, returned);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
