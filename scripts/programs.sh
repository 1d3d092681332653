# Tests whole programs on the reference kernel. Sourced by `x`, after `prepare.sh`, from the
# repository's root.

# need_busybox: sets `busybox` to the distribution's static busybox for $ARCH, which it downloads if
# necessary. Installs nothing.
need_busybox() {
    local folder=target/busybox/$ARCH mirror suite_options
    find_busybox "$folder" && return
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "busybox-static can't be fetched: there is no apt-get here"
    say "fetching busybox-static into $folder"
    rm -rf "$folder"
    mkdir -p "$folder"
    suite_options=(-q -o "APT::Sandbox::User=$(id -un)")
    if [ "$DEBIAN" != "$(dpkg --print-architecture)" ]; then
        need_debian_mirror || die "no Debian mirror in apt's sources to take busybox-static for $DEBIAN from"
        # This machine's release, so that both busyboxes have one version.
        suite "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$folder/apt" "$DEBIAN"
    fi
    (cd "$folder" && apt-get "${suite_options[@]}" download busybox-static) || {
        apt check -q # fetches the package lists
        (cd "$folder" && apt-get "${suite_options[@]}" download busybox-static)
    } || die "apt-get has no busybox-static"
    dpkg-deb -x "$folder"/*.deb "$folder"
    rm -rf "$folder/apt"
    find_busybox "$folder" || die "no busybox in busybox-static"
}

find_busybox() { busybox=$(compgen -G "$1/bin/busybox" || compgen -G "$1/usr/bin/busybox"); }

# guest [OPTIONS] -- PROGRAM...: runs the program on `kernel`, with this function's standard input.
# The time limit ends a run that hangs: a busy machine takes a multiple of what an idle one does.
guest() { target/debug/vellum run --arch "$ARCH" --kernel "$kernel" --timeout "${VELLUM_BOOT_SECONDS:-400}" "$@"; }

# expect STATUS TITLE COMMAND...: dies unless the command ends with that status.
expect() {
    local expected=$1 title=$2 status=0
    shift 2
    "$@" || status=$?
    [ "$status" = "$expected" ] || die "$title: exit status $status, expected $expected"
}

# A script for busybox's shell, called by its path: runs the script $1 in the folder $2, with all
# applets as commands.
# shellcheck disable=SC2016
WITH_APPLETS='$0 mkdir -p $2/bin $2/work && $0 --install -s $2/bin && PATH=$2/bin && cd $2/work && . "$1"'

# on_host SCRIPT: writes the script's output on this machine, by this machine's busybox, to
# target/busybox/SCRIPT.host.
on_host() {
    local script=$1 name folder
    name=target/busybox/$(basename "$script" .sh).host
    folder=$(mktemp -d)
    expect 0 "$script on this machine" env -i "$PWD/$busybox" sh -c "$WITH_APPLETS" "$PWD/$busybox" "$PWD/$script" \
        "$folder" >"$name" 2>"$name.errors"
    rm -rf "$folder"
}

# same_as_host SCRIPT: dies unless the script's output on the kernel is that of `on_host`. The
# script's first line may have options for its machine.
same_as_host() {
    local script=$1 name options
    read -ra options <<<"$(sed -n '1s/^# vellum run //p' "$script")"
    name=target/busybox/$(basename "$script" .sh)
    expect 0 "$script on the kernel (standard error: $name.$ARCH.errors)" \
        guest --smp 2 "${options[@]}" --file "$busybox:/bin/busybox" --file "$script:/script" -- \
        /bin/busybox sh -c "$WITH_APPLETS" /bin/busybox /script /tmp </dev/null >"$name.$ARCH" 2>"$name.$ARCH.errors"
    diff "$name.host" "$name.$ARCH" || die "$script has other output on the kernel"
}

# Checks the streams and the exit status of programs on `kernel`.
streams() {
    local shell=(--file "$busybox:/bin/busybox" -- /bin/busybox)
    head -c 20000 Cargo.lock | guest "${shell[@]}" cat | cmp - <(head -c 20000 Cargo.lock) || die "cat does not copy its input"
    expect 42 "a program that exits with 42" guest "${shell[@]}" sh -c 'exit 42' </dev/null
    expect 137 "a program that is killed" guest "${shell[@]}" sh -c 'kill -9 $$' </dev/null
    expect 127 "a command that does not exist" guest "${shell[@]}" sh -c 'no-such-command 2>/dev/null' </dev/null
    expect 126 "a file that is no program" guest --file Cargo.toml:/bin/none -- /bin/none </dev/null
    expect 0 "a program that exhausts memory is killed, and the machine continues" \
        guest --mem 96M "${shell[@]}" sh -c '/bin/busybox tail /dev/zero 2>/dev/null; test $? = 137' </dev/null
}

# ext4_disk FOLDER: programs on an ext4 file system, which e2fsck checks afterwards.
ext4_disk() {
    local disk=target/ext4-disk.$ARCH block
    for block in 1024 4096; do
        rm -f "$disk"
        mke2fs -q -F -t ext4 -b "$block" "$disk" 32M >/dev/null 2>&1 || die "mke2fs failed"
        expect 0 "ext4 with blocks of $block bytes" \
            guest --smp 4 --mem 64M --disk "$disk" -- "$1/ext4" /dev/vda mixed 6 400 </dev/null
        expect 0 "direct reads and writes of it" guest --smp 2 --disk "$disk" -- "$1/ext4" /dev/vda direct </dev/null
        expect 0 "holes, and writes that fail, of it" guest --smp 2 --disk "$disk" -- "$1/ext4" /dev/vda holes </dev/null
        expect 0 "a full disk" guest --smp 2 --disk "$disk" -- "$1/ext4" /dev/vda full </dev/null
        expect 0 "bytes that move in its files" guest --smp 2 --disk "$disk" -- "$1/ext4" /dev/vda shift "$block" </dev/null
        expect 0 "inotify on it" guest --smp 2 --disk "$disk" -- "$1/inotify" /mnt /dev/vda </dev/null
        e2fsck -f -n "$disk" >"$disk.log" 2>&1 || die "e2fsck finds errors: $(cat "$disk.log")"
    done
    rm "$disk" "$disk.log"
}

# damaged_disk FOLDER: overwrites the swap disk with noise while the program that swapped to it
# waits.
damaged_disk() {
    local disk=target/swap-disk.$ARCH
    truncate -s 16M "$disk"
    coproc GUEST { guest --swap-disk "$disk" --swap-disk-checksums -- "$1/disk" damaged; }
    local guest=$GUEST_PID output
    exec {output}<&"${GUEST[0]}"
    read -r _ <&"$output"
    head -c 16M /dev/urandom | dd of="$disk" conv=notrunc bs=1M iflag=fullblock status=none
    echo damaged >&"${GUEST[1]}"
    cat <&"$output"
    expect 0 "a swap disk that another program overwrites" wait "$guest"
    rm "$disk"
}

# dynamic FOLDER: runs a program that has a dynamic loader and a shared library, which it compiles
# into the folder.
dynamic() {
    local compiler=cc loader=/lib64/ld-linux-x86-64.so.2 file files=()
    [ "$ARCH" = x86_64 ] || compiler=$ARCH-linux-gnu-gcc loader=/lib/ld-linux-$ARCH.so.1
    "$compiler" -O2 -o "$1/exec-dynamic" programs/exec.c
    for file in "$loader" /lib/libc.so.6; do
        files+=(--file "$("$compiler" -print-file-name="${file##*/}"):$file")
    done
    expect 0 "a program with a dynamic loader" guest --smp 2 "${files[@]}" --file "$1/exec-dynamic:/dynamic" -- \
        "$1/exec" 20 /dynamic </dev/null
}

