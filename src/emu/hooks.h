/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests may ask an emulated GPU. Exported under names that no real driver has: whoever finds them by dlsym knows
 * what it talks to.
 */
#ifndef EMU_HOOKS_H
#define EMU_HOOKS_H

#include "cuda.h"

/* Engines, for the calls below. */
enum hoccl_emu_engine { HOCCL_EMU_SM, HOCCL_EMU_PUSH, HOCCL_EMU_PULL, HOCCL_EMU_D2H, HOCCL_EMU_H2D };

/* Pieces of work that this process has put on SMs: copies within a GPU, memsets, kernels. */
CUresult hocclEmuSmWork(uint64_t *work);

/* The same for one visible device. */
CUresult hocclEmuDeviceSmWork(CUdevice dev, uint64_t *work);

/* Copies that an engine of a visible device has begun, and bytes that it has moved, for this process. */
CUresult hocclEmuEngineCount(CUdevice dev, enum hoccl_emu_engine engine, uint64_t *ops, uint64_t *bytes);

/* 1 while a copy of this process is in the engine. */
CUresult hocclEmuEngineBusy(CUdevice dev, enum hoccl_emu_engine engine, int *busy);

/* Waits of this process that stand parked, and operations enqueued so far. */
CUresult hocclEmuParked(uint64_t *parked, uint64_t *enqueued);

#endif
