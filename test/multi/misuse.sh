#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Mistakes of the caller are errors with a text that names the cause.
. "${top_srcdir:?}/test/multi/lib.sh"

HOCCL_TIMEOUT=10 pass 60 2 "$top_builddir/test/multi/misuse"
finish
