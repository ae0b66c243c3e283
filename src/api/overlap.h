/* SPDX-License-Identifier: Apache-2.0 */
/* May the pieces of a collective stand where they do? */
#ifndef HOCCL_API_OVERLAP_H
#define HOCCL_API_OVERLAP_H

#include "api/slices.h"
#include "core/post.h"

/* No piece that is received into may share a byte with another piece, sent or received, nor with `own`, which stays
 * where it is (bytes 0: there is none). Pieces that are sent may overlap: they are only read. Those that wait for another
 * request do not count. Errors: ARGUMENT, MEMORY. */
HOCCL_Result hoccl_overlap_check(const struct hoccl_request *requests, size_t n, const struct hoccl_slice *own);

#endif
