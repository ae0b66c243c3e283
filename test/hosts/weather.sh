#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Jobs between two fake hosts in bad weather, through the public calls. The launcher has the network of hosts.sh; the data go
# over one of their own, so that the launcher does not notice what becomes of it:
#
#   head br1 ── data1 ── node1 eth1 10.78.0.11      head br1 ── data2 ── node2 eth1 10.78.0.12
#
#   weather.sh [CASE…]    with LONG_TESTS also those that take ten seconds
# shellcheck disable=SC2317 # cases are called by their names
set -u
: "${top_builddir:?}" "${top_srcdir:?}"
# shellcheck source=test/hosts/hosts.sh
. "$top_srcdir/test/hosts/hosts.sh"
hosts_needed
programs=$(cd "$top_builddir" && pwd)
export HOCCL_DEVICE=emu HOCCL_EMU_DEVICES=2 HOCCL_NIC=eth1 HOCCL_TIMEOUT=6 HOCCL_INIT_TIMEOUT=8
runner=''

# job PROGRAM…: of one rank a host; the end of one is not the other's, so mpirun's status says only that it ran.
job() {
    local name exported=()
    for name in DEVICE EMU_DEVICES NIC TIMEOUT INIT_TIMEOUT PORTS DEBUG; do
        [ ! -v "HOCCL_$name" ] || exported+=(-x "HOCCL_$name")
    done
    hosts_mpirun 60 node1:1,node2:1 "${exported[@]}" --enable-recovery -np 2 "$@" >"$HOSTS_DIR/output" 2>&1 </dev/null
}

# good TEXT PROGRAM…: one of them, or both, must say TEXT.
good() {
    local text=$1
    shift
    job "$@" || complain "status $?"
    sed 's/^/    /' "$HOSTS_DIR/output"
    says "$text"
}

says() {
    grep -q -e "$1" "$HOSTS_DIR/output" || complain "nobody said: $1"
}

# Wait for that many lines of these words.
come() {
    for _ in $(seq 150); do
        [ "$(grep -c -e "$2" "$HOSTS_DIR/output")" -ge "$1" ] && return
        sleep 0.2
    done
    complain "not $1 times: $2"
}

# until_ended PROGRAM COMMAND…: both ranks must hear of the end that the command brings, and name one another.
until_ended() {
    local program=$1
    shift
    : >"$HOSTS_DIR/output"
    if [ "$program" = busy ]; then
        HOCCL_DEBUG=info job "$programs/examples/hello" --size 8M --rounds 1000000 {hosts_alive}>&- &
        runner=$!
        come 2 'data to rank . is sent over the network'
    else
        # shellcheck disable=SC2046 # a word or none
        job "$programs/test/hosts/waits" $([ "$program" = idle ] || echo "$program") {hosts_alive}>&- &
        runner=$!
        come 2 'rank . waits'
    fi
    sleep 0.5
    "$@"
    come 1 '^rank 0: .*rank 1 (node2, pid'
    come 1 '^rank 1: .*rank 0 (node1, pid'
    sed 's/^/    /' "$HOSTS_DIR/output"
    hosts_processes | xargs -r kill -9 2>/dev/null
    wait "$runner"
}

# ---- the weather ---------------------------------------------------------------------------------------------------

case_link_down() {
    local program
    for program in busy idle split; do
        until_ended "$program" hosts_in head ip link set data2 down
        says 'no answer'
        hosts_in head ip link set data2 up
    done
}

case_blackhole() {
    local program
    for program in busy idle; do
        until_ended "$program" hosts_in node1 ip route add blackhole 10.78.0.12
        hosts_in node1 ip route del blackhole 10.78.0.12
    done
}

case_small_mtu() {
    hosts_in node1 ip link set eth1 mtu 576
    good 'every checked byte was right' "$programs/examples/sendrecv_perf" -b 8 -e 1M -f 32 -n 3
    hosts_in node1 ip link set eth1 mtu 1500
}

