/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HOCCL_MemAlloc and HOCCL_MemFree: of the current GPU, exportable, freed from anywhere at any time, and good for every
 * operation between threads.
 */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

enum { GPUS = 4, BYTES = 300000 };

static unsigned int attribute(void *p, CUpointer_attribute which)
{
    unsigned long long value = 0; /* wide enough for all that are asked for */

    assert_int_equal(cuPointerGetAttribute(&value, which, (CUdeviceptr)p), CUDA_SUCCESS);
    return (unsigned int)value;
}

static void ok(HOCCL_Result result)
{
    if (result)
        fail_msg("%s: %s", HOCCL_GetErrorString(result), HOCCL_GetLastError());
}

static void fails(HOCCL_Result result, HOCCL_Result wanted, const char *words)
{
    if (result != wanted || !strstr(HOCCL_GetLastError(), words))
        fail_msg("%s: %s", HOCCL_GetErrorString(result), HOCCL_GetLastError());
}

/* The first call of the process: no context is current, so it is device 0's, as with the CUDA runtime. */
static void test_kind(void **state)
{
    unsigned long long access = 0;
    CUmemLocation other = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
    void *p = NULL;

    (void)state;
    ok(HOCCL_MemAlloc(&p, BYTES));
    assert_non_null(p);
    assert_int_equal(attribute(p, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL), 0);
    assert_true(attribute(p, CU_POINTER_ATTRIBUTE_RANGE_SIZE) >= BYTES);
    assert_true(attribute(p, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    assert_int_equal(cuMemGetAccess(&access, &other, (CUdeviceptr)p), CUDA_SUCCESS);
    assert_int_equal(access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    ok(HOCCL_MemFree(p));
}

static void test_errors(void **state)
{
    void *p = NULL;

    (void)state;
    fails(HOCCL_MemAlloc(NULL, 1), HOCCL_ERR_ARGUMENT, "NULL");
    fails(HOCCL_MemAlloc(&p, (size_t)1 << 46), HOCCL_ERR_MEMORY, "GPU 0");
    fails(HOCCL_MemAlloc(&p, SIZE_MAX), HOCCL_ERR_MEMORY, "GPU 0");
    assert_null(p);
    p = &p;
    ok(HOCCL_MemAlloc(&p, 0));
    assert_null(p);
    ok(HOCCL_MemFree(NULL));
    ok(HOCCL_MemAlloc(&p, 1));
    fails(HOCCL_MemFree((char *)p + 1), HOCCL_ERR_ARGUMENT, "beginning");
    ok(HOCCL_MemFree(p));
    fails(HOCCL_MemFree(p), HOCCL_ERR_ARGUMENT, "freed");
}

/* More than the GPU has, piece by piece: what is freed is there again. */
static void test_given_back(void **state)
{
    void *p;

    (void)state;
    for (int i = 0; i < 1000; i++) {
        ok(HOCCL_MemAlloc(&p, 1u << 28));
        ok(HOCCL_MemFree(p));
    }
}

static void body_exchange(struct rank *r)
{
    unsigned char *out = NULL, *in = NULL, host[64];
    CUstream stream;
    int right = (r->rank + 1) % r->size, left = (r->rank + r->size - 1) % r->size;

    if (!RANK_OK(r, HOCCL_MemAlloc((void **)&out, BYTES)) || !RANK_OK(r, HOCCL_MemAlloc((void **)&in, BYTES)) ||
        !RANK_CUDA(r, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)))
        return;
    RANK_CUDA(r, cuMemsetD8((CUdeviceptr)out, (unsigned char)(r->rank + 1), BYTES));
    RANK_CUDA(r, cuStreamSynchronize(NULL));
    RANK_OK(r, HOCCL_GroupStart());
    RANK_OK(r, HOCCL_Send(out + 1, BYTES - 1, HOCCL_BYTE, right, r->comm, stream));
    RANK_OK(r, HOCCL_Recv(in + 1, BYTES - 1, HOCCL_BYTE, left, r->comm, stream));
    RANK_OK(r, HOCCL_GroupEnd());
    RANK_CUDA(r, cuStreamSynchronize(stream));
    RANK_CUDA(r, cuMemcpyDtoH(host, (CUdeviceptr)(in + BYTES - sizeof host), sizeof host));
    for (size_t i = 0; i < sizeof host; i++)
        RANK_TRUE(r, host[i] == left + 1);
    cuCtxSetCurrent(NULL); /* from any thread, whatever is current */
    RANK_OK(r, HOCCL_MemFree(out));
    RANK_OK(r, HOCCL_MemFree(in));
    cuCtxSetCurrent(r->context);
    cuStreamDestroy(stream);
}

static void test_exchange(void **state)
{
    (void)state;
    ranks_run(2, body_exchange, NULL);
    ranks_run(GPUS, body_exchange, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kind),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_given_back),
        cmocka_unit_test(test_exchange),
    };

    ranks_environment(GPUS);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
