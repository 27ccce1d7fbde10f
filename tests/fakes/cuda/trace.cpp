// What CUPTI is told: calls, operations, waits; and what calls cost by a model's clock.
#include "parts.h"

#include <pthread.h>

namespace {

constexpr int64_t LAUNCH_COST_NS = 4000, CALL_COST_NS = 1000; // of the host

std::atomic<MachineTracer> tracer{nullptr};
std::atomic<MachineTraceClock> trace_clock{nullptr};
std::atomic<uint32_t> correlations{1};

// The call that a thread makes now.
struct CallOfThread {
    int depth = 0;
    uint32_t correlation = 0;
    MachineTracer told = nullptr;
    MachineTraceClock clock = nullptr;
    MachineRecord record{};

    int64_t moment() const { return clock ? int64_t(clock()) : HostClock::real(); }
};
thread_local CallOfThread call;

int64_t cost_of(uint32_t cbid)
{
    switch (cbid) {
    case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000:
    case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060:
    case CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000:
    case CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020:
    case CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020:
    case CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000: return LAUNCH_COST_NS;
    default: return CALL_COST_NS;
    }
}

}  // namespace

extern "C" void machine_call_begins(uint32_t cbid)
{
    if (call.depth++) return;
    put_held_back();
    host.cost(cost_of(cbid));
    call.correlation = correlations++;
    call.told = tracer;
    if (!call.told) return;
    call.clock = trace_clock;
    call.record = {};
    call.record.kind = MACHINE_CALL;
    call.record.cbid = cbid;
    call.record.correlation = call.correlation;
    call.record.thread = uint32_t(uintptr_t(pthread_self()));
    call.record.native = call.clock != nullptr;
    call.record.start = call.moment();
}

extern "C" void machine_call_ends()
{
    if (--call.depth || !call.told) return;
    call.record.end = call.moment();
    call.told(&call.record);
}

uint32_t current_correlation() { return call.correlation; }

int64_t traced_now() { return host.traced() ? HostClock::real() : host.now(); }

void trace(const Operation &operation)
{
    MachineTracer told = tracer;
    if (!told || !operation.traced) return;
    MachineRecord record = operation.record;
    int64_t lead = host.lead();
    record.start = operation.completion->start - lead;
    record.end = operation.completion->end - lead;
    told(&record);
}

void trace_wait(Guard &guard, int kind, int64_t begin, int device, int64_t stream,
                uint64_t event_sync)
{
    MachineTracer told = tracer;
    if (!told) return;
    MachineRecord record{};
    record.kind = MACHINE_WAIT;
    record.value = uint32_t(kind);
    record.start = begin, record.end = traced_now();
    record.device = uint32_t(device), record.stream = uint32_t(stream);
    record.correlation = call.correlation;
    record.event_sync = event_sync;
    guard.unlock();
    told(&record);
    guard.lock();
}

void machine_set_tracer(MachineTracer told)
{
    if (told && !tracer) host.start_trace();
    if (!told) host.end_trace();
    tracer = told;
}

void machine_set_trace_clock(MachineTraceClock clock) { trace_clock = clock; }

int64_t machine_now_ns() { return host.now(); }
void machine_pass(int64_t nanoseconds) { host.cost(nanoseconds); }

void machine_freeze(int on)
{
    static thread_local int depth = 0;
    static thread_local int64_t at = 0;
    if (on ? depth++ : --depth) return;
    if (on)
        host.block(at = host.now());
    else
        host.unblock(at);
}
