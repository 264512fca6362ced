#!/usr/bin/env bash
# Runs the tests as other machines would. What this machine cannot do is skipped with a sentence.
#
#     tests/elsewhere.sh                                    every variant, the whole suite
#     tests/elsewhere.sh isa user -- tests/kernels -x       some variants, a part of the suite
#
# isa        each instruction set of the native kernels that this processor runs
# old-cpu    torch and oneDNN without AVX
# one-core   a single core
# busy       beside two processes that never rest
# user       as somebody who is not root, in a folder of his own
# space      from a folder with a space in its name, temporary files too
# bare       LANG=C, no network but the loopback interface
set -uo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
python=$tree/.venv/bin/python
[ -x "$python" ] || { echo "there is no .venv in $tree; run make all first"; exit 2; }

variants=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do variants+=("$1"); shift; done
[ "${1:-}" = -- ] && shift
[ ${#variants[@]} -gt 0 ] || variants=(isa old-cpu one-core busy user space bare)
tests=(-q -p no:cacheprovider --numprocesses 2 --dist worksteal "$@")

work=$(mktemp -d)
chmod 755 "$work"
busy=()
finish() {
    for process in "${busy[@]}"; do kill "$process" 2>/dev/null; done
    rm -rf "$work"
}
trap finish EXIT
results=()

# try NAME COMMAND...: one line of result for each
try() {
    local name=$1 log
    shift
    echo "== $name"
    log=$work/log.txt
    "$@" 2>&1 | tee "$log" | tail -n 40
    results+=("$name: exit code ${PIPESTATUS[0]}, $(tail -n 1 "$log")")
}
skip() {
    echo "== $1: skipped, $2"
    results+=("$1: skipped, $2")
}
here() { (cd "$tree" && OMP_NUM_THREADS=1 "$@"); }

# The tree as it is, with what was built, without what git ignores otherwise.
copy_to() {
    mkdir -p "$1"
    { git -C "$tree" ls-files -z --cached --others --exclude-standard
      cd "$tree" && find specgrad_kernels -name '*.so' -print0; } |
        tar -C "$tree" --null --ignore-failed-read -T - -c | tar -C "$1" -x
}
in_copy() {
    local folder=$1
    shift
    (cd "$folder" && env OMP_NUM_THREADS=1 PYTHONPATH="$folder:$folder/python" \
        PATH="$tree/.venv/bin:$PATH" "$@")
}

isa() {
    local sets
    sets=$(here env -u SPECGRAD_ISA "$python" -c "from specgrad_kernels.backends import cpp
print(*(name for name, runs in cpp.cpu.features().items() if runs))")
    [ -n "$sets" ] || { skip isa "the native library is not built"; return; }
    for set in $sets; do try "isa $set" here env SPECGRAD_ISA="$set" "$python" -m pytest "${tests[@]}"; done
    for set in portable avx2 avx512; do
        [[ " $sets " == *" $set "* ]] || skip "isa $set" "this processor does not run it"
    done
}
old-cpu() {
    try old-cpu here env ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 SPECGRAD_ISA=portable \
        "$python" -m pytest "${tests[@]}"
}
one-core() {
    command -v taskset > /dev/null || { skip one-core "there is no taskset"; return; }
    local core
    core=$(taskset -pc $$ | sed 's/.*: //; s/[,-].*//')
    try one-core here taskset -c "$core" "$python" -m pytest "${tests[@]}"
}
busy() {
    for _ in 1 2; do
        while :; do :; done &
        busy+=($!)
    done
    try busy here "$python" -m pytest "${tests[@]}"
    kill "${busy[@]}"
    busy=()
}
user() {
    local become=()
    if [ "$(id -u)" = 0 ]; then
        # may read everything, so that an interpreter in root's home can be used, and write nothing
        become=(setpriv --reuid=65534 --regid=65534 --clear-groups
            --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search
            --bounding-set=-all,+dac_read_search)
        "${become[@]}" "$python" -c "" 2> /dev/null ||
            { skip user "setpriv cannot start $python as another user"; return; }
    fi
    copy_to "$work/user/tree"
    mkdir -p "$work/user/home"
    [ "$(id -u)" = 0 ] && chown -R 65534:65534 "$work/user"
    try user in_copy "$work/user/tree" env HOME="$work/user/home" USER=somebody \
        ${become[@]+"${become[@]}"} "$python" -m pytest --basetemp="$work/user/temp" "${tests[@]}"
}
space() {
    copy_to "$work/a folder/of mine"
    mkdir -p "$work/a folder/temp"
    try space in_copy "$work/a folder/of mine" env TMPDIR="$work/a folder/temp" \
        "$python" -m pytest --basetemp="$work/a folder/base" "${tests[@]}"
}
bare() {
    local alone=(unshare --net)
    [ "$(id -u)" = 0 ] || alone=(unshare --map-root-user --net)
    local loopback="import fcntl, os, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack('16sH14x', b'lo', 0x41))  # SIOCSIFFLAGS: up, running
os.execvp(sys.argv[1], sys.argv[1:])"
    "${alone[@]}" "$python" -c "$loopback" true 2> /dev/null ||
        { skip bare "this user may not make a network of its own (unshare --net)"; return; }
    try bare here env -i HOME="$HOME" PATH="$PATH" LANG=C OMP_NUM_THREADS=1 \
        "${alone[@]}" "$python" -c "$loopback" "$python" -m pytest "${tests[@]}"
}

for variant in "${variants[@]}"; do
    case $variant in
        isa | old-cpu | one-core | busy | user | space | bare) $variant ;;
        *) echo "there is no variant $variant; see the top of $0"; exit 2 ;;
    esac
done
echo "== results"
printf '%s\n' "${results[@]}"
! printf '%s\n' "${results[@]}" | grep -v ": skipped, " | grep -vq ": exit code 0,"
