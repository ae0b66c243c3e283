#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The first parts of hidden.sh, for trees in which processes are slow.
FEW=1
. "${top_srcdir:?}/test/multi/hidden.sh"
