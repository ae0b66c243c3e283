/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of modules. */
#ifndef EMU_MODULE_H
#define EMU_MODULE_H

#include "emu.h"

struct CUfunc_st {
    CUfunction next;
    char name[128];
    unsigned params;
    bool loaded; /* has been launched before */
};

CUfunction emu_function_check(CUfunction handle); /* NULL: none such */

#endif
