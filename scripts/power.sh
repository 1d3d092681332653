# Kills machines that write to a disk, and checks what the disk has then. Sourced by `x`, after
# `programs.sh`, from the repository's root.

# power_check TITLE COMMAND...: runs a command quietly; if it fails, keeps the disk and shows the output.
power_check() {
    local title=$1
    shift
    "$@" >"$power_folder/log" 2>&1 && return
    cat "$power_folder/log"
    cp "$power_folder/disk" target/power-failed
    die "$title (the disk is target/power-failed)"
}

# power_kill: runs the load on a machine, and kills QEMU after up to 3 s, as a loss of power would.
power_kill() {
    local guest qemu
    # Not by `run`: QEMU is the child of what is called here.
    target/release/vellum run --arch "$ARCH" --mem 128M --smp 2 --disk "$power_folder/disk" -- \
        "$power_programs/ext4" /dev/vda load "$RANDOM" >>"$power_folder/has" 2>/dev/null &
    guest=$!
    sleep "$((RANDOM % 3)).$((RANDOM % 900 + 100))"
    for qemu in $(pgrep -P "$guest"); do
        case $(cat "/proc/$qemu/comm" 2>/dev/null) in qemu*) kill -KILL "$qemu" ;; esac
    done
    wait "$guest" 2>/dev/null || true
}

# fuzz_power [COUNT] [--arch ARCH]
fuzz_power() {
    local count=20 kill
    while [ $# -gt 0 ]; do
        case $1 in
        --arch) use_arch "${2:?which architecture}" && shift ;;
        *[!0-9]* | '') die "fuzz --power: unknown argument '$1'" ;;
        *) count=$1 ;;
        esac
        shift
    done
    need "$QEMU" "to boot the reference kernel" "$QEMU_PACKAGE"
    need mke2fs "to make file systems" e2fsprogs
    need pgrep "to find QEMU" procps
    run cargo build --release -p vellum-cli
    build_kernel release
    build_programs
    power_programs=target/programs power_folder=target/power
    [ "$ARCH" = x86_64 ] || power_programs+=/$ARCH
    mkdir -p "$power_folder"
    trap 'rm -rf "$power_folder"' EXIT
    for ((kill = 0; kill < count; kill++)); do
        # A disk sees 25 losses of power, with blocks of one size or the other.
        if [ $((kill % 25)) = 0 ]; then
            rm -f "$power_folder/disk" "$power_folder/has"
            mke2fs -q -F -t ext4 -b $((RANDOM % 2 ? 4096 : 1024)) "$power_folder/disk" 24M >/dev/null 2>&1
        fi
        power_kill
        # Linux's own replay of the journal, of a copy.
        cp "$power_folder/disk" "$power_folder/copy"
        power_check "the journal can't be replayed" e2fsck -y -E journal_only "$power_folder/copy"
        power_check "e2fsck finds errors" e2fsck -f -n "$power_folder/copy"
        power_check "the disk lost what was synchronised" run target/release/vellum run --arch "$ARCH" --mem 128M \
            --disk "$power_folder/disk" --file "$power_folder/has:/has" -- "$power_programs/ext4" /dev/vda check /has
        { echo; grep '^is ' "$power_folder/log"; } >>"$power_folder/has" || true
        power_check "e2fsck finds errors after the next mount" e2fsck -f -n "$power_folder/disk"
        printf '\r%d of %d, %d files of this disk synchronised' "$((kill + 1))" "$count" \
            "$(grep -c '^has' "$power_folder/has")" >&2
    done
    echo >&2
    say "nothing was lost in $count losses of power"
}
