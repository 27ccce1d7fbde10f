/* A stand-in for libcuda with the latch of the real one.
 *
 * Every call answers 3 until a cuInit succeeds; only then, and once, are the
 * variables read, from C's environment. A forked child of an initialised process
 * is answered 3 by everything. Each cuInit leaves a line in the log.
 */
#include "gpus.h"
#include <ctype.h>
#include <fcntl.h>
#include <unistd.h>

enum {
    INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    ENTRY_NOT_FOUND = 500
};

typedef struct { Gpu *gpu; Slice *slice; } Device;
typedef struct { Device each[MANY]; int count; } Devices;

static Devices visible;
static pid_t initialised_in; /* 0: nowhere yet */

/* ------------------------------------------------------------ all devices */

static int before(const Gpu *one, const Gpu *other, int fastest_first)
{
    if (fastest_first && one->speed != other->speed)
        return one->speed > other->speed;
    if (one->domain != other->domain)
        return one->domain < other->domain;
    if (one->bus != other->bus)
        return one->bus < other->bus;
    return one->device < other->device;
}

static void insert(Devices *list, Gpu *gpu, int fastest_first)
{
    int place = list->count++;
    for (; place && before(gpu, list->each[place - 1].gpu, fastest_first); place--)
        list->each[place] = list->each[place - 1];
    list->each[place] = (Device){gpu, NULL};
}

/* Any word other than PCI_BUS_ID means the default. */
static Devices all_gpus(const char *order)
{
    Devices all = {.count = 0};
    int fastest_first = !order || strcmp(order, "PCI_BUS_ID");
    for (int g = 0; g < machine.gpu_count; g++)
        if (!machine.gpus[g].outside_cuda)
            insert(&all, &machine.gpus[g], fastest_first);
    return all;
}

/* ------------------------------------------------------------ the mask */

typedef enum { NUMBER, GPU_UUID, MIG_UUID } Kind;

static Kind kind_of(const char *entry)
{
    if (!strncmp(entry, "MIG-", 4))
        return MIG_UUID;
    return strncmp(entry, "GPU-", 4) ? NUMBER : GPU_UUID;
}

/* As strtoul reads it, but a sign that makes it negative is no number here. */
static int gpu_by_number(const char *entry, const Devices *all, Device *found)
{
    long number = 0;
    while (isspace((unsigned char)*entry))
        entry++;
    if (*entry == '-')
        return 0;
    entry += *entry == '+';
    if (!isdigit((unsigned char)*entry))
        return 0;
    for (; isdigit((unsigned char)*entry); entry++)
        if (number <= MANY)
            number = number * 10 + (*entry - '0');
    if (number >= all->count)
        return 0;
    *found = all->each[number];
    return 1;
}

static int gpu_by_uuid(const char *prefix, const Devices *all, Device *found)
{
    int matches = 0;
    for (int i = 0; i < all->count; i++)
        if (!strncmp(prefix, all->each[i].gpu->uuid, strlen(prefix))) {
            *found = all->each[i];
            matches++;
        }
    return matches == 1;
}

/* By its own UUID, or by the name used before driver 470: MIG-GPU-.../GI/CI. */
static int is_named(const char *entry, const Gpu *gpu, const Slice *slice)
{
    char old[2 * TEXT];
    snprintf(old, sizeof old, "MIG-%s/%u/%u", gpu->uuid, slice->gi, slice->ci);
    return !slice->hole && (!strcmp(entry, slice->uuid) || !strcmp(entry, old));
}

static int slice_by_name(const char *entry, const Devices *all, Device *found)
{
    for (int i = 0; i < all->count; i++) {
        Gpu *gpu = all->each[i].gpu;
        for (int s = 0; gpu->mig_enabled && s < gpu->slice_count; s++)
            if (is_named(entry, gpu, &gpu->slices[s])) {
                *found = (Device){gpu, &gpu->slices[s]};
                return 1;
            }
    }
    return 0;
}

static int find_device(const char *entry, Kind kind, const Devices *all, Device *found)
{
    if (kind == MIG_UUID)
        return slice_by_name(entry, all, found);
    if (kind == GPU_UUID)
        return gpu_by_uuid(entry, all, found);
    return gpu_by_number(entry, all, found);
}

static int has_duplicates(const Devices *list)
{
    for (int i = 0; i < list->count; i++)
        for (int j = 0; j < i; j++)
            if (list->each[i].gpu == list->each[j].gpu
                && list->each[i].slice == list->each[j].slice)
                return 1;
    return 0;
}

