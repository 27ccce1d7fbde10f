/* A stand-in for libcuda with the latch of the real one.
 *
 * Every call answers 3 until a cuInit succeeds; only then, and once, are the
 * variables read, from C's environment. A forked child of an initialised process
 * is answered 3 by everything. Each cuInit leaves a line in the log.
 *
 * Alone it is a driver that knows its devices and nothing else; cuda/ adds memory,
 * streams and kernels.
 */
#include "usage.h"
#include "libcuda.h"
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

enum {
    INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, ENTRY_NOT_FOUND = 500, PEER_ACCESS_ALREADY_ENABLED = 704
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

int fake_state(void)
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
        return fake_state();
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
        if (fake_state()) return fake_state();    \
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

/* What every device here has in common: CUDA's number of it, and an H100's value. */
static const int common_attributes[][2] = {
    {1, 1024},                               /* threads of a block */
    {2, 1024}, {3, 1024}, {4, 64},           /* the most of them in x, y and z */
    {5, 2147483647}, {6, 65535}, {7, 65535}, /* blocks of a grid in x, y and z */
    {8, 49152}, {97, 232448},                /* shared memory of a block; opted in */
    {81, 233472}, {111, 1024},               /* of a multiprocessor; reserved */
    {12, 65536}, {82, 65536},                /* registers of a block; a multiprocessor */
    {9, 65536},                              /* constants */
    {10, 32},                                /* threads of a warp */
    {39, 2048}, {106, 32},                   /* threads and blocks of a multiprocessor */
    {11, 2147483647}, {14, 512}, {51, 32},   /* pitch; alignment and pitch of textures */
    {13, 1980000},                           /* clock, kHz */
    {36, 2619000}, {37, 5120},               /* memory's clock, kHz, and bits of its bus */
    {38, 52428800}, {108, 32768000},         /* L2; persisting */
    {40, 3},                                 /* copy engines */
    {19, 1}, {41, 1}, {91, 1}, {99, 1},      /* memory of the host: mapped, registered */
    {31, 1}, {32, 1}, {78, 1},               /* kernels side by side; ECC; priorities */
    {79, 1}, {80, 1},                        /* caches of L1 */
    {83, 1}, {89, 1}, {90, 1},               /* managed memory; preemption */
    {95, 1}, {120, 1},                       /* cooperative launches; clusters */
    {102, 1}, {103, 1}, {115, 1},            /* virtual memory, as files; pools */
};

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
    for (size_t i = 0; i < sizeof common_attributes / sizeof *common_attributes; i++)
        if (common_attributes[i][0] == attribute)
            *value = common_attributes[i][1];
    return 0;
}

/* Of a card less than NVML tells: what the driver keeps for itself is none of it. */
static uint64_t total_bytes(const Device *device)
{
    const Slice *slice = device->slice;
    return (slice ? slice->mib : device->gpu->total_mib - device->gpu->reserved_mib) * MIB;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    NEEDS_DEVICE(device);
    *bytes = total_bytes(&visible.each[device]);
    return 0;
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    NEEDS_DEVICE(device);
    if (peer < 0 || peer >= visible.count)
        return INVALID_DEVICE;
    *can = device != peer;
    return 0;
}

int fake_device_count(void) { return visible.count; }
int fake_launch_queue(void) { return machine.launch_queue; }
int fake_descending_addresses(void) { return machine.descending_addresses; }

const char *fake_uuid(int device)
{
    const Device *each = &visible.each[device];
    return each->slice ? each->slice->uuid : each->gpu->uuid;
}

/* ------------------------------------------------------------ memory in use */

/* What this process has of each device. */
static struct { int has_context; uint64_t used; char peers[MANY]; } held[MANY];

static uint64_t held_bytes(int device)
{
    return held[device].has_context ? held[device].used + machine.context_mib * MIB : 0;
}

/* Written over in one piece, so that nobody reads half of it. */
static void note_usage(void)
{
    char path[4096], text[MANY * (TEXT + 24)];
    int length = 0, file;
    usage_path(path, sizeof path, (unsigned)getpid());
    if (!*path || (file = open(path, O_WRONLY | O_CREAT, 0600)) < 0)
        return;
    for (int d = 0; d < visible.count; d++)
        if (held[d].has_context)
            length += sprintf(text + length, "%s %lu\n", fake_uuid(d), held_bytes(d));
    if (pwrite(file, text, (size_t)length, 0) < 0 || ftruncate(file, length))
        perror("fake GPUs: the memory in use is not noted");
    close(file);
}

