# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Fake hosts on this machine, for the shell of a test that reads this file; root only.
#
#   ┌─ head ──────────────────────────────────────────────────────┐
#   │  br0  10.77.0.1/24, fd77::1/64                              │   mpirun starts here
#   └──┬───────────────────────┬───────────────────────┬──────────┘
#      │ link1                 │ link2                 │ link3        the cables: ends in head
#   ┌──┴─ node1 ─────────┐  ┌──┴─ node2 ─────────┐  ┌──┴─ node3 ─────────┐
#   │ eth0 10.77.0.11/24 │  │ eth0 10.77.0.12/24 │  │ eth0 10.77.0.13/24 │
#   │      fd77::11/64   │  │      fd77::12/64   │  │      fd77::13/64   │
#   └────────────────────┘  └────────────────────┘  └────────────────────┘
#
# Each has its own network, host name, boot id, /dev/shm, System V IPC, and /tmp (unless the build tree lies in /tmp); they
# share the rest of the file system and the process ids. What keeps a host alive is one process that waits for the end of
# a pipe which this shell holds open: however the shell ends, the hosts end too.

hosts_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hosts_names=

# May hosts be made here? Prints why not.
hosts_possible() {
    local why
    if [ "$(id -u)" != 0 ]; then
        echo "no fake hosts without root"
    elif ! command -v ip tc unshare nsenter >/dev/null; then
        echo "no fake hosts without iproute2 and util-linux"
    elif ! why=$(unshare --net --uts --mount --ipc --propagation private -- \
        sh -c 'mount -t tmpfs tmpfs /dev/shm && ip link add test0 type bridge' 2>&1); then
        echo "no fake hosts: namespaces are not permitted here (${why##*: })"
    else
        return 0
    fi
    return 1
}

# What a host's process does first; arguments: name, folder.
# shellcheck disable=SC2016 # for the shell in the new namespaces
hosts_begin='
set -e
hostname "$1"
mount -t tmpfs tmpfs /dev/shm
case $2 in /tmp/*) ;; *) mount -t tmpfs tmpfs /tmp ;; esac
mount --bind "$2/etc-hosts" /etc/hosts
mount --bind "$2/$1.boot-id" /proc/sys/kernel/random/boot_id
ip link set lo up
echo $$ >"$2/$1.pid.new"
mv "$2/$1.pid.new" "$2/$1.pid"
exec cat >/dev/null'

# hosts_up N: head, node1 … nodeN. HOSTS_DIR is their folder; ./rsh-agent finds them by it.
hosts_up() {
    local i name
    HOSTS_DIR=$(mktemp -d -p "$(pwd -P)" hosts.XXXXXX)
    export HOSTS_DIR
    trap hosts_down EXIT
    trap 'exit 1' INT TERM HUP
    mkfifo "$HOSTS_DIR/alive"
    hosts_names='head'
    for i in $(seq "$1"); do hosts_names+=" node$i"; done
    {
        echo "127.0.0.1 localhost"
        echo "10.77.0.1 head"
        for i in $(seq "$1"); do echo "10.77.0.$((10 + i)) node$i"; done
    } >"$HOSTS_DIR/etc-hosts"
    exec {hosts_alive}<>"$HOSTS_DIR/alive"
    for name in $hosts_names; do hosts_start "$name" || return 1; done
    hosts_in head ip link add br0 type bridge
    hosts_in head ip addr add 10.77.0.1/24 dev br0
    hosts_in head ip addr add fd77::1/64 dev br0 nodad
    hosts_in head ip link set br0 up
    for i in $(seq "$1"); do
        hosts_cable "node$i" eth0 br0 "link$i" "10.77.0.$((10 + i))/24" "fd77::$((10 + i))/64" || return 1
    done
}

hosts_start() {
    local name=$1
    cat /proc/sys/kernel/random/uuid >"$HOSTS_DIR/$name.boot-id"
    # The host reads the pipe, but must not hold its writing end.
    unshare --net --uts --mount --ipc --propagation private -- sh -c "$hosts_begin" sh "$name" "$HOSTS_DIR" \
        <"$HOSTS_DIR/alive" {hosts_alive}>&- >"$HOSTS_DIR/$name.log" 2>&1 &
    for _ in $(seq 200); do
        [ -e "$HOSTS_DIR/$name.pid" ] && return 0
        sleep 0.02
    done
    echo "host $name does not start: $(cat "$HOSTS_DIR/$name.log")"
    return 1
}

# hosts_cable NODE INTERFACE BRIDGE END [ADDRESS…]: another cable from a bridge in head to a node.
hosts_cable() {
    local node=$1 interface=$2 bridge=$3 end=$4 address
    shift 4
    hosts_in head ip link add "$end" type veth peer name "$interface" netns "$(cat "$HOSTS_DIR/$node.pid")" || return 1
    hosts_in head ip link set "$end" master "$bridge" up
    hosts_in "$node" ip link set "$interface" up
    for address in "$@"; do
        case $address in
        *:*) hosts_in "$node" ip addr add "$address" dev "$interface" nodad ;;
        *) hosts_in "$node" ip addr add "$address" dev "$interface" ;;
        esac
    done
}

# hosts_in HOST COMMAND…: run it there, in this folder, with this environment.
hosts_in() {
    local name=$1
    shift
    nsenter --target "$(cat "$HOSTS_DIR/$name.pid")" --net --uts --mount --ipc --wdns="$PWD" -- "$@"
}

# hosts_mpirun LIMIT HOSTS ARGUMENTS…: mpirun from head over "node1:2,node2:2", without sshd.
hosts_mpirun() {
    local limit=$1 list=$2
    shift 2
    hosts_in head env -u TMPDIR timeout -k 10 "$limit" mpirun -H "$list" --mca plm_rsh_agent "$hosts_here/rsh-agent" "$@"
}

# The processes in the network namespaces of the hosts, but those that keep them; nothing else is there.
hosts_processes() {
    local name holder holders=' ' spaces=' '
    for name in $hosts_names; do
        holder=$(cat "$HOSTS_DIR/$name.pid" 2>/dev/null)
        holders+="$holder "
        spaces+="$(readlink "/proc/$holder/ns/net" 2>/dev/null) "
    done
    find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/net' -printf '%P %l\n' 2>/dev/null | while IFS=' /' read -r process _ _ space; do
        case $holders in *" $process "*) continue ;; esac
        case $spaces in *" $space "*) echo "$process" ;; esac
    done
}

hosts_down() {
    local status=$?
    [ -d "${HOSTS_DIR:-}" ] || return "$status"
    hosts_processes | xargs -r kill -9 2>/dev/null
    exec {hosts_alive}>&-
    wait 2>/dev/null
    rm -rf "$HOSTS_DIR"
    return "$status"
}

# ---- what the tests over hosts share ------------------------------------------------------------------------------

bad=0

complain() {
    echo "FAIL: $*"
    bad=1
}

# Where no hosts can be made the test is skipped.
hosts_needed() {
    local why
    why=$(hosts_possible) && return
    echo "SKIP: $why"
    exit 77
}

# hosts_cases CASE…: each is a function case_CASE; then the end of the test.
hosts_cases() {
    local name begin
    for name in "$@"; do
        echo "== $name"
        begin=$SECONDS
        "case_$name"
        echo "   $((SECONDS - begin)) s"
    done
    hosts_finish
}

hosts_finish() {
    [ $bad = 0 ] && echo "all right"
    exit $bad
}
