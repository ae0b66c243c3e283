/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the processes of a machine share of a GPU: who has each engine, how many thread slots and how much memory each
 * process holds. In one memfd if HOCCL_EMU_MACHINE names a machine, else this process is alone on its GPUs.
 */
#ifndef EMU_SHARED_H
#define EMU_SHARED_H

#include "emu.h"

CUresult emu_shared_open(void); /* by cuInit */

/* An engine belongs to one process at a time. Take returns at once; false: another process has it. */
bool emu_engine_take(const struct emu_device *dev, enum emu_class class);
void emu_engine_give(const struct emu_device *dev, enum emu_class class);
uint64_t *emu_engine_next(const struct emu_device *dev, enum emu_class class); /* ns; the owner's to use */

/* Thread slots: as many as there are up to want, at least least, or 0. */
uint64_t emu_slots_take(const struct emu_device *dev, uint64_t want, uint64_t least);
void emu_slots_give(const struct emu_device *dev, uint64_t slots);

/* Bytes of the GPU's memory; false: not so many are left. */
bool emu_memory_take(const struct emu_device *dev, uint64_t bytes);
void emu_memory_give(const struct emu_device *dev, uint64_t bytes);
uint64_t emu_memory_free(const struct emu_device *dev);

#endif
