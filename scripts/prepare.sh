# Finds or installs the tools that a command needs. Sourced by `x`, from the repository's root.

# The oldest Rust that the workspace accepts.
RUST_VERSION=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# use_arch NAME: selects the architecture of machines, and the target that the kernel is built for.
use_arch() {
    ARCH=$1 BARE_TARGET=$(bare_target "$1")
    case $ARCH in
    x86_64) QEMU=qemu-system-x86_64 QEMU_PACKAGE=qemu-system-x86 DEBIAN=amd64 ;;
    aarch64) QEMU=qemu-system-aarch64 QEMU_PACKAGE=qemu-system-arm DEBIAN=arm64 ;;
    *) die "no machine for '$ARCH': x86_64 or aarch64" ;;
    esac
}

# bare_target ARCH: prints the Rust target of the kernel.
bare_target() {
    case $1 in
    x86_64) echo x86_64-unknown-none ;;
    # The kernel leaves the vector registers to programs.
    aarch64) echo aarch64-unknown-none-softfloat ;;
    esac
}

# apt ARGS: runs apt-get as root, with fresh lists, in the foreground, as sudo may ask for a
# password.
APT_UPDATED=
apt() {
    local sudo=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "no right to install anything: run as root 'apt-get $*', or install sudo"
        sudo=(sudo)
    fi
    [ -n "$APT_UPDATED" ] || "${sudo[@]}" apt-get update -q || die "apt-get update failed"
    APT_UPDATED=1
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$@" || die "'apt-get $*' failed"
}

# need COMMAND REASON PACKAGE...: installs the Debian packages that contain COMMAND, unless it
# exists.
need() {
    local command=$1 reason=$2
    shift 2
    command -v "$command" >/dev/null && return
    command -v apt-get >/dev/null || die "'$command' is missing ($reason), and there is no apt-get here to install it"
    say "installing $* ($reason)"
    apt install -q -y --no-install-recommends "$@"
}

rust_is_new_enough() {
    command -v cargo >/dev/null && command -v rustc >/dev/null || return
    local version
    version=$(rustc --version | cut -d' ' -f2) || return
    [ "$(printf '%s\n' "$RUST_VERSION" "$version" | sort -V | head -n 1)" = "$RUST_VERSION" ]
}

# Finds or installs a Rust that is new enough, and the C linker that Rust calls.
need_rust() {
    need cc "the linker that Rust calls" gcc libc6-dev
    PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    rust_is_new_enough && return
    # Debian from 13 on and Ubuntu from 24.04 on package it; it conflicts with their own older Rust.
    if ! command -v cargo >/dev/null && apt-cache show rustup >/dev/null 2>&1; then
        need rustup "to install Rust, $RUST_VERSION or newer" rustup ca-certificates
    fi
    if command -v rustup >/dev/null; then
        say "installing Rust by rustup, into ${RUSTUP_HOME:-$HOME/.rustup} (needed: $RUST_VERSION or newer)"
        rustup toolchain install stable --profile minimal -c rustfmt -c clippy && rustup default stable ||
            die "rustup could not install Rust"
    else
        need curl "to download rustup" curl ca-certificates
        say "installing rustup and Rust, into ${CARGO_HOME:-$HOME/.cargo} (needed: $RUST_VERSION or newer)"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -y --no-modify-path --profile minimal -c rustfmt -c clippy ||
            die "rustup could not be installed: is https://sh.rustup.rs within reach?"
    fi
    # Before any older Rust of the distribution.
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
    rust_is_new_enough || die "Rust $RUST_VERSION or newer is needed; 'rustc --version' prints: $(rustc --version)"
}

# need_component NAME COMMAND: installs a part of Rust that a minimal installation lacks.
need_component() {
    cargo "$2" --version >/dev/null 2>&1 && return
    say "installing $1 by rustup"
    rustup component add "$1" || die "$1 is missing, and rustup could not install it"
}

# Copies the crates for which patches/ has corrections to target/patched, and corrects them there.
# Sets `kernel_args` to the arguments by which cargo builds the kernel with them.
need_patched_crates() {
    local patch name from to config=''
    for patch in patches/*.patch; do
        name=$(basename "$patch" .patch)
        to=$PWD/target/patched/$name
        config+="${config:+,}\"$to\""
        ! [ "$to/.patched" -nt "$patch" ] || continue
        need patch "to correct $name" patch
        run cargo fetch --locked -q
        from=$(compgen -G "${CARGO_HOME:-$HOME/.cargo}/registry/src/*/$name" | head -n 1)
        [ -n "$from" ] || die "cargo fetched $name to no known place"
        rm -rf "$to"
        mkdir -p target/patched
        cp -r "$from" "$to"
        patch -s -d "$to" -p1 <"$patch" || die "$patch does not apply"
        touch "$to/.patched"
    done
    kernel_args=(--features ext4 --config "paths=[$config]")
}

