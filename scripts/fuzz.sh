# Fuzzes the reference kernel's system calls: runs rounds of programs/fuzz.c on it, and minimises a
# round that fails. Sourced by `x`, after `programs.sh`, from the repository's root.

# The number of runs that a shortened round must pass to count as one that does not fail: with
# several CPUs runs differ.
FUZZ_TRIES=${FUZZ_TRIES:-4}

# fuzz_machine SEED: sets `fuzz_machine` to the options of the seed's machine, and `fuzz_load` to
# the load. Ten seeds each have the same machine. The machines differ in what they lack: CPUs for
# the threads, memory, or room in compressed memory.
fuzz_machine() {
    case $(($1 / 10 % 3)) in
    0) fuzz_machine=(--mem 128M --swap 64M) fuzz_load=(calls=960) ;;
    1) fuzz_machine=(--mem 72M --swap 48M) fuzz_load=(calls=480 threads=4) ;;
    2) fuzz_machine=(--mem 96M --swap 16M --swap-disk 64M) fuzz_load=(calls=960) ;;
    esac
}

# fuzz_once KEY=VALUE...: boots the program, with output to `fuzz_log`. Returns the program's
# status, or 125 if the kernel failed.
fuzz_once() {
    mkdir -p target/fuzz
    fuzz_log=target/fuzz/$ARCH.log
    run target/release/vellum run --arch "$ARCH" --kernel "$kernel" --timeout "${VELLUM_BOOT_SECONDS:-1500}" \
        "${fuzz_cpus[@]}" "${fuzz_machine[@]}" -- "$fuzz_folder/fuzz" "$@" >"$fuzz_log" 2>&1
}

# Prints the failure of the last run without the parts that vary: the place of a panic, or the
# supervisor's message.
fuzz_symptom() {
    grep -m1 -o 'panicked at [^ ]*' "$fuzz_log" || grep -m1 'fuzz: FAILED' "$fuzz_log" | sed 's/0x[0-9a-f]*\|[0-9]\+/N/g' ||
        tail -n1 "$fuzz_log" | sed 's/[0-9]\+/N/g'
}

# fuzz_ranges NUMBER...: prints ascending numbers as FROM-TO,...
fuzz_ranges() {
    printf '%s\n' "$@" | awk '
        NR > 1 && $1 == to + 1 { to = $1; next }
        NR > 1 { printf "%s-%s,", from, to }
        { from = to = $1 }
        END { printf "%s-%s\n", from, to }'
}

# fuzz_fails NUMBER...: succeeds if the round with only these operations fails as before.
fuzz_fails() {
    local try
    for ((try = 0; try < FUZZ_TRIES; try++)); do
        fuzz_once "${fuzz_round[@]}" "keep=$(fuzz_ranges "$@")" || [ "$(fuzz_symptom)" != "$fuzz_known" ] || return 0
        [ "${fuzz_cpus[0]}" != --icount ] || return 1
    done
    return 1
}

