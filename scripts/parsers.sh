# Fuzzes the parsers: libFuzzer on fuzz/fuzz_targets, with the stable Rust. Sourced by `x`, from the
# repository's root.

# The flags that cargo-fuzz passes to the compiler, without the sanitizers: coverage for libFuzzer,
# and the cfg of the `fuzz` modules.
PARSERS_FLAGS='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
-Cllvm-args=-sanitizer-coverage-trace-compares'

# fuzz_parsers [SECONDS] [TARGET...]: runs each target for SECONDS. New inputs go to
# target/fuzz/corpus, failing ones to target/fuzz/failed.
fuzz_parsers() {
    local seconds=60 target targets=() failed=() host
    while [ $# -gt 0 ]; do
        case $1 in
        *[!0-9]*) targets+=("$1") ;;
        *) seconds=$1 ;;
        esac
        shift
    done
    [ "${#targets[@]}" -gt 0 ] || mapfile -t targets < <(basename -s .rs fuzz/fuzz_targets/*.rs)
    for target in "${targets[@]}"; do
        [ -e "fuzz/fuzz_targets/$target.rs" ] ||
            die "there is no target '$target': $(basename -s .rs fuzz/fuzz_targets/*.rs | paste -sd ' ')"
    done
    need c++ "to compile libFuzzer, which comes with the crate libfuzzer-sys" g++
    host=$(rustc -vV | sed -n 's/^host: //p')
    case $host in
    *-linux-gnu) ;;
    *) die "libFuzzer is not known to work on $host: use Linux with glibc, or run './x test test' for the kept inputs alone" ;;
    esac
    # --target keeps build scripts from being compiled with coverage.
    RUSTFLAGS="${RUSTFLAGS:-} ${PARSERS_FLAGS//$'\n'/ }" run cargo build --release --manifest-path fuzz/Cargo.toml \
        --target "$host" --target-dir target/fuzz/build $(printf -- '--bin %s ' "${targets[@]}")
    for target in "${targets[@]}"; do
        mkdir -p "target/fuzz/corpus/$target" target/fuzz/failed
        say "$target, $seconds s"
        # libFuzzer only reads the second folder.
        run "target/fuzz/build/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
            -verbosity=1 -artifact_prefix="target/fuzz/failed/$target-" "target/fuzz/corpus/$target" "fuzz/corpus/$target" \
            >"target/fuzz/$target.log" 2>&1 || failed+=("$target")
        grep -E 'panicked at|SUMMARY|Test unit written|^ALARM|number_of_executed_units|INITED|DONE' "target/fuzz/$target.log" || true
    done
    [ "${#failed[@]}" = 0 ] || die "these fail: ${failed[*]}. Their inputs are in target/fuzz/failed, what they print in target/fuzz/TARGET.log"
    say "no target failed"
}
