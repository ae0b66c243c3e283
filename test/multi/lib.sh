# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the tests with several processes share. Every process of a test carries MULTI_TEST_TAG in its environment, and
# every temporary file of the launcher lies in a folder of the test's own, so that what is left over can be seen.
set -u
: "${top_builddir:?}" "${top_srcdir:?}"
# shellcheck disable=SC2034 # for the tests
examples=$top_builddir/examples
export MULTI_TEST_TAG=$$.$RANDOM
work=$(mktemp -d)
export TMPDIR=$work/tmp
mkdir "$TMPDIR"
bad=0

# job LIMIT RANKS COMMAND…: mpirun under a hard limit in seconds. Its output goes to $work/output.
job() {
    local limit=$1 ranks=$2
    shift 2
    timeout -k 10 "$limit" mpirun -np "$ranks" "$@" >"$work/output" 2>&1 </dev/null
}

# What failed, said again at the end with the output it came with: the end of a log is what people get to see.
failed=

complain() {
    echo "FAIL: $*"
    failed+="FAIL: $*"$'\n'"$(tail -n 12 "$work/output" 2>/dev/null | sed 's/^/    /')"$'\n'
    bad=1
}

# pass LIMIT RANKS COMMAND…: the job must succeed.
pass() {
    echo "== $2 ranks: ${*:3}"
    job "$@"
    local status=$?
    sed 's/^/    /' "$work/output"
    [ $status = 0 ] || complain "status $status"
}

# must_fail TEXT LIMIT RANKS COMMAND…: the job must fail of itself, within its limit, and say TEXT.
must_fail() {
    local text=$1
    shift
    echo "== $2 ranks, to fail: ${*:3}"
    job "$@"
    local status=$?
    sed 's/^/    /' "$work/output"
    case $status in
    0) complain "it did not fail" ;;
    124 | 137) complain "it did not end within $1 s" ;;
    *) grep -q -- "$text" "$work/output" || complain "it did not say: $text" ;;
    esac
}

# The launcher and ranks of this test, as "PID NAME". (The test's own shells and tools carry the tag too.)
processes() {
    local directory name
    for directory in /proc/[0-9]*; do
        read -r name 2>/dev/null <"$directory/comm" || continue
        case $name in
        mpirun | orted | timeout | hello | sendrecv_perf | paths | coexist) ;;
        *) continue ;;
        esac
        grep -aqs "MULTI_TEST_TAG=$MULTI_TEST_TAG" "$directory/environ" && echo "${directory#/proc/} $name"
    done
}

# Files of HOCCL in the places where processes leave files.
named_files() {
    find /dev/shm /tmp -maxdepth 1 \( -name '*hoccl*' -o -name '*HOCCL*' \) 2>/dev/null | sort
}

# Sockets of this test's processes that have a name, as /proc/net/unix lists them.
sockets() {
    local inodes
    inodes=$(processes | while read -r pid _; do
        find "/proc/$pid/fd" -lname 'socket:*' -printf '%l\n' 2>/dev/null
    done | tr -dc '0-9\n' | sort -u)
    awk 'NR == FNR { mine[$1]; next } ($7 in mine) && $8 != ""' <(echo "$inodes") /proc/net/unix
}

# finish: status of the test; removes its folder.
finish() {
    rm -rf "$work"
    [ $bad = 0 ] && echo "all right"
    [ $bad = 0 ] || printf 'What failed:\n%s' "$failed"
    exit $bad
}
