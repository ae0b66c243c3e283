#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Foreground phases between ranks of one node, and of two, where bytes go by other engines and the network.
set -eu
program=${top_builddir:?}/test/conform/foreground
timeout -k 10 120 "$program"
HOCCL_TEST_NODE=2 timeout -k 10 120 "$program"
