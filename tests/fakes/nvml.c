/* A stand-in for libnvidia-ml with the symbols, sizes and codes of the real one. */
#include "usage.h"
#include <stddef.h>

enum {
    UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, ARGUMENT_VERSION_MISMATCH = 25
};

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct { uint64_t total, free, used; } c_nvmlMemory_t;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } c_nvmlMemory_v2_t;
typedef struct {
    unsigned pid;
    uint64_t usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} c_nvmlProcessInfo_v2_t;
typedef struct {
    unsigned pid;
    uint64_t usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
    uint64_t usedGpuCcProtectedMemory;
} c_nvmlProcessDetail_v1_t;
typedef struct {
    unsigned version, mode, numProcArrayEntries;
    c_nvmlProcessDetail_v1_t *procArray;
} c_nvmlProcessDetailList_v1_t;
typedef struct { unsigned gpu, memory; } c_nvmlUtilization_t;
typedef struct { unsigned isC2cEnabled; } c_nvmlC2cModeInfo_v1_t;
typedef struct { unsigned version, sensorType; int temperature; } c_nvmlTemperature_v1_t;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
        sharedEncoderCount, sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount,
        computeInstanceSliceCount;
    uint64_t memorySizeMB;
} c_nvmlDeviceAttributes;

/* What a handle stands for: a GPU, or one slice of it. */
typedef struct { Gpu *gpu; Slice *slice; } Part;

static int users; /* successful nvmlInit calls without their nvmlShutdown */

static int is_part(const void *handle, Part *part)
{
    for (int g = 0; g < machine.gpu_count; g++) {
        part->gpu = &machine.gpus[g];
        part->slice = NULL;
        if (handle == part->gpu)
            return 1;
        for (int s = 0; s < part->gpu->slice_count; s++) {
            part->slice = &part->gpu->slices[s];
            if (handle == part->slice)
                return 1;
        }
    }
    return 0;
}

static int system_refusal(const char *function)
{
    return users ? failure_of(&machine.failures, function) : UNINITIALIZED;
}

static int refusal(const void *handle, const char *function, Part *part)
{
    int code = system_refusal(function);
    if (code)
        return code;
    if (!is_part(handle, part))
        return INVALID_ARGUMENT;
    return failure_of(&part->gpu->failures, function);
}

#define SYSTEM                                      \
    do {                                            \
        int code_ = system_refusal(__func__);       \
        if (code_) return code_;                    \
    } while (0)

#define PART(handle)                                \
    Part part;                                      \
    do {                                            \
        int code_ = refusal(handle, __func__, &part); \
        if (code_) return code_;                    \
    } while (0)

/* NVML answers these questions for whole GPUs only. */
#define WHOLE_GPU(handle)                           \
    PART(handle);                                   \
    if (part.slice) return NOT_SUPPORTED

static int give_text(char *buffer, unsigned length, const char *text)
{
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return 0;
}

/* ------------------------------------------------------------ the library */

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (machine.init_error)
        return machine.init_error;
    users++;
    return 0;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    SYSTEM;
    users--;
    return 0;
}

const char *nvmlErrorString(int code)
{
    return code == 0 ? "Success" : code == NOT_SUPPORTED ? "Not Supported" : "Error";
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned length)
{
    SYSTEM;
    return give_text(buffer, length, machine.driver_version);
}

int nvmlSystemGetNVMLVersion(char *buffer, unsigned length)
{
    SYSTEM;
    return give_text(buffer, length, machine.nvml_version);
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    SYSTEM;
    *version = machine.cuda_version;
    return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    SYSTEM;
    *version = machine.cuda_version;
    return 0;
}

/* ------------------------------------------------------------ which GPU */

