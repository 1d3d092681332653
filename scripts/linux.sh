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
