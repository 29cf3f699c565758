/*
 * A CUDA driver without a GPU, with the functions that runtime/cudaprobe.py calls. Allocations are numbers and take no
 * memory. A kernel holds the card's lock for a millisecond, so programs on one card really wait for each other.
 *
 * $PLAYED_HOLDS says what the limiter enforces: with `memory` the container's CUDA_DEVICE_MEMORY_LIMIT, with `cores` its
 * CUDA_DEVICE_SM_LIMIT. Signatures are those of cuda.h.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define CALL(name, ...) __attribute__((visibility("default"))) int name(__VA_ARGS__)
enum { OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, KERNEL_MICROSECONDS = 1000 };

static unsigned long long used;
static int lock = -1;

static unsigned long long number(const char *name, unsigned long long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}
static int holds(const char *what) {
    const char *held = getenv("PLAYED_HOLDS");
    return held && strstr(held, what) != NULL;
}
static unsigned long long most(void) {
    unsigned long long card = number("PLAYED_CARD_MIB", 0) << 20, share = number("CUDA_DEVICE_MEMORY_LIMIT", 0) << 20;
    return holds("memory") && share && share < card ? share : card;
}

CALL(cuInit, unsigned flags) { (void)flags; return most() ? 0 : 100; }
CALL(cuDevicePrimaryCtxRetain, void **context, int device) {
    *context = (void *)(size_t)(device + 1);
    return device ? INVALID_DEVICE : 0;
}
CALL(cuCtxSetCurrent, void *context) { (void)context; return 0; }
CALL(cuMemGetInfo_v2, size_t *left, size_t *all) { *all = most(), *left = most() - used; return 0; }
CALL(cuMemAlloc_v2, unsigned long long *address, size_t bytes) {
    if (used + bytes > most()) return OUT_OF_MEMORY;
    used += bytes, *address = used;
    return 0;
}
CALL(cuModuleLoadData, void **module, const void *image) { *module = (void *)image; return image ? 0 : 200; }
CALL(cuModuleGetFunction, void **function, void *module, const char *name) {
    *function = module;
    return strstr((const char *)module, name) ? 0 : 500;
}
CALL(cuLaunchKernel, void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
     unsigned shared, void *stream, void **parameters, void **extra) {
    (void)function, (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    return **(unsigned long long **)parameters ? 0 : 700;
}
CALL(cuCtxSynchronize, void) {
    unsigned long long cores = number("CUDA_DEVICE_SM_LIMIT", 0);
    if (lock < 0) lock = open(getenv("PLAYED_LOCK"), O_RDWR | O_CREAT, 0666);
    flock(lock, LOCK_EX);
    usleep(KERNEL_MICROSECONDS);
    flock(lock, LOCK_UN);
    if (holds("cores") && cores && cores < 100) usleep(KERNEL_MICROSECONDS * (100 - cores) / cores);
    return 0;
}
