/* SPDX-License-Identifier: Apache-2.0 */
/* Results of HOCCL as results of NCCL, with HOCCL's texts behind ncclGetLastError. */
#ifndef HOCCL_NCCL_ERROR_H
#define HOCCL_NCCL_ERROR_H

#include "hoccl.h"
#include "nccl/nccl_abi.h"

#define SHIM_TEXT 512

/* Set the calling thread's text and return `result`. */
ncclResult_t shim_fail(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What HOCCL has returned to `call`: its text becomes the thread's. */
ncclResult_t shim_result(HOCCL_Result result, const char *call);

/* The same number without a text. */
ncclResult_t shim_translate(HOCCL_Result result);

/* The calling thread's text; "" if there was no error. */
const char *shim_text(void);

#endif
