/*
 * A libnvidia-ml.so.1 without a GPU, so that the tests exercise the real bindings, their loading by name, their
 * structures and their error codes instead of a mock.
 *
 * At every call it reads what it shows from the text file $FAKE_NVML_SCRIPT, one fact on each line:
 *
 *     driver 550.54.15
 *     cuda 12040
 *     gpu GPU-aaaa Tesla T4          uuid, then the name to the end of the line
 *     memory 0 15842934784 471859200 104857600    index, total, reserved, used
 *     busy 0 37                      index, percent
 *     mig 0 1                        index, current mode
 *     pci 0 00000000:3B:00.0         index, bus id
 *     capability 0 8 6               index, major, minor
 *     numa 0 1                       index, node
 *     nvlinks 0 4                    index, links that are up
 *     path 0 1 30 0                  two indexes, topology level, whether NVLink joins them
 *     ecc 0 2                        index, uncorrected errors
 *     rows 0 1 0                     index, whether a row waits for its replacement, whether that failed
 *     slice 0 MIG-aaaa 4096 A100 MIG 1g.5gb    index, uuid, total, name
 *     instances 0 MIG-aaaa 1 0       index, uuid of an earlier slice, its GPU instance and its compute instance
 *     xid 0 79                       index (- for none), number; the n-th such line is the n-th event, reported once
 *     (memory limits are kept for as long as the library is loaded; none can be set on a card in MIG mode)
 *     process 0 4711 1048576         index, pid, bytes
 *     load 0 4711 30                 index, pid of an earlier line, percent of the multiprocessors at its first sample
 *     video 0 42 5                   index, pid of an earlier line, percent of the video encoder, all that it uses
 *     mode 0 3                       index, compute mode at the start; a mode that is set stays while the library is loaded
 *     fail nvmlDeviceGetName 1 15    function, index or *, code to return
 *
 * A function named in WITHOUT_<name> at compile time does not exist, as in older drivers. Signatures and structures
 * are those of NVML's public ABI (nvml.h).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CARDS 16
#define SLICES 7
#define EXPORT __attribute__((visibility("default")))

#define PROCESSES 256

typedef struct { char uuid[96], name[96]; unsigned long long total; unsigned numbered, gi, ci; } Slice;
typedef struct { unsigned pid, load, loaded, video; unsigned long long used; } Process;
typedef struct {
    char uuid[96], name[96], pci[32];
    unsigned long long total, reserved, used;
    long long ecc;
    unsigned busy, mig, mode, links, slices, processes, pending, failed;
    int major, minor, numa;
    unsigned level[CARDS], joined[CARDS];
    Slice slice[SLICES];
    Process process[PROCESSES];
} Gpu;
typedef struct { char driver[81]; int cuda; unsigned count, xids; Gpu gpus[CARDS]; int xid_at[64]; unsigned xid[64]; } Machine;
/* part: 0 for the card itself, n for its n-th slice. */
typedef struct { unsigned index, part; } Handle;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { Handle *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Running;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } Load;

static Handle handles[CARDS][SLICES + 1];
static int initialised;
static unsigned told __attribute__((unused));

