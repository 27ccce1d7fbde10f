/* libcupti.so.13: writes what the machine tells into the buffers of torch's profiler.
 *
 * The activity interface alone; callbacks are accepted and never called. A record is
 * written by the thread that makes the call, as soon as the machine knows its times,
 * which may lie ahead.
 */
#include <cupti.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "machine.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

int64_t nanoseconds_of(clockid_t id)
{
    timespec now;
    clock_gettime(id, &now);
    return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

/* From the machine's clock to the one in which the profiler wants its records: a
 * straight line, fixed once a session, so that lengths and order are the machine's.
 * torch's clock is the processor's counter; the longer ago it was first read, the
 * better its rate is known, so it is read when this library is loaded. */
class TraceClock {
public:
    void use(CUpti_TimestampCallbackFunc callback)
    {
        callback_ = callback;
        machine_set_trace_clock(callback);
        constexpr uint64_t SOON = 50'000'000;
        if (__rdtsc() - read() > SOON) first_ = both();      // it is some other clock
        constexpr int64_t LONG_ENOUGH = 20'000'000;
        int64_t left = first_.machine + LONG_ENOUGH - nanoseconds_of(CLOCK_MONOTONIC);
        timespec rest{0, std::max<int64_t>(left, 0)};
        nanosleep(&rest, nullptr);
    }

    uint64_t read() const
    {
        return callback_ ? callback_() : uint64_t(nanoseconds_of(CLOCK_REALTIME));
    }

    void begin_session()
    {
        begun_ = both();
        rate_ = !callback_ ? 1
                           : double(begun_.trace - first_.trace)
                                 / double(begun_.machine - first_.machine);
    }

    uint64_t at(int64_t machine_ns) const
    {
        return begun_.trace + int64_t(double(machine_ns - begun_.machine) * rate_);
    }

private:
    struct Reading {
        int64_t machine;
        uint64_t trace;
    };

    /* Both clocks at one moment: the try of many in which the least time went by. */
    Reading both() const
    {
        Reading best{};
        int64_t least = INT64_MAX;
        for (int tries = 0; tries < 60; tries++) {
            int64_t before = nanoseconds_of(CLOCK_MONOTONIC);
            uint64_t reading = read();
            int64_t took = nanoseconds_of(CLOCK_MONOTONIC) - before;
            if (took < least) least = took, best = {before + took / 2, reading};
        }
        return best;
    }

    CUpti_TimestampCallbackFunc callback_ = nullptr;
    Reading first_{nanoseconds_of(CLOCK_MONOTONIC), __rdtsc()}, begun_{};
    double rate_ = 1;
};

constexpr size_t aligned(size_t bytes) { return (bytes + 7) & ~size_t(7); }

/* How long a record of this kind is; 0 for a kind that is never written. */
size_t length_of(CUpti_ActivityKind kind)
{
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
        return sizeof(CUpti_ActivitySynchronization2);
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT: return sizeof(CUpti_ActivityCudaEvent2);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
        return sizeof(CUpti_ActivityExternalCorrelation);
    default: return 0;
    }
}

/* The ids that a thread has pushed and not popped, by their kind. */
thread_local std::map<CUpti_ExternalCorrelationKind, std::vector<uint64_t>> outer_ids;

/* What has been asked for, and the buffer that is being filled. */
class Session {
public:
    void set_buffers(CUpti_BuffersCallbackRequestFunc request,
                     CUpti_BuffersCallbackCompleteFunc complete)
    {
        std::lock_guard<std::mutex> guard(lock_);
        request_ = request, complete_ = complete;
    }

    void set_clock(CUpti_TimestampCallbackFunc callback)
    {
        std::lock_guard<std::mutex> guard(lock_);
        clock_.use(callback);
    }

    uint64_t now() const { return clock_.read(); }

    void enable(CUpti_ActivityKind kind);

    void disable(CUpti_ActivityKind kind)
    {
        std::lock_guard<std::mutex> guard(lock_);
        enabled_.erase(kind);
        if (enabled_.empty()) machine_set_tracer(nullptr);
    }

    void finish()
    {
        std::lock_guard<std::mutex> guard(lock_);
        enabled_.clear();
        machine_set_tracer(nullptr);
    }

    void flush()
    {
        std::lock_guard<std::mutex> guard(lock_);
        give_back();
    }

