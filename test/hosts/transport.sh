#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The TCP transport between fake hosts, in good weather and bad. The hosts and their addresses are drawn in hosts.sh.
#
#   transport.sh [CASE…]
# shellcheck disable=SC2317 # cases are called by their names
set -u
: "${top_builddir:?}" "${top_srcdir:?}"
# shellcheck source=test/hosts/hosts.sh
. "$top_srcdir/test/hosts/hosts.sh"
hosts_needed
traffic=$(cd "$top_builddir" && pwd)/test/hosts/traffic
# Of either family: whichever answers first.
eth0_1='\(10.77.0.11\|.fd77::11.\)' eth0_2='\(10.77.0.12\|.fd77::12.\)'
folder='' number=0 pids=()

# A fresh folder for the ranks of a case.
fresh() {
    number=$((number + 1))
    folder=$HOSTS_DIR/run$number
    mkdir "$folder"
    pids=()
}

# start HOST RANK SIZE MODE [VARIABLE=VALUE…]: a rank in the background; its output goes to $folder/output.RANK.
start() {
    local host=$1 rank=$2 size=$3 mode=$4
    shift 4
    hosts_in "$host" env "$@" timeout -k 5 100 "$traffic" tcp "$folder" "$rank" "$size" "$mode" \
        {hosts_alive}>&- >"$folder/output.$rank" 2>&1 &
    pids+=($!)
}

# Wait for a file of the case's folder.
has_come() {
    for _ in $(seq 300); do
        [ -e "$folder/$1" ] && return
        sleep 0.1
    done
    complain "$1 never came"
}