/* The first entry fixes the kind; the first that names nothing ends the list. */
static Devices chosen_by(const char *mask, const Devices *all)
{
    Devices chosen = {.count = 0};
    char *copy = strdup(mask), *rest = copy, *entry;
    Kind kind = kind_of(copy);
    while ((entry = strsep(&rest, ",")) && chosen.count < MANY) {
        Device *next = &chosen.each[chosen.count];
        if (kind_of(entry) != kind || !find_device(entry, kind, all, next))
            break;
        chosen.count++;
    }
    free(copy);
    if (has_duplicates(&chosen))
        chosen.count = 0;
    return chosen;
}

/* ------------------------------------------------------------ MIG */

static Slice *first_slice(Gpu *gpu)
{
    for (int s = 0; s < gpu->slice_count; s++)
        if (!gpu->slices[s].hole)
            return &gpu->slices[s];
    return NULL;
}

/* A GPU in MIG mode gives its first slice, or nothing if it has none. */
static Devices with_slices(const Devices *chosen)
{
    Devices result = {.count = 0};
    for (int i = 0; i < chosen->count; i++) {
        Device device = chosen->each[i];
        if (device.gpu->mig_enabled && !device.slice)
            device.slice = first_slice(device.gpu);
        if (!device.gpu->mig_enabled || device.slice)
            result.each[result.count++] = device;
    }
    return result;
}

/* Drivers that allow one slice a process show it alone. What newer ones show
 * when slices and whole GPUs are mixed is not known; no test relies on it. */
static Devices limited_to_one_slice(const Devices *chosen)
{
    for (int i = 0; i < chosen->count; i++)
        if (chosen->each[i].slice)
            return (Devices){.each = {chosen->each[i]}, .count = 1};
    return *chosen;
}

/* An MPS daemon has a mask of its own, and numbers what that leaves anew. */
static Devices visible_under(const char *mask, const char *order)
{
    Devices all = all_gpus(order);
    Devices served = *machine.mps ? chosen_by(machine.mps, &all) : all;
    Devices chosen = mask ? chosen_by(mask, &served) : served;
    Devices sliced = with_slices(&chosen);
    return limited_to_one_slice(&sliced);
}

static Devices visible_now(void)
{
    return visible_under(getenv("CUDA_VISIBLE_DEVICES"), getenv("CUDA_DEVICE_ORDER"));
}

/* NVML's number of a slice's place, empty places left out; -1 for a whole GPU. */
static int place_of(const Device *device)
{
    int place = -1;
    for (const Slice *s = device->gpu->slices; device->slice && s <= device->slice; s++)
        place += !s->hole;
    return place;
}

/* For tests that try many masks: reads one without the latch. Fills in a pair for
 * each device, NVML's number of the GPU and the slice's place, and counts them. */
int fake_visible(const char *mask, const char *order, int *pairs)
{
    Devices found = visible_under(mask, order);
    for (int i = 0; i < found.count; i++) {
        *pairs++ = (int)(found.each[i].gpu - machine.gpus);
        *pairs++ = place_of(&found.each[i]);
    }
    return found.count;
}

/* ------------------------------------------------------------ the latch */

static int state(void)
{
    return initialised_in && initialised_in == getpid() ? 0 : NOT_INITIALIZED;
}

static void log_cuinit(int code)
{
    const char *path = getenv("GPUMAGIC_FAKE_LOG");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file >= 0) {
        dprintf(file, "cuInit pid=%d code=%d\n", (int)getpid(), code);
        close(file);
    }
}

static int initialise(void)
{
    if (initialised_in)
        return state();
    if (!strcmp(machine.cuinit_does, "hang"))
        pause();
    if (!strcmp(machine.cuinit_does, "crash"))
        abort();
    if (machine.cuinit_error)
        return machine.cuinit_error;
    visible = visible_now();
    if (!visible.count)
        return NO_DEVICE;
    initialised_in = getpid();
    return 0;
}

int cuInit(unsigned flags)
{
    int code = flags ? INVALID_VALUE : initialise();
    log_cuinit(code);
    return code;
}

#define NEEDS_INIT                      \
    do {                                \
        if (state()) return state();    \
    } while (0)

#define NEEDS_DEVICE(index)                                             \
    NEEDS_INIT;                                                         \
    if ((index) < 0 || (index) >= visible.count) return INVALID_DEVICE; \
    const Gpu *gpu = visible.each[index].gpu;                           \
    const Slice *slice = visible.each[index].slice;                     \
    (void)gpu, (void)slice

