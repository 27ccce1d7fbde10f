// Virtual memory: addresses, and what is mapped there; and memory of other processes.
#include "parts.h"

#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

// What cuMemCreate gives: a piece of the device's file, or of another process's. (A file for
// each were thousands of descriptors.)
struct Physical {
    int file;
    off_t offset;
    size_t size;
    int device;
    bool own;
    CUmemAllocationProp properties;
    int uses = 1;
};

struct Reserved {
    size_t size;
};
std::map<uintptr_t, Reserved> &reserved = *new std::map<uintptr_t, Reserved>;

struct Mapping {
    size_t size;
    Physical *of;
};
std::map<uintptr_t, Mapping> &mappings = *new std::map<uintptr_t, Mapping>;

// What another process is handed, as CUDA's own handle or in a file: where the memory lies.
struct Whereabouts {
    uint32_t magic;
    pid_t process;
    int file;
    off_t offset;
    size_t size;
    CUuuid device;
};
constexpr uint32_t ALLOCATION = 0xfa6e0001, PHYSICAL = 0xfa6e0003;
static_assert(sizeof(Whereabouts) <= sizeof(CUipcMemHandle));

struct Opened {
    uintptr_t at;
    size_t size;
    unsigned count;
};
std::map<std::pair<pid_t, std::pair<int, off_t>>, Opened> &opened =
    *new std::map<std::pair<pid_t, std::pair<int, off_t>>, Opened>;

CUmemGenericAllocationHandle handle_of(Physical *physical) { return uintptr_t(physical); }
Physical *physical_of(CUmemGenericAllocationHandle handle)
{
    return reinterpret_cast<Physical *>(uintptr_t(handle));
}

void unuse(Physical *physical)
{
    if (--physical->uses) return;
    if (physical->own) {
        fallocate(physical->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, physical->offset,
                  off_t(physical->size));
        fake_use(physical->device, -int64_t(physical->size));
    } else
        close(physical->file);
    delete physical;
}

bool is_mapped(uintptr_t at, size_t size)
{
    auto next = mappings.lower_bound(at);
    return (next != mappings.end() && next->first < at + size)
           || holding(mappings, at) != mappings.end();
}

CUuuid uuid_of(int device)
{
    CUuuid uuid;
    cuDeviceGetUuid(&uuid, device);
    return uuid;
}

// By its UUID; the thread's own if this process does not see it.
int device_of(const Whereabouts &where)
{
    for (int device = 0; device < fake_device_count(); device++) {
        const CUuuid uuid = uuid_of(device);
        if (!memcmp(&uuid, &where.device, sizeof uuid)) return device;
    }
    return fake_device();
}

}  // namespace

