// Memory of devices, the pools that cudaMallocAsync takes it from, and pinned memory.
#include "parts.h"

#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

std::map<uintptr_t, Block> &on_device = *new std::map<uintptr_t, Block>;

namespace {

constexpr size_t STRETCH = size_t(1) << 39; // addresses of a device
constexpr off_t FILE_BYTES = off_t(1) << 46;

std::map<int, DeviceMemory> &memories = *new std::map<int, DeviceMemory>;

struct Pinned {
    size_t size;
    bool registered; // the caller's own memory
};
std::map<uintptr_t, Pinned> &pinned = *new std::map<uintptr_t, Pinned>;

size_t in_pages(size_t size) { return (size + 4095) & ~size_t(4095); }
size_t in_granules(size_t size) { return (size + GRANULE - 1) / GRANULE * GRANULE; }

// Of the addresses of a device the lowest that are free, or the highest where the scenario
// says so. A granule that nobody may touch lies between any two allocations. 0: none left.
uintptr_t free_addresses(const DeviceMemory &memory, size_t bytes)
{
    const uintptr_t base = memory.base, end = base + STRETCH - 2 * GRANULE;
    if (fake_descending_addresses()) {
        uintptr_t top = end;
        for (auto it = on_device.lower_bound(end); it != on_device.begin();) {
            --it;
            if (it->first < base || top - (it->first + it->second.charged) >= bytes + GRANULE)
                break;
            top = it->first - GRANULE;
        }
        return top - bytes >= base ? top - bytes : 0;
    }
    uintptr_t at = base;
    for (auto it = on_device.lower_bound(base); it != on_device.end() && it->first < end;
         ++it) {
        if (it->first >= at + bytes + GRANULE) break;
        at = it->first + it->second.charged + GRANULE;
    }
    return at + bytes <= end ? at : 0;
}

// A device has one pool, which keeps what was freed up to a threshold.
struct Pool {
    uint64_t used = 0, most_used = 0, reserved = 0, most_reserved = 0, threshold = 0;

