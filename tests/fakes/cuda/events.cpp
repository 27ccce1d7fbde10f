// Events, also those of which several processes know.
#include "parts.h"

#include <csignal>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace {

uint64_t last_sync = 0;

// ---- between processes: the events of one lie in a file without a name

struct EventHandle {
    uint32_t magic;
    pid_t process;
    int file;
    uint32_t slot;
};
constexpr uint32_t EVENT_HANDLE = 0xfa6e0002;
static_assert(sizeof(EventHandle) <= sizeof(CUipcEventHandle));

constexpr size_t SLOTS = 1 << 16;
int slots_file = -1;
SharedEvent *slots = nullptr;
uint32_t slots_used = 0;

SharedEvent *map_slots(int file)
{
    void *at =
        mmap(nullptr, SLOTS * sizeof(SharedEvent), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return at == MAP_FAILED ? nullptr : static_cast<SharedEvent *>(at);
}

SharedEvent *fresh_slot()
{
    if (!slots) {
        slots_file = memfd_create("gpu-events", MFD_CLOEXEC);
        if (slots_file >= 0 && !ftruncate(slots_file, SLOTS * sizeof(SharedEvent)))
            slots = map_slots(slots_file);
    }
    if (!slots || slots_used == SLOTS) return nullptr;
    SharedEvent *fresh = &slots[slots_used++];
    fresh->owner = getpid();
    return fresh;
}

// Until the other process has come so far, or is gone.
void await_shared(const SharedEvent *shared, uint64_t target)
{
    while (shared->reached < target && !(kill(shared->owner, 0) && errno == ESRCH)) usleep(100);
}

}  // namespace

CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    *out = new Event(flags, fake_device());
    if (flags & CU_EVENT_INTERPROCESS) (*out)->shared = fresh_slot();
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    delete event;
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned)
{
    NEEDS_CONTEXT;
    if (!event || event->imported) return CUDA_ERROR_INVALID_HANDLE;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    if (stream->device != event->device) return CUDA_ERROR_INVALID_HANDLE;
    event->capture = stream->capture;
    if (stream->capture) return CUDA_SUCCESS;
    event->sync = ++last_sync;
    Operation operation;
    operation.traced = true;
    operation.record.kind = MACHINE_EVENT;
    operation.record.event_sync = event->sync;
    if (SharedEvent *shared = event->shared) {
        uint64_t number = ++shared->recorded;
        operation.work = [=] {
            if (shared->reached < number) shared->reached = number;
        };
    }
    event->completion = put(guard, stream, std::move(operation));
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return cuEventRecordWithFlags(event, stream, 0);
}

CUresult cuEventQuery(CUevent event)
{
    NEEDS_DRIVER;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    Guard guard(lock);
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    bool done = event->imported ? event->shared->reached >= event->shared->recorded
                                : host_asks(guard, Awaited(event->completion));
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    NEEDS_DRIVER;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (event->imported) {
        await_shared(event->shared, event->shared->recorded);
        return CUDA_SUCCESS;
    }
    Guard guard(lock);
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    int64_t begin = traced_now();
    uint64_t sync = event->sync;
    int device = event->device;
    host_waits(guard, Awaited(event->completion));
    trace_wait(guard, EVENT_SYNCHRONIZE, begin, device, -1, sync);
    return refusal();
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    NEEDS_DRIVER;
    Guard guard(lock);
    for (Event *each : {start, end})
        if (!each || !each->completion || each->flags & CU_EVENT_DISABLE_TIMING)
            return CUDA_ERROR_INVALID_HANDLE;
    const Completion &first = *start->completion, &last = *end->completion;
    for (const Completion *each : {&first, &last})
        if (host.now() < each->end || (each->open && !each->reached))
            return CUDA_ERROR_NOT_READY;
    *milliseconds = float(double(last.end - first.end) / 1e6);
    return CUDA_SUCCESS;
}

int64_t machine_event_ns(MachineEvent event)
{
    Guard guard(lock);
    return event && event->completion ? event->completion->end : -1;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned)
{
    NEEDS_CONTEXT;
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    if (event->capture) return join_capture(stream, event->capture);
    Operation operation;
    operation.instant = true;
    if (event->imported) {
        operation.open = true;
        operation.work = [shared = event->shared, target = event->shared->recorded.load()] {
            await_shared(shared, target);
        };
        put(guard, stream, std::move(operation));
        return CUDA_SUCCESS;
    }
    const CompletionPtr &awaited = event->completion;
    if (!awaited) return CUDA_SUCCESS;
    if (stream->capture) {
        if (awaited->reached && host.now() >= awaited->end) return CUDA_SUCCESS;
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    operation.after.push_back(awaited);
    put(guard, stream, std::move(operation));
    int64_t now = traced_now();
    trace_wait(guard, STREAM_WAIT_EVENT, now, stream->device, stream->id, event->sync);
    return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
    NEEDS_DRIVER;
    if (!event || !event->shared || event->imported) return CUDA_ERROR_INVALID_HANDLE;
    EventHandle handle{EVENT_HANDLE, getpid(), slots_file, uint32_t(event->shared - slots)};
    memset(out, 0, sizeof *out);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle given)
{
    NEEDS_CONTEXT;
    EventHandle handle;
    memcpy(&handle, &given, sizeof handle);
    if (handle.magic != EVENT_HANDLE || handle.slot >= SLOTS) return CUDA_ERROR_INVALID_VALUE;
    Guard guard(lock);
    static auto &slots_of = *new std::map<pid_t, SharedEvent *>;
    SharedEvent *&theirs = slots_of[handle.process];
    if (!theirs) {
        int file = open_file_of(handle.process, handle.file);
        theirs = file < 0 ? nullptr : map_slots(file);
        if (file >= 0) close(file);
    }
    if (!theirs) return CUDA_ERROR_MAP_FAILED;
    *out = new Event(CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, fake_device());
    (*out)->shared = theirs + handle.slot, (*out)->imported = true;
    return CUDA_SUCCESS;
}
