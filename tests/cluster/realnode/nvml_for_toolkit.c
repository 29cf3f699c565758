/*
 * The agent's libnvidia-ml.so.1 without a GPU, and further functions that NVIDIA's container toolkit calls: with them
 * `nvidia-ctk cdi generate` describes the cards, and NVIDIA's runtime generates its own descriptions. Signatures are
 * those of nvml.h.
 *
 * CRI-O starts runtimes without its environment, so the script has a default path if none is named.
 *
 * The file next to the script whose name ends in .limits has a line for each memory limit that is set: card, control
 * group, soft and hard limit; -1 for no limit.
 */
#include <stdlib.h>

static const char *script_at(const char *name) {
    const char *named = getenv(name);
    return named ? named : "/run/nvml.script";
}
#define getenv script_at
#define nvmlDeviceSetMemoryLimits_v1 limit_memory
#include "../../unit/nodeagent/fake_nvml/nvml.c"
#undef nvmlDeviceSetMemoryLimits_v1
EXPORT int nvmlDeviceSetMemoryLimits_v1(Handle *device, SetLimits *asked) {
    int refused = limit_memory(device, asked);
    char name[512];
    snprintf(name, sizeof name, "%s.limits", script_at("FAKE_NVML_SCRIPT"));
    FILE *file = refused ? NULL : fopen(name, "a");
    if (file) {
        fprintf(file, "%u %s %lld %lld\n", device->index, asked->group, (long long)asked->soft, (long long)asked->hard);
        fclose(file);
    }
    return refused;
}

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
