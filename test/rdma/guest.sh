#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a QEMU guest that has two Soft-RoCE devices, for machines without RDMA (all that CI has).
#
#   guest.sh [-t SECONDS] [-w FOLDER] COMMAND [ARGUMENT…]
#
#      host ─────────────────────────────────────────────────────────────────────────────
#      │  /  (read only, by 9p)                       FOLDER (writable)      output, status
#      └──┬───────────────────────────────────────────────┬────────────────────────▲──────
#      guest ── Debian's kernel ──────────────────────────┴────────────────────────┴──────
#      │  node 1: eth0 10.77.0.1, fd77::1 ◀════ cable (veth, MTU 9000) ════▶ eth1 10.77.0.2, fd77::2: node 2
#      │          rxe0                                                        rxe1
#
# The guest has the host's files under an overlay that forgets what is written, so what is built here runs there as it is.
# Both nodes are one kernel; rules send what goes from one node's address to the other's over the cable, not through lo.
# COMMAND runs as root with the caller's environment, in its folder, without input. Exit status: the command's; 124 when
# SECONDS (default 240) are over; 77 with a reason where there is no qemu or no kernel; 99 when the guest failed.
#
# The kernel and busybox are downloaded once, as Debian packages (about 110 MB), into $GUEST_CACHE (default: guest/
# in the build folder), and are not installed. GUEST_KERNEL names another package. Nothing here needs root.
set -uo pipefail
PATH=$PATH:/usr/sbin:/sbin
limit=240 writable='' run='' qemu='' ended=0

say() { echo "guest.sh: $*" >&2; }
skip() {
    echo "SKIP: $*"
    exit 77
}
broken() {
    say "$*"
    [ -z "$run" ] || tail -n 30 "$run/console" >&2
    exit 99
}

while getopts t:w: option; do
    case $option in
    t) limit=$OPTARG ;;
    w) writable=$(realpath -e -- "$OPTARG") || exit 99 ;;
    *) exit 99 ;;
    esac
done
shift $((OPTIND - 1))
[ $# != 0 ] || broken "no command"

# ---- the kernel ------------------------------------------------------------------------------------------------------

cache=$(realpath -m "${GUEST_CACHE:-${top_builddir:-.}/guest}")

# The newest of Debian 12's kernels first: Soft-RoCE is twice as fast in 6.12 as in 6.1.
kernel_package() {
    local package
    for package in ${GUEST_KERNEL:-linux-image-6.12-amd64 linux-image-amd64}; do
        apt-cache depends "$package" 2>/dev/null |
            awk '/Depends: linux-image/ { print $2; found = 1; exit } END { exit !found }' && return
    done
    return 1
}

# An uncompressed kernel boots at once; its own unpacking would take seconds under emulation. bzImage holds it behind a
# magic number of xz or zstd, and the unpackers stop at what follows.
unpack_kernel() {
    local image=$1 to=$2 pair at
    for pair in 'xz -dc:\xfd7zXZ\x00' 'zstd -dc:\x28\xb5\x2f\xfd'; do
        while read -r at; do
            # shellcheck disable=SC2086 # a command and its option
            tail -c +$((at + 1)) "$image" | ${pair%%:*} >"$to" 2>/dev/null
            [ "$(head -c 4 "$to" | tail -c 3)" != ELF ] || return 0
        done < <(LC_ALL=C grep -obUaP "${pair#*:}" "$image" | cut -d: -f1)
    done
    return 1
}

fetch_kernel() {
    local package work
    [ ! -e "$cache/vmlinux" ] || return 0
    package=$(kernel_package) || skip "no package of a Linux kernel to be had: apt-cache knows none"
    work=$(mktemp -d "$cache/new.XXXXXX")
    say "downloading $package and busybox-static into $cache"
    (cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package" busybox-static >&2) ||
        skip "no package of a Linux kernel to be had: apt-get download failed for $package"
    (cd "$work" && for deb in *.deb; do dpkg -x "$deb" . || exit 1; done && rm -- *.deb &&
        depmod -b . "$(ls lib/modules)") || broken "cannot unpack $package"
    unpack_kernel "$(echo "$work"/boot/vmlinuz-*)" "$work/vmlinux.new" ||
        broken "$package holds no kernel that can be unpacked"
    rm -rf "${cache:?}/bin" "${cache:?}/lib"
    mv "$work/bin" "$work/lib" "$cache/"
    mv "$work/vmlinux.new" "$cache/vmlinux"
    rm -rf "$work"
}

# ---- what runs in the guest ------------------------------------------------------------------------------------------

modules="virtio_pci virtio_console 9pnet_virtio 9p overlay veth crc32_generic rdma_rxe ib_uverbs"
nine=trans=virtio,version=9p2000.L,msize=512000

# Process 1: modules, then the host's files under an overlay, then `inside`.
write_init() {
    cat >"$run/root/init" <<END
#!/bin/busybox sh
/bin/busybox --install /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r m; do insmod /modules/\$m; done </modules/order
mount -t 9p -o $nine,cache=loose,ro host /host
mount -t tmpfs tmpfs /top
mkdir /top/upper /top/work
mount -t overlay -o lowerdir=/host,upperdir=/top/upper,workdir=/top/work overlay /root
for d in proc sys dev; do mount --move /\$d /root/\$d; done
chroot /root /bin/bash '$run/inside'
poweroff -f
END
    chmod +x "$run/root/init"
}

# The command, and what brings the two nodes up around it.
write_inside() {
    cat >"$run/inside" <<END
for n in fd:self/fd stdin:self/fd/0 stdout:self/fd/1 stderr:self/fd/2; do ln -s /proc/\${n#*:} /dev/\${n%%:*}; done
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /run
[ -z '$writable' ] || mount -t 9p -o $nine,cache=mmap writable '$writable'
echo guest >/proc/sys/kernel/hostname
ulimit -l unlimited
ulimit -n 16384
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
echo 200000 >/proc/sys/net/core/netdev_max_backlog
ip -batch - <<IP
link set lo up
link add eth0 mtu 9000 address 02:00:00:00:77:01 type veth peer eth1 mtu 9000 address 02:00:00:00:77:02
addr add 10.77.0.1/24 dev eth0
addr add 10.77.0.2/24 dev eth1
addr add fd77::1/64 dev eth0
addr add fd77::2/64 dev eth1
link set eth0 up
link set eth1 up
neigh replace 10.77.0.2 lladdr 02:00:00:00:77:02 dev eth0
neigh replace 10.77.0.1 lladdr 02:00:00:00:77:01 dev eth1
route add 10.77.0.2 dev eth0 table 201
route add 10.77.0.1 dev eth1 table 202
rule add pref 1 from 10.77.0.1 to 10.77.0.2 dev lo lookup 201
rule add pref 1 from 10.77.0.2 to 10.77.0.1 dev lo lookup 202
rule add pref 2 lookup local
rule del pref 0
IP
rdma link add rxe0 type rxe netdev eth0
rdma link add rxe1 type rxe netdev eth1
mkfifo /run/output
cat </run/output >/dev/vport0p1 & # a virtio port can be opened once only
exec 8>/dev/vport0p2
echo begun >&8
bash '$run/command' </dev/null >/run/output 2>&1 8>&-
status=\$?
timeout 5 tail -s .1 --pid=\$! -f /dev/null
echo \$status >&8
END
    {
        export -p
        printf 'cd %q\n' "$PWD"
        printf '%q ' "$@"
        echo
    } >"$run/command"
}

write_initrd() {
    local path name
    mkdir -p "$run"/root/{bin,proc,sys,dev,host,top,root,modules}
    cp "$cache/bin/busybox" "$run/root/bin/"
    # shellcheck disable=SC2086 # a list of words
    modprobe -d "$cache" -S "$(ls "$cache/lib/modules")" -aD $modules |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }' |
        while read -r path; do
            name=$(basename "${path%.xz}")
            case $path in
            *.xz) xz -dc "$path" ;;
            *) cat "$path" ;;
            esac >"$run/root/modules/$name"
            echo "$name"
        done >"$run/order"
    mv "$run/order" "$run/root/modules/order"
    write_init
    (cd "$run/root" && find . | cpio -o -H newc --quiet) >"$run/initrd"
}