# 100 Mbit/s each way. What is reported is no more than that (in MB/s, of which the table has thousandths).
case_slow() {
    local i
    for i in 1 2; do hosts_in "node$i" tc qdisc add dev eth1 root tbf rate 100mbit burst 32kb latency 50ms; done
    good 'every checked byte was right' "$programs/examples/sendrecv_perf" -b 256K -e 1M -f 2 -n 5
    says 'time: the slowest rank.s; algbw = size / time'
    awk '$3 == "byte" { n++; if ($1 / $4 > 12.5 * 1.05) { print "FAIL: " $1 / $4 " MB/s over a link of 12.5"; bad = 1 } }
        END { exit bad || n != 3 }' "$HOSTS_DIR/output" || complain "the rate"
    for i in 1 2; do hosts_in "node$i" tc qdisc del dev eth1 root; done
}

# The connection is never made: both ranks say between which addresses, in time.
case_firewall() {
    hosts_in node2 ip rule add pref 10 lookup local
    hosts_in node2 ip rule add pref 5 dev eth1 ipproto tcp blackhole
    hosts_in node2 ip rule del pref 0
    HOCCL_PORTS=20000-20009 good \
        'connecting to rank 1 (node2, pid.*firewall.*HOCCL_PORTS.*10.78.0.12:2000[0-9] from 10.78.0.11' "$programs/examples/hello"
    says 'start-up error: .*rank 0 .*did not connect within 8 s (HOCCL_INIT_TIMEOUT)'
    hosts_in node2 ip rule add pref 0 lookup local
    hosts_in node2 ip rule del pref 5
    hosts_in node2 ip rule del pref 10
}

case_wrong_name() {
    HOCCL_NIC=eth7 good 'HOCCL_NIC=eth7: there is no network interface eth7' "$programs/examples/hello"
    come 2 'start-up error: .*HOCCL_NIC=eth7'
}

# The same address of docker's on both hosts, and an interface that leads nowhere: no setting is needed.
case_decoys() {
    local i nic=$HOCCL_NIC
    for i in 1 2; do
        hosts_in "node$i" ip link add docker0 type bridge
        hosts_in "node$i" ip addr add 172.17.0.1/16 dev docker0
        hosts_in "node$i" ip link set docker0 up
        hosts_in "node$i" ip link add dead0 type veth peer name dead1
        hosts_in "node$i" ip addr add "192.168.99.$i/24" dev dead0
        hosts_in "node$i" ip link set dead0 up
        hosts_in "node$i" ip link set dead1 up
    done
    unset HOCCL_NIC
    HOCCL_DEBUG=info good '20 times, every byte right' "$programs/examples/hello" --size 1M --rounds 20
    says 'connected to rank 1 (node2, pid [0-9]*), .\?\(10.7[78]\|fd77\)'
    export HOCCL_NIC=$nic
    for i in 1 2; do
        hosts_in "node$i" ip link del docker0
        hosts_in "node$i" ip link del dead0
    done
}

# scan HOST ADDRESS: talk nonsense to every port there on which anybody listens, again and again.
scan() {
    local port
    while :; do
        for port in $(hosts_in "$1" ss -Hltn | awk '{ sub(".*:", "", $4); print $4 }' | sort -u); do
            hosts_in "$1" timeout 1 bash -c "exec 3<>/dev/tcp/$2/$port && echo 'GET / HTTP/1.1' >&3" 2>/dev/null
            echo "$port" >>"$HOSTS_DIR/scanned"
        done
    done
}

# The data's ports only: the launcher's may do with strangers what they like.
case_scanners() {
    local i scanners=()
    export HOCCL_PORTS=20000-20009
    : >"$HOSTS_DIR/scanned"
    for i in 1 2; do
        scan "node$i" "10.78.0.1$i" {hosts_alive}>&- &
        scanners+=($!)
    done
    for i in 1 2 3; do good '20 times, every byte right' "$programs/examples/hello" --size 1M --rounds 20; done
    kill "${scanners[@]}"
    wait "${scanners[@]}" 2>/dev/null
    grep -q '^2000[0-9]' "$HOSTS_DIR/scanned" || complain "no port of HOCCL's was scanned"
    unset HOCCL_PORTS
}

hosts_up 2 || exit 1
hosts_in head ip link add br1 type bridge
hosts_in head ip link set br1 up
for i in 1 2; do hosts_cable "node$i" eth1 br1 "data$i" "10.78.0.1$i/24" || exit 1; done
all="link_down small_mtu slow wrong_name decoys scanners${LONG_TESTS:+ blackhole firewall}"
# shellcheck disable=SC2048,SC2086 # words
hosts_cases ${*:-$all}
