#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# hoccl-plan with good and bad input: right exit status, an error that names file and line, never a crash.
set -u
tool=${HOCCL_PLAN:-./hoccl-plan}
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
failed=0

complain() {
	echo "FAIL: $*" >&2
	failed=1
}

good() {
	"$tool" "$@" >"$work/out" 2>"$work/err" || complain "$* ended with $?: $(cat "$work/err")"
}

# bad STATUS TEXT ARGUMENTS...: must end with STATUS and say TEXT.
bad() {
	status=$1 text=$2
	shift 2
	"$tool" "$@" >"$work/out" 2>"$work/err"
	got=$?
	[ $got -eq "$status" ] || complain "$*: status $got, not $status: $(cat "$work/err")"
	grep -q -- "$text" "$work/err" || complain "$*: \"$(cat "$work/err")\" does not say \"$text\""
}

file() {
	cat >"$work/$1"
}

good --help
grep -q Usage "$work/out" || complain "--help prints no usage"
for pattern in uniform random zipf sparse block hotrow hotcol permutation stochastic pair; do
	good 2x4 $pattern,line=64MiB --simulate
	good 3x3 $pattern,line=1MiB,seed=3,zero=2 --simulate --no-overlap --pairs none
	good 16x4 $pattern --json --no-relay
done
good 2x4 uniform,line=1GiB --grants --no-self
grep -q 'by grants  stages .*(1.0[0-2]' "$work/out" || complain "equal pieces are not at the bound: $(grep 'by grants' "$work/out")"
good 8x1 stochastic,line=256MiB,seed=3 --no-self --grants --json
grep -q '"longest": [0-9]' "$work/out" || complain "--grants --json prints no times"
# nanoseconds NAME: of the last run's --grants --json.
nanoseconds() {
	sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$work/out" | head -n 1
}
[ $(($(nanoseconds plan) * 33 / 32)) -lt "$(nanoseconds longest)" ] || complain "a plan of a full doubly stochastic matrix does not pay"
bad 1 'up to 64 GPUs' 65x1 uniform --grants
good 1x1 uniform --simulate
good 1024x1 permutation --method list
good 2x8 uniform,line=1GiB --method rotation --svg "$work/plan.svg"
grep -q '</svg>' "$work/plan.svg" || complain "the drawing is not complete"
good 2x2 pair --sweep
[ "$(wc -l <"$work/out")" -eq 11 ] || complain "--sweep does not print ten sizes"
# The loads of each stage: GPU 2 sends 3 MB to its neighbour, GPU 0 sends 5 MB to the other node.
printf '0,0,5000000,0\n0,0,0,0\n0,0,0,3000000\n0,0,0,0\n' >"$work/loads.csv"
good 2x2 "$work/loads.csv" --no-relay --json
tr -d ' \n' <"$work/out" >"$work/flat"
grep -q '"loads":{"nic":{"ns":[0-9]*,"bytes":5000000,"gpu":0},"pcie":{"ns":[0-9]*,"bytes":5000000,"gpu":1},"nvlink":{"ns":25001,"bytes":5000000,"gpu":0},"copy":{"ns":25001,"bytes":5000000,"gpu":0}}' \
    "$work/flat" || complain "--json: the loads of the stage are not right"
good 2x2 pair --sweep --json
[ "$(grep -c '"simulated_ns": [1-9]' "$work/out")" -eq 10 ] || complain "--sweep --json does not print ten sizes"
[ ! -e /dev/full ] || "$tool" 2x2 pair --sweep >/dev/full 2>&1 && complain "--sweep does not notice a full disk"
bad 2 'neither --svg nor --grants' 2x2 pair --sweep --svg "$work/none.svg"
[ ! -e "$work/none.svg" ] || complain "a drawing, although it was refused"

file topo <<'EOF'
# two nodes
node 0-2 6
node 3 4 5
pair 0 6
host 1
outside 2
EOF
file matrix.csv <<'EOF'
0,1Mi,2Mi,3Mi,4M,5k,6
1,0,1,1,1,1,1
1 1 0 1 1 1 1
1;1;1;0;1;1;1

1,1,1,1,0,1,1   # a comment
1,1,1,1,1,0,1
1,1,1,1,1,1,0
EOF
sed -i 's/5k/5K/' "$work/matrix.csv"
good "$work/topo" "$work/matrix.csv" --simulate
good "$work/topo" zipf --nodes 3

# What a GPU sends to itself passes an engine that pushes and pulls twice; two engines work side by side.
file self.csv <<'EOF'
1GiB,0
0,0
EOF
good 1x2 "$work/self.csv" -m h200 --simulate --json
[ "$(nanoseconds simulated_ns)" -gt $((1073741824 / 396 + 1073741824 / 352)) ] || complain "two copies at once by one engine"
good 1x2 "$work/self.csv" -m h800 --simulate --json
[ "$(nanoseconds simulated_ns)" -lt $((1073741824 * 2 * 9 / 10 / 200)) ] || complain "two engines wait for one another"

