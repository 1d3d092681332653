# Checks that tests fail when the engine breaks a rule. Sourced by `x`, from the repository's root.
#
# Each patch in MUTANTS removes one rule where `planted` returns true. It names the rule, a test
# target of vellum-sim (or `vellum` for that crate's own tests), and a test there, or a part of its
# name, that must fail then. All faults are planted at once in a copy of the sources, so that each
# target is compiled once; each test first runs with no fault in effect, and must pass.

MUTANTS=crates/vellum-sim/tests/mutants
COPY=target/mutants

# plant: makes the copy with all faults. VELLUM_PLANTED selects the one in effect.
plant() {
    local patch
    need patch "to plant faults" patch
    rm -rf "$COPY/crates"
    mkdir -p "$COPY"
    cp -a Cargo.toml Cargo.lock crates "$COPY"
    # Each patch applies to the sources as they are. Two may touch neighbouring lines, but not the
    # same.
    for patch in "$MUTANTS"/*.patch; do
        patch -s -F0 -p0 -d "$COPY" --dry-run <"$patch" || die "$patch does not apply to the sources any more: update it"
    done
    for patch in "$MUTANTS"/*.patch; do
        patch -s -F0 -p0 --no-backup-if-mismatch -d "$COPY" <"$patch" || die "$patch changes the same lines as another fault"
    done
    cat >>"$COPY/crates/vellum/src/lib.rs" <<'END'
fn planted(name: &str) -> bool {
    extern crate std;
    static NAME: std::sync::OnceLock<std::string::String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| std::env::var("VELLUM_PLANTED").unwrap_or_default()) == name
}
END
}

# step_mutants: checks that the faults apply and compile.
step_mutants() {
    plant
    run env -C "$COPY" CARGO_TARGET_DIR="$PWD/target" CARGO_INCREMENTAL=0 cargo check -p vellum
}

# mutants [NAME...]: tries these faults, or all.
mutants() {
    local name log target missed=()
    [ $# != 0 ] || set -- $(basename -s .patch "$MUTANTS"/*.patch)
    plant
    for target in $(for name; do target_of "$name"; done | sort -u); do in_copy '' "$target" --no-run; done
    for name; do
        log=$COPY/$name.log
        in_copy '' "$(target_of "$name")" -- "$(test_of "$name")" >"$log" 2>&1 ||
            die "$(test_of "$name") fails with no fault in effect ($log)"
        if in_copy "$name" "$(target_of "$name")" -- "$(test_of "$name")" >"$log" 2>&1; then
            say "NOT DETECTED: $name, by $(test_of "$name") ($log)"
            missed+=("$name")
        else
            say "detected: $name"
        fi
    done
    [ ${#missed[@]} = 0 ] || die "${#missed[@]} of $# faults are not detected: ${missed[*]}"
    say "all $# faults are detected"
}

# Print the test target and the test that a patch names.
target_of() { sed -n 's/^Test: \([^ ]*\) .*/\1/p' "$MUTANTS/$1.patch"; }
test_of() { sed -n 's/^Test: [^ ]* //p' "$MUTANTS/$1.patch"; }

# in_copy FAULT TARGET ARGS: runs `cargo test` in the copy with that fault in effect.
in_copy() {
    local tests=(-p vellum-sim --test "$2")
    [ "$2" != vellum ] || tests=(-p vellum --lib)
    # Most of the time is the compiler's. Some optimisation is needed for the stacks of schedules.
    run env -C "$COPY" VELLUM_PLANTED="$1" CARGO_TARGET_DIR="$PWD/target" CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_OPT_LEVEL=1 \
        CARGO_PROFILE_TEST_DEBUG=0 timeout 1800 cargo test "${tests[@]}" "${@:3}"
}