int open_file_of(pid_t process, int file)
{
    std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
    return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

// ------------------------------------------------------------------ physical memory

CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *,
                                       CUmemAllocationGranularity_flags)
{
    *size = GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long)
{
    NEEDS_DRIVER;
    const int device = properties->location.id;
    if (!size || size % GRANULE || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE
        || properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (device < 0 || device >= fake_device_count()) return CUDA_ERROR_INVALID_DEVICE;
    Guard guard(lock);
    DeviceMemory *memory = memory_of(device);
    if (!memory || size > fake_free_bytes(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = handle_of(
        new Physical{memory->file, memory->physical_end, size, device, true, *properties});
    memory->physical_end += off_t(size); // not used again: what is given back is a hole
    fake_use(device, int64_t(size));
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    unuse(physical_of(handle));
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *at)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    auto it = holding(mappings, uintptr_t(at));
    if (it == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    it->second.of->uses++;
    *out = handle_of(it->second.of);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
                                                CUmemGenericAllocationHandle handle)
{
    *out = physical_of(handle)->properties;
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long)
{
    NEEDS_DRIVER;
    const Physical *physical = physical_of(handle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        || !(physical->properties.requestedHandleTypes & type))
        return CUDA_ERROR_INVALID_VALUE;
    const Whereabouts where{PHYSICAL,         getpid(),       physical->file,
                            physical->offset, physical->size, uuid_of(physical->device)};
    int file = memfd_create("gpu-exported", MFD_CLOEXEC);
    if (file < 0 || write(file, &where, sizeof where) != sizeof where)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int *>(out) = file;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
                                        CUmemAllocationHandleType type)
{
    NEEDS_DRIVER;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    Whereabouts where;
    if (pread(int(intptr_t(os_handle)), &where, sizeof where, 0) != sizeof where
        || where.magic != PHYSICAL)
        return CUDA_ERROR_INVALID_VALUE;
    const int file = open_file_of(where.process, where.file), device = device_of(where);
    if (file < 0) return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    properties.requestedHandleTypes = type;
    *out = handle_of(new Physical{file, where.offset, where.size, device, false, properties});
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------ addresses

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr,
                             unsigned long long)
{
    NEEDS_DRIVER;
    if (!size || size % GRANULE) return CUDA_ERROR_INVALID_VALUE;
    alignment = std::max(alignment, GRANULE);
    void *found = mmap(nullptr, size + alignment, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    const uintptr_t begin = uintptr_t(found), end = begin + size + alignment;
    const uintptr_t at = (begin + alignment - 1) / alignment * alignment;
    if (at > begin) munmap(found, at - begin);
    if (end > at + size) munmap(reinterpret_cast<void *>(at + size), end - (at + size));
    Guard guard(lock);
    reserved[at] = {size};
    *out = at;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t size)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    auto it = reserved.find(at);
    if (it == reserved.end() || it->second.size != size || is_mapped(at, size))
        return CUDA_ERROR_INVALID_VALUE;
    munmap(reinterpret_cast<void *>(at), size);
    reserved.erase(it);
    return CUDA_SUCCESS;
}

// Nobody may touch it until access is given.
CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long)
{
    NEEDS_DRIVER;
    Physical *physical = physical_of(handle);
    Guard guard(lock);
    auto range = holding(reserved, at);
    if (range == reserved.end() || at + size > range->first + range->second.size
        || offset + size > physical->size || size % GRANULE || is_mapped(at, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap(reinterpret_cast<void *>(at), size, PROT_NONE,
             MAP_SHARED | MAP_FIXED | MAP_NORESERVE, physical->file,
             physical->offset + off_t(offset))
        == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    physical->uses++;
    mappings[at] = {size, physical};
    on_device[at] = {size, 0, physical->device, false};
    return CUDA_SUCCESS;
}

// As the real one it waits for what is under way on the device.
CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    auto it = mappings.find(at);
    if (it == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
    host_waits(guard, all_on(it->second.of->device));
    while (it != mappings.end() && it->first < at + size) {
        if (it->first + it->second.size > at + size) return CUDA_ERROR_INVALID_VALUE;
        forbid_addresses(it->first, it->second.size);
        on_device.erase(it->first);
        unuse(it->second.of);
        it = mappings.erase(it);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *descriptions,
                        size_t count)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    int protection = PROT_NONE;
    for (size_t i = 0; i < count; i++) {
        if (descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ) protection |= PROT_READ;
        if (descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            protection |= PROT_READ | PROT_WRITE;
    }
    for (uintptr_t next = at; next < at + size;) {
        auto it = holding(mappings, next);
        if (it == mappings.end()) return CUDA_ERROR_INVALID_VALUE;
        next = it->first + it->second.size;
    }
    return mprotect(reinterpret_cast<void *>(at), size, protection) ? CUDA_ERROR_INVALID_VALUE
                                                                    : CUDA_SUCCESS;
}

// ------------------------------------------------------------------ allocations of others

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr at)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    auto it = holding(on_device, at);
    if (it == on_device.end() || !it->second.charged || it->second.pooled)
        return CUDA_ERROR_INVALID_VALUE;
    const DeviceMemory &memory = *memory_of(it->second.device);
    const Whereabouts where{ALLOCATION,         getpid(),
                            memory.file,        off_t(it->first - memory.base),
                            it->second.charged, uuid_of(it->second.device)};
    memset(out, 0, sizeof *out);
    memcpy(out, &where, sizeof where);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle given, unsigned)
{
    NEEDS_CONTEXT;
    Whereabouts where;
    memcpy(&where, &given, sizeof where);
    *out = 0;
    if (where.magic != ALLOCATION) return CUDA_ERROR_INVALID_VALUE;
    if (where.process == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    Guard guard(lock);
    Opened &once = opened[{where.process, {where.file, where.offset}}];
    if (!once.count) {
        int file = open_file_of(where.process, where.file);
        void *at = file < 0 ? MAP_FAILED
                            : mmap(nullptr, where.size, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_NORESERVE, file, where.offset);
        if (file >= 0) close(file);
        if (at == MAP_FAILED) return CUDA_ERROR_MAP_FAILED;
        on_device[uintptr_t(at)] = {where.size, 0, device_of(where), false};
        once = {uintptr_t(at), where.size, 0};
    }
    once.count++;
    *out = once.at;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr at)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    for (auto it = opened.begin(); it != opened.end(); ++it) {
        Opened &each = it->second;
        if (!each.count || each.at != at) continue;
        if (each.count > 1) {
            each.count--;
            return CUDA_SUCCESS;
        }
        host_waits(guard, all_on(on_device[at].device));
        on_device.erase(at);
        munmap(reinterpret_cast<void *>(at), each.size);
        opened.erase(it);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}
