/*
 * A CUDA driver without a GPU, with the functions that HAMi-core's libvgpu.so calls: built with -DCUDA as libcuda.so.1,
 * with -DNVML as libnvidia-ml.so.1. It has $FAKE_GPUS cards of $FAKE_GPU_BYTES. Allocations are numbers and take no
 * memory. From its first primary context on, a process is on the cards' lists, with a context of 256 MiB on each card.
 *
 * NVML numbers the cards in the opposite order of CUDA, as with cards of unequal speed (CUDA_DEVICE_ORDER unset).
 * Signatures are those of cuda.h and nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CONTEXT (256ull << 20)
#define CALL(name, ...) EXPORT int name(__VA_ARGS__)

static unsigned long long number(const char *name, unsigned long long otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}
static unsigned cards(void) { return (unsigned)number("FAKE_GPUS", 1); }
static unsigned long long total(void) { return number("FAKE_GPU_BYTES", 24ull << 30); }

#ifdef CUDA
static int current;
static unsigned long long next = 1ull << 40, used;

CALL(cuInit, unsigned flags) { (void)flags; return 0; }
CALL(cuDriverGetVersion, int *version) { *version = 13000; return 0; }
CALL(cuDeviceGetCount, int *count) { *count = (int)cards(); return 0; }
CALL(cuDeviceGet, int *device, int ordinal) { *device = ordinal; return (unsigned)ordinal < cards() ? 0 : 101; }
CALL(cuDeviceTotalMem_v2, size_t *bytes, int device) { (void)device; *bytes = total(); return 0; }
/* 16: multiprocessors; 39: threads on each. */
CALL(cuDeviceGetAttribute, int *value, int attribute, int device) {
    (void)device;
    *value = attribute == 16 ? 80 : attribute == 39 ? 2048 : 0;
    return 0;
}
CALL(cuCtxGetDevice, int *device) { *device = current; return 0; }
CALL(cuCtxSetCurrent, void *context) { current = (int)(size_t)context - 1; return 0; }
CALL(cuCtxGetCurrent, void **context) { *context = (void *)(size_t)(current + 1); return 0; }
CALL(cuDevicePrimaryCtxRetain, void **context, int device) {
    *context = (void *)(size_t)(device + 1);
    return setenv("FAKE_CONTEXT", "1", 1);
}
CALL(cuDevicePrimaryCtxRelease_v2, int device) { (void)device; return 0; }
CALL(cuMemAlloc_v2, unsigned long long *address, size_t bytes) {
    used += bytes, *address = next, next += bytes;
    return 0;
}
CALL(cuMemFree_v2, unsigned long long address) { (void)address; return 0; }
CALL(cuMemGetInfo_v2, size_t *left, size_t *all) { *left = total() - used, *all = total(); return 0; }
CALL(cuLaunchKernel, void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s,
     void **p, void **x) {
    (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h, (void)s, (void)p, (void)x;
    return 0;
}
CALL(cuGetProcAddress_v2, const char *symbol, void **function, int version, unsigned long long flags, int *status) {
    (void)version, (void)flags;
    *function = NULL;
    if (!strcmp(symbol, "cuGetProcAddress")) *function = (void *)cuGetProcAddress_v2;
    if (!strcmp(symbol, "cuMemAlloc")) *function = (void *)cuMemAlloc_v2;
    if (status) *status = *function ? 0 : 1;
    return *function ? 0 : 500;
}
#endif

#ifdef NVML
typedef struct { unsigned pid; unsigned long long used; } Process;
typedef struct { unsigned long long total, left, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, left, used; } Memory2;

CALL(nvmlInit_v2, void) { return 0; }
CALL(nvmlInit, void) { return 0; }
CALL(nvmlShutdown, void) { return 0; }
CALL(nvmlDeviceGetCount_v2, unsigned *count) { *count = cards(); return 0; }
CALL(nvmlDeviceGetCount, unsigned *count) { *count = cards(); return 0; }
CALL(nvmlDeviceGetHandleByIndex_v2, unsigned index, void **device) {
    *device = (void *)(size_t)(index + 1);
    return index < cards() ? 0 : 2;
}
CALL(nvmlDeviceGetHandleByIndex, unsigned index, void **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }
CALL(nvmlDeviceGetIndex, void *device, unsigned *index) { *index = (unsigned)(size_t)device - 1; return 0; }
CALL(nvmlDeviceGetUUID, void *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%zu", (size_t)device - 1);
    return 0;
}
CALL(nvmlDeviceGetMemoryInfo, void *device, Memory *memory) {
    (void)device;
    *memory = (Memory){total(), total(), 0};
    return 0;
}
CALL(nvmlDeviceGetMemoryInfo_v2, void *device, Memory2 *memory) {
    (void)device;
    *memory = (Memory2){memory->version, total(), 0, total(), 0};
    return 0;
}
CALL(nvmlDeviceGetComputeRunningProcesses, void *device, unsigned *count, Process *found) {
    (void)device;
    *count = getenv("FAKE_CONTEXT") ? 1 : 0;
    if (*count) found[0] = (Process){(unsigned)getpid(), CONTEXT};
    return 0;
}
CALL(nvmlDeviceGetProcessUtilization, void *device, void *samples, unsigned *count, unsigned long long since) {
    (void)device, (void)samples, (void)since;
    *count = 0;
    return 6;
}
#endif
