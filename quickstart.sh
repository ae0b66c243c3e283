#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds HOCCL and shows it at work; with "check" it runs every test instead.
set -u
cd "$(dirname "$0")" || exit 1

usage() {
    cat <<'END'
usage: ./quickstart.sh [check] [--no-install] [--help]

  (nothing)     install missing packages, build in build/, exchange data between 2 and 4 ranks
  check         install, build and run all tests: plain, address and thread sanitizer trees, style checks;
                the last line says how many passed, failed and were skipped. The first time it downloads a Linux
                kernel (110 MB, kept in build/guest) that a virtual machine with software RDMA runs
  --no-install  do not install anything: name what is missing and stop

On machines with two or more GPUs the ranks use them; else they use emulated GPUs and say so.
Logs: build/*.log, build-asan/*.log, build-tsan/*.log.
END
}

# What a build needs, and what the tests need besides (names of Debian 12 and Ubuntu packages).
build_packages="build-essential autoconf automake libtool pkg-config openmpi-bin libpmix-dev libhwloc-dev
libibverbs-dev libjansson-dev"
check_packages="libcmocka-dev codespell shellcheck clang-format iproute2
qemu-system-x86 ibverbs-providers cpio kmod xz-utils zstd"

jobs=$(nproc)
passed=0 failed=0 skipped=0

# fail TEXT: count a failure and say it.
fail() {
    failed=$((failed + 1))
    echo "FAIL: $*"
}

# step NAME LOG COMMAND…: run with output to LOG; print name and seconds; on failure the end of the log.
step() {
    local name=$1 log=$2 begin=$SECONDS
    shift 2
    mkdir -p "$(dirname "$log")"
    if "$@" >"$log" 2>&1 </dev/null; then
        printf '  %-32s %4d s\n' "$name" $((SECONDS - begin))
        return 0
    fi
    printf '  %-32s %4d s  FAILED, the end of %s:\n' "$name" $((SECONDS - begin)) "$log"
    tail -n 40 "$log" | sed 's/^/    /'
    return 1
}

# ---- Packages ----------------------------------------------------------------------------------------------------

missing_packages() {
    local package
    for package in $1; do
        dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' || echo "$package"
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get -q update &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
}

install_packages() {
    local missing
    if ! command -v dpkg-query >/dev/null; then
        echo "This is not Debian or Ubuntu. HOCCL needs the counterparts of: $1"
        return 0
    fi
    missing=$(missing_packages "$1" | tr '\n' ' ')
    if [ -z "$missing" ]; then
        echo "Every package that is needed is installed."
        return 0
    fi
    if [ "$install" = no ]; then
        echo "Missing: $missing"
        echo "Install: apt-get install --no-install-recommends $missing"
        return 1
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        echo "Missing: $missing"
        echo "Neither root nor sudo. As root: apt-get install --no-install-recommends $missing"
        return 1
    fi
    echo "Installing with apt: $missing"
    # shellcheck disable=SC2086 # a list of words
    step "install packages" build/install.log apt_install $missing
}

# ---- Trees -------------------------------------------------------------------------------------------------------

# configure and Makefile.in are made when they are not there or older than what they are made from.
generate() {
    if [ -f configure ] && [ -f Makefile.in ] &&
        [ -z "$(find configure.ac m4/hoccl_*.m4 -newer configure)" ] &&
        [ -z "$(find Makefile.am include src launcher examples doc test -name 'Makefile*' -newer Makefile.in)" ]; then
        return 0
    fi
    step "generate configure" build/autoreconf.log autoreconf -fi
}

# configured DIR OPTIONS…: configure DIR unless it already is with these options. A change of options starts afresh.
configured() {
    local dir=$1
    shift
    if [ "$(cat "$dir/.options" 2>/dev/null)" = "$*" ] && [ ! configure -nt "$dir/config.status" ]; then
        return 0
    fi
    mkdir -p "$dir"
    [ ! -f "$dir/Makefile" ] || make -C "$dir" -s clean >/dev/null 2>&1
    step "configure $dir" "$dir/configure.log" env -C "$dir" ../configure "$@" || return 1
    echo "$*" >"$dir/.options"
}

# run_in_tree DIR COMMAND…: as given, for the thread sanitizer without address randomisation where the system allows.
run_in_tree() {
    local dir=$1
    shift
    if [ "$dir" = build-tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then
        setarch "$(uname -m)" -R "$@"
    else
        "$@"
    fi
}

# ---- The main job ------------------------------------------------------------------------------------------------

# The environment in which mpirun starts more ranks than cores, and as root.
mpi_environment() {
    if [ "$(id -u)" = 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
}

gpu_count() {
    find /dev -maxdepth 1 -name 'nvidia[0-9]*' 2>/dev/null | wc -l
}

run_hello() {
    local ranks=$1 device=auto
    if [ "$(gpu_count)" -lt "$ranks" ]; then
        device=emu
    fi
    echo
    echo "mpirun -np $ranks build/examples/hello    (HOCCL_DEVICE=$device)"
    HOCCL_DEVICE=${HOCCL_DEVICE:-$device} timeout -k 10 300 \
        mpirun --oversubscribe --bind-to none -np "$ranks" build/examples/hello </dev/null || {
        echo "FAILED: hello with $ranks ranks"
        return 1
    }
}

quickstart() {
    install_packages "$build_packages" || return 1
    generate || return 1
    # A tree that is configured already is kept, whatever its options.
    if [ ! -f build/config.status ] || [ configure -nt build/config.status ]; then
        configured build || return 1
    fi
    step "make build" build/make.log make -C build -j"$jobs" || return 1
    mpi_environment
    run_hello 2 || return 1
    run_hello 4 || return 1
    echo
    echo "HOCCL works here. README.md says how to go on; ./quickstart.sh check runs the tests."
}

# ---- All tests ---------------------------------------------------------------------------------------------------

# listed REASON: does a line of test/skips, a basic regular expression, describe it?
listed() {
    grep -xq -f <(grep -v '^#' test/skips) -- - <<<"$1"
}

# reason LOG: why a test was skipped: the last line that it printed itself.
reason() {
    grep -v '^SKIP .*(exit status: 77)$' "$1" | tail -n 1 | sed 's/^SKIP: //'
}

# count DIR: add the results of automake's .trs files; a test that left no result has failed.
count() {
    local dir=$1 trs name reason result
    while read -r trs; do
        name=$dir/${trs#"$dir"/}
        name=${name%.trs}
        while read -r result; do
            case $result in
            PASS) passed=$((passed + 1)) ;;
            SKIP)
                reason=$(reason "$name.log")
                if listed "$reason"; then
                    skipped=$((skipped + 1))
                    echo "  skipped $name: $reason"
                else
                    fail "$name was skipped for a reason that test/skips does not list: ${reason:-none given}"
                fi
                ;;
            *)
                fail "$name ($result), the end of $name.log:"
                tail -n 40 "$name.log" | sed 's/^/    /'
                ;;
            esac
        done < <(sed -n 's/^:test-result: *\([A-Z]*\).*/\1/p' "$trs")
    done < <(find "$dir" -name '*.trs' | sort)
}