int nvmlDeviceGetCount_v2(unsigned *count)
{
    SYSTEM;
    *count = (unsigned)machine.gpu_count;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    SYSTEM;
    if (index >= (unsigned)machine.gpu_count)
        return INVALID_ARGUMENT;
    *handle = &machine.gpus[index];
    return failure_of(&machine.gpus[index].failures, __func__);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    SYSTEM;
    for (int g = 0; g < machine.gpu_count; g++) {
        Gpu *gpu = &machine.gpus[g];
        *handle = gpu;
        if (!strcmp(uuid, gpu->uuid))
            return failure_of(&gpu->failures, __func__);
        for (int s = 0; s < gpu->slice_count; s++) {
            *handle = &gpu->slices[s];
            if (!gpu->slices[s].hole && !strcmp(uuid, gpu->slices[s].uuid))
                return failure_of(&gpu->failures, __func__);
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **handle)
{
    unsigned domain, bus, device;
    SYSTEM;
    if (sscanf(address, "%x:%x:%x", &domain, &bus, &device) != 3)
        return INVALID_ARGUMENT;
    for (int g = 0; g < machine.gpu_count; g++) {
        Gpu *gpu = &machine.gpus[g];
        *handle = gpu;
        if (gpu->domain == domain && gpu->bus == bus && gpu->device == device)
            return failure_of(&gpu->failures, __func__);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index)
{
    WHOLE_GPU(handle);
    *index = (unsigned)(part.gpu - machine.gpus);
    return 0;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor)
{
    WHOLE_GPU(handle);
    *minor = (unsigned)(part.gpu - machine.gpus);
    return 0;
}

int nvmlDeviceGetName(void *handle, char *buffer, unsigned length)
{
    char name[2 * TEXT];
    PART(handle);
    snprintf(name, sizeof name, "%s%s", part.gpu->name, part.slice ? " MIG" : "");
    return give_text(buffer, length, name);
}

int nvmlDeviceGetUUID(void *handle, char *buffer, unsigned length)
{
    PART(handle);
    return give_text(buffer, length, part.slice ? part.slice->uuid : part.gpu->uuid);
}

int nvmlDeviceGetPciInfo_v3(void *handle, nvmlPciInfo_t *pci)
{
    PART(handle);
    memset(pci, 0, sizeof *pci);
    pci->domain = part.gpu->domain;
    pci->bus = part.gpu->bus;
    pci->device = part.gpu->device;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0",
             pci->domain & 0xFFFF, pci->bus & 0xFF, pci->device & 0xFF);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus,
             pci->device);
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    PART(handle);
    *major = part.gpu->major;
    *minor = part.gpu->minor;
    return 0;
}

/* ------------------------------------------------------------ how it does */

/* The scenario's processes of a part, and those that have noted what they hold. */
typedef struct {
    const Part *part;
    Process each[2 * MANY];
    int count;
    uint64_t noted_bytes;
} Users;

static int is_of(const Part *part, const char *uuid)
{
    if (part->slice)
        return !strcmp(uuid, part->slice->uuid);
    for (int s = 0; s < part->gpu->slice_count; s++)
        if (!strcmp(uuid, part->gpu->slices[s].uuid))
            return 1;
    return !strcmp(uuid, part->gpu->uuid);
}

static void add_user(unsigned pid, const char *uuid, uint64_t bytes, void *data)
{
    Users *found = data;
    if (!is_of(found->part, uuid) || found->count == 2 * MANY)
        return;
    found->each[found->count++] = (Process){pid, 0, bytes};
    found->noted_bytes += bytes;
}

static Users users_of(const Part *part)
{
    Users found = {.part = part, .count = part->gpu->process_count};
    memcpy(found.each, part->gpu->processes, sizeof part->gpu->processes);
    read_usage(add_user, &found);
    return found;
}

static uint64_t used_bytes(const Part *part)
{
    uint64_t by_scenario = part->slice ? part->slice->used_mib : part->gpu->used_mib;
    return by_scenario * MIB + users_of(part).noted_bytes;
}

/* Version 1 counts what the driver keeps for itself as used. */
int nvmlDeviceGetMemoryInfo(void *handle, c_nvmlMemory_t *memory)
{
    PART(handle);
    memory->total = (part.slice ? part.slice->mib : part.gpu->total_mib) * MIB;
    memory->used = used_bytes(&part) + (part.slice ? 0 : part.gpu->reserved_mib * MIB);
    memory->free = memory->total - memory->used;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, c_nvmlMemory_v2_t *memory)
{
    PART(handle);
    if (memory->version != (0x02000000 | sizeof *memory))
        return ARGUMENT_VERSION_MISMATCH;
    memory->total = (part.slice ? part.slice->mib : part.gpu->total_mib) * MIB;
    memory->reserved = part.slice ? 0 : part.gpu->reserved_mib * MIB;
    memory->used = used_bytes(&part);
    memory->free = memory->total - memory->used - memory->reserved;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, c_nvmlUtilization_t *rates)
{
    WHOLE_GPU(handle);
    rates->gpu = part.gpu->utilisation;
    rates->memory = part.gpu->utilisation / 2;
    return 0;
}

int nvmlDeviceGetComputeMode(void *handle, unsigned *mode)
{
    PART(handle);
    *mode = part.gpu->compute_mode;
    return 0;
}

int nvmlDeviceGetDisplayActive(void *handle, unsigned *active)
{
    WHOLE_GPU(handle);
    *active = 0;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts)
{
    WHOLE_GPU(handle);
    *milliwatts = part.gpu->power_mw;
    return 0;
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *celsius)
{
    WHOLE_GPU(handle);
    *celsius = part.gpu->temperature;
    return sensor ? INVALID_ARGUMENT : 0;
}

int nvmlDeviceGetTemperatureV(void *handle, c_nvmlTemperature_v1_t *asked)
{
    WHOLE_GPU(handle);
    if (asked->version != (0x01000000 | sizeof *asked))
        return ARGUMENT_VERSION_MISMATCH;
    asked->temperature = (int)part.gpu->temperature;
    return 0;
}

/* Graphics, multiprocessors, memory and video; only the second is described. */
static int give_clock(unsigned type, unsigned known, unsigned *mhz)
{
    if (type > 3)
        return INVALID_ARGUMENT;
    *mhz = known;
    return type == 1 && known ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetClockInfo(void *handle, unsigned type, unsigned *mhz)
{
    WHOLE_GPU(handle);
    return give_clock(type, part.gpu->sm_clock, mhz);
}

int nvmlDeviceGetMaxClockInfo(void *handle, unsigned type, unsigned *mhz)
{
    WHOLE_GPU(handle);
    return give_clock(type, part.gpu->sm_clock_max, mhz);
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *bits)
{
    WHOLE_GPU(handle);
    *bits = part.gpu->clock_limits;
    return part.gpu->sm_clock ? 0 : NOT_SUPPORTED;
}

/* The same question under the name that it had before driver 535. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *bits)
{
    WHOLE_GPU(handle);
    *bits = part.gpu->clock_limits;
    return part.gpu->sm_clock ? 0 : NOT_SUPPORTED;
}

/* ------------------------------------------------------------ its link */

#define LINK_CALL(function, field)                                          \
    int function(void *handle, unsigned *value)                             \
    {                                                                       \
        WHOLE_GPU(handle);                                                  \
        *value = part.gpu->field;                                           \
        return *value ? 0 : NOT_SUPPORTED;                                  \
    }

LINK_CALL(nvmlDeviceGetCurrPcieLinkGeneration, generation)
LINK_CALL(nvmlDeviceGetCurrPcieLinkWidth, width)
LINK_CALL(nvmlDeviceGetMaxPcieLinkGeneration, most_generation)
LINK_CALL(nvmlDeviceGetMaxPcieLinkWidth, most_width)

int nvmlDeviceGetC2cModeInfoV(void *handle, c_nvmlC2cModeInfo_v1_t *info)
{
    WHOLE_GPU(handle);
    info->isC2cEnabled = (unsigned)part.gpu->c2c;
    return part.gpu->c2c_supported ? 0 : NOT_SUPPORTED;
}

/* NVLink and its fabric: torch looks them up when memory has run out. There are none. */

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *type)
{
    WHOLE_GPU(handle);
    (void)link, (void)type;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, nvmlPciInfo_t *pci)
{
    WHOLE_GPU(handle);
    (void)link, (void)pci;
    return NOT_SUPPORTED;
}

/* As every struct with a version it begins with it, and that has its size. */
int nvmlDeviceGetGpuFabricInfoV(void *handle, unsigned *info)
{
    WHOLE_GPU(handle);
    memset(info + 1, 0, (*info & 0xFFFFFF) - sizeof *info);
    return 0;
}

/* ------------------------------------------------------------ who uses it */

static int is_listed(const Process *process, unsigned mode)
{
    return mode == 3 || (mode < 2 && (unsigned)process->graphics == mode);
}

static unsigned process_count(const Users *all, unsigned mode)
{
    unsigned count = 0;
    for (int i = 0; i < all->count; i++)
        count += (unsigned)is_listed(&all->each[i], mode);
    return count;
}

static void give_rows(const Users *all, unsigned mode, size_t row_bytes, char *target)
{
    for (int i = 0; i < all->count; i++) {
        const Process *each = &all->each[i];
        c_nvmlProcessDetail_v1_t row = {each->pid, each->used, ~0u, ~0u, 0};
        if (is_listed(each, mode)) {
            memcpy(target, &row, row_bytes);
            target += row_bytes;
        }
    }
}

/* Asked with too little room it tells how much it needs; that is how one asks. */
static int give_processes(const Part *part, unsigned mode, int row_bytes, unsigned *count,
                          char *rows)
{
    Users all = users_of(part);
    unsigned needed = process_count(&all, mode), room = *count;
    *count = needed;
    if (!needed)
        return 0;
    if (!rows || room < needed)
        return INSUFFICIENT_SIZE;
    give_rows(&all, mode, (size_t)row_bytes, rows);
    return 0;
}

#define PROCESS_CALL(function, mode, row_bytes)                             \
    int function(void *handle, unsigned *count, void *rows)                 \
    {                                                                       \
        PART(handle);                                                       \
        return give_processes(&part, mode, row_bytes, count, rows);         \
    }

PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v3, 0, machine.process_row_bytes)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, 1, machine.process_row_bytes)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2, machine.process_row_bytes)
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v2, 0, 24)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v2, 1, 24)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2, 24)
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses, 0, 16)

