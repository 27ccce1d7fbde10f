// Streams: what is put into them, when it is done, and who waits for it.
#include "parts.h"

#include <chrono>
#include <sys/prctl.h>
#include <thread>

// What lives as long as the process is never destroyed: streams' threads may outlive main.
HostClock &host = *new HostClock;
std::mutex &lock = *new std::mutex;
std::condition_variable &progress = *new std::condition_variable;
std::atomic<int> broken{0};

namespace {

struct StreamsOfDevice {
    Stream *zero = nullptr;
    std::vector<Stream *> created, destroyed;

    std::vector<Stream *> all() const
    {
        std::vector<Stream *> found = created;
        found.insert(found.end(), destroyed.begin(), destroyed.end());
        if (zero) found.push_back(zero);
        return found;
    }
};
std::map<int, StreamsOfDevice> &streams = *new std::map<int, StreamsOfDevice>;

constexpr uint32_t DEFAULT_STREAM_ID = 7; // as CUPTI numbers it
uint32_t last_stream_id = DEFAULT_STREAM_ID;

thread_local int64_t last_put[3]; // submitted, start, end

// Of what a stream's thread works out now, if its end is open.
struct UntoldEnd {
    Completion *completion = nullptr;
    bool is_told = false;
};
thread_local UntoldEnd untold_end;

Stream *default_stream(int device)
{
    Stream *&zero = streams[device].zero;
    if (!zero) zero = new Stream(device, DEFAULT_STREAM_ID, 0, true, true);
    return zero;
}

// Values are made, and copies done, when the host's clock has come to where they begin, or
// somebody waits for what is later: nobody sees the future, nor waits for the present.
void until_due(Guard &guard, const Completion &completion)
{
    constexpr int64_t SLACK_NS = 20000;
    for (;;) {
        if (host.wants(completion.start)) return;
        int64_t ahead =
            std::min(completion.start - host.now(), completion.due - HostClock::real());
        if (ahead <= SLACK_NS) return;
        progress.wait_for(guard, std::chrono::nanoseconds(ahead));
    }
}

// Behind something open an operation has its place once that was reached.
void place_anew(const Operation &operation, int64_t end_before)
{
    Completion &completion = *operation.completion;
    int64_t start = std::max(completion.start, end_before);
    for (const CompletionPtr &before : operation.after) start = std::max(start, before->end);
    completion.start = start, completion.end = start + operation.duration;
    completion.due = HostClock::real() + start - host.now();
}

void work_off(Guard &guard, Operation &operation, int64_t end_before)
{
    Completion &completion = *operation.completion;
    for (const CompletionPtr &before : operation.after)
        while (!before->reached) progress.wait(guard);
    if (completion.open) place_anew(operation, end_before);
    if (!operation.work) return;
    until_due(guard, completion);
    guard.unlock();
    untold_end = {operation.open ? &completion : nullptr};
    if (operation.hosted) {
        HostClock::Standing standing(completion.start);
        operation.work();
    } else
        operation.work();
    operation.work = nullptr;
    guard.lock();
    if (operation.open && !untold_end.is_told)
        completion.end = std::max(completion.end, host.now());
}

void run(Stream *stream)
{
    prctl(PR_SET_TIMERSLACK, 1);
    prctl(PR_SET_NAME, "gpustream");
    Guard guard(lock);
    for (int64_t end_before = 0;;) {
        while (stream->queue.empty() && !stream->dying) stream->wake.wait(guard);
        if (stream->queue.empty()) break;
        Operation operation = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->in_hand = operation.completion;
        work_off(guard, operation, end_before);
        end_before = operation.completion->end;
        stream->end = std::max(stream->end, end_before);
        if (operation.completion->open) trace(operation);
        stream->in_hand = nullptr;
        operation.completion->reached = true;
        progress.notify_all();
    }
    stream->has_thread = false;
}

// A place in the stream's queue, for which the host may have to wait; whether it had to.
bool make_room(Guard &guard, Stream *stream)
{
    auto &held = stream->held;
    auto forget_past = [&] {
        while (!held.empty() && held.front() <= host.now()) held.pop_front();
    };
    const size_t places = size_t(fake_launch_queue());
    forget_past();
    if (held.size() < places) return false;
    Awaited one_place;
    one_place.end = held[held.size() - places];
    host_waits(guard, one_place);
    forget_past();
    return true;
}

// What has ended by the timeline before an operation begins has made its values by then,
// whatever its stream: the last of each.
void await_past(Stream *stream, Operation &operation)
{
    auto is_past = [&](const CompletionPtr &other) {
        return !other->open && !other->hosted && other->end <= operation.completion->start;
    };
    for (Stream *other : streams[stream->device].all()) {
        if (other == stream) continue;
        auto last = std::find_if(other->queue.rbegin(), other->queue.rend(),
                                 [&](const Operation &each) { return is_past(each.completion); });
        if (last != other->queue.rend())
            operation.after.push_back(last->completion);
        else if (other->in_hand && is_past(other->in_hand))
            operation.after.push_back(other->in_hand);
    }
}

// Where it begins and ends, and whom it must await.
void place(Stream *stream, Operation &operation)
{
    Completion &completion = *operation.completion;
    completion.submitted = operation.submitted ? operation.submitted : host.now();
    int64_t start = stream->end;
    auto behind = [&](Stream *other) {
        start = std::max(start, other->end);
        if (other->last && !other->last->reached) operation.after.push_back(other->last);
    };
    if (stream->is_default) {
        for (Stream *other : streams[stream->device].created)
            if (other->blocking) behind(other);
    } else if (stream->blocking)
        behind(default_stream(stream->device));

    completion.hosted = operation.hosted, completion.open = operation.open;
    auto inherit = [&](const CompletionPtr &before) {
        if (before->reached) return;
        completion.hosted = completion.hosted || before->hosted;
        completion.open = completion.open || before->open;
    };
    if (stream->last) inherit(stream->last);
    for (const CompletionPtr &before : operation.after) {
        start = std::max(start, before->end);
        inherit(before);
    }
    if (!operation.instant) start = std::max(start, completion.submitted + LATENCY_NS);
    completion.start = start;
    completion.end = stream->end = start + operation.duration;
    completion.due = HostClock::real() + start - completion.submitted;
    if (operation.work) await_past(stream, operation);
    if (operation.instant) return;
    last_put[0] = completion.submitted, last_put[1] = start, last_put[2] = completion.end;
}

}  // namespace

