# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh disable=SC2154
# The environment of every test; sourced by make check, which sets top_srcdir and top_builddir.

# mpirun as root, more ranks than cores, no binding (a rank bound to one core shares it with its proxy's threads).
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# libpmix and hwloc keep memory until the process ends, and they are built without the sanitizers.
export LSAN_OPTIONS="suppressions=$top_srcdir/test/lsan.supp:print_suppressions=0:${LSAN_OPTIONS:-}"
export TSAN_OPTIONS="suppressions=$top_srcdir/test/tsan.supp:halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"
export ASAN_OPTIONS="detect_stack_use_after_return=1:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"
