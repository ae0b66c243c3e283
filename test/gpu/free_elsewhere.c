/* SPDX-License-Identifier: Apache-2.0 */
/* Does a call that waits for the GPU wait for another GPU's parked stream, too, and does it stop that GPU's copies?
 *
 * nccl-tests -t 2 frees pinned memory in one thread while another thread's rank, on another GPU, may still be in an
 * operation. A stream of GPU 0 is parked in a WaitValue; a thread with GPU 1's context is in the call; then a third thread
 * submits a push from GPU 0. One line a case says what has returned within a second.
 *
 * usage: free_elsewhere [CALL…]    hostfree memfree modload; all of them without one */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static CUcontext context[2];
static CUdeviceptr memory[2], freed;
static CUstream parked, copies;
static const char *call;
static void *pinned;
static int user_done, push_done;

static void check(CUresult r, const char *what)
{
    const char *s = "?";
    if (!r)
        return;
    cuGetErrorName(r, &s);
    printf("%s: FAIL %s: %s\n", call, what, s);
    fflush(stdout);
    _exit(1);
}

static void *user(void *arg)
{
    static const char ptx[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nop() { ret; }\n";
    CUmodule module;
    (void)arg;
    check(cuCtxSetCurrent(context[1]), "cuCtxSetCurrent");
    if (!strcmp(call, "hostfree"))
        check(cuMemFreeHost(pinned), "cuMemFreeHost");
    else if (!strcmp(call, "memfree"))
        check(cuMemFree(freed), "cuMemFree");
    else
        check(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    __atomic_store_n(&user_done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *push(void *arg)
{
    (void)arg;
    check(cuCtxSetCurrent(context[0]), "cuCtxSetCurrent");
    check(cuMemcpyDtoDAsync(memory[1] + MIB, memory[0], MIB / 2, copies), "push");
    __atomic_store_n(&push_done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static const char *within_a_second(const int *done)
{
    for (int i = 0; i < 1000; i++) {
        if (__atomic_load_n(done, __ATOMIC_SEQ_CST))
            return "returned";
        usleep(1000);
    }
    return "did not return";
}

static void run(void)
{
    pthread_t thread[2];
    CUdeviceptr flag_device;
    uint32_t *flag;
    check(cuInit(0), "cuInit");
    for (int i = 0; i < 2; i++) {
        check(cuDevicePrimaryCtxRetain(&context[i], i), "a second GPU");
        check(cuCtxSetCurrent(context[i]), "cuCtxSetCurrent");
        check(cuMemAlloc(&memory[i], 4 * MIB), "cuMemAlloc");
    }
    check(cuMemAlloc(&freed, 4 * MIB), "cuMemAlloc");
    check(cuMemHostAlloc(&pinned, 64, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    check(cuCtxSetCurrent(context[0]), "cuCtxSetCurrent");
    cuCtxEnablePeerAccess(context[1], 0);
    check(cuMemHostAlloc((void **)&flag, 64, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    check(cuMemHostGetDevicePointer(&flag_device, flag, 0), "the flag");
    check(cuStreamCreate(&parked, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuMemcpyDtoDAsync(memory[1] + MIB, memory[0], MIB / 2, copies), "the first push");
    check(cuStreamSynchronize(copies), "the first push");
    __atomic_store_n(flag, 0, __ATOMIC_SEQ_CST);
    check(cuStreamWaitValue32(parked, flag_device, 1, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");

    pthread_create(&thread[0], NULL, user, NULL);
    const char *user_says = within_a_second(&user_done);
    pthread_create(&thread[1], NULL, push, NULL);
    const char *push_says = within_a_second(&push_done);
    printf("%s on GPU 1 beside a parked stream of GPU 0: the call %s, then a push of GPU 0 %s\n", call, user_says, push_says);
    fflush(stdout);
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    usleep(100000);
    _exit(0);
}

int main(int argc, char **argv)
{
    static const char *all[] = {NULL, "hostfree", "memfree", "modload"};
    const char *const *calls = argc > 1 ? (const char *const *)argv : all;
    int n = argc > 1 ? argc : 4;
    for (int i = 1; i < n; i++) {
        pid_t pid = fork();
        if (!pid) {
            alarm(20);
            call = calls[i];
            run();
        }
        waitpid(pid, NULL, 0);
    }
    return 0;
}