CompletionPtr put(Guard &guard, Stream *stream, Operation operation)
{
    if (stream->capture) {
        operation.submitted = 0; // each replay has a time of its own
        stream->capture->graph->operations.push_back(std::move(operation));
        return nullptr;
    }
    if (operation.is_launch() && !operation.record.graph && make_room(guard, stream))
        operation.submitted = host.now();
    CompletionPtr completion = operation.completion = std::make_shared<Completion>();
    place(stream, operation);
    if (operation.is_launch()) stream->held.push_back(completion->end);
    operation.record.device = uint32_t(stream->device), operation.record.stream = stream->id;
    if (!operation.record.correlation) operation.record.correlation = current_correlation();
    if (!completion->open) trace(operation);
    stream->last = completion;

    bool at_once = !operation.work && stream->queue.empty() && !stream->in_hand;
    for (const CompletionPtr &before : operation.after) at_once = at_once && before->reached;
    if (at_once) {
        completion->reached = true;
        return completion;
    }
    stream->queue.push_back(std::move(operation));
    if (!stream->has_thread) {
        stream->has_thread = true;
        std::thread(run, stream).detach();
    }
    stream->wake.notify_one();
    return completion;
}

Stream *stream_of(CUstream handle)
{
    bool is_number = uintptr_t(handle) <= uintptr_t(CU_STREAM_PER_THREAD);
    return is_number ? default_stream(fake_device()) : handle;
}

// ------------------------------------------------------------------ waiting

void Awaited::add(const CompletionPtr &one)
{
    if (!one) return;
    if (!one->reached) values.push_back(one);
    end = std::max(end, one->end);
}

void Awaited::add(Stream *stream)
{
    add(stream->last);
    end = std::max(end, stream->end);
}

Awaited all_in(Stream *stream)
{
    Awaited all;
    all.add(stream);
    if (stream->is_default)
        for (Stream *other : streams[stream->device].created)
            if (other->blocking) all.add(other);
    return all;
}