# ---- the guest -------------------------------------------------------------------------------------------------------

# shellcheck disable=SC2317 # called by trap
end() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null
    rm -rf "$run"
}

# /dev/kvm alone says nothing: in some virtual machines it is there and cannot run a stock kernel.
acceleration() {
    if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
        echo "-accel kvm -cpu host"
    else
        echo "-accel tcg,thread=multi -cpu max,la57=off"
    fi
}

# Sets `ended` to qemu's status.
boot() {
    local share=()
    # shellcheck disable=SC2054 # commas of options
    [ -z "$writable" ] || share=(-fsdev "local,id=w,path=${writable//,/,,},security_model=none,multidevs=remap"
        -device virtio-9p-pci,fsdev=w,mount_tag=writable)
    rm -f "$run/status"
    [ -p "$run/input" ] || mkfifo "$run/input" # so that qemu's standard input stays open
    # shellcheck disable=SC2046 # options
    timeout -k 5 "$limit" qemu-system-x86_64 -M q35 $(acceleration) \
        -smp "${GUEST_CPUS:-2}" -m "${GUEST_MIB:-4096}" \
        -nodefaults -no-user-config -display none -no-reboot -kernel "$cache/vmlinux" -initrd "$run/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr" -serial "file:$run/console" \
        -device virtio-serial -chardev stdio,id=output,signal=off -device virtserialport,chardev=output,nr=1 \
        -chardev "file,id=status,path=$run/status" -device virtserialport,chardev=status,nr=2 \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-pci,fsdev=host,mount_tag=host "${share[@]}" <>"$run/input" &
    qemu=$!
    wait $qemu
    ended=$?
    qemu=''
    [ $ended != 124 ] || {
        say "not done after $limit s"
        exit 124
    }
}

# Emulated processors that patch the kernel's code for one another crash now and then while it boots: that is no fault of
# COMMAND, which has not begun then.
run_guest() {
    local try
    for try in 1 2 3; do
        boot
        ! grep -q begun "$run/status" 2>/dev/null || break
        say "the guest has not come up (try $try)"
    done
    grep -qx '[0-9]*' "$run/status" 2>/dev/null || broken "the guest ended without a status (qemu: $ended); its last words:"
    exit "$(tail -n 1 "$run/status")"
}

for tool in qemu-system-x86_64 cpio modprobe depmod xz zstd; do
    command -v $tool >/dev/null || skip "no $tool for the guest with Soft-RoCE"
done
mkdir -p "$cache" || broken "cannot make $cache"
exec 9>"$cache/lock"
flock 9
fetch_kernel
exec 9>&-
run=$(mktemp -d "${TMPDIR:-/tmp}/hoccl-guest.XXXXXX")
trap end EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
write_initrd
write_inside "$@"
run_guest