# root_over_host FOLDER: runs programs from a folder and from an ext4 image of this machine, which
# it changes in the guest's memory alone.
root_over_host() {
    local folder image before root
    folder=$(mktemp -d)
    image=$(mktemp)
    cp "$1/over" "$1/inotify" "$folder"
    seq -f %015.0f 0 524287 >"$folder/lines"
    mke2fs -q -t ext4 -d "$folder" "$image" 16M
    before=$(cat "$folder/lines" "$image" | md5sum)
    for root in "$folder" "$image"; do
        expect 0 "a file over $root" guest --smp 2 --mem 48M --swap 48M --root "$root" -- /over /lines 40 </dev/null
        expect 0 "inotify over $root" guest --smp 2 --root "$root" -- /inotify </dev/null
    done
    [ "$before" = "$(cat "$folder/lines" "$image" | md5sum)" ] || die "the root file system was changed"
    rm -rf "$folder" "$image"
}

# kernel_work FOLDER: checks on `kernel` that its work is counted by cause: that of twenty programs,
# and of one before them.
kernel_work() {
    local processors row table=target/kernel-work.$ARCH
    for processors in 1 4; do
        expect 0 "kernel work on $processors CPUs" \
            guest --smp "$processors" --kernel-work -- "$1/exec" 20 </dev/null 2>"$table"
        for row in 'execve 21' 'clone 21' 'wait4 21' 'exit_group 22' 'thread start 21'; do
            awk -v row="${row% *}" -v times="${row##* }" '
                index($0, " " row " ") == 1 && $(NF - 3) == times { found = 1 }
                END { exit !found }' "$table" || die "kernel work: no '$row' in $(cat "$table")"
        done
    done
    rm "$table"
}