# All ranks that were started must succeed.
finish() {
    local rank=0 pid
    for pid in "${pids[@]}"; do
        wait "$pid" || complain "rank $rank: status $?"
        rank=$((rank + 1))
    done
    for rank in $(seq 0 $((${#pids[@]} - 1))); do
        sed "s/^/    /" "$folder/output.$rank"
    done
}

# says RANK WORDS: it must have been printed.
says() {
    grep -q -e "$2" "$folder/output.$1" || complain "rank $1 does not say: $2"
}

# Wait until both ranks are in the middle of it.
both_are() {
    has_come "$1.0"
    has_come "$1.1"
}

pair() {
    fresh
    start node1 0 2 suite "$@"
    start node2 1 2 suite "$@"
    finish
}

# ---- good weather --------------------------------------------------------------------------------------------------

case_two() {
    pair HOCCL_DEBUG=info
    says 0 "connected to rank 1 (there), $eth0_1:[0-9]* to $eth0_2:[0-9]*, 2 lanes"
}

case_three() {
    local i
    fresh
    for i in 0 1 2; do start "node$((i + 1))" "$i" 3 suite HOCCL_LANES=3; done
    finish
}

case_mpirun() {
    fresh
    hosts_mpirun 60 node1:2,node2:2 -np 4 "$traffic" tcp "$folder" - - suite >"$folder/output.0" 2>&1 || complain "mpirun: status $?"
    sed "s/^/    /" "$folder/output.0"
    [ "$(grep -c 'bytes from each of 3 ranks' "$folder/output.0")" = 4 ] || complain "not all ranks were there"
}

case_six_only() {
    hosts_in node1 ip -4 addr flush dev eth0
    hosts_in node2 ip -4 addr flush dev eth0
    pair HOCCL_DEBUG=info
    says 0 'connected to rank 1 (there), \[fd77::11\]'
    hosts_in node1 ip addr add 10.77.0.11/24 dev eth0
    hosts_in node2 ip addr add 10.77.0.12/24 dev eth0
}

case_small_mtu() {
    hosts_in node1 ip link set eth0 mtu 576
    pair
    hosts_in node1 ip link set eth0 mtu 1500
    hosts_in node1 ip addr add fd77::11/64 dev eth0 nodad 2>/dev/null # an MTU below 1280 takes IPv6 away
}

case_slow() {
    hosts_in node1 tc qdisc add dev eth0 root tbf rate 20mbit burst 32kb latency 50ms
    pair TRAFFIC_MOST=1048576
    hosts_in node1 tc qdisc del dev eth0 root
}

# ---- which address -------------------------------------------------------------------------------------------------

# The same address of docker's on both hosts, and an interface of a shared subnet that leads nowhere: no setting is needed.
case_decoys() {
    local i
    for i in 1 2; do
        hosts_in "node$i" ip link add docker0 type bridge
        hosts_in "node$i" ip addr add 172.17.0.1/16 dev docker0
        hosts_in "node$i" ip link set docker0 up
        hosts_in "node$i" ip link add dead0 type veth peer name dead1
        hosts_in "node$i" ip addr add "192.168.99.$i/24" dev dead0
        hosts_in "node$i" ip link set dead0 up
        hosts_in "node$i" ip link set dead1 up
    done
    pair HOCCL_DEBUG=info
    says 0 "connected to rank 1 (there), $eth0_1"
    says 0 'docker0 172.17.0.1/16.*(virtual)'
    pair HOCCL_DEBUG=info HOCCL_NIC=^dead0,docker0
    says 0 "connected to rank 1 (there), $eth0_1"
    for i in 1 2; do
        hosts_in "node$i" ip link del docker0
        hosts_in "node$i" ip link del dead0
    done
}

# Rank 1's first address leads to rank 2, who listens on the same port and knows the cookie, but is another process.
case_another_process() {
    local i
    hosts_in head ip link add br1 type bridge
    hosts_in head ip link set br1 up
    hosts_cable node1 eth1 br1 side1 192.168.98.1/24
    hosts_cable node3 eth1 br1 side3 192.168.98.2/24
    hosts_in node2 ip link add eth1 type veth peer name eth1x
    hosts_in node2 ip addr add 192.168.98.2/24 dev eth1
    hosts_in node2 ip link set eth1 up
    hosts_in node2 ip link set eth1x up
    # eth1 comes first: the other one is called virtual
    for i in 1 2 3; do
        hosts_in "node$i" ip link set eth0 down
        hosts_in "node$i" ip link set eth0 name vnet0
        hosts_in "node$i" ip link set vnet0 up
        hosts_in "node$i" ip addr add "fd77::$((10 + i))/64" dev vnet0 nodad
    done
    fresh
    for i in 2 0 1; do
        start "node$((i + 1))" "$i" 3 suite HOCCL_DEBUG=info HOCCL_PORTS=20000-20000
        has_come "card.$i"
    done
    pids=("${pids[1]}" "${pids[2]}" "${pids[0]}")
    finish
    says 2 'a caller was turned away.*it means another process'
    for i in 1 2 3; do
        hosts_in "node$i" ip link set vnet0 down
        hosts_in "node$i" ip link set vnet0 name eth0
        hosts_in "node$i" ip link set eth0 up
        hosts_in "node$i" ip addr add "fd77::$((10 + i))/64" dev eth0 nodad
    done
    hosts_in head ip link del side1
    hosts_in head ip link del side3
    hosts_in head ip link del br1
    hosts_in node2 ip link del eth1
}

case_wrong_name() {
    fresh
    start node1 0 2 suite HOCCL_NIC=eth7
    wait "${pids[0]}" && complain "it did not fail"
    sed "s/^/    /" "$folder/output.0"
    says 0 'HOCCL_NIC=eth7: there is no network interface eth7 on this host; there are .*eth0'
}

case_named() {
    pair HOCCL_NIC=eth0 HOCCL_DEBUG=info
    says 0 'eth0 10.77.0.11/24'
    grep -q '127.0.0.1' "$folder/output.0" && complain "lo is listed"
}

# Only the ports 20000 to 20009 of node2 can be reached.
case_firewall() {
    local family
    for family in -4 -6; do
        hosts_in node2 ip "$family" rule add pref 10 lookup local
        hosts_in node2 ip "$family" rule add pref 5 dev eth0 ipproto tcp dport 1-19999 blackhole
        hosts_in node2 ip "$family" rule add pref 6 dev eth0 ipproto tcp dport 20010-65534 blackhole
        hosts_in node2 ip "$family" rule del pref 0
    done
    pair HOCCL_PORTS=20000-20009 HOCCL_NIC=eth0
    says 1 'port 2000[0-9]'
    fresh
    start node1 0 2 refuse HOCCL_TIMEOUT=2 HOCCL_NIC=eth0
    start node2 1 2 refuse HOCCL_INIT_TIMEOUT=4 HOCCL_NIC=eth0
    finish
    says 0 'firewall.*HOCCL_PORTS.*10.77.0.12:[0-9]* from 10.77.0.11'
    says 1 'HOCCL_INIT_TIMEOUT.*firewall'
    for family in -4 -6; do
        hosts_in node2 ip "$family" rule add pref 0 lookup local
        hosts_in node2 ip "$family" rule del pref 5
        hosts_in node2 ip "$family" rule del pref 6
        hosts_in node2 ip "$family" rule del pref 10
    done
}

case_ports_taken() {
    fresh
    start node1 0 2 suite HOCCL_PORTS=20000-20000
    has_come card.0
    start node1 1 2 suite HOCCL_PORTS=20000-20000
    wait "${pids[1]}" && complain "it did not fail"
    kill "$(cat "$folder/pid.0")"
    wait "${pids[0]}"
    sed "s/^/    /" "$folder/output.1"
    says 1 'HOCCL_PORTS=20000-20000: no port of these can be listened on'
}

# ---- bad weather ---------------------------------------------------------------------------------------------------

# until_broken MODE COMMAND…: both ranks must hear of the end that the command brings.
until_broken() {
    local mode=$1
    shift
    fresh
    start node1 0 2 "$mode" HOCCL_TIMEOUT=4 HOCCL_NIC=eth0
    start node2 1 2 "$mode" HOCCL_TIMEOUT=4 HOCCL_NIC=eth0
    both_are "$mode"
    date +%s.%N >"$folder/begun"
    "$@"
    finish
    echo "    after: $*"
}

case_link_down() {
    local mode
    for mode in busy idle; do
        until_broken "$mode" hosts_in head ip link set link2 down
        says 0 'no answer'
        says 1 'no answer'
        hosts_in head ip link set link2 up
    done
}

case_own_link_down() {
    until_broken busy hosts_in node1 ip link set eth0 down
    hosts_in node1 ip link set eth0 up
    hosts_in node1 ip addr add fd77::11/64 dev eth0 nodad
}

case_blackhole() {
    local mode
    for mode in busy idle; do
        until_broken "$mode" hosts_in node1 ip route add blackhole 10.77.0.12
        hosts_in node1 ip route del blackhole 10.77.0.12
    done
}

case_killed() {
    fresh
    start node1 0 2 busy HOCCL_NIC=eth0 HOCCL_LANES=4
    start node2 1 2 busy HOCCL_NIC=eth0 HOCCL_LANES=4
    both_are busy
    kill -9 "$(cat "$folder/pid.1")"
    wait "${pids[1]}"
    pids=("${pids[0]}")
    finish
    says 0 'up to \(6[4-9]\|[7-9].\|1..\) writes under way'
    says 0 'rank 1 (there).*its process has ended'
}

# A process that is stopped for longer than a vanished one would be noticed is not gone.
case_stopped() {
    fresh
    start node1 0 2 idle HOCCL_TIMEOUT=4 HOCCL_NIC=eth0
    start node2 1 2 idle HOCCL_TIMEOUT=4 HOCCL_NIC=eth0
    both_are idle
    kill -STOP "$(cat "$folder/pid.1")"
    sleep 3
    [ -e "/proc/$(cat "$folder/pid.0")" ] || complain "rank 0 has given up"
    kill -CONT "$(cat "$folder/pid.1")"
    sleep 1
    kill -9 "$(cat "$folder/pid.1")"
    wait "${pids[1]}"
    pids=("${pids[0]}")
    finish
    says 0 'its process has ended'
}

all="two three mpirun six_only small_mtu slow decoys another_process wrong_name named firewall ports_taken link_down
own_link_down blackhole killed stopped"
hosts_up 3 || exit 1
# shellcheck disable=SC2048,SC2086 # words
hosts_cases ${*:-$all}