# in_turn TOPOLOGY LINE…: nanoseconds of the matrix of these lines in turn. Starting, and one copy, cost on that machine:
in_turn() {
	topology=$1
	shift
	printf '%s\n' "$@" >"$work/turns.csv"
	good "$topology" "$work/turns.csv" -m h200 --method turns --simulate --json
	nanoseconds simulated_ns
}
launch=10500 copy=2200 mib=1048576

# Equal pieces go as by the rotation, all to one shares its link, and what one sends to two others comes one after the other.
good 1x4 uniform,line=128MiB -m h200 --no-self --method turns --simulate --json
turns=$(nanoseconds simulated_ns)
good 1x4 uniform,line=128MiB -m h200 --no-self --simulate --json
off=$((turns - $(nanoseconds simulated_ns)))
[ "${off#-}" -lt $((turns / 100)) ] || complain "equal pieces in turn are not a rotation: $off ns off"
[ "$(in_turn 1x3 0,0,0 60MB,0,0 60MB,0,0)" -gt $((120000000 / 396)) ] || complain "two GPUs push to a third faster than its link"
[ "$(in_turn 1x3 0,60MB,60MB 0,0,0 0,0,0)" -gt $((120000000 / 396)) ] || complain "a GPU pushes two pieces at once"

# A large push takes a detour as well, a smaller one does not, nor one whose GPU has a message to itself.
[ "$(in_turn 1x2 0,1GiB 0,0)" -lt $((1024 * mib / 396)) ] || complain "no detour"
[ "$(in_turn 1x2 0,63MiB 0,0)" -gt $((63 * mib / 396)) ] || complain "a detour for less than 64 MiB"
[ "$(in_turn 1x2 1MiB,1GiB 0,0)" -gt $((1024 * mib / 396)) ] || complain "a detour beside a message to oneself"

# To itself: in turns without a CPU between, below 16 MiB with one, from 128 MiB on by host memory too.
[ "$(in_turn 1x2 16MiB,0 0,0)" -lt $((launch + 16 * mib / 396 + 16 * mib / 352 + 2 * copy + 100)) ] || complain "a hop in turns"
[ "$(in_turn 1x2 4MiB,0 0,0)" -gt $((launch + 4 * mib / 396 + 4 * mib / 352 + 2 * copy + 8000)) ] || complain "no hop"
[ "$(in_turn 1x2 15MiB,0 0,0)" -gt $((launch + 15 * mib / 396 + 15 * mib / 352)) ] || complain "a push and a pull at once by one engine"
[ "$(in_turn 1x2 127MiB,0 0,0)" -gt $((127 * mib / 396 + 127 * mib / 352)) ] || complain "127 MiB go by host memory"
[ "$(in_turn 1x2 1GiB,0 0,0)" -lt $((1024 * mib / 396 + 1024 * mib / 352)) ] || complain "1 GiB does not go by host memory"
[ "$(in_turn 1x2 1GiB,0 0,0)" -gt $((1024 * mib * 88 / 100 / 396 + 1024 * mib * 88 / 100 / 352 + launch)) ] ||
	complain "too much goes by host memory, or the link does not mind"

# In step GPUs are not in each other's way; with one behind the other they are.
alone=$(in_turn 1x2 64MiB,32MiB 0,0)
[ "$(in_turn 1x2 64MiB,32MiB 32MiB,64MiB)" -lt $((alone * 103 / 100)) ] || complain "GPUs in step are in each other's way"
[ "$(in_turn 1x2 64MiB,32MiB 0,64MiB)" -gt $((alone * 108 / 100)) ] || complain "GPUs out of step are not in each other's way"

good 1x3 uniform,line=1GiB -m h200 --method turns --simulate --pairs none
good 1x1 uniform -m h200 --method turns --simulate --svg "$work/turns.svg"
good 1x8 zipf -m h800 --method turns --simulate
for pattern in random zipf sparse block hotrow hotcol permutation stochastic pair; do
	good 1x8 $pattern,line=64MiB -m h200 --method turns --simulate
done

