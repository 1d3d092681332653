# The test of whole programs on the reference kernel. Sourced by `x`, after `prepare.sh`, from the repository's root.

# need_busybox: the distribution's static one, for $ARCH; its path goes to `busybox`. Nothing is installed.
need_busybox() {
    local folder=target/busybox/$ARCH mirror suite_options
    find_busybox "$folder" && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "no apt-get here to fetch busybox-static"
    say "fetching busybox-static into $folder"
    rm -rf "$folder"
    mkdir -p "$folder"
    suite_options=(-q -o "APT::Sandbox::User=$(id -un)")
    if [ "$DEBIAN" != "$(dpkg --print-architecture)" ]; then
        need_debian_mirror || die "no Debian mirror in apt's sources to take busybox-static for $DEBIAN from"
        # The release that this machine has, so that both are of one version.
        suite "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$folder/apt" "$DEBIAN"
    fi
    (cd "$folder" && apt-get "${suite_options[@]}" download busybox-static) || {
        apt check -q # which fetches the lists of packages
        (cd "$folder" && apt-get "${suite_options[@]}" download busybox-static)
    } || die "apt-get has no busybox-static"
    dpkg-deb -x "$folder"/*.deb "$folder"
    rm -rf "$folder/apt"
    find_busybox "$folder" || die "no busybox in busybox-static"
}

find_busybox() { busybox=$(compgen -G "$1/bin/busybox" || compgen -G "$1/usr/bin/busybox"); }

# guest [OPTIONS] -- PROGRAM...: on `kernel`. Standard input is this function's. The limit is there to end what hangs: a
# busy machine takes a multiple of what an idle one does.
guest() { target/debug/vellum run --arch "$ARCH" --kernel "$kernel" --timeout "${VELLUM_BOOT_SECONDS:-400}" "$@"; }

# expect STATUS WHAT COMMAND...: the command ends with that status.
expect() {
    local wanted=$1 what=$2 status=0
    shift 2
    "$@" || status=$?
    [ "$status" = "$wanted" ] || die "$what: status $status, and not $wanted"
}

# A script for busybox's shell, called by its path: runs the script $1 in the folder $2, with all applets as commands.
# shellcheck disable=SC2016
WITH_APPLETS='$0 mkdir -p $2/bin $2/work && $0 --install -s $2/bin && PATH=$2/bin && cd $2/work && . "$1"'

# on_host SCRIPT: its output on this machine, by this machine's busybox, goes to target/busybox/SCRIPT.host.
on_host() {
    local script=$1 name folder
    name=target/busybox/$(basename "$script" .sh).host
    folder=$(mktemp -d)
    expect 0 "$script on this machine" env -i "$PWD/$busybox" sh -c "$WITH_APPLETS" "$PWD/$busybox" "$PWD/$script" \
        "$folder" >"$name" 2>"$name.errors"
    rm -rf "$folder"
}

# same_as_host SCRIPT: its output on the kernel is what `on_host` found. The script may begin with the options of its machine.
same_as_host() {
    local script=$1 name options
    read -ra options <<<"$(sed -n '1s/^# vellum run //p' "$script")"
    name=target/busybox/$(basename "$script" .sh)
    expect 0 "$script on the kernel (standard error: $name.$ARCH.errors)" \
        guest --smp 2 "${options[@]}" --file "$busybox:/bin/busybox" --file "$script:/script" -- \
        /bin/busybox sh -c "$WITH_APPLETS" /bin/busybox /script /tmp </dev/null >"$name.$ARCH" 2>"$name.$ARCH.errors"
    diff "$name.host" "$name.$ARCH" || die "$script prints something else on the kernel"
}

# The streams and the status of a program on `kernel`.
streams() {
    local shell=(--file "$busybox:/bin/busybox" -- /bin/busybox)
    head -c 20000 Cargo.lock | guest "${shell[@]}" cat | cmp - <(head -c 20000 Cargo.lock) || die "cat does not copy its input"
    expect 42 "a program that exits with 42" guest "${shell[@]}" sh -c 'exit 42' </dev/null
    expect 137 "a program that is killed" guest "${shell[@]}" sh -c 'kill -9 $$' </dev/null
    expect 127 "a command that is not there" guest "${shell[@]}" sh -c 'no-such-command 2>/dev/null' </dev/null
    expect 126 "a program that is none" guest --file Cargo.toml:/bin/none -- /bin/none </dev/null
    expect 0 "who exhausts memory is killed, and the machine goes on" \
        guest --mem 96M "${shell[@]}" sh -c '/bin/busybox tail /dev/zero 2>/dev/null; test $? = 137' </dev/null
}

# damaged_disk FOLDER: what is on the disk is replaced by noise while the program that has swapped it out waits.
damaged_disk() {
    local disk=target/swap-disk
    truncate -s 16M "$disk"
    coproc GUEST { guest --swap-disk "$disk" --swap-disk-checksums -- "$1/disk" damaged; }
    local guest=$GUEST_PID said
    exec {said}<&"${GUEST[0]}"
    read -r _ <&"$said"
    head -c 16M /dev/urandom | dd of="$disk" conv=notrunc bs=1M iflag=fullblock status=none
    echo damaged >&"${GUEST[1]}"
    cat <&"$said"
    expect 0 "a disk that is written by others" wait "$guest"
    rm "$disk"
}

# our_programs FOLDER: those there, on `kernel`.
our_programs() {
    expect 0 patterns guest --smp 2 -- "$1/patterns" </dev/null
    expect 0 figures guest --smp 2 --numa 2 -- "$1/figures" </dev/null
    expect 0 frames guest --smp 2 -- "$1/frames" </dev/null
    expect 0 pointers guest --smp 2 -- "$1/pointers" </dev/null
    expect 0 watch guest --smp 2 -- "$1/watch" </dev/null
    expect 0 bomb guest --smp 2 -- "$1/bomb" </dev/null
    expect 0 unmap guest -- "$1/unmap" 8 </dev/null
    expect 0 tables guest -- "$1/tables" 1 </dev/null
    expect 0 pageout guest --swap 32M -- "$1/pageout" 8 </dev/null
    expect 0 "a disk" guest --swap-disk 16M -- "$1/disk" works </dev/null
    expect 0 "a disk that can't be read" guest --swap-disk 16M --swap-disk-fails reads -- "$1/disk" reads </dev/null
    expect 0 "a disk that can't be written" guest --swap-disk 16M --swap-disk-fails writes -- "$1/disk" writes </dev/null
    damaged_disk "$1"
    # More sharers of a slot than 8 bits count.
    expect 0 sharers guest --smp 2 --mem 512M --swap 128M -- "$1/sharers" </dev/null
    expect 0 lazyfree guest -- "$1/lazyfree" 32 </dev/null
    expect 0 collapse guest --swap 64M -- "$1/collapse" </dev/null
    # What does not fit in compressed memory goes to the disk.
    expect 0 limit guest --smp 2 --mem 128M --swap 128M -- "$1/limit" 24 </dev/null
    # So is what the kernel allocates for its programs.
    expect 0 "kernel memory in a group" guest --smp 4 --mem 256M -- "$1/kmem" </dev/null
    expect 0 pressure guest --smp 2 --mem 96M --swap 64M --swap-disk 192M -- "$1/pressure" 160 1 </dev/null
    # What a child has as well takes no room of its own.
    expect 0 "pressure with a child" guest --mem 128M --swap 512M -- "$1/pressure" 144 1 1 </dev/null
    expect 0 shared guest --smp 2 --mem 96M --swap 128M --swap-disk 128M -- "$1/shared" 130 </dev/null
    expect 0 "calls beside another program" guest --smp 4 -- "$1/beside" 20 </dev/null
    expect 0 races guest --smp 2 -- "$1/races" </dev/null
    expect 0 faults guest --smp 2 -- "$1/faults" 2 1 </dev/null
    expect 0 chaos guest --smp 4 -- "$1/chaos" 4 5 </dev/null
    expect 0 "calls while memory is short" guest --smp 2 --mem 96M -- "$1/short" </dev/null
    # Short rounds of `./x fuzz --kernel`: one that is the same in every run, and a few that are not.
    expect 0 "a round of fuzz" guest --icount --mem 96M --swap 32M -- "$1/fuzz" seed=1 calls=192 </dev/null
    expect 0 "rounds of fuzz" guest --smp 4 --mem 96M --swap 48M -- "$1/fuzz" seed=10 rounds=3 calls=192 </dev/null
}

step_programs() {
    local script
    run cargo build -p vellum-cli
    need_busybox
    say "shell scripts, on this machine"
    for script in programs/shell/*.sh; do on_host "$script"; done
    for_each_kernel all_programs
}

all_programs() {
    local script folder=target/programs
    [ "$ARCH" = x86_64 ] || folder+=/$ARCH
    need "$QEMU" "to boot the reference kernel" "$QEMU_PACKAGE"
    need_busybox
    build_kernel kernel
    build_programs
    say "streams and statuses"
    streams
    if [ -e "$(linux_folder)/vmlinuz" ]; then
        say "the same on Linux"
        kernel=$(linux_folder)/vmlinuz streams
    else
        say "not tested: our init for Linux, as there is none (./x linux --arch $ARCH)"
    fi
    say "our programs"
    our_programs "$folder"
    for script in programs/shell/*.sh; do
        say "$script, as on this machine"
        same_as_host "$script"
    done
}
