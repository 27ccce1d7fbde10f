// Copies and memsets.
#include "parts.h"

#include <cstring>
#include <sys/mman.h>

namespace {

enum CopyKind : uint8_t {
    TO_DEVICE = 1,
    TO_HOST = 2,
    WITHIN_DEVICE = 8,
    WITHIN_HOST = 9,
    PEER = 10
};

// Bytes a nanosecond.
constexpr double WITHIN_DEVICE_RATE = 1300, PEER_RATE = 200, PAGEABLE_RATE = 12,
                 TO_DEVICE_RATE = 55, TO_HOST_RATE = 53, SET_RATE = 2800;

// Beyond it a copy within a device takes its time and moves nothing, as operators on so
// much compute nothing.
constexpr size_t MOST_MOVED = 512 * MEBIBYTE;
// Up to it a copy from pageable memory is staged at once: the caller may change the source.
constexpr size_t MOST_STAGED = 64 * 1024;

struct Route {
    Place from, to;
    bool peer;

    Route(const void *target, const void *source) : from(place_of(source)), to(place_of(target))
    {
        peer = from == ON_DEVICE && to == ON_DEVICE
               && holding(on_device, uintptr_t(source))->second.device
                      != holding(on_device, uintptr_t(target))->second.device;
    }
    bool pageable() const { return from == PAGEABLE || to == PAGEABLE; }
    CopyKind kind() const
    {
        if (peer) return PEER;
        if (to == ON_DEVICE) return from == ON_DEVICE ? WITHIN_DEVICE : TO_DEVICE;
        return from == ON_DEVICE ? TO_HOST : WITHIN_HOST;
    }
    double rate() const
    {
        if (pageable()) return PAGEABLE_RATE;
        switch (kind()) {
        case PEER: return PEER_RATE;
        case WITHIN_DEVICE: return WITHIN_DEVICE_RATE;
        case TO_DEVICE: return TO_DEVICE_RATE;
        default: return TO_HOST_RATE;
        }
    }
};

Operation copying(const Route &route, size_t bytes, bool asynchronous,
                  std::function<void()> work)
{
    Operation operation;
    operation.work = std::move(work);
    operation.duration = COPY_NS + int64_t(double(bytes) / route.rate());
    operation.traced = true;
    operation.record.kind = MACHINE_MEMCPY;
    operation.record.bytes = bytes;
    operation.record.copy_kind = route.kind();
    operation.record.source = route.from, operation.record.target = route.to;
    operation.record.asynchronous = asynchronous;
    return operation;
}

CUresult copy(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream handle,
              bool asynchronous)
{
    NEEDS_CONTEXT;
    auto *to = reinterpret_cast<char *>(target);
    auto *from = reinterpret_cast<const char *>(source);
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    if (!asynchronous && breaks_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!bytes) return CUDA_SUCCESS;
    const Route route(to, from);
    if (stream->capture && route.pageable()) {
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (route.to == ON_DEVICE && route.from == PAGEABLE && bytes <= MOST_STAGED) {
        auto staged = std::make_shared<std::vector<char>>(from, from + bytes);
        put(guard, stream,
            copying(route, bytes, asynchronous, [=] { memcpy(to, staged->data(), bytes); }));
        return CUDA_SUCCESS;
    }
    std::function<void()> work = [=] { memmove(to, from, bytes); };
    if (route.kind() == WITHIN_DEVICE && bytes > MOST_MOVED) work = nullptr;
    CompletionPtr done =
        put(guard, stream, copying(route, bytes, asynchronous, std::move(work)));
    if (!done || (asynchronous && !route.pageable())) return CUDA_SUCCESS;
    host_waits(guard, Awaited(done));
    return refusal();
}

// Fresh pages of a file are zero, and cost nothing until they are touched.
void fill(char *at, unsigned char value, size_t size)
{
    constexpr uintptr_t PAGE = 4096;
    auto *first = reinterpret_cast<char *>((uintptr_t(at) + PAGE - 1) & ~(PAGE - 1));
    auto *last = reinterpret_cast<char *>((uintptr_t(at) + size) & ~(PAGE - 1));
    bool by_pages = value == 0 && last > first && size_t(last - first) >= MEBIBYTE
                    && !madvise(first, size_t(last - first), MADV_REMOVE);
    if (!by_pages) first = last = at + size;
    memset(at, value, size_t(first - at));
    memset(last, value, size_t(at + size - last));
}

CUresult set(CUdeviceptr at, unsigned value, size_t bytes, CUstream stream, bool asynchronous,
             std::function<void()> work)
{
    NEEDS_CONTEXT;
    if (!bytes) return CUDA_SUCCESS;
    Guard guard(lock);
    if (place_of(reinterpret_cast<void *>(at)) == PAGEABLE) return CUDA_ERROR_INVALID_VALUE;
    Operation operation;
    operation.work = std::move(work);
    operation.duration = COPY_NS + int64_t(double(bytes) / SET_RATE);
    operation.traced = true;
    operation.record.kind = MACHINE_MEMSET;
    operation.record.bytes = bytes, operation.record.value = value;
    operation.record.target = ON_DEVICE;
    operation.record.asynchronous = asynchronous;
    put(guard, stream_of(stream), std::move(operation));
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, from, bytes, stream, true);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, from, bytes, nullptr, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes,
                           CUstream stream)
{
    return copy(to, from, bytes, stream, true);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *given, CUstream stream)
{
    NEEDS_CONTEXT;
    const CUDA_MEMCPY2D c = *given;
    auto *to =
        c.dstHost ? static_cast<char *>(c.dstHost) : reinterpret_cast<char *>(c.dstDevice);
    auto *from = c.srcHost ? static_cast<const char *>(c.srcHost)
                           : reinterpret_cast<const char *>(c.srcDevice);
    auto work = [=] {
        for (size_t row = 0; row < c.Height; row++)
            memmove(to + row * c.dstPitch, from + row * c.srcPitch, c.WidthInBytes);
    };
    Guard guard(lock);
    const Route route(to, from);
    CompletionPtr done =
        put(guard, stream_of(stream), copying(route, c.WidthInBytes * c.Height, true, work));
    if (done && route.pageable()) host_waits(guard, Awaited(done));
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t bytes, CUstream stream)
{
    return set(at, value, bytes, stream, true,
               [=] { fill(reinterpret_cast<char *>(at), value, bytes); });
}

CUresult cuMemsetD8(CUdeviceptr at, unsigned char value, size_t bytes)
{
    return set(at, value, bytes, nullptr, false,
               [=] { fill(reinterpret_cast<char *>(at), value, bytes); });
}

CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream stream)
{
    return set(at, value, count * 4, stream, true,
               [=] { std::fill_n(reinterpret_cast<unsigned *>(at), count, value); });
}
