/*
 * The agent's libnvidia-ml.so.1 without a GPU, and what NVIDIA's container toolkit asks besides: by it `nvidia-ctk cdi
 * generate` describes the cards, and NVIDIA's runtime makes up descriptions of its own. Signatures are those of nvml.h.
 *
 * CRI-O starts runtimes without its environment, so the script is at a place of its own where none is named.
 */
#include <stdlib.h>

static const char *script_at(const char *name) {
    const char *named = getenv(name);
    return named ? named : "/run/nvml.script";
}
#define getenv script_at
#include "../../unit/nodeagent/fake_nvml/nvml.c"

EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlDeviceGetMinorNumber(Handle *device, unsigned *minor) {
    ASK_CARD(device); *minor = device->index; return 0;
}
EXPORT int nvmlDeviceIsMigDeviceHandle(Handle *device, unsigned *slice) {
    ASK_CARD(device); *slice = device->part != 0; return 0;
}
EXPORT int nvmlDeviceGetIndex(Handle *device, unsigned *index) { ASK_CARD(device); *index = device->index; return 0; }
EXPORT int nvmlDeviceGetBrand(Handle *device, int *brand) { ASK_CARD(device); *brand = 2; return 0; }
