# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts that measure on real GPUs share; read with PROGRAMS and OUT as arguments.
set -u
programs=${1:?the folder with the built programs} out=${2:?a folder for the results}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$programs" || exit 1

# step NAME LIMIT COMMAND…
step() {
    local name=$1 limit=$2
    shift 2
    echo "## $name: $*"
    timeout -k 2 "$limit" "$@" 2>&1 | grep -v '^#$'
    echo "## $name: status ${PIPESTATUS[0]}"
}

two() {
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" mpirun --bind-to none -np 2 "$@"
}