# Prepares cargo for bare metal, for the architectures in `arch_set` or else for ARCH: sets `bare`
# to its arguments, `bare_env` to its environment, and `bare_build` to what a build needs beside
# that. A `core` for the target comes from, in this order: Rust's own; one compiled from Rust's
# sources; one compiled from Debian's sources, for machines that reach only a mirror of Debian.
arch_set=()
need_bare_metal() {
    need_rust
    need_patched_crates
    bare=(--target-dir target/kernel "${kernel_args[@]}") bare_env=() bare_build=()
    local arch target name flags version library sysroot all=yes
    for arch in "${arch_set[@]:-$ARCH}"; do
        target=$(bare_target "$arch")
        bare+=(--target "$target")
        # Backtraces need frame pointers.
        name=${target//-/_}
        flags="CARGO_TARGET_${name^^}_RUSTFLAGS=-Cforce-frame-pointers=yes"
        bare_env+=("$flags")
        # The kernel accesses memory only once it is mapped as normal memory, where unaligned words
        # are allowed; assembling each from bytes doubles the work of lz4. Rust warns that the
        # feature is not stable, so warnings are off here; `./x test kernel` shows the others.
        [ "$arch" != aarch64 ] || bare_build+=("$flags -Ctarget-feature=-strict-align -Awarnings")
        has_or_adds "$target" || all=
    done
    [ -z "$all" ] || return 0
    version=$(rustc --version | cut -d' ' -f2)
    sysroot=$(rustc --print sysroot)
    library=target/rust-src/$version/library
    if ! [ -e "$library/Cargo.lock" ]; then
        if [ -e "$sysroot/lib/rustlib/src/rust/library/Cargo.lock" ]; then
            library=$sysroot/lib/rustlib/src/rust/library
        else
            fetch_rust_src "$version" "$library"
        fi
    fi
    # Cargo's own tests build a standard library from sources outside the installation in this way.
    # A stable cargo reads both variables; the second one allows the first `-Z`.
    bare+=(-Zbuild-std=core,alloc,compiler_builtins)
    bare_env+=("__CARGO_TESTS_ONLY_SRC_ROOT=$(realpath "$library")" RUSTC_BOOTSTRAP=1)
}

# has_or_adds TARGET: succeeds if this Rust has a `core` for the target, or rustup can add one.
has_or_adds() {
    has_target "$1" && return
    command -v rustup >/dev/null || return
    # rustup failed before, when the library was fetched.
    ! [ -e "target/rust-src/$(rustc --version | cut -d' ' -f2)/library/Cargo.lock" ] || return
    say "adding Rust's $1 by rustup (the kernel is built for it)"
    timeout 60 rustup target add "$1" && has_target "$1" && return
    say "rustup could not: compiling the core library instead"
    return 1
}

has_target() {
    compgen -G "$(rustc --print target-libdir --target "$1")/libcore-*.rlib" >/dev/null
}

# Prints the first mirror of Debian among this machine's own sources.
debian_mirror() {
    apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Created-By: Packages' | sed '/-security/d' | head -n 1
}

# Sets `mirror` likewise, after an update of apt's lists if necessary; fails if there is none.
need_debian_mirror() {
    mirror=''
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return
    mirror=$(debian_mirror)
    if [ -z "$mirror" ]; then
        apt check -q # fetches the package lists, without which apt does not know the sources' origin
        mirror=$(debian_mirror)
    fi
    [ -n "$mirror" ]
}

# suite SUITE FOLDER [ARCHITECTURE]: updates apt's lists as if that suite of `mirror` were the
# machine's only source, and sets `suite_options` to the apt options for this, for this machine's
# architecture or the given one. Nothing can be installed, and all state is in FOLDER.
suite() {
    local architecture=${3:-$(dpkg --print-architecture)}
    rm -rf "$2"
    mkdir -p "$2/state/lists/partial" "$2/cache/archives/partial"
    echo "deb [arch=$architecture signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$2/sources.list"
    suite_options=(-q -o "Dir::State=$PWD/$2/state" -o "Dir::Cache=$PWD/$2/cache" -o Dir::State::status=/dev/null
        -o "Dir::Etc::sourcelist=$PWD/$2/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o Acquire::Languages=none
        -o "APT::Sandbox::User=$(id -un)")
    apt-get "${suite_options[@]}" update
}

# fetch_rust_src VERSION FOLDER: unpacks Rust's standard library from Debian's package rust-src of
# exactly that version, which a newer release of Debian or its backports may have.
fetch_rust_src() {
    local version=$1 library=$2 work=target/rust-src/apt mirror suite_options name
    need_debian_mirror ||
        die "no $BARE_TARGET for Rust, and no Debian mirror in apt's sources to take rust-src from: try 'rustup target add $BARE_TARGET'"
    for name in trixie-backports forky-backports forky sid; do
        say "looking for rust-src $version in Debian's $name"
        suite "$name" "$work" && (cd "$work" && apt-get "${suite_options[@]}" download "rust-src=$version*") || continue
        say "unpacking it into ${library%/library}"
        dpkg-deb --fsys-tarfile "$work"/rust-src_*.deb |
            tar -x -C "$work" --strip-components=4 --wildcards --exclude='*/library/vendor' './usr/src/*/library'
        mkdir -p "${library%/library}"
        mv "$work/library" "$library"
        rm -rf "$work"
        return
    done
    die "no $BARE_TARGET for Rust: try 'rustup target add $BARE_TARGET', or another version of Rust than $version"
}
