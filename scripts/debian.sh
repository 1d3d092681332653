# A Debian system as a disk for `--root`, and its programs on the reference kernel. Sourced by `x`, after
# `programs.sh`, from the repository's root.

# The packages of the scripts in programs/debian, beside those that Debian installs always.
DEBIAN_PROGRAMS=(bash busybox bzip2 findutils gcc gdb git libc6-dev make memcached nginx-light nodejs openjdk-17-jdk-headless
    perl postgresql-15 postgresql-contrib-15 procps python3 redis-server redis-tools sqlite3 strace stress-ng tcl xz-utils)
# Those of a small system, which are unpacked and not configured, so that they may be another architecture's.
DEBIAN_SMALL=(bash busybox coreutils dash diffutils findutils git grep gzip libc-bin perl python3 redis-server
    redis-tools sed sqlite3 tar util-linux)
# The scripts that run on a small system.
DEBIAN_SCRIPTS=(bash dash git perl python redis sqlite tar)

# need_debian_image [small]: sets IMAGE to a disk image with Debian 12 for $ARCH in an ext4 file system, and the
# scripts of programs/debian in /programs. A system for another architecture than this machine's is a small one.
need_debian_image() {
    local folder=target/debian/$ARCH size=${1:-full} variant=minbase when=customize included=("${DEBIAN_PROGRAMS[@]}")
    local mirror hooks tree sudo=()
    [ "$DEBIAN" = "$(dpkg --print-architecture)" ] || size=small
    IMAGE=$folder/$size.img
    [ ! -e "$IMAGE" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "root alone makes a Debian system: run ./x debian as root, or install sudo"
        sudo=(sudo)
    fi
    need mmdebstrap "to make a Debian system" mmdebstrap
    need mke2fs "to make a file system" e2fsprogs
    need_debian_mirror || die "no Debian mirror in apt's sources to make a Debian system from"
    # No hook comes after that which follows the unpacking, if nothing is configured.
    [ "$size" = full ] || variant=extract when=extract included=("${DEBIAN_SMALL[@]}")
    hooks=("--$when-hook"='mkdir "$1/programs" && cp programs/debian/* "$1/programs"')
    if [ "$size" = full ]; then
        hooks+=(--customize-hook='chroot "$1" javac -d /programs /programs/Load.java')
    else
        hooks+=(--extract-hook='ln -sf dash "$1/bin/sh"')
    fi
    tree=$folder/tree.$size
    mkdir -p "$folder"
    "${sudo[@]}" rm -rf "$tree" "$IMAGE.new"
    say "making a Debian 12 ($size) for $DEBIAN in $folder: up to a minute, and 3 GB"
    "${sudo[@]}" mmdebstrap --mode=root --variant="$variant" --architectures="$DEBIAN" --include="$(IFS=, && echo "${included[*]}")" \
        "${hooks[@]}" bookworm "$tree" "$mirror" || die "the Debian system could not be made"
    "${sudo[@]}" mke2fs -q -t ext4 -d "$tree" "$IMAGE.new" 3G || die "the file system could not be made"
    "${sudo[@]}" chown "$(id -u):$(id -g)" "$IMAGE.new"
    "${sudo[@]}" rm -rf "$tree"
    mv "$IMAGE.new" "$IMAGE"
}

step_debian() {
    run cargo build -p vellum-cli
    for_each_arch need_debian_image small
    on_all_machines debian_programs
}

debian_programs() {
    local script IMAGE
    need_debian_image small
    build_kernel kernel
    for script in "${DEBIAN_SCRIPTS[@]}"; do
        expect 0 "programs/debian/$script.sh" \
            guest --smp 4 --mem 1G --root "$IMAGE" -- /bin/sh "/programs/$script.sh" </dev/null
    done
}
