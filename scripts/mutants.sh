# Planted faults: that the tests notice when the engine breaks a rule. Sourced by `x`, from the repository's root.
#
# Each patch in MUTANTS takes one rule away where `planted` says so. It names the rule, and a test target of vellum-sim,
# or `vellum` for that crate's own tests, with (a part of) the name of a test there, which fails then. All of them are
# planted at once, in a copy of the sources, so that each target is compiled once; and a test runs first with none that
# takes effect, which it has to pass.

MUTANTS=crates/vellum-sim/tests/mutants
COPY=target/mutants

# plant: makes the copy, with all faults in it, none of which takes effect before VELLUM_PLANTED names it.
plant() {
    local patch
    need patch "to plant faults" patch
    rm -rf "$COPY/crates"
    mkdir -p "$COPY"
    cp -a Cargo.toml Cargo.lock crates "$COPY"
    # Each fits the sources as they are. The lines of one may be in another's way, though not in the same place.
    for patch in "$MUTANTS"/*.patch; do
        patch -s -F0 -p0 -d "$COPY" --dry-run <"$patch" || die "$patch does not fit the sources any more: write it anew"
    done
    for patch in "$MUTANTS"/*.patch; do
        patch -s -F0 -p0 --no-backup-if-mismatch -d "$COPY" <"$patch" || die "$patch changes what another fault changes"
    done
    cat >>"$COPY/crates/vellum/src/lib.rs" <<'END'
fn planted(name: &str) -> bool {
    extern crate std;
    static NAME: std::sync::OnceLock<std::string::String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| std::env::var("VELLUM_PLANTED").unwrap_or_default()) == name
}
END
}

# step_mutants: the faults fit, and compile.
step_mutants() {
    plant
    run env -C "$COPY" CARGO_TARGET_DIR="$PWD/target" CARGO_INCREMENTAL=0 cargo check -p vellum
}

# mutants [NAME...]: try these faults, or all.
mutants() {
    local name log target missed=()
    [ $# != 0 ] || set -- $(basename -s .patch "$MUTANTS"/*.patch)
    plant
    for target in $(for name; do target_of "$name"; done | sort -u); do in_copy '' "$target" --no-run; done
    for name; do
        log=$COPY/$name.log
        in_copy '' "$(target_of "$name")" -- "$(test_of "$name")" >"$log" 2>&1 ||
            die "$(test_of "$name") fails with nothing planted ($log)"
        if in_copy "$name" "$(target_of "$name")" -- "$(test_of "$name")" >"$log" 2>&1; then
            say "NOT NOTICED: $name, by $(test_of "$name") ($log)"
            missed+=("$name")
        else
            say "noticed: $name"
        fi
    done
    [ ${#missed[@]} = 0 ] || die "${#missed[@]} of $# faults are not noticed: ${missed[*]}"
    say "all $# faults are noticed"
}

# The test that a patch names.
target_of() { sed -n 's/^Test: \([^ ]*\) .*/\1/p' "$MUTANTS/$1.patch"; }
test_of() { sed -n 's/^Test: [^ ]* //p' "$MUTANTS/$1.patch"; }

# in_copy FAULT TARGET ARGS: of cargo's `test`.
in_copy() {
    local tests=(-p vellum-sim --test "$2")
    [ "$2" != vellum ] || tests=(-p vellum --lib)
    # Most of the time is the compiler's: optimise a little, which the stacks of schedules need.
    run env -C "$COPY" VELLUM_PLANTED="$1" CARGO_TARGET_DIR="$PWD/target" CARGO_INCREMENTAL=0 CARGO_PROFILE_TEST_OPT_LEVEL=1 \
        CARGO_PROFILE_TEST_DEBUG=0 timeout 1800 cargo test "${tests[@]}" "${@:3}"
}
