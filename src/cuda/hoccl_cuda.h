/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libhoccl_cuda.a: the CUDA driver's functions as static forwarders, so that no program links libcuda. The first
 * call, of any of them or of one below, chooses the driver: the machine's libcuda.so.1 if it initialises and has a
 * device, else the emulated GPU that comes with HOCCL, said in one line on standard error. HOCCL_DEVICE=auto (the
 * default), cuda or emu decides otherwise. Every function here may be called from any thread at any time.
 */
#ifndef HOCCL_CUDA_H
#define HOCCL_CUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The dlopen handle of the chosen driver, NULL if there is none (why was then said on standard error). libhoccl
 * looks for this symbol in the program and uses the same driver. */
void *hoccl_cuda_driver(void);

/* What the driver is, for programs to print: "NVIDIA driver, CUDA 13.0", "emulated GPU" or "no driver". */
const char *hoccl_cuda_driver_name(void);

/* Its family, for libhoccl to compare between ranks: "cuda", "emulated" or "none". */
const char *hoccl_cuda_driver_kind(void);

/* Why there is no driver, as it was said on standard error; "" if there is one. */
const char *hoccl_cuda_driver_failure(void);

/* 1 if the choice has been made already: what the driver reads from the environment has been read then. Never chooses. */
int hoccl_cuda_driver_chosen(void);

/* 1 and the number of pieces of work (copies within a GPU, memsets, kernels) that this process has put on SMs of
 * emulated GPUs, or 0 and nothing: not measured, the driver is real. */
int hoccl_cuda_sm_work(uint64_t *work);

#ifdef __cplusplus
}
#endif

#endif
