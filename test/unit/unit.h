/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of HOCCL's parts share. They link the parts themselves and run on the emulated driver. */
#ifndef UNIT_H
#define UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"

#define OK(call) assert_int_equal((call), HOCCL_SUCCESS)

/* The call fails with this result and says this. */
#define FAILS(call, result, words)                                                                                           \
    do {                                                                                                                     \
        assert_int_equal((call), (result));                                                                                  \
        if (!strstr(hoccl_error_text(), (words)))                                                                            \
            fail_msg("\"%s\" does not say \"%s\"", hoccl_error_text(), (words));                                             \
    } while (0)

#endif
