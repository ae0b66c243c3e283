/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"

uint64_t (*hoccl_clock)(void);
__thread uint64_t hoccl_turn_began;
