#!/usr/bin/env bash
# Runs the tests as other machines would. What this machine cannot do is skipped with a sentence.
#
#     tests/elsewhere.sh                                    every variant, the whole suite
#     tests/elsewhere.sh avx2 user -- tests/kernels -x      some variants, a part of the suite
#     tests/elsewhere.sh portable+user+space+bare           one run that is all of these at once
#
# portable, avx2, avx512   an instruction set of the native kernels
# old-cpu    torch and oneDNN without AVX, and the portable kernels
# one-core   a single core
# busy       beside two processes that never rest
# user       as somebody who is not root, in a folder of his own
# space      from a folder with a space in its name, temporary files too
# bare       LANG=C, no network but the loopback interface
set -uo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
python=$tree/.venv/bin/python
[ -x "$python" ] || { echo "there is no .venv in $tree; run make all first"; exit 2; }

runs=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do runs+=("$1"); shift; done
[ "${1:-}" = -- ] && shift
[ ${#runs[@]} -gt 0 ] ||
    runs=(portable avx2 avx512 old-cpu one-core busy user space bare)
tests=(-q -p no:cacheprovider --numprocesses 2 --dist loadgroup --no-loadscope-reorder "$@")

work=$(mktemp -d)
chmod 755 "$work"
busy=()
rest() {
    for process in ${busy[@]+"${busy[@]}"}; do kill "$process" 2> /dev/null; done
    busy=()
}
trap 'rest; rm -rf "$work"' EXIT

# A variant changes these, or says in $reason why this machine cannot run it.
fresh() {
    folder=$tree                  # where the tests are run
    owner=()                      # whom a copy of the tree belongs to
    settings=(OMP_NUM_THREADS=1)  # of the environment, after those that are kept
    network=() cores=() become=() # commands that start the next one, each in its place
    reason=
}

instructions() {
    local sets
    sets=$(env -u SPECGRAD_ISA PYTHONPATH="$tree" "$python" -c "from specgrad_kernels import _cpu
print(*(name for name, runs in _cpu.features().items() if runs))") ||
        { reason="the native library is not built"; return; }
    [[ " $sets " == *" $1 "* ]] || reason="this processor does not run $1"
    settings+=(SPECGRAD_ISA="$1")
}
portable() { instructions portable; }
avx2() { instructions avx2; }
avx512() { instructions avx512; }
old-cpu() {
    settings+=(ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 SPECGRAD_ISA=portable)
}
one-core() {
    command -v taskset > /dev/null || { reason="there is no taskset"; return; }
    cores=(taskset -c "$(taskset -pc $$ | sed 's/.*: //; s/[,-].*//')")
}
busy() {
    for _ in 1 2; do
        while :; do :; done &
        busy+=($!)
    done
}
user() {
    [ "$folder" = "$tree" ] && folder=$work/user/tree
    settings+=(HOME="$work/home" USER=somebody)
    mkdir -p "$work/home"
    [ "$(id -u)" = 0 ] || return
    # an interpreter in root's home is shown to everybody, in a view of the files of its own
    local interpreter closed="" opened='closed=$1 below=$2 kept=$3; shift 3
        [ -z "$closed" ] || { mkdir -p "$kept" && mount --bind "$below" "$kept" &&
            mount -t tmpfs -o mode=755 tmpfs "$closed" && mkdir -p "$below" &&
            mount --bind "$kept" "$below"; } || exit 1
        exec "$@"'
    interpreter=$("$python" -c "import sys; print(sys.base_prefix)")
    local above=$interpreter
    while [ "$above" != / ]; do
        [[ $(stat -c %A "$above") == *[xt] ]] || closed=$above
        above=$(dirname "$above")
    done
    become=(unshare --mount bash -c "$opened" - "$closed" "$interpreter" "$work/interpreter"
        setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all)
    "${become[@]}" "$python" -c "" 2> /dev/null ||
        { reason="unshare and setpriv cannot start $python as another user"; return; }
    owner=(65534:65534)
}
space() { folder="$work/a folder/of mine"; }
bare() {
    local alone=(unshare --net)
    [ "$(id -u)" = 0 ] || alone=(unshare --map-root-user --net)
    local loopback="import fcntl, os, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack('16sH14x', b'lo', 0x41))  # SIOCSIFFLAGS: up, running
os.execvp(sys.argv[1], sys.argv[1:])"
    network=("${alone[@]}" "$python" -c "$loopback")
    "${network[@]}" true 2> /dev/null ||
        reason="this user may not make a network of its own (unshare --net)"
    settings=(-i HOME="$HOME" PATH="$PATH" LANG=C "${settings[@]}")
}

# The tree as it is, with what was built, without what git ignores otherwise.
copy() {
    mkdir -p "$folder" "$folder.temp"
    { git -C "$tree" ls-files -z --cached --others --exclude-standard
      cd "$tree" && find specgrad_kernels -name '*.so' -print0; } |
        tar -C "$tree" --null --ignore-failed-read -T - -c | tar -C "$folder" -x
    [ ${#owner[@]} -gt 0 ] && chown -R "${owner[0]}" "$folder" "$folder.temp" "$work/home"
    settings+=(PYTHONPATH="$folder:$folder/python" PATH="$tree/.venv/bin:$PATH"
        TMPDIR="$folder.temp")
}

results=()
for run in "${runs[@]}"; do
    fresh
    # `bare` empties the environment, so it comes first
    variants=" ${run//+/ } "
    [[ $variants == *" bare "* ]] && variants="bare ${variants/ bare / }"
    for variant in $variants; do
        case $variant in
            portable | avx2 | avx512 | old-cpu | one-core | busy | user | space | bare) $variant ;;
            *) echo "there is no variant $variant; see the top of $0"; exit 2 ;;
        esac
    done
    if [ -n "$reason" ]; then
        rest
        echo "== $run: skipped, $reason"
        results+=("$run: skipped, $reason")
        continue
    fi
    echo "== $run"
    [ "$folder" = "$tree" ] || copy
    (cd "$folder" && env "${settings[@]}" ${network[@]+"${network[@]}"} ${cores[@]+"${cores[@]}"} \
        ${become[@]+"${become[@]}"} "$python" -m pytest "${tests[@]}") 2>&1 |
        tee "$work/log.txt" | tail -n 40
    code=${PIPESTATUS[0]} told=$(tail -n 1 "$work/log.txt")
    if [ "$code" != 0 ]; then
        mkdir -p "$tree/build/elsewhere"
        cp "$work/log.txt" "$tree/build/elsewhere/$run.txt"
        told+=", all of it in build/elsewhere/$run.txt"
    fi
    results+=("$run: exit code $code, $told")
    rest
    [ "$folder" = "$tree" ] || rm -rf "$folder" "$folder.temp"
done
echo "== results"
printf '%s\n' "${results[@]}"
! printf '%s\n' "${results[@]}" | grep -v ": skipped, " | grep -vq ": exit code 0,"