int nvmlDeviceGetRunningProcessDetailList(void *handle, c_nvmlProcessDetailList_v1_t *list)
{
    PART(handle);
    if (list->version != (0x01000000 | sizeof *list))
        return ARGUMENT_VERSION_MISMATCH;
    return give_processes(&part, list->mode, sizeof *list->procArray,
                          &list->numProcArrayEntries, (char *)list->procArray);
}

/* ------------------------------------------------------------ its slices */

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    WHOLE_GPU(handle);
    if (!part.gpu->mig_supported)
        return NOT_SUPPORTED;
    *current = *pending = (unsigned)part.gpu->mig_enabled;
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count)
{
    WHOLE_GPU(handle);
    *count = part.gpu->mig_supported ? 7 : 0;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice)
{
    WHOLE_GPU(handle);
    if (!part.gpu->mig_supported)
        return NOT_SUPPORTED;
    if (index >= (unsigned)part.gpu->slice_count || part.gpu->slices[index].hole)
        return NOT_FOUND;
    *slice = &part.gpu->slices[index];
    return 0;
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is_slice)
{
    PART(handle);
    *is_slice = part.slice != NULL;
    return 0;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **gpu)
{
    PART(handle);
    *gpu = part.gpu;
    return part.slice ? 0 : INVALID_ARGUMENT;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *gi)
{
    PART(handle);
    *gi = part.slice ? part.slice->gi : 0;
    return part.slice ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *ci)
{
    PART(handle);
    *ci = part.slice ? part.slice->ci : 0;
    return part.slice ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetAttributes_v2(void *handle, c_nvmlDeviceAttributes *attributes)
{
    PART(handle);
    if (!part.slice)
        return NOT_SUPPORTED;
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = 16;
    attributes->gpuInstanceSliceCount = attributes->computeInstanceSliceCount = 1;
    attributes->memorySizeMB = part.slice->mib;
    return 0;
}

/* ------------------------------------- for the test that compares layouts */

#define SIZE(type) {#type, (int)sizeof(type)}
#define AT(type, field) {#type "." #field, (int)offsetof(type, field)}
typedef struct { const char *name; int bytes; } Layout;
const Layout fake_layouts[] = {
    SIZE(nvmlPciInfo_t), AT(nvmlPciInfo_t, busIdLegacy), AT(nvmlPciInfo_t, domain),
    AT(nvmlPciInfo_t, bus), AT(nvmlPciInfo_t, device), AT(nvmlPciInfo_t, pciDeviceId),
    AT(nvmlPciInfo_t, pciSubSystemId), AT(nvmlPciInfo_t, busId),
    SIZE(c_nvmlMemory_t), AT(c_nvmlMemory_t, total), AT(c_nvmlMemory_t, free),
    AT(c_nvmlMemory_t, used),
    SIZE(c_nvmlMemory_v2_t), AT(c_nvmlMemory_v2_t, version), AT(c_nvmlMemory_v2_t, total),
    AT(c_nvmlMemory_v2_t, reserved), AT(c_nvmlMemory_v2_t, free),
    AT(c_nvmlMemory_v2_t, used),
    SIZE(c_nvmlProcessInfo_v2_t), AT(c_nvmlProcessInfo_v2_t, pid),
    AT(c_nvmlProcessInfo_v2_t, usedGpuMemory), AT(c_nvmlProcessInfo_v2_t, gpuInstanceId),
    AT(c_nvmlProcessInfo_v2_t, computeInstanceId),
    SIZE(c_nvmlProcessDetail_v1_t), AT(c_nvmlProcessDetail_v1_t, pid),
    AT(c_nvmlProcessDetail_v1_t, usedGpuMemory),
    AT(c_nvmlProcessDetail_v1_t, gpuInstanceId),
    AT(c_nvmlProcessDetail_v1_t, computeInstanceId),
    AT(c_nvmlProcessDetail_v1_t, usedGpuCcProtectedMemory),
    SIZE(c_nvmlProcessDetailList_v1_t), AT(c_nvmlProcessDetailList_v1_t, version),
    AT(c_nvmlProcessDetailList_v1_t, mode),
    AT(c_nvmlProcessDetailList_v1_t, numProcArrayEntries),
    AT(c_nvmlProcessDetailList_v1_t, procArray),
    SIZE(c_nvmlUtilization_t), AT(c_nvmlUtilization_t, gpu),
    AT(c_nvmlUtilization_t, memory),
    SIZE(c_nvmlTemperature_v1_t), AT(c_nvmlTemperature_v1_t, sensorType),
    AT(c_nvmlTemperature_v1_t, temperature),
    SIZE(c_nvmlDeviceAttributes), AT(c_nvmlDeviceAttributes, multiprocessorCount),
    AT(c_nvmlDeviceAttributes, computeInstanceSliceCount),
    AT(c_nvmlDeviceAttributes, memorySizeMB),
    {NULL, 0},
};
