/* SPDX-License-Identifier: Apache-2.0 */
/* For entry.c, which is made: the exported functions under their real names, each in front of the one that works. */
#ifndef EMU_ENTRY_H
#define EMU_ENTRY_H

#pragma GCC visibility push(default)
#include "cuda.h"
#pragma GCC visibility pop

#define EMU_PREFIXED(name) emu_##name
#define EMU(name) EMU_PREFIXED(name)

CUresult emu_fault_call(const char *name); /* fault.c */
void emu_stream_own_default(int change);   /* stream.c */
CUstream emu_stream_own(CUstream stream);

#endif
