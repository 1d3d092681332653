#!/usr/bin/env bash
# trace.sh OUT [--filter K] -- EMULATOR [OPTIONS] PROGRAM [ARGS]: traces a program of one thread under QEMU's user-mode emulation.
# README.md has an example.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?where the trace goes} filter=4
shift
if [ "${1:-}" = --filter ]; then
    filter=${2:?how many pages}
    shift 2
fi
[ "${1:-}" != -- ] || shift
emulator=$(command -v "${1:?qemu-ARCHITECTURE}") || {
    echo "$1: not found (Debian: qemu-user)" >&2
    exit 1
}
shift
plugin=$(mktemp -d)
# If the plugin never opens its pipe, the compressor waits for ever.
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$plugin"' EXIT
cc -O2 -shared -fPIC -Wall -Wextra -o "$plugin/pages.so" "$here/pages.c"
mkfifo "$plugin/raw"
zstd -q -f -T0 -o "$out" <"$plugin/raw" &
# Without the caller's environment, which is on the program's stack, random addresses and a random seed, a program makes the
# same trace again.
env -i setarch -R "$emulator" -seed 1 -plugin "$plugin/pages.so,out=$plugin/raw,filter=$filter" "$@"
wait $!
