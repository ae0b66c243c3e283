/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver functions that HOCCL uses, as one table filled at run time.
 *
 * HOCCL links no libcuda. Every entry has a pinned, versioned name, never what a header's macros make of a plain one,
 * so that a library built today means the same call under any later driver. */
#ifndef HOCCL_DEVICE_DRIVER_H
#define HOCCL_DEVICE_DRIVER_H

#include "hoccl.h"

#include <cuda.h>

/* X(field, "symbol", (arguments)) */
#define HOCCL_DRIVER_FUNCTIONS(X)                                                                                      \
    X(Init, "cuInit", (unsigned int))                                                                                  \
    X(GetErrorName, "cuGetErrorName", (CUresult, const char **))                                                       \
    X(DriverGetVersion, "cuDriverGetVersion", (int *))                                                                 \
    X(DeviceGetCount, "cuDeviceGetCount", (int *))                                                                     \
    X(DeviceGet, "cuDeviceGet", (CUdevice *, int))                                                                     \
    X(DeviceGetName, "cuDeviceGetName", (char *, int, CUdevice))                                                       \
    X(DeviceGetUuid, "cuDeviceGetUuid_v2", (CUuuid *, CUdevice))                                                       \
    X(DeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *, int, CUdevice))                                               \
    X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", (int *, CUdevice, CUdevice))                                       \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *, CUdevice_attribute, CUdevice))                               \
    X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                                     \
    X(CtxGetCurrent, "cuCtxGetCurrent", (CUcontext *))                                                                 \
    X(CtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                                   \
    X(CtxGetDevice, "cuCtxGetDevice", (CUdevice *))                                                                    \
    X(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext))                                                              \
    X(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *))                                                              \
    X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", (CUcontext, unsigned int))                                         \
    X(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int *, int *))                                        \
    X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (CUstreamCaptureMode *))                   \
    X(ModuleGetLoadingMode, "cuModuleGetLoadingMode", (CUmoduleLoadingMode *))                                         \
    X(PointerGetAttributes, "cuPointerGetAttributes", (unsigned int, CUpointer_attribute *, void **, CUdeviceptr))     \
    X(MemGetAddressRange, "cuMemGetAddressRange_v2", (CUdeviceptr *, size_t *, CUdeviceptr))                           \
    X(MemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned int))                                         \
    X(MemHostUnregister, "cuMemHostUnregister", (void *))                                                              \
    X(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (CUdeviceptr *, void *, unsigned int))                  \
    X(IpcGetMemHandle, "cuIpcGetMemHandle", (CUipcMemHandle *, CUdeviceptr))                                           \
    X(IpcOpenMemHandle, "cuIpcOpenMemHandle_v2", (CUdeviceptr *, CUipcMemHandle, unsigned int))                        \
    X(IpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr))                                                         \
    X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity",                                                    \
      (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))                                       \
    X(MemCreate, "cuMemCreate",                                                                                        \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                       \
    X(MemRetainAllocationHandle, "cuMemRetainAllocationHandle", (CUmemGenericAllocationHandle *, void *))              \
    X(MemExportToShareableHandle, "cuMemExportToShareableHandle",                                                      \
      (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))                           \
    X(MemImportFromShareableHandle, "cuMemImportFromShareableHandle",                                                  \
      (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))                                             \
    X(MemGetHandleForAddressRange, "cuMemGetHandleForAddressRange",                                                    \
      (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))                                         \
    X(MemRelease, "cuMemRelease", (CUmemGenericAllocationHandle))                                                      \
    X(MemAddressReserve, "cuMemAddressReserve", (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))      \
    X(MemAddressFree, "cuMemAddressFree", (CUdeviceptr, size_t))                                                       \
    X(MemMap, "cuMemMap", (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))             \
    X(MemUnmap, "cuMemUnmap", (CUdeviceptr, size_t))                                                                   \
    X(MemSetAccess, "cuMemSetAccess", (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                          \
    X(StreamCreateWithPriority, "cuStreamCreateWithPriority", (CUstream *, unsigned int, int))                         \
    X(StreamDestroy, "cuStreamDestroy_v2", (CUstream))                                                                 \
    X(StreamGetId, "cuStreamGetId", (CUstream, unsigned long long *))                                                  \
    X(StreamGetCtx, "cuStreamGetCtx", (CUstream, CUcontext *))                                                         \
    X(StreamIsCapturing, "cuStreamIsCapturing", (CUstream, CUstreamCaptureStatus *))                                   \
    X(StreamQuery, "cuStreamQuery", (CUstream))                                                                        \
    X(StreamWriteValue32, "cuStreamWriteValue32_v2", (CUstream, CUdeviceptr, cuuint32_t, unsigned int))                \
    X(StreamWaitValue32, "cuStreamWaitValue32_v2", (CUstream, CUdeviceptr, cuuint32_t, unsigned int))                  \
    X(StreamBatchMemOp, "cuStreamBatchMemOp_v2",                                                                       \
      (CUstream, unsigned int, CUstreamBatchMemOpParams *, unsigned int))                                              \
    X(MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                           \
    X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream))                                \
    X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream))                          \
    X(Memcpy2DAsync, "cuMemcpy2DAsync_v2", (const CUDA_MEMCPY2D *, CUstream))                                          \
    X(EventCreate, "cuEventCreate", (CUevent *, unsigned int))                                                         \
    X(EventDestroy, "cuEventDestroy_v2", (CUevent))                                                                    \
    X(EventRecord, "cuEventRecord", (CUevent, CUstream))

struct hoccl_driver {
#define HOCCL_DRIVER_FIELD(field, symbol, arguments) CUresult(*field) arguments;
    HOCCL_DRIVER_FUNCTIONS(HOCCL_DRIVER_FIELD)
#undef HOCCL_DRIVER_FIELD
    char name[64]; /* for people, as its finder calls it */
    char kind[16]; /* which family of drivers this is: ranks compare it and nobody reads it */
};

/* The table; filled by hoccl_driver_load, constant afterwards. */
extern struct hoccl_driver hoccl_driver;

/* Find the driver, fill the table, cuInit. Once a process; later calls return the first one's result.
 * Errors: DEVICE (no driver, a function missing, cuInit failed), each with the remedy. */
HOCCL_Result hoccl_driver_load(void);

/* Translate a driver's result: DEVICE with "what: CUDA_ERROR_NAME", or SUCCESS. */
HOCCL_Result hoccl_driver_check(CUresult r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* CUDA_ERROR_NAME */
const char *hoccl_driver_error(CUresult r);

#endif
