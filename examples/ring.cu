/* SPDX-License-Identifier: Apache-2.0 */
/* HOCCL beside kernels, with the CUDA runtime: a token goes once around the ring of ranks, and each rank's kernel adds
 * its part to it. Nothing is waited for on the host between the steps: on one stream,
 *
 *   rank 0       kernel: fill ──▶ Send to 1                     Recv from last ──▶ kernel: count what is wrong
 *   rank r > 0                    Recv from r - 1 ──▶ kernel: add r ──▶ Send to r + 1
 *
 * so a kernel must see what was received before it, and a Send what the kernel before it has written.
 *
 * Built only where configure finds nvcc: mpirun -np 2 examples/ring */
#include <cuda_runtime.h>
#include <hoccl.h>

#include <cstdio>
#include <cstdlib>

static int rank = -1, size;

static void check_hoccl(HOCCL_Result result, const char *what)
{
    if (result == HOCCL_SUCCESS)
        return;
    fprintf(stderr, "rank %d: %s: %s: %s\n", rank, what, HOCCL_GetErrorString(result), HOCCL_GetLastError());
    exit(1);
}

static void check_cuda(cudaError_t result, const char *what)
{
    if (result == cudaSuccess)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, what, cudaGetErrorString(result));
    exit(1);
}

__global__ void fill(unsigned *values, size_t count)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        values[i] = (unsigned)i;
}

__global__ void add(unsigned *values, size_t count, unsigned what)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        values[i] += what;
}

__global__ void compare(const unsigned *values, size_t count, unsigned added, unsigned long long *wrong)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        if (values[i] != (unsigned)i + added)
            atomicAdd(wrong, 1ull);
}

/* All of it on the stream; the last kernel of rank 0 leaves the number of wrong values. */
static void go_round(unsigned *values, size_t count, unsigned long long *wrong, cudaStream_t stream)
{
    int right = (rank + 1) % size, left = (rank - 1 + size) % size;
    unsigned added = (unsigned)(size * (size - 1) / 2);

    if (rank == 0)
        fill<<<64, 256, 0, stream>>>(values, count);
    else {
        check_hoccl(HOCCL_Recv(values, count, HOCCL_UINT32, left, HOCCL_COMM_WORLD, stream), "HOCCL_Recv");
        add<<<64, 256, 0, stream>>>(values, count, (unsigned)rank);
    }
    check_hoccl(HOCCL_Send(values, count, HOCCL_UINT32, right, HOCCL_COMM_WORLD, stream), "HOCCL_Send");
    if (rank == 0) {
        check_hoccl(HOCCL_Recv(values, count, HOCCL_UINT32, left, HOCCL_COMM_WORLD, stream), "HOCCL_Recv");
        compare<<<64, 256, 0, stream>>>(values, count, added, wrong);
    }
    check_cuda(cudaGetLastError(), "launching a kernel");
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)64 << 20, count = bytes / sizeof(unsigned);
    unsigned long long wrong = 0, *device_wrong;
    HOCCL_Result error;
    cudaStream_t stream;
    unsigned *values;

    /* The rank's GPU is the one that HOCCL_Init makes current, by the rank's place on its node. */
    check_hoccl(HOCCL_Init(), "HOCCL_Init");
    check_hoccl(HOCCL_CommRank(HOCCL_COMM_WORLD, &rank), "HOCCL_CommRank");
    check_hoccl(HOCCL_CommSize(HOCCL_COMM_WORLD, &size), "HOCCL_CommSize");
    if (size < 2) {
        fprintf(stderr, "a ring has at least two ranks: mpirun -np 2 %s\n", argv[0]);
        return 1;
    }
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check_cuda(cudaMalloc(&values, bytes ? bytes : 1), "cudaMalloc");
    check_cuda(cudaMalloc(&device_wrong, sizeof *device_wrong), "cudaMalloc");
    check_cuda(cudaMemsetAsync(device_wrong, 0, sizeof *device_wrong, stream), "cudaMemsetAsync");

    for (int round = 0; round < 10; round++)
        go_round(values, count, device_wrong, stream);
    check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    check_hoccl(HOCCL_CommGetAsyncError(HOCCL_COMM_WORLD, &error), "HOCCL_CommGetAsyncError");
    check_hoccl(error, "the ring");

    check_cuda(cudaMemcpy(&wrong, device_wrong, sizeof wrong, cudaMemcpyDeviceToHost), "cudaMemcpy");
    check_cuda(cudaFree(values), "cudaFree");
    check_cuda(cudaFree(device_wrong), "cudaFree");
    check_cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    check_hoccl(HOCCL_Finalize(), "HOCCL_Finalize");
    if (rank == 0)
        printf("%zu values around %d ranks, 10 times: %llu wrong\n", count, size, wrong);
    return wrong != 0;
}