    void tell_calls(CUpti_CallbackId cbid, bool told)
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (told) quiet_.erase(cbid);
        else quiet_.insert(cbid);
    }

    void write(const MachineRecord &told)
    {
        std::lock_guard<std::mutex> guard(lock_);
        if (!request_) return;
        switch (told.kind) {
        case MACHINE_CALL: return write_call(told);
        case MACHINE_KERNEL: return write_kernel(told);
        case MACHINE_MEMCPY: return write_copy(told);
        case MACHINE_MEMSET: return write_memset(told);
        case MACHINE_WAIT: return write_wait(told);
        case MACHINE_EVENT: return write_event(told);
        }
    }

private:
    uint64_t time_of(int64_t moment, const MachineRecord &told) const
    {
        return told.native ? uint64_t(moment) : clock_.at(moment);
    }

    void give_back()
    {
        if (!buffer_) return;
        uint8_t *full = buffer_;
        buffer_ = nullptr;
        complete_(nullptr, 0, full, size_, used_);
    }

    /* An empty record of this kind, if it was asked for and there is room. */
    template <class Record> Record *begin(CUpti_ActivityKind kind)
    {
        if (!enabled_.count(kind)) return nullptr;
        size_t needed = aligned(sizeof(Record));
        if (buffer_ && used_ + needed > size_) give_back();
        if (!buffer_) {
            size_t most_records = 0;
            request_(&buffer_, &size_, &most_records);
            used_ = 0;
            if (!buffer_ || size_ < needed) return nullptr;
        }
        auto *record = reinterpret_cast<Record *>(buffer_ + used_);
        memset(static_cast<void *>(record), 0, needed);
        used_ += needed;
        record->kind = kind;
        return record;
    }

    /* What kernels, copies and memsets have in common. */
    template <class Record> void place(Record *record, const MachineRecord &told) const
    {
        record->start = time_of(told.start, told);
        record->end = time_of(told.end, told);
        record->deviceId = told.device;
        record->contextId = told.device + 1;
        record->streamId = told.stream;
        record->correlationId = told.correlation;
        record->graphId = told.graph;
    }

    void write_call(const MachineRecord &told)
    {
        if (quiet_.count(told.cbid)) return;
        for (const auto &[kind, ids] : outer_ids) {
            if (ids.empty()) continue;
            if (auto *record = begin<CUpti_ActivityExternalCorrelation>(
                    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
                record->externalKind = kind;
                record->externalId = ids.back();
                record->correlationId = told.correlation;
            }
        }
        if (auto *record = begin<CUpti_ActivityAPI>(CUPTI_ACTIVITY_KIND_RUNTIME)) {
            record->cbid = told.cbid;
            record->start = time_of(told.start, told);
            record->end = time_of(told.end, told);
            record->processId = uint32_t(getpid());
            record->threadId = told.thread;
            record->correlationId = told.correlation;
        }
    }

    void write_kernel(const MachineRecord &told)
    {
        auto kind = enabled_.count(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
                        ? CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
                        : CUPTI_ACTIVITY_KIND_KERNEL;
        auto *record = begin<CUpti_ActivityKernel10>(kind);
        if (!record) return;
        place(record, told);
        record->completed = record->end;
        record->name = told.name;
        record->gridX = int32_t(told.grid[0]);
        record->gridY = int32_t(told.grid[1]);
        record->gridZ = int32_t(told.grid[2]);
        record->blockX = int32_t(told.block[0]);
        record->blockY = int32_t(told.block[1]);
        record->blockZ = int32_t(told.block[2]);
        record->dynamicSharedMemory = int32_t(told.shared);
        record->registersPerThread = 32;      // of no kernel is it known
    }

    void write_copy(const MachineRecord &told)
    {
        auto *record = begin<CUpti_ActivityMemcpy6>(CUPTI_ACTIVITY_KIND_MEMCPY);
        if (!record) return;
        place(record, told);
        record->copyKind = told.copy_kind;
        record->srcKind = told.source;
        record->dstKind = told.target;
        record->flags = told.asynchronous ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : 0;
        record->bytes = told.bytes;
    }

    void write_memset(const MachineRecord &told)
    {
        auto *record = begin<CUpti_ActivityMemset4>(CUPTI_ACTIVITY_KIND_MEMSET);
        if (!record) return;
        place(record, told);
        record->value = told.value;
        record->bytes = told.bytes;
        record->memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    }

    void write_wait(const MachineRecord &told)
    {
        auto *record = begin<CUpti_ActivitySynchronization2>(
            CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
        if (!record) return;
        record->type = CUpti_ActivitySynchronizationType(told.value);
        record->start = time_of(told.start, told);
        record->end = time_of(told.end, told);
        record->correlationId = told.correlation;
        record->contextId = told.device + 1;
        record->streamId = told.stream;
        record->cudaEventId = uint32_t(told.event_sync);
        record->cudaEventSyncId = told.event_sync;
    }

    void write_event(const MachineRecord &told)
    {
        auto *record = begin<CUpti_ActivityCudaEvent2>(CUPTI_ACTIVITY_KIND_CUDA_EVENT);
        if (!record) return;
        record->correlationId = told.correlation;
        record->contextId = told.device + 1;
        record->streamId = told.stream;
        record->deviceId = told.device;
        record->eventId = uint32_t(told.event_sync);
        record->cudaEventSyncId = told.event_sync;
        record->deviceTimestamp = time_of(told.end, told);
    }

    std::mutex lock_;
    CUpti_BuffersCallbackRequestFunc request_ = nullptr;
    CUpti_BuffersCallbackCompleteFunc complete_ = nullptr;
    TraceClock clock_;
    std::set<CUpti_ActivityKind> enabled_;
    std::set<CUpti_CallbackId> quiet_;       // calls that are not told
    uint8_t *buffer_ = nullptr;
    size_t size_ = 0, used_ = 0;
};

/* Never destroyed: threads may still make calls while the process ends. */
Session &session()
{
    static auto *only = new Session;
    return *only;
}

[[maybe_unused]] Session &begun_when_loaded = session();

void Session::enable(CUpti_ActivityKind kind)
{
    std::lock_guard<std::mutex> guard(lock_);
    if (enabled_.empty()) clock_.begin_session();
    enabled_.insert(kind);
    machine_set_tracer([](const MachineRecord *told) { session().write(*told); });
}

}  // namespace

API CUptiResult
cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                               CUpti_BuffersCallbackCompleteFunc complete)
{
    session().set_buffers(request, complete);
    return CUPTI_SUCCESS;
}