__attribute__((destructor)) static void forget_usage(void)
{
    char path[4096];
    usage_path(path, sizeof path, (unsigned)getpid());
    if (*path && initialised_in == getpid())
        unlink(path);
}

typedef struct { const char *uuid; uint64_t bytes; } Others;

static void add_other(unsigned pid, const char *uuid, uint64_t bytes, void *data)
{
    Others *others = data;
    if (pid != (unsigned)getpid() && !strcmp(uuid, others->uuid))
        others->bytes += bytes;
}

uint64_t fake_free_bytes(int device)
{
    const Device *each = &visible.each[device];
    Others others = {fake_uuid(device), 0};
    read_usage(add_other, &others);
    uint64_t by_scenario = each->slice ? each->slice->used_mib : each->gpu->used_mib;
    uint64_t taken = by_scenario * MIB + others.bytes + held_bytes(device);
    uint64_t total = total_bytes(each);
    return taken < total ? total - taken : 0;
}

void fake_use(int device, int64_t bytes)
{
    held[device].used += (uint64_t)bytes;
    note_usage();
}

/* ------------------------------------------------------------ contexts */

/* Each device has its primary one, whose handle is the device's number plus one. */
static __thread intptr_t current; /* 0: none */

int fake_device(void) { return (int)current - 1; }

#define NEEDS_CONTEXT                           \
    NEEDS_INIT;                                 \
    if (!current) return INVALID_CONTEXT

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    NEEDS_DEVICE(device);
    *context = (void *)(intptr_t)(device + 1);
    if (!__atomic_exchange_n(&held[device].has_context, 1, __ATOMIC_SEQ_CST))
        note_usage();
    return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    NEEDS_DEVICE(device);
    *flags = 0;
    *active = held[device].has_context;
    return 0;
}

int cuCtxGetCurrent(void **context)
{
    NEEDS_INIT;
    *context = (void *)current;
    return 0;
}

int cuCtxSetCurrent(void *context)
{
    NEEDS_INIT;
    if ((intptr_t)context < 0 || (intptr_t)context > visible.count)
        return INVALID_CONTEXT;
    current = (intptr_t)context;
    return 0;
}

int cuCtxGetDevice(int *device)
{
    NEEDS_CONTEXT;
    *device = fake_device();
    return 0;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    NEEDS_CONTEXT;
    *least = 0;
    *greatest = -5;
    return 0;
}

int cuCtxEnablePeerAccess(void *peer, unsigned flags)
{
    NEEDS_CONTEXT;
    intptr_t other = (intptr_t)peer;
    if (flags || other < 1 || other > visible.count || other == current)
        return flags ? INVALID_VALUE : INVALID_DEVICE;
    char *enabled = &held[current - 1].peers[other - 1];
    int before = *enabled;
    *enabled = 1;
    return before ? PEER_ACCESS_ALREADY_ENABLED : 0;
}

int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    NEEDS_CONTEXT;
    *available = fake_free_bytes(fake_device());
    *total = total_bytes(&visible.each[fake_device()]);
    return 0;
}

/* ------------------------------------------------------------ the rest */

typedef struct { int code; const char *name, *text; } Error;
static const Error errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {9, "CUDA_ERROR_INVALID_CONFIGURATION", "invalid configuration argument"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
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

static int unknown_function(void)
{
    return fake_state() ? fake_state() : ENTRY_NOT_FOUND;
}

/* A function of this library, in its newest version. */
static void *own_function(const char *name)
{
    static const char *const versions[] = {"_v3", "_v2", ""};
    Dl_info self;
    char versioned[TEXT];
    void *found = NULL;
    void *library = dladdr((void *)own_function, &self)
                  ? dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    for (int v = 0; library && v < 3 && !found; v++) {
        snprintf(versioned, sizeof versioned, "%s%s", name, versions[v]);
        found = dlsym(library, versioned);
    }
    return found;
}

/* A name that is not there gets a stub: the runtime gives up without one. */
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *found)
{
    (void)version, (void)flags;
    void *own = own_function(name);
    *function = own ? own : (void *)unknown_function;
    if (found)
        *found = 0;
    return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
