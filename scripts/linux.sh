# Fetches the Linux to compare with. Sourced by `x`, after `prepare.sh`, from the repository's root.

# The folder for Linux kernels: `vmlinuz` there links to the image, whose folder has the modules.
linux_folder() { if [ "$ARCH" = x86_64 ]; then echo target/linux; else echo "target/linux/$ARCH"; fi; }

# need_linux [SUITE]: sets LINUX to the image of Debian's newest kernel for virtual machines, or of
# SUITE's, unpacked under target/linux. Installs nothing.
need_linux() {
    LINUX=$(linux_folder)/vmlinuz
    [ $# != 0 ] || ! [ -e "$LINUX" ] || return 0
    local suites=("$@") name mirror suite_options
    need_debian_mirror || die "no Debian mirror in apt's sources to take a kernel from: give 'vellum' one by --kernel"
    [ $# != 0 ] || suites=(trixie-backports forky sid)
    for name in "${suites[@]}"; do
        say "looking for a cloud kernel in Debian's $name"
        fetch_linux "$name" "$(linux_folder)/apt" && return
    done
    die "no cloud kernel in ${suites[*]} of $mirror"
}

# fetch_linux SUITE FOLDER: downloads the packages that the newest `linux-image-cloud-*` depends on:
# one with image and modules up to Linux 6.12, one for each from then on.
fetch_linux() {
    suite "$1" "$2" "$DEBIAN" || return
    local folder packages package modules version
    packages=$(apt-cache "${suite_options[@]}" depends --recurse --no-recommends --no-suggests --no-conflicts \
        --no-breaks --no-replaces --no-enhances "linux-image-cloud-$DEBIAN" |
        grep -Ex "linux-(image|binary|modules)-[0-9].*-cloud-$DEBIAN") || return
    (cd "$2" && apt-get "${suite_options[@]}" download $packages) || return
    mkdir "$2/tree"
    for package in "$2"/*.deb; do
        dpkg-deb -x "$package" "$2/tree" || return
    done
    modules=$(compgen -G "$2/tree/lib/modules/*" || compgen -G "$2/tree/usr/lib/modules/*") || return
    version=${modules##*/}
    # The newer packages have the image in this folder.
    [ -e "$modules/vmlinuz" ] || mv "$2/tree/boot/vmlinuz-$version" "$modules/vmlinuz" || return
    folder=$(linux_folder)
    rm -rf "${folder:?}/$version"
    mv "$modules" "$folder/$version" || return
    ln -sfn "$version/vmlinuz" "$LINUX"
    rm -rf "$2"
}

# The minimal Linux: the source and the images, one of each for every architecture, lie here.
MINIMAL=target/linux/minimal

# need_minimal_linux: sets LINUX to the image of a Linux for $ARCH with the least configuration that
# runs our programs (scripts/linux-minimal), built from Debian's kernel source. An interrupted build
# continues where it was.
need_minimal_linux() {
    local kind=x86 target=bzImage prefix='' source=$MINIMAL/source build=$MINIMAL/build/$ARCH image wanted lines reader
    [ "$ARCH" = x86_64 ] || kind=arm64 target=Image prefix=$ARCH-linux-gnu-
    image=$build/arch/$kind/boot/$target
    LINUX=$MINIMAL/$ARCH/vmlinuz
    wanted=$(cat scripts/linux-minimal/{common,"$ARCH"}.config)
    ! { [ -e "$LINUX" ] && [ -e "$MINIMAL/$ARCH/System.map" ] && [ "$(cat "$MINIMAL/$ARCH/wanted" 2>/dev/null)" = "$wanted" ]; } || return 0
    need make "to build Linux" make
    need flex "to build Linux" flex
    need bison "to build Linux" bison
    need bc "to build Linux" bc
    need cc "to build Linux's tools" gcc libc6-dev
    if [ "$ARCH" = x86_64 ]; then
        [ -e /usr/include/libelf.h ] || need libelf.h "to build Linux's objtool" libelf-dev
    else
        need "${prefix}gcc" "to build Linux" gcc-aarch64-linux-gnu
    fi
    [ -e "$source/Makefile" ] || fetch_linux_source "$source"
    mkdir -p "$build" "$MINIMAL/$ARCH"
    if [ "$(cat "$build/wanted" 2>/dev/null)" != "$wanted" ]; then
        say "configuring Linux $(linux_version "$source") for $ARCH (scripts/linux-minimal)"
        rm -f "$build/wanted"
        echo "$wanted" >"$build/wanted.new"
        kernel_make allnoconfig "KCONFIG_ALLCONFIG=$PWD/$build/wanted.new" >/dev/null
        check_options "$build/.config" "$build/wanted.new"
        mv "$build/wanted.new" "$build/wanted"
    fi
    say "building Linux $(linux_version "$source") for $ARCH: about 6 minutes of CPU time"
    say "if interrupted, the same command continues"
    # Not a pipe: `run` must set `children` in this shell, to end the build when this command ends.
    exec {lines}> >(progress)
    reader=$!
    kernel_make -j "$(nproc)" "$target" >&"$lines"
    exec {lines}>&-
    wait "$reader"
    # `vellum run --kernel-work` looks for the map beside the image.
    cp "$build/System.map" "$MINIMAL/$ARCH/System.map"
    cp "$image" "$LINUX"
    cp "$build/wanted" "$MINIMAL/$ARCH/wanted"
}

# kernel_make ARGS: runs the kernel's make, with a low priority, for `need_minimal_linux`.
kernel_make() {
    run nice make -C "$source" "O=$PWD/$build" "ARCH=$kind" "CROSS_COMPILE=$prefix" KBUILD_BUILD_TIMESTAMP=@0 "$@"
}

# linux_version FOLDER: prints the version of kernel source.
linux_version() { sed -n 's/^\(VERSION\|PATCHLEVEL\|SUBLEVEL\) = //p' "$1/Makefile" | paste -sd .; }

# check_options CONFIG WANTED: dies if an option of WANTED is not in CONFIG, as another version of
# Linux may have renamed it.
check_options() {
    local missing
    missing=$(grep '^CONFIG_' "$2" | grep -vxFf "$1" || true)
    [ -z "$missing" ] || die "this version of Linux does not accept ${missing//$'\n'/ } (scripts/linux-minimal)"
}

# Shows the lines of the kernel's make as one line that counts the files.
progress() {
    local line count=0 began=$SECONDS
    while read -r line; do
        case $line in
        CC* | AS* | LD* | AR*) count=$((count + 1)) ;;
        *) continue ;;
        esac
        if [ -t 1 ]; then
            printf '\r\e[Kx: %d files, %d s: %s' "$count" $((SECONDS - began)) "${line##* }"
        elif [ $((count % 250)) = 0 ]; then
            say "$count files, $((SECONDS - began)) s"
        fi
    done
    [ ! -t 1 ] || echo
}

