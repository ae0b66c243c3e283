/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that the calling thread's open group will make at its end. */
#ifndef HOCCL_API_MAKE_H
#define HOCCL_API_MAKE_H

#include "hoccl.h"

/* Make them, all together. On an error none of them is made, and no handle is filled. */
HOCCL_Result hoccl_make_all(void);

/* The group has failed, for the reason in the calling thread's error text: let the ranks that wait for this one know, where
 * they can be reached. */
void hoccl_make_refuse(void);

/* The group is over: forget them. */
void hoccl_make_forget(void);

#endif