/* Read the script into `m`; return the code that `function` must return for `index` (-1: no card). */
static int look(Machine *m, const char *function, int index) {
    memset(m, 0, sizeof *m);
    for (unsigned card = 0; card < CARDS; card++) m->gpus[card].numa = -1, m->gpus[card].ecc = -1;
    strcpy(m->driver, "550.54.15");
    m->cuda = 12040;
    int code = 0;
    const char *path = getenv("FAKE_NVML_SCRIPT");
    FILE *script = path ? fopen(path, "r") : NULL;
    if (!script) return 999;
    char line[256], name[96], at[16];
    unsigned i, j, value, flag;
    unsigned long long total, reserved, used;
    while (fgets(line, sizeof line, script)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "driver %80s", m->driver) == 1 || sscanf(line, "cuda %d", &m->cuda) == 1) continue;
        if (m->count < CARDS && sscanf(line, "gpu %95s %95[^\n]", m->gpus[m->count].uuid, m->gpus[m->count].name) == 2)
            m->count++;
        else if (sscanf(line, "memory %u %llu %llu %llu", &i, &total, &reserved, &used) == 4 && i < CARDS)
            m->gpus[i].total = total, m->gpus[i].reserved = reserved, m->gpus[i].used = used;
        else if (sscanf(line, "busy %u %u", &i, &value) == 2 && i < CARDS) m->gpus[i].busy = value;
        else if (sscanf(line, "mig %u %u", &i, &value) == 2 && i < CARDS) m->gpus[i].mig = value;
        else if (sscanf(line, "mode %u %u", &i, &value) == 2 && i < CARDS) m->gpus[i].mode = value;
        else if (sscanf(line, "pci %u %31s", &i, name) == 2 && i < CARDS) strcpy(m->gpus[i].pci, name);
        else if (sscanf(line, "capability %u %u %u", &i, &j, &value) == 3 && i < CARDS)
            m->gpus[i].major = (int)j, m->gpus[i].minor = (int)value;
        else if (sscanf(line, "numa %u %u", &i, &value) == 2 && i < CARDS) m->gpus[i].numa = (int)value;
        else if (sscanf(line, "nvlinks %u %u", &i, &value) == 2 && i < CARDS) m->gpus[i].links = value;
        else if (sscanf(line, "path %u %u %u %u", &i, &j, &value, &flag) == 4 && i < CARDS && j < CARDS) {
            m->gpus[i].level[j] = m->gpus[j].level[i] = value;
            m->gpus[i].joined[j] = m->gpus[j].joined[i] = flag;
        }
        else if (sscanf(line, "ecc %u %llu", &i, &used) == 2 && i < CARDS) m->gpus[i].ecc = (long long)used;
        else if (sscanf(line, "rows %u %u %u", &i, &value, &flag) == 3 && i < CARDS)
            m->gpus[i].pending = value, m->gpus[i].failed = flag;
        else if (sscanf(line, "slice %u %95s %llu", &i, name, &total) == 3 && i < CARDS && m->gpus[i].slices < SLICES) {
            Slice *slice = &m->gpus[i].slice[m->gpus[i].slices++];
            slice->total = total;
            strcpy(slice->uuid, name);
            sscanf(line, "slice %*u %*s %*u %95[^\n]", slice->name);
        }
        else if (sscanf(line, "instances %u %95s %u %u", &i, name, &value, &flag) == 4 && i < CARDS) {
            for (j = 0; j < m->gpus[i].slices; j++)
                if (!strcmp(m->gpus[i].slice[j].uuid, name))
                    m->gpus[i].slice[j].numbered = 1, m->gpus[i].slice[j].gi = value, m->gpus[i].slice[j].ci = flag;
        }
        else if (sscanf(line, "xid %15s %u", at, &value) == 2 && m->xids < 64) {
            m->xid_at[m->xids] = strcmp(at, "-") ? atoi(at) : -1;
            m->xid[m->xids++] = value;
        }
        else if (sscanf(line, "process %u %u %llu", &i, &value, &used) == 3 && i < CARDS
                 && m->gpus[i].processes < PROCESSES)
            m->gpus[i].process[m->gpus[i].processes++] = (Process){.pid = value, .used = used};
        else if (sscanf(line, "load %u %u %u", &i, &value, &flag) == 3 && i < CARDS) {
            for (j = 0; j < m->gpus[i].processes; j++)
                if (m->gpus[i].process[j].pid == value) m->gpus[i].process[j].load = flag, m->gpus[i].process[j].loaded = 1;
        }
        else if (sscanf(line, "video %u %u %u", &i, &value, &flag) == 3 && i < CARDS) {
            for (j = 0; j < m->gpus[i].processes; j++)
                if (m->gpus[i].process[j].pid == value) m->gpus[i].process[j].video = flag;
        }
        else if (sscanf(line, "fail %95s %15s %u", name, at, &value) == 3 && !strcmp(name, function)
                 && (!strcmp(at, "*") || atoi(at) == index))
            code = (int)value;
    }
    fclose(script);
    if (code) return code;
    if (!initialised && strcmp(function, "nvmlInitWithFlags")) return 1;
    return index >= 0 && (unsigned)index >= m->count ? 28 : 0;
}

#define ASK(index) Machine m; int code = look(&m, __func__, (int)(index)); if (code) return code
#define ASK_CARD(device) ASK((device)->index); Gpu *gpu = &m.gpus[(device)->index]; (void)gpu

EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; ASK(-1); initialised = 1; return 0; }
EXPORT int nvmlShutdown(void) { ASK(-1); initialised = 0; return 0; }
EXPORT const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "fake error"; }
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    ASK(-1); snprintf(text, length, "%s", m.driver); return 0;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { ASK(-1); *version = m.cuda; return 0; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { ASK(-1); *count = m.count; return 0; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **device) {
    ASK(index); handles[index][0] = (Handle){index, 0}; *device = &handles[index][0]; return 0;
}
EXPORT int nvmlDeviceGetUUID(Handle *device, char *text, unsigned length) {
    ASK_CARD(device);
    snprintf(text, length, "%s", device->part ? gpu->slice[device->part - 1].uuid : gpu->uuid);
    return 0;
}
EXPORT int nvmlDeviceGetName(Handle *device, char *text, unsigned length) {
    ASK_CARD(device);
    snprintf(text, length, "%s", device->part ? gpu->slice[device->part - 1].name : gpu->name);
    return 0;
}
EXPORT int nvmlDeviceGetMemoryInfo(Handle *device, Memory *memory) {
    ASK_CARD(device);
    if (device->part) {
        unsigned long long slice = gpu->slice[device->part - 1].total;
        *memory = (Memory){slice, slice, 0};
        return 0;
    }
    /* The first version counts the driver's reserve as used. */
    *memory = (Memory){gpu->total, gpu->total - gpu->reserved - gpu->used, gpu->reserved + gpu->used};
    return 0;
}
#ifndef WITHOUT_nvmlDeviceGetMemoryInfo_v2
EXPORT int nvmlDeviceGetMemoryInfo_v2(Handle *device, MemoryV2 *memory) {
    ASK_CARD(device);
    if (memory->version != (sizeof *memory | 2u << 24)) return 25;
    *memory = (MemoryV2){memory->version, gpu->total, gpu->reserved, gpu->total - gpu->reserved - gpu->used, gpu->used};
    return 0;
}
#endif
#ifndef WITHOUT_nvmlDeviceGetUtilizationRates
EXPORT int nvmlDeviceGetUtilizationRates(Handle *device, Rates *rates) {
    ASK_CARD(device); *rates = (Rates){gpu->busy, 0}; return 0;
}
#endif
#ifndef WITHOUT_nvmlDeviceGetMigMode
EXPORT int nvmlDeviceGetMigMode(Handle *device, unsigned *current, unsigned *pending) {
    ASK_CARD(device); *current = *pending = gpu->mig; return 0;
}
#endif
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Handle *device, unsigned *count) {
    ASK_CARD(device); *count = SLICES; return 0;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Handle *device, unsigned number, Handle **part) {
    ASK_CARD(device);
    if (number >= gpu->slices) return 6;
    handles[device->index][number + 1] = (Handle){device->index, number + 1};
    *part = &handles[device->index][number + 1];
    return 0;
}
#define ASK_SLICE(device) ASK_CARD(device); if (!(device)->part) return 2; \
    Slice *slice = &gpu->slice[(device)->part - 1]; if (!slice->numbered) return 3