# fetch_linux_source FOLDER: unpacks the newest kernel source of the first suite that has a cloud
# kernel too (`need_linux`) into the folder, so that both have one version.
fetch_linux_source() {
    local name package mirror suite_options suites=(trixie-backports forky sid)
    need_debian_mirror || die "no Debian mirror in apt's sources to take kernel source from"
    need xz "to unpack Linux" xz-utils
    mkdir -p "$MINIMAL"
    for name in "${suites[@]}"; do
        say "looking for kernel source in Debian's $name"
        suite "$name" "$MINIMAL/apt" || continue
        package=$(apt-cache "${suite_options[@]}" search --names-only '^linux-source-[0-9.]+$' |
            cut -d' ' -f1 | sort -V | tail -n 1)
        [ -n "$package" ] && (cd "$MINIMAL/apt" && apt-get "${suite_options[@]}" download "$package") || continue
        say "unpacking $package into $1"
        rm -rf "$1.new"
        mkdir "$1.new"
        dpkg-deb --fsys-tarfile "$MINIMAL/apt/$package"_*.deb | tar -xO --wildcards './usr/src/*.tar.xz' |
            tar -xJ -C "$1.new" --strip-components=1 || die "$package could not be unpacked"
        rm -rf "$MINIMAL/apt" "$1"
        mv "$1.new" "$1"
        return
    done
    die "no kernel source in ${suites[*]} of $mirror"
}
