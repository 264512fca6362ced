#!/usr/bin/env bash
# The recipe of docs/flower.md between two network namespaces that share nothing but a virtual
# cable, each with a folder of its own. Needs root and iproute2, `specgrad-fl` on the PATH.
#
#     sudo env "PATH=$PATH" tests/fl/flower/two_machines.sh
set -euo pipefail

work=$(mktemp -d)
mkdir "$work/server" "$work/other"
finish() {
    kill $(jobs -p) 2>/dev/null || true
    wait
    ip netns del specgrad-server
    ip netns del specgrad-other
    rm -rf "$work"
}
ip netns add specgrad-server
ip netns add specgrad-other
trap finish EXIT
ip link add cable0 netns specgrad-server type veth peer name cable1 netns specgrad-other
ip -n specgrad-server addr add 10.77.0.1/24 dev cable0
ip -n specgrad-other addr add 10.77.0.2/24 dev cable1
for name in server other; do ip -n "specgrad-$name" link set lo up; done
ip -n specgrad-server link set cable0 up
ip -n specgrad-other link set cable1 up
on() { cd "$work/$1" && exec ip netns exec "specgrad-$1" specgrad-fl "${@:2}"; }

cat > "$work/server/experiment.toml" <<TOML
clients = 4
active = 4
rounds = 3
batch_size = 64
method = "scaffold"
filter = "fft"
nodes = 2
TOML
link=(--superlink 10.77.0.1:9092 --tls-ca keys/ca.crt)

(on server flower keys --host 10.77.0.1 --nodes 2)
(on server flower shards --config experiment.toml)
mkdir "$work/other/keys" "$work/other/shards"
cp "$work/server/keys/ca.crt" "$work/server/keys/node-1" "$work/other/keys"
mv "$work/server/shards/node-1" "$work/other/shards"
on server flower superlink --host 10.77.0.1 --port 9092 --keys keys > "$work/superlink.txt" &
until grep -q "SuperLink at" "$work/superlink.txt"; do sleep 0.5; done
for node in "server 0" "other 1"; do
    read -r machine number <<< "$node"
    on "$machine" flower node "${link[@]}" --key "keys/node-$number" --data "shards/node-$number" \
        > "$work/node-$number.txt" 2>&1 &
done
(on server train --config experiment.toml --engine flower "${link[@]}" --out flower)
(on server train --config experiment.toml --out local --quiet)
cmp "$work/server/flower/last.safetensors" "$work/server/local/last.safetensors"
echo "equal to the bit"