EXPORT int nvmlDeviceGetGpuInstanceId(Handle *device, unsigned *id) { ASK_SLICE(device); *id = slice->gi; return 0; }
EXPORT int nvmlDeviceGetComputeInstanceId(Handle *device, unsigned *id) { ASK_SLICE(device); *id = slice->ci; return 0; }
EXPORT int nvmlDeviceGetPciInfo_v3(Handle *device, Pci *pci) {
    ASK_CARD(device);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", gpu->pci);
    return 0;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(Handle *device, int *major, int *minor) {
    ASK_CARD(device); if (!gpu->major) return 3; *major = gpu->major; *minor = gpu->minor; return 0;
}
#ifndef WITHOUT_nvmlDeviceGetNumaNodeId
EXPORT int nvmlDeviceGetNumaNodeId(Handle *device, int *node) {
    ASK_CARD(device); if (gpu->numa < 0) return 3; *node = gpu->numa; return 0;
}
#endif
EXPORT int nvmlDeviceGetNvLinkState(Handle *device, unsigned link, unsigned *up) {
    ASK_CARD(device); if (!gpu->links) return 3; *up = link < gpu->links; return 0;
}
EXPORT int nvmlDeviceGetP2PStatus(Handle *one, Handle *other, int kind, int *status) {
    ASK_CARD(one); *status = kind == 2 && gpu->joined[other->index] ? 0 : 5; return 0;
}
EXPORT int nvmlDeviceGetTopologyCommonAncestor(Handle *one, Handle *other, unsigned *level) {
    ASK_CARD(one); if (!gpu->level[other->index]) return 3; *level = gpu->level[other->index]; return 0;
}
EXPORT int nvmlDeviceGetTotalEccErrors(Handle *device, int kind, int counter, unsigned long long *count) {
    ASK_CARD(device); if (kind != 1 || counter != 0 || gpu->ecc < 0) return 3; *count = (unsigned long long)gpu->ecc; return 0;
}
#ifndef WITHOUT_nvmlDeviceGetRemappedRows
EXPORT int nvmlDeviceGetRemappedRows(Handle *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                     unsigned *failed) {
    ASK_CARD(device); *corrected = *uncorrected = 0; *pending = gpu->pending; *failed = gpu->failed; return 0;
}
#endif
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Handle *device, unsigned *count, Running *running) {
    ASK_CARD(device);
    unsigned room = running ? *count : 0;
    *count = gpu->processes;
    if (gpu->processes > room) return 7;
    for (unsigned i = 0; i < gpu->processes; i++)
        running[i] = (Running){gpu->process[i].pid, gpu->process[i].used, ~0u, ~0u};
    return 0;
}
#ifndef WITHOUT_nvmlDeviceGetProcessUtilization
EXPORT int nvmlDeviceGetProcessUtilization(Handle *device, Load *loads, unsigned *count, unsigned long long since) {
    ASK_CARD(device);
    unsigned room = loads ? *count : 0;
    *count = 0;
    for (unsigned i = 0; i < gpu->processes; i++) *count += 2 * gpu->process[i].loaded + !!gpu->process[i].video;
    if (!*count) return 6;
    if (*count > room) return 7;
    /* Two current samples of each process, which differ by ten; older than requested if the clock says so. */
    unsigned long long now = (unsigned long long)time(NULL) * 1000000;
    if (now <= since) now = since + 1;
    for (unsigned i = 0; i < gpu->processes; i++)
        for (unsigned sample = 0; sample < 2 && gpu->process[i].loaded; sample++)
            *loads++ = (Load){gpu->process[i].pid, now + sample, gpu->process[i].load + 10 * sample, 0, 0, 0};
    for (unsigned i = 0; i < gpu->processes; i++)
        if (gpu->process[i].video) *loads++ = (Load){gpu->process[i].pid, now, 0, 0, gpu->process[i].video, 0};
    return 0;
}
#endif
#ifndef WITHOUT_nvmlEventSetCreate
EXPORT int nvmlEventSetCreate(void **set) { ASK(-1); *set = &told; return 0; }
EXPORT int nvmlDeviceRegisterEvents(Handle *device, unsigned long long types, void *set) {
    ASK_CARD(device); return types == 8 && set == &told ? 0 : 2;
}
EXPORT int nvmlEventSetWait_v2(void *set, Event *event, unsigned milliseconds) {
    ASK(-1);
    if (set != &told || milliseconds) return 2;
    if (told >= m.xids) return 10;
    int index = m.xid_at[told];
    if (index >= 0) handles[index][0].index = (unsigned)index;
    *event = (Event){index < 0 ? NULL : &handles[index][0], 8, m.xid[told++], ~0u, ~0u};
    return 0;
}
#endif
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **device) {
    ASK(-1);
    for (unsigned i = 0; i < m.count; i++)
        if (!strcmp(m.gpus[i].uuid, uuid)) {
            handles[i][0] = (Handle){i, 0};
            *device = &handles[i][0];
            return 0;
        }
    return 6;
}
static int modes[CARDS];

EXPORT int nvmlDeviceGetComputeMode(Handle *device, int *mode) {
    ASK_CARD(device); *mode = modes[device->index] ? modes[device->index] - 1 : (int)gpu->mode; return 0;
}
EXPORT int nvmlDeviceSetComputeMode(Handle *device, int mode) {
    ASK_CARD(device); if (gpu->mig) return 3; modes[device->index] = mode + 1; return 0;
}
#ifndef WITHOUT_nvmlDeviceSetMemoryLimits_v1
typedef struct { const char *group; unsigned long long soft, hard; } SetLimits;
typedef struct { const char *group; unsigned long long soft, hard, used; } GetLimits;
static struct { unsigned index; char group[256]; unsigned long long soft, hard; } limits[64];
static unsigned limited;

EXPORT int nvmlDeviceSetMemoryLimits_v1(Handle *device, SetLimits *asked) {
    ASK_CARD(device);
    if (gpu->mig) return 3;
    if (strncmp(asked->group, "/sys/fs/cgroup/", 15) || asked->soft > asked->hard) return 2;
    if (asked->hard != ~0ull && asked->hard > gpu->total) return 2;
    unsigned i = 0;
    while (i < limited && (limits[i].index != device->index || strcmp(limits[i].group, asked->group))) i++;
    if (i == 64) return 7;
    if (i == limited) limited++;
    limits[i].index = device->index;
    limits[i].soft = asked->soft, limits[i].hard = asked->hard;
    snprintf(limits[i].group, sizeof limits[i].group, "%s", asked->group);
    return 0;
}
EXPORT int nvmlDeviceGetMemoryLimits_v1(Handle *device, GetLimits *told_limits) {
    ASK_CARD(device);
    told_limits->soft = 0, told_limits->hard = ~0ull, told_limits->used = 0;
    for (unsigned i = 0; i < limited; i++)
        if (limits[i].index == device->index && !strcmp(limits[i].group, told_limits->group))
            told_limits->soft = limits[i].soft, told_limits->hard = limits[i].hard;
    return 0;
}
#endif