# Leaves out operations of the failing round `fuzz_round` as long as it fails (Zeller's ddmin), and
# lists the remaining calls.
fuzz_minimise() {
    local workers=4 threads=2 calls=96 word parts=2 part size kept rest smaller
    for word in "${fuzz_round[@]}"; do
        case $word in workers=* | threads=* | calls=*) local "$word" ;; esac
    done
    mapfile -t kept < <(seq 0 $((workers * threads * calls - 1)))
    while [ "${#kept[@]}" -gt 1 ]; do
        size=$(((${#kept[@]} + parts - 1) / parts)) smaller=''
        for ((part = 0; part * size < ${#kept[@]}; part++)); do
            rest=("${kept[@]:0:part*size}" "${kept[@]:(part+1)*size}")
            [ "${#rest[@]}" -gt 0 ] && fuzz_fails "${rest[@]}" || continue
            kept=("${rest[@]}") smaller=yes
            say "${#kept[@]} operations are enough: keep=$(fuzz_ranges "${kept[@]}" | cut -c1-200)"
            break
        done
        if [ -n "$smaller" ]; then
            parts=$((parts > 2 ? parts - 1 : 2))
        elif [ "$parts" -ge "${#kept[@]}" ]; then
            break
        else
            parts=$((2 * parts < ${#kept[@]} ? 2 * parts : ${#kept[@]}))
        fi
    done
    say "the shortest that was found: vellum run ${fuzz_cpus[*]} ${fuzz_machine[*]} -- fuzz ${fuzz_round[*]} keep=$(fuzz_ranges "${kept[@]}")"
    fuzz_once "${fuzz_round[@]}" "keep=$(fuzz_ranges "${kept[@]}")" trace=2 || true
    cat "$fuzz_log"
}

# fuzz_failed SEED: reports a failed round, and minimises it if it fails again.
fuzz_failed() {
    fuzz_known=$(fuzz_symptom)
    cp "$fuzz_log" "target/fuzz/$ARCH-$1.log"
    tail -n 40 "$fuzz_log"
    say "seed $1 fails: $fuzz_known (target/fuzz/$ARCH-$1.log)"
    fuzz_round=("seed=$1" "${fuzz_load[@]}")
    local try cpus=("${fuzz_cpus[@]}")
    # A run that repeats exactly is the best to minimise.
    fuzz_cpus=(--icount)
    if ! fuzz_once "${fuzz_round[@]}" && [ "$(fuzz_symptom)" = "$fuzz_known" ]; then
        say "it fails with one CPU that counts instructions, and so in every run"
        fuzz_minimise
        return
    fi
    fuzz_cpus=("${cpus[@]}")
    for ((try = 0; try < FUZZ_TRIES; try++)); do
        if ! fuzz_once "${fuzz_round[@]}" && [ "$(fuzz_symptom)" = "$fuzz_known" ]; then
            fuzz_minimise
            return
        fi
    done
    say "it did not fail again in $FUZZ_TRIES runs from a fresh boot"
}

# fuzz_kernel [SECONDS] [--arch ARCH] [--seed SEED] [--icount]
fuzz_kernel() {
    local seconds=60 seed='' rounds=10 began
    fuzz_cpus=(--smp 4)
    while [ $# -gt 0 ]; do
        case $1 in
        --arch) use_arch "${2:?which architecture}" && shift ;;
        --seed) seed=${2:?which seed} && shift ;;
        --icount) fuzz_cpus=(--icount) ;;
        *[!0-9]* | '') die "fuzz --kernel: unknown argument '$1'" ;;
        *) seconds=$1 ;;
        esac
        shift
    done
    need "$QEMU" "to boot the reference kernel" "$QEMU_PACKAGE"
    run cargo build --release -p vellum-cli
    build_kernel kernel
    build_programs
    fuzz_folder=target/programs
    [ "$ARCH" = x86_64 ] || fuzz_folder+=/$ARCH
    began=$SECONDS
    if [ -n "$seed" ]; then
        seconds=0 rounds=1
    else
        seed=$(((RANDOM << 15 | RANDOM) / 10 * 10))
    fi
    while :; do
        say "seeds $seed to $((seed + rounds - 1)), $((SECONDS - began)) s"
        fuzz_machine "$seed"
        if ! fuzz_once "seed=$seed" "rounds=$rounds" "${fuzz_load[@]}"; then
            seed=$(sed -n 's/^fuzz: begins \([0-9]*\)$/\1/p' "$fuzz_log" | tail -n1)
            [ -n "$seed" ] || die "no round began: $(tail -n5 "$fuzz_log")"
            fuzz_failed "$seed"
            die "a round failed"
        fi
        grep '^fuzz: seed' "$fuzz_log"
        seed=$((seed + rounds))
        [ $((SECONDS - began)) -lt "$seconds" ] || break
    done
    say "no round failed"
}
