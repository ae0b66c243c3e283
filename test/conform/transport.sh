#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The suite of test/conform/transport.c over each transport that works on any machine.
suite=${top_builddir:?}/test/conform/transport
timeout -k 5 140 "$suite" tcp && timeout -k 5 140 "$suite" tcp3