bad 1 'none.csv: No such file or directory, nor is it a pattern' 2x2 "$work/none.csv"
bad 1 'topo.none: No such file or directory, nor is it NODESxGPUS' "$work/topo.none" uniform
bad 1 'matrix.csv:1: more than 4 entries' 2x2 "$work/matrix.csv"
bad 1 'matrix.csv:1: 7 entries, the topology has 8' 2x4 "$work/matrix.csv"
bad 1 'between 1 and 1024' 0x4 uniform
bad 1 'between 1 and 1024' 4096x4096 uniform
bad 1 'between 1 and 1024' 99999999x99999999 uniform
printf '1,2\n3,x\n' | file a; bad 1 'a:2: entry 1, "x"' 1x2 "$work/a"
printf '1,2\n3,-4\n' | file a; bad 1 'a:2: entry 1, "-4"' 1x2 "$work/a"
printf '1,2\n' | file a; bad 1 'a:1: the file ends after 1 rows' 1x2 "$work/a"
printf '1,2\n3,4\n5,6\n' | file a; bad 1 'a:3: more than 2 rows' 1x2 "$work/a"
printf '1,9223372036854775807\n3,4\n' | file a; bad 1 'a:1: C\[0,1\]' 1x2 "$work/a"
printf '1,2\n3,9223372036854775806\n' | file a; bad 1 'a:2: C\[1,1\]' 1x2 "$work/a"
printf '1,99999999999999999999\n3,4\n' | file a; bad 1 'a:1: entry 1' 1x2 "$work/a"
printf '1,20000000Ti\n3,4\n' | file a; bad 1 'a:1: entry 1' 1x2 "$work/a"
printf '\000\001\377,\n' | file a; bad 1 'a:1: a byte is zero' 1x2 "$work/a"
printf '1,2\n3,4\000,5\n' | file a; bad 1 'a:2: a byte is zero' 1x2 "$work/a"
printf 'node 0\000 1\n' | file a; bad 1 'a:1: a byte is zero' "$work/a" uniform
printf '1,,2\n3,4\n' | file a; bad 1 'a:1: entry 1, "", is not' 1x2 "$work/a"
printf '1,2\n,3,4\n' | file a; bad 1 'a:2: entry 0, "", is not' 1x2 "$work/a"
printf ',\n1,2\n3,4\n' | file a; bad 1 'a:1: entry 0, "", is not' 1x2 "$work/a"
printf '\357\273\2771 , 2,\r\n3;4\t;\r\n' | file a; good 1x2 "$work/a"
: | file a; bad 1 'the file ends after 0 rows' 1x2 "$work/a"
bad 1 'directory' 1x2 "$work"
bad 1 'directory' "$work" uniform
printf 'node 0 1\nnode 1 2\n' | file a; bad 1 'a:2: GPU 1 is already in the node of line 1' "$work/a" uniform
printf 'node 0 1\npair 0 9\n' | file a; bad 1 'a:2: GPU 9 is in no node' "$work/a" uniform
printf 'node 0 1\npair 0 1\npair 1 0\n' | file a; bad 1 'a:3: GPU 1 already has' "$work/a" uniform
printf 'node 0 1\nnode 2\npair 0 2\n' | file a; bad 1 'a:3: GPUs 0 and 2 are in different' "$work/a" uniform
printf 'node 0 2\n' | file a; bad 1 'GPU 1 is missing' "$work/a" uniform
printf 'node 0-\n' | file a; bad 1 'a:1: "0-" is not a GPU number' "$work/a" uniform
printf 'node 5000\n' | file a; bad 1 'a:1: "5000" is not a GPU number' "$work/a" uniform
printf 'node 0\npair 0\n' | file a; bad 1 'a:2: pair takes two' "$work/a" uniform
printf 'node 0\npair 0 0\n' | file a; bad 1 'a:2: GPU 0 cannot be its own' "$work/a" uniform
printf 'cluster 0\n' | file a; bad 1 'a:1: "cluster" is not' "$work/a" uniform
: | file a; bad 1 'there is no node' "$work/a" uniform
printf '<?xml version="1.0"?><nonsense' | file a; bad 1 'not a topology that hwloc can read' "$work/a" uniform
printf 'node 0-511\n' | file a; bad 1 'between 1 and 1024' "$work/a" uniform --nodes 3
bad 1 'percent=200' 2x2 sparse,percent=200
bad 1 'seed has no value' 2x2 zipf,seed
bad 1 'skew=fast' 2x2 zipf,skew=fast
bad 1 'line=0' 2x2 zipf,line=0
bad 1 'turns are those of one node' 2x2 zipf --method turns
bad 1 'a rotation needs a uniform' 2x2 zipf --method rotation
bad 1 'draws at most 64' 9x8 uniform --svg "$work/x.svg"
bad 1 'No such file' 2x2 uniform --svg "$work/none/x.svg"
bad 1 'needs a pattern' "$work/topo" "$work/matrix.csv" --sweep
bad 2 'are needed' 2x2
bad 2 '"abacus" is not understood' 2x2 uniform -m abacus
bad 2 '"0" is not understood' 2x2 uniform --nodes 0
bad 2 'is not understood' 2x2 uniform --rate nvlink=slow
bad 2 'hoccl-plan' 2x2 uniform --nonsense
exit $failed
