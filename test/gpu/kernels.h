/* SPDX-License-Identifier: Apache-2.0 */
/* The two kernels of the tests, as PTX text; the emulated GPU knows them by name.
 * hold(ns): every thread watches the clock for ns nanoseconds and touches no memory (270,000 threads that polled a flag
 * in host memory would slow every command of the driver and prove nothing). nop(): ends at once. */
#ifndef TEST_GPU_KERNELS_H
#define TEST_GPU_KERNELS_H

static const char kernels_ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                                  ".visible .entry hold(.param .u64 ns)\n{\n.reg .pred q;\n.reg .b64 a,b,c;\n"
                                  "ld.param.u64 c,[ns];\nmov.u64 a,%globaltimer;\nadd.u64 a,a,c;\n"
                                  "L:\nmov.u64 b,%globaltimer;\nsetp.lt.u64 q,b,a;\n@q bra L;\nret;\n}\n"
                                  ".visible .entry nop()\n{\nret;\n}\n";

#endif