    uint64_t reserved_for(size_t more) const { return std::max(reserved, used + more); }
};
std::map<int, Pool> &pools = *new std::map<int, Pool>;

int device_of_pool(CUmemoryPool pool) { return int(uintptr_t(pool)) - 1; }

void trim(int device, uint64_t keep)
{
    Pool &pool = pools[device];
    uint64_t reserved = std::min(pool.reserved, std::max(pool.used, keep));
    if (reserved == pool.reserved) return;
    fake_use(device, int64_t(reserved) - int64_t(pool.reserved));
    pool.reserved = reserved;
}

CUresult allocate(CUdeviceptr *out, size_t size, bool pooled)
{
    *out = 0;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    int device = fake_device();
    Pool &pool = pools[device];
    size_t charged = in_granules(size);
    uint64_t taken = pooled ? pool.reserved_for(charged) - pool.reserved : charged;
    DeviceMemory *memory = memory_of(device);
    if (!memory || taken > fake_free_bytes(device)) return CUDA_ERROR_OUT_OF_MEMORY;
    uintptr_t at = free_addresses(*memory, charged);
    if (!at
        || mmap(reinterpret_cast<void *>(at), charged, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_NORESERVE | MAP_FIXED, memory->file, off_t(at - memory->base))
               == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    on_device[at] = {size, charged, device, pooled};
    if (taken) fake_use(device, int64_t(taken));
    if (pooled) {
        pool.used += charged, pool.reserved += taken;
        pool.most_used = std::max(pool.most_used, pool.used);
        pool.most_reserved = std::max(pool.most_reserved, pool.reserved);
    }
    *out = at;
    return CUDA_SUCCESS;
}

void release(uintptr_t at)
{
    const Block block = on_device.at(at);
    const DeviceMemory &memory = memories[block.device];
    forbid_addresses(at, block.charged);
    fallocate(memory.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(at - memory.base),
              off_t(block.charged));
    on_device.erase(at);
    if (block.pooled) {
        Pool &pool = pools[block.device];
        pool.used -= block.charged;
        trim(block.device, pool.threshold);
    } else
        fake_use(block.device, -int64_t(block.charged));
}

bool is_allocation(CUdeviceptr at)
{
    auto it = on_device.find(at);
    return it != on_device.end() && it->second.charged;
}

}  // namespace

DeviceMemory *memory_of(int device)
{
    DeviceMemory &memory = memories[device];
    if (memory.base) return &memory;
    void *at =
        mmap(nullptr, STRETCH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int file = memfd_create("gpu-memory", MFD_CLOEXEC);
    if (at == MAP_FAILED || file < 0 || ftruncate(file, FILE_BYTES)) return nullptr;
    memory = {(uintptr_t(at) + GRANULE) / GRANULE * GRANULE, file, off_t(STRETCH)};
    return &memory;
}

void forbid_addresses(uintptr_t at, size_t size)
{
    mmap(reinterpret_cast<void *>(at), size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

Place place_of(const void *pointer)
{
    if (holding(on_device, uintptr_t(pointer)) != on_device.end()) return ON_DEVICE;
    return holding(pinned, uintptr_t(pointer)) != pinned.end() ? PINNED : PAGEABLE;
}

int machine_device_of(const void *pointer)
{
    Guard guard(lock);
    auto it = holding(on_device, uintptr_t(pointer));
    return it == on_device.end() ? -1 : it->second.device;
}

CUresult cuMemAlloc(CUdeviceptr *out, size_t size)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    if (breaks_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return allocate(out, size, false);
}

CUresult cuMemFree(CUdeviceptr at)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    if (breaks_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!is_allocation(at)) return CUDA_ERROR_INVALID_VALUE;
    host_waits(guard, all_on(on_device[at].device));
    release(at);
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------ pools

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    CUresult code = allocate(out, size, true);
    if (code == CUDA_ERROR_OUT_OF_MEMORY && !stream_of(stream)->capture) {
        host_waits(guard, all_on(fake_device())); // what is freed in streams may be enough
        code = allocate(out, size, true);
    }
    return code;
}

// A graph's memory stays.
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream handle)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    if (!is_allocation(at)) return CUDA_ERROR_INVALID_VALUE;
    Stream *stream = stream_of(handle);
    if (stream->capture) return CUDA_SUCCESS;
    Operation operation;
    operation.instant = true;
    operation.work = [at] {
        Guard inner(lock);
        release(at);
    };
    put(guard, stream, std::move(operation));
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    NEEDS_DRIVER;
    if (device < 0 || device >= fake_device_count()) return CUDA_ERROR_INVALID_DEVICE;
    *pool = reinterpret_cast<CUmemoryPool>(uintptr_t(device) + 1);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    Pool &pool = pools[device_of_pool(handle)];
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool.threshold = *static_cast<uint64_t *>(value);
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: pool.most_used = pool.used; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: pool.most_reserved = pool.reserved; break;
    default: break; // which frees may be followed by which allocations
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    const Pool &pool = pools[device_of_pool(handle)];
    auto *number = static_cast<uint64_t *>(value);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *number = pool.threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *number = pool.reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *number = pool.most_reserved; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *number = pool.used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *number = pool.most_used; break;
    default: *static_cast<int *>(value) = 1;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAccess(CUmemoryPool, const CUmemAccessDesc *, size_t)
{
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    trim(device_of_pool(pool), keep);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice, CUgraphMem_attribute, void *value)
{
    *static_cast<uint64_t *>(value) = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice, CUgraphMem_attribute, void *)
{
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------ pinned memory

CUresult cuMemHostAlloc(void **out, size_t size, unsigned)
{
    NEEDS_CONTEXT;
    *out = nullptr;
    if (!size) return CUDA_ERROR_INVALID_VALUE;
    void *at = mmap(nullptr, in_pages(size), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    Guard guard(lock);
    pinned[uintptr_t(at)] = {size, false};
    *out = at;
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *pointer)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    auto it = pinned.find(uintptr_t(pointer));
    if (it == pinned.end() || it->second.registered) return CUDA_ERROR_INVALID_VALUE;
    for (int device = 0; device < fake_device_count(); device++)
        host_waits(guard, all_on(device));
    munmap(pointer, in_pages(it->second.size));
    pinned.erase(it);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void *pointer, size_t size, unsigned)
{
    NEEDS_CONTEXT;
    if (!pointer || !size) return CUDA_ERROR_INVALID_VALUE;
    Guard guard(lock);
    const uintptr_t begin = uintptr_t(pointer), end = begin + size;
    for (auto &[at, block] : pinned)
        if (at < end && begin < at + block.size)
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pinned[begin] = {size, true};
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *pointer)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    auto it = pinned.find(uintptr_t(pointer));
    if (it == pinned.end() || !it->second.registered)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    pinned.erase(it);
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------ what an address is

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr at)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    auto block = holding(on_device, at);
    bool of_device = block != on_device.end();
    if (!of_device && holding(pinned, at) == pinned.end()) return CUDA_ERROR_INVALID_VALUE;
    int device = of_device ? block->second.device : std::max(0, fake_device());
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *static_cast<uintptr_t *>(value) = uintptr_t(device) + 1;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned *>(value) = of_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr *>(value) = at; break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *static_cast<unsigned *>(value) = 1; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *static_cast<unsigned long long *>(value) = of_device ? block->first : at;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned *>(value) = 0; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int *>(value) = device; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *static_cast<unsigned *>(value) =
            of_device && block->second.charged && !block->second.pooled;
        break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr at)
{
    for (unsigned i = 0; i < count; i++)
        if (CUresult code = cuPointerGetAttribute(values[i], attributes[i], at)) return code;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr at)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    auto it = holding(on_device, at);
    if (it == on_device.end()) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = it->first;
    if (size) *size = it->second.size;
    return CUDA_SUCCESS;
}
