# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts that measure on real GPUs share; read with PROGRAMS and OUT as arguments.
set -u
programs=${1:?the folder with the built programs} out=${2:?a folder for the results}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$programs" || exit 1

# step NAME LIMIT COMMAND…: its status. Where `deadline` is set, in seconds since the script began, it ends by then, or is not begun.
step() {
    local name=$1 limit=$2 begun=$SECONDS status
    shift 2
    if [ -n "${deadline:-}" ] && [ $((deadline - SECONDS)) -lt "$limit" ]; then
        limit=$((deadline - SECONDS))
    fi
    if [ "$limit" -lt 1 ]; then
        echo "## $name: NOT RUN, the time is over"
        return 124
    fi
    echo "## $name: $*"
    timeout -k 2 "$limit" "$@" 2>&1 | grep -v '^#$'
    status=${PIPESTATUS[0]}
    echo "## $name: status $status, $((SECONDS - begun)) s"
    return "$status"
}

# ranks N NAME LIMIT COMMAND…
ranks() {
    local n=$1 name=$2 limit=$3
    shift 3
    step "$name" "$limit" mpirun --bind-to none -np "$n" "$@"
}

two() {
    ranks 2 "$@"
}