Awaited all_on(int device)
{
    Awaited all;
    for (Stream *stream : streams[device].all()) all.add(stream);
    return all;
}

// For values really, for the end virtually. While the end is open, the host's time goes on.
void host_waits(Guard &guard, Awaited awaited)
{
    for (const CompletionPtr &each : awaited.values) {
        while (each->open && !each->reached) progress.wait(guard);
        awaited.end = std::max(awaited.end, each->end);
    }
    int64_t target = std::max(host.now(), awaited.end);
    host.block(target);
    progress.notify_all();
    for (const CompletionPtr &each : awaited.values)
        while (!each->reached) progress.wait(guard);
    guard.unlock();
    host.unblock(target);
    guard.lock();
}

// The virtual time says whether it is done; if so, its values are waited for at no time.
// Nobody waits for what may need what the caller holds, as the GIL.
bool host_asks(Guard &guard, Awaited awaited)
{
    for (const CompletionPtr &each : awaited.values) {
        if (!each->reached && (each->hosted || each->open)) return false;
        awaited.end = std::max(awaited.end, each->end);
    }
    int64_t left = awaited.end - host.now();
    if (left > 0) {
        host.cost(left / 64); // by a model's clock, too, a loop of questions comes to its end
        return false;
    }
    for (const CompletionPtr &each : awaited.values)
        if (!each->reached) {
            host_waits(guard, awaited);
            break;
        }
    return true;
}

// ------------------------------------------------------------------ the driver's functions

CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    int least, greatest;
    cuCtxGetStreamPriorityRange(&least, &greatest);
    *out = new Stream(fake_device(), ++last_stream_id, std::clamp(priority, greatest, least),
                      !(flags & CU_STREAM_NON_BLOCKING), false);
    streams[fake_device()].created.push_back(*out);
    return CUDA_SUCCESS;
}

// What is in it is still done, and its device waits for that; then the thread ends. The
// object remains: others may be about to look at it.
CUresult cuStreamDestroy(CUstream stream)
{
    NEEDS_DRIVER;
    if (uintptr_t(stream) <= uintptr_t(CU_STREAM_PER_THREAD)) return CUDA_ERROR_INVALID_HANDLE;
    Guard guard(lock);
    StreamsOfDevice &of = streams[stream->device];
    of.created.erase(std::remove(of.created.begin(), of.created.end(), stream),
                     of.created.end());
    of.destroyed.push_back(stream);
    stream->dying = true;
    stream->wake.notify_one();
    return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    *priority = stream_of(stream)->priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    if (stream->capture) {
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->is_default && breaks_capture()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    int64_t begin = traced_now();
    host_waits(guard, all_in(stream));
    trace_wait(guard, STREAM_SYNCHRONIZE, begin, stream->device, stream->id);
    return refusal();
}

CUresult cuStreamQuery(CUstream handle)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    if (stream->capture) {
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return host_asks(guard, all_in(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuCtxSynchronize()
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    if (breaks_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    int device = fake_device();
    int64_t begin = traced_now();
    size_t destroyed = streams[device].destroyed.size();
    host_waits(guard, all_on(device));
    auto &past = streams[device].destroyed;
    past.erase(past.begin(), past.begin() + ptrdiff_t(std::min(destroyed, past.size())));
    trace_wait(guard, CONTEXT_SYNCHRONIZE, begin, device, -1);
    return refusal();
}

static CUresult put_host_function(CUstream stream, std::function<void()> function)
{
    NEEDS_CONTEXT;
    Operation operation;
    operation.work = std::move(function);
    operation.hosted = true;
    operation.duration = HOST_FUNCTION_NS;
    Guard guard(lock);
    put(guard, stream_of(stream), std::move(operation));
    return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    return put_host_function(stream, [=] { function(data); });
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void *data, unsigned)
{
    return put_host_function(stream, [=] { function(stream, CUDA_SUCCESS, data); });
}

int64_t machine_kernel_began_ns() { return untold_end.completion->start; }

void machine_kernel_ends_ns(int64_t end)
{
    Guard guard(lock);
    untold_end.completion->end = std::max(untold_end.completion->end, end);
    untold_end.is_told = true;
}

// For tests: when the calling thread's last operation was submitted, begins and ends.
extern "C" const int64_t *machine_last_put() { return last_put; }