# our_programs FOLDER: runs the programs in the folder on `kernel`.
our_programs() {
    local processors
    expect 0 patterns guest --smp 2 -- "$1/patterns" </dev/null
    expect 0 figures guest --smp 2 --numa 2 -- "$1/figures" </dev/null
    expect 0 frames guest --smp 2 -- "$1/frames" </dev/null
    expect 0 pointers guest --smp 2 -- "$1/pointers" </dev/null
    expect 0 watch guest --smp 2 -- "$1/watch" </dev/null
    expect 0 userfaultfd guest -- "$1/userfaultfd" </dev/null
    expect 0 "userfaultfd on four processors" guest --smp 4 -- "$1/userfaultfd" </dev/null
    expect 0 copies guest --smp 2 -- "$1/copies" </dev/null
    expect 0 "protection keys" guest --smp 4 -- "$1/keys" </dev/null
    expect 0 "kinds of memory" guest --smp 2 -- "$1/advice" </dev/null
    expect 0 epoll guest --smp 2 -- "$1/epoll" </dev/null
    expect 0 prctl guest --smp 4 -- "$1/prctl" </dev/null
    expect 0 signalfd guest --smp 4 -- "$1/signalfd" </dev/null
    expect 0 inotify guest --smp 4 -- "$1/inotify" </dev/null
    expect 0 seccomp guest --smp 4 -- "$1/seccomp" </dev/null
    expect 0 timerfd guest --smp 2 -- "$1/timerfd" </dev/null
    for processors in 1 4; do
        expect 0 "ptrace on $processors CPUs" guest --smp "$processors" -- "$1/ptrace" </dev/null
    done
    expect 0 "core files" guest --smp 2 -- "$1/core" </dev/null
    expect 0 descriptors guest --smp 2 -- "$1/descriptors" </dev/null
    expect 0 kcmp guest --smp 4 -- "$1/kcmp" </dev/null
    expect 0 vdso guest --smp 4 -- "$1/vdso" </dev/null
    expect 0 "vdso, where instructions are counted" guest --icount -- "$1/vdso" </dev/null
    expect 0 sockets guest --smp 4 -- "$1/sockets" </dev/null
    expect 0 "TCP and UDP" guest --smp 4 -- "$1/inet" </dev/null
    expect 0 splice guest --smp 2 -- "$1/splice" </dev/null
    expect 0 "headers of packets" guest --smp 2 -- "$1/packets" </dev/null
    expect 0 "network interfaces" guest --smp 2 -- "$1/netlink" </dev/null
    expect 0 tty guest --smp 4 -- "$1/tty" </dev/null
    expect 0 "a terminal as standard streams" guest --smp 2 --tty -- "$1/tty" standard </dev/null
    expect 0 bomb guest --smp 2 -- "$1/bomb" </dev/null
    expect 0 exec guest --smp 2 -- "$1/exec" 20 </dev/null
    dynamic "$1"
    expect 0 unmap guest -- "$1/unmap" 8 </dev/null
    expect 0 "unmap in memory in pieces" guest -- "$1/unmap" 8 aged </dev/null
    expect 0 tables guest -- "$1/tables" 1 </dev/null
    expect 0 pageout guest --swap 32M -- "$1/pageout" 8 </dev/null
    expect 0 "a disk" guest --smp 2 --disk 16M -- "$1/store" /dev/vda </dev/null
    expect 0 "a disk that can't be read" guest --disk 16M --disk-fails reads -- "$1/store" /dev/vda reads </dev/null
    expect 0 "a disk that can't be written" guest --disk 16M --disk-fails writes -- "$1/store" /dev/vda writes </dev/null
    expect 0 "a slow disk" guest --disk 16M --disk-rate 1M -- "$1/slow" /dev/vda </dev/null
    expect 0 "limits of dirty pages" guest --smp 2 --disk 96M --disk-rate 8M -- "$1/dirty" /dev/vda groups </dev/null
    ext4_disk "$1"
    root_over_host "$1"
    # The architecture makes no difference, and each run takes half a minute.
    [ "$ARCH" != x86_64 ] || expect 0 "a stream beside a working set" \
        guest --smp 2 --mem 144M --disk 450M -- "$1/stream" /dev/vda 48 320 </dev/null
    expect 0 "a disk in memory" guest --ram-disk 16M -- "$1/store" /dev/ram0 </dev/null
    expect 0 "a swap disk" guest --swap-disk 16M -- "$1/disk" works </dev/null
    expect 0 "a swap disk that can't be read" guest --swap-disk 16M --swap-disk-fails reads -- "$1/disk" reads </dev/null
    expect 0 "a swap disk that can't be written" guest --swap-disk 16M --swap-disk-fails writes -- "$1/disk" writes </dev/null
    damaged_disk "$1"
    # More children share a slot than 8 bits can count.
    expect 0 sharers guest --smp 2 --mem 512M --swap 128M -- "$1/sharers" </dev/null
    expect 0 lazyfree guest -- "$1/lazyfree" 32 </dev/null
    expect 0 collapse guest --swap 64M -- "$1/collapse" </dev/null
    expect 0 "huge pages of the pool" guest --smp 2 -- "$1/hugetlb" </dev/null
    expect 0 "shared memory in huge pages" guest --smp 2 --swap 64M -- "$1/shmem" </dev/null
    # What exceeds compressed memory goes to the disk.
    expect 0 limit guest --smp 2 --mem 128M --swap 128M -- "$1/limit" 24 </dev/null
    # Kernel memory that is allocated for a program counts too.
    expect 0 "kernel memory in a memcg" guest --smp 4 --mem 256M -- "$1/kmem" </dev/null
    expect 0 pressure guest --smp 2 --mem 96M --swap 64M --swap-disk 192M -- "$1/pressure" 160 1 </dev/null
    # Memory shared with a child must take no room of its own.
    expect 0 "pressure with a child" guest --mem 128M --swap 512M -- "$1/pressure" 144 1 1 </dev/null
    expect 0 shared guest --smp 2 --mem 96M --swap 128M --swap-disk 128M -- "$1/shared" 130 </dev/null
    expect 0 "calls beside another program" guest --smp 4 -- "$1/beside" 20 </dev/null
    expect 0 races guest --smp 2 -- "$1/races" </dev/null
    printf '#!/bin/edges\n' >"$1/edges.script"
    chmod +x "$1/edges.script"
    expect 0 "edges, as the interpreter of the first program" \
        guest --file "$1/edges:/bin/edges" -- "$1/edges.script" </dev/null
    expect 0 faults guest --smp 2 -- "$1/faults" 2 1 </dev/null
    expect 0 chaos guest --smp 4 -- "$1/chaos" 4 5 </dev/null
    expect 0 "calls while memory is short" guest --smp 2 --mem 96M -- "$1/short" </dev/null
    # Short rounds of `./x fuzz --kernel`: one that repeats exactly, and several that do not.
    expect 0 "a round of fuzz" guest --icount --mem 96M --swap 32M -- "$1/fuzz" seed=1 calls=192 </dev/null
    expect 0 "rounds of fuzz" guest --smp 4 --mem 96M --swap 48M -- "$1/fuzz" seed=10 rounds=3 calls=192 </dev/null
}

step_programs() {
    local script
    run cargo build -p vellum-cli -p vellum-count
    need mke2fs "to make ext4 file systems" e2fsprogs
    need_busybox
    say "shell scripts, on this machine"
    for script in programs/shell/*.sh; do on_host "$script"; done
    for_each_arch need_programs
    on_all_machines all_programs
}

need_programs() {
    need_busybox
    build_programs
}

all_programs() {
    local script folder=target/programs
    [ "$ARCH" = x86_64 ] || folder+=/$ARCH
    need_busybox
    build_kernel kernel
    say "standard streams and exit statuses"
    streams
    if [ -e "$(linux_folder)/vmlinuz" ]; then
        say "the same on Linux"
        kernel=$(linux_folder)/vmlinuz streams
        kernel=$(linux_folder)/vmlinuz kernel_work "$folder"
    else
        say "not tested: our init for Linux, as there is none (./x linux --arch $ARCH)"
    fi
    say "kernel work by cause"
    kernel_work "$folder"
    say "our programs"
    our_programs "$folder"
    for script in programs/shell/*.sh; do
        say "$script, as on this machine"
        same_as_host "$script"
    done
}
