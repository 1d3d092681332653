# A Debian system as a disk for `--root`. Sourced by `x`, after `prepare.sh`, from the repository's root.

# The programs of the scripts in programs/debian.
DEBIAN_PROGRAMS=(bash busybox bzip2 findutils gcc gdb git libc6-dev make memcached nginx-light nodejs openjdk-17-jdk-headless
    perl postgresql-15 postgresql-contrib-15 procps python3 redis-server redis-tools sqlite3 strace stress-ng tcl xz-utils)
# Those of a system for a foreign architecture, whose packages are unpacked and not configured.
DEBIAN_UNPACKED=(bash busybox coreutils dash findutils grep libc-bin perl-base python3-minimal sed sqlite3 tar)

# need_debian_image: sets IMAGE to a disk image with Debian 12 for $ARCH in an ext4 file system, and the
# scripts of programs/debian in /programs. Needs the right to make device files.
need_debian_image() {
    local folder=target/debian/$ARCH mirror included variant=minbase include=("${DEBIAN_PROGRAMS[@]}") hooks=()
    IMAGE=$folder/root.img
    [ ! -e "$IMAGE" ] || return 0
    [ "$(id -u)" = 0 ] || die "a Debian system is made by root alone: sudo ./x debian"
    need mmdebstrap "to make a Debian system" mmdebstrap
    need mke2fs "to make a file system" e2fsprogs
    need_debian_mirror || die "no Debian mirror in apt's sources to make a Debian system from"
    if [ "$DEBIAN" = "$(dpkg --print-architecture)" ]; then
        hooks=(--customize-hook='mkdir "$1/programs" && cp programs/debian/* "$1/programs"'
            --customize-hook='chroot "$1" javac -d /programs /programs/Load.java')
    else
        variant=extract include=("${DEBIAN_UNPACKED[@]}")
        hooks=(--customize-hook='mkdir "$1/programs" && cp programs/debian/* "$1/programs"'
            --customize-hook='ln -sf dash "$1/bin/sh"')
    fi
    mkdir -p "$folder"
    rm -rf "$folder/tree" "$IMAGE.new"
    included=$(IFS=, && echo "${include[*]}")
    say "making a Debian 12 for $DEBIAN in $folder: about a minute, and 3 GB"
    mmdebstrap --mode=root --variant="$variant" --architectures="$DEBIAN" --include="$included" "${hooks[@]}" \
        bookworm "$folder/tree" "$mirror" || die "the Debian system could not be made"
    mke2fs -q -t ext4 -d "$folder/tree" "$IMAGE.new" 3G || die "the file system could not be made"
    rm -rf "$folder/tree"
    mv "$IMAGE.new" "$IMAGE"
}