/* ------------------------------------------------------------ devices */

int cuDriverGetVersion(int *version)
{
    *version = machine.cuda_version;
    return 0;
}

int cuDeviceGetCount(int *count)
{
    NEEDS_INIT;
    *count = visible.count;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    NEEDS_DEVICE(ordinal);
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int length, int device)
{
    NEEDS_DEVICE(device);
    snprintf(name, (size_t)length, "%s%s", gpu->name, slice ? " MIG" : "");
    return 0;
}

/* Sixteen raw bytes, of which any may be zero. */
static int give_uuid(unsigned char *bytes, const char *text)
{
    const char *digits = strchr(text, '-');
    for (int i = 0; digits && i < 16; i++) {
        digits += *digits == '-';
        if (sscanf(digits, "%2hhx", &bytes[i]) != 1)
            return INVALID_VALUE;
        digits += 2;
    }
    return digits ? 0 : INVALID_VALUE;
}

/* The first version does not know of slices. */
int cuDeviceGetUuid(unsigned char *bytes, int device)
{
    NEEDS_DEVICE(device);
    return give_uuid(bytes, gpu->uuid);
}

int cuDeviceGetUuid_v2(unsigned char *bytes, int device)
{
    NEEDS_DEVICE(device);
    return give_uuid(bytes, slice ? slice->uuid : gpu->uuid);
}

int cuDeviceGetPCIBusId(char *address, int length, int device)
{
    NEEDS_DEVICE(device);
    snprintf(address, (size_t)length, "%04x:%02x:%02x.0", gpu->domain, gpu->bus,
             gpu->device);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    NEEDS_DEVICE(device);
    *value = attribute == 16 ? (int)gpu->sm_count
           : attribute == 33 ? (int)gpu->bus
           : attribute == 34 ? (int)gpu->device
           : attribute == 50 ? (int)gpu->domain
           : attribute == 75 ? gpu->major
           : attribute == 76 ? gpu->minor
                             : 0;
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    NEEDS_DEVICE(device);
    *bytes = (slice ? slice->mib : gpu->total_mib) * MIB;
    return 0;
}

/* ------------------------------------------------------------ contexts */

int cuCtxGetCurrent(void **context)
{
    NEEDS_INIT;
    *context = NULL;
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    NEEDS_DEVICE(device);
    *flags = 0;
    *active = 0;
    return 0;
}

/* ------------------------------------------------------------ the rest */

typedef struct { int code; const char *name, *text; } Error;
static const Error errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported driver"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const Error *error_of(int code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return &errors[i];
    return NULL;
}

int cuGetErrorName(int code, const char **name)
{
    const Error *error = error_of(code);
    *name = error ? error->name : NULL;
    return error ? 0 : INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text)
{
    const Error *error = error_of(code);
    *text = error ? error->text : NULL;
    return error ? 0 : INVALID_VALUE;
}

/* The runtime library's private tables cannot be imitated. */
int cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return ENTRY_NOT_FOUND;
}

static int unknown_function(void) { return state() ? state() : ENTRY_NOT_FOUND; }

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *found);

typedef struct { const char *name; void *function; } Entry;
#define SAME(name) {#name, (void *)name}
static const Entry entries[] = {
    SAME(cuInit), SAME(cuDriverGetVersion), SAME(cuDeviceGetCount), SAME(cuDeviceGet),
    SAME(cuDeviceGetName), SAME(cuDeviceGetPCIBusId), SAME(cuDeviceGetAttribute),
    SAME(cuCtxGetCurrent), SAME(cuDevicePrimaryCtxGetState), SAME(cuGetErrorName),
    SAME(cuGetErrorString), SAME(cuGetExportTable),
    {"cuDeviceGetUuid", (void *)cuDeviceGetUuid_v2},
    {"cuDeviceTotalMem", (void *)cuDeviceTotalMem_v2},
    {"cuGetProcAddress", (void *)cuGetProcAddress_v2},
};

/* A name that is not listed gets a stub: the runtime gives up without one. */
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    (void)version, (void)flags;
    *function = (void *)unknown_function;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (!strcmp(entries[i].name, name))
            *function = entries[i].function;
    return 0;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *found)
{
    if (found)
        *found = 0;
    return cuGetProcAddress(name, function, version, flags);
}