# check_tests DIR: two at a time, and behind them, alone, those that keep every core busy and look at times.
check_tests() {
    local dir=$1 name rest=() alone=() status=0
    for name in $(make -s -C "$dir" print-tests); do
        case $name in
        test/rdma/*) alone+=("$name") ;;
        *) rest+=("$name") ;;
        esac
    done
    run_in_tree "$dir" make -C "$dir" -k -j2 check TESTS="${rest[*]}" || status=$?
    [ ${#alone[@]} = 0 ] || run_in_tree "$dir" make -C "$dir" -k check TESTS="${alone[*]}" || status=$?
    return $status
}

# check_tree DIR OPTIONS…: configure, build and test one tree.
check_tree() {
    local dir=$1 log=$1/check.log begin status=0 before=$failed
    shift
    configured "$dir" "$@" || { fail "configure in $dir"; return; }
    find "$dir" -name '*.trs' -delete
    step "make $dir" "$dir/make.log" make -C "$dir" -j"$jobs" || { fail "build in $dir"; return; }
    step "make tests of $dir" "$dir/tests.log" make -C "$dir" -j"$jobs" check TESTS= || { fail "tests of $dir"; return; }
    begin=$SECONDS
    check_tests "$dir" >"$log" 2>&1 </dev/null || status=$?
    printf '  %-32s %4d s\n' "make check in $dir" $((SECONDS - begin))
    count "$dir"
    if [ "$status" != 0 ] && [ "$failed" = "$before" ]; then
        fail "make check in $dir, the end of $log:"
        tail -n 40 "$log" | sed 's/^/    /'
    fi
}

summary() {
    local line="$passed passed, $failed failed"
    [ "$skipped" = 0 ] || line="$line, $skipped skipped"
    echo
    echo "$line"
}

check() {
    trap 'fail "stopped by a signal"; exit 1' INT TERM
    trap summary EXIT
    install_packages "$build_packages $check_packages" || { fail "packages"; return 1; }
    generate || { fail "configure could not be generated"; return 1; }
    mpi_environment
    export GUEST_CACHE=$PWD/build/guest # one kernel for all trees
    check_tree build --enable-werror
    check_tree build-asan --enable-werror --with-sanitizer=address "CFLAGS=-O1 -g"
    check_tree build-tsan --enable-werror --with-sanitizer=thread "CFLAGS=-O1 -g"
    echo "  everything took $SECONDS s"
    [ "$failed" = 0 ]
}

mode=quickstart install=yes
for argument in "$@"; do
    case $argument in
    check) mode=check ;;
    --no-install) install=no ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && exit 2 ;;
    esac
done
case $mode in
check) check ;;
*) quickstart ;;
esac