API CUptiResult
cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc callback)
{
    session().set_clock(callback);
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    session().enable(kind);
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    session().disable(kind);
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiActivityFlushAll(uint32_t)
{
    session().flush();
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid,
                                           CUpti_Activity **record)
{
    uint8_t *next = buffer;
    if (*record) {
        size_t length = length_of((*record)->kind);
        if (!length) return CUPTI_ERROR_INVALID_KIND;
        next = reinterpret_cast<uint8_t *>(*record) + aligned(length);
    }
    if (!buffer || next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = reinterpret_cast<CUpti_Activity *>(next);
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t *dropped)
{
    *dropped = 0;
    return CUPTI_SUCCESS;
}

API CUptiResult
cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id)
{
    outer_ids[kind].push_back(id);
    return CUPTI_SUCCESS;
}

API CUptiResult
cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind,
                                      uint64_t *last)
{
    auto &ids = outer_ids[kind];
    if (ids.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
    if (last) *last = ids.back();
    ids.pop_back();
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId cbid, uint8_t told)
{
    session().tell_calls(cbid, told);
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
    *timestamp = session().now();
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiGetVersion(uint32_t *version)
{
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiGetResultString(CUptiResult, const char **text)
{
    *text = "this machine's CUPTI does not know that";
    return CUPTI_SUCCESS;
}

/* As cudaLaunchKernel_v7000; cupti_names.inc lists the calls of the headers. */
API CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid,
                                     const char **name)
{
    static const std::map<std::pair<int, uint32_t>, const char *> names = {
#define RUNTIME(call) \
    {{CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_##call}, #call},
#define DRIVER(call) \
    {{CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_##call}, #call},
#include "cupti_names.inc"
    };
    auto found = names.find({domain, cbid});
    if (found == names.end()) return CUPTI_ERROR_INVALID_PARAMETER;
    *name = found->second;
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc,
                               void *)
{
    *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&session());
    return CUPTI_SUCCESS;
}

API CUptiResult cuptiFinalize(void)
{
    session().finish();
    return CUPTI_SUCCESS;
}

/* Accepted, since it makes no difference here. */
API CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
API CUptiResult cuptiEnableCallback(uint32_t, CUpti_SubscriberHandle,
                                    CUpti_CallbackDomain, CUpti_CallbackId)
{
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiEnableDomain(uint32_t, CUpti_SubscriberHandle,
                                  CUpti_CallbackDomain)
{
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute, size_t *, void *)
{
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId, uint8_t)
{
    return CUPTI_SUCCESS;
}
API CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t)
{
    return CUPTI_SUCCESS;
}
