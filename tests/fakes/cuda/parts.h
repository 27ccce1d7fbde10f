// What the chapters of libcuda.so.1 know of each other.
//
// A stream is a queue of operations with a thread. Where an operation begins and ends on the
// device's timeline is computed when it is put into its stream, from the stream's end, from
// what it waits for and from the host's clock; the thread only makes the values, and sets no
// time. One lock guards all that is here; who is handed a Guard has it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cuda.h>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../libcuda.h"
#include "calls.h"
#include "clock.h"
#include "machine.h"

// ---- what the device's time is made of; all of it is here

constexpr int64_t LATENCY_NS = 3000;        // from a launch to its start on an idle stream
constexpr int64_t KERNEL_NS = 2000;         // a kernel of which nothing else is known
constexpr int64_t COPY_NS = 1500;           // before the first byte of a copy or a memset
constexpr int64_t HOST_FUNCTION_NS = 10000; // a function of the host within a stream
constexpr int64_t CYCLES_A_US = 1980;       // a spin's

constexpr size_t MEBIBYTE = size_t(1) << 20, GRANULE = 2 * MEBIBYTE;

// ---- operations

// What becomes of an operation once it is put.
struct Completion {
    std::atomic<bool> reached{false}; // its values are there
    bool hosted = false; // a function of the host is in it, or before it
    bool open = false;   // something is, or is before it, that ends when others say so
    int64_t submitted = 0, start = 0, end = 0;
    int64_t due = 0;     // the real moment at which it begins at the latest
};
using CompletionPtr = std::shared_ptr<Completion>;

struct Operation {
    std::function<void()> work;
    int64_t duration = 0;
    std::vector<CompletionPtr> after;
    CompletionPtr completion;
    MachineRecord record{};
    bool traced = false;
    bool instant = false;      // takes no place on the timeline
    bool hosted = false;       // is a function of the host
    bool open = false;         // ends when its work does
    int64_t submitted = 0;     // if not when it is put

    // Whether it takes one of the places of the stream's queue.
    bool is_launch() const { return !instant && !hosted && record.kind != MACHINE_EVENT; }
};

// ---- the driver's objects, behind the handles of cuda.h

struct Capture {
    CUgraph graph;
    cuuint64_t id;
    CUstreamCaptureMode mode;
    CUstream origin;
    pthread_t thread;
    bool invalid = false;
    std::set<CUstream> members{origin};
};

struct CUstream_st {
    int device;
    uint32_t id;
    int priority;
    bool blocking; // in the old sense: it and the default stream wait for each other
    bool is_default;
    CUstream_st(int device, uint32_t id, int priority, bool blocking, bool is_default)
        : device(device), id(id), priority(priority), blocking(blocking), is_default(is_default)
    {}

    bool dying = false, has_thread = false;
    CompletionPtr in_hand;       // of what its thread works off now
    std::deque<Operation> queue;
    std::condition_variable wake;
    CompletionPtr last;
    int64_t end = 0;             // the virtual moment at which all of it is done
    std::deque<int64_t> held;    // ends of launches that take a place of its queue
    std::shared_ptr<Capture> capture;
};

// Of an event that other processes may open: how often it was recorded, and how many of
// these are over.
struct SharedEvent {
    std::atomic<uint64_t> recorded, reached;
    pid_t owner;
};

struct CUevent_st {
    unsigned flags;
    int device;
    CUevent_st(unsigned flags, int device) : flags(flags), device(device) {}

    CompletionPtr completion;         // none: it was never recorded
    std::shared_ptr<Capture> capture; // in which it was recorded
    uint64_t sync = 0;                // the number by which a trace knows this recording
    SharedEvent *shared = nullptr;
    bool imported = false;
};

struct CUuserObject_st {
    void *pointer;
    CUhostFn destroy;
    unsigned count;
};

struct CUgraph_st {
    std::vector<Operation> operations;
    std::vector<std::pair<CUuserObject, unsigned>> objects;
    unsigned id = 0;
};

struct CUfunc_st {
    std::string name;
    bool of_module; // was loaded, as Triton's; the others are the runtime's own
    bool spins;
};

using Stream = CUstream_st;
using Event = CUevent_st;
using Guard = std::unique_lock<std::mutex>;

// ---- all of it

extern HostClock &host;
extern std::mutex &lock;
extern std::condition_variable &progress; // something was reached, or somebody waits anew
extern std::atomic<int> broken;           // by a kernel: what every call answers from then on

// What keeps a call from being carried out at all; 0: nothing.
inline CUresult refusal()
{
    return CUresult(fake_state() ? fake_state() : broken.load());
}
inline CUresult refusal_without_context()
{
    if (CUresult code = refusal()) return code;
    return fake_device() < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
#define NEEDS_DRIVER if (CUresult code_ = refusal()) return code_
#define NEEDS_CONTEXT if (CUresult code_ = refusal_without_context()) return code_

// ---- streams.cpp

Stream *stream_of(CUstream handle); // also of the numbers that mean the default one
CompletionPtr put(Guard &guard, Stream *stream, Operation operation);

// Something for which the host waits, or asks whether it is done.
struct Awaited {
    std::vector<CompletionPtr> values;
    int64_t end = 0;

    Awaited() = default;
    explicit Awaited(const CompletionPtr &one) { add(one); }
    void add(const CompletionPtr &one);
    void add(Stream *stream);
};
Awaited all_in(Stream *stream);
Awaited all_on(int device);
void host_waits(Guard &guard, Awaited awaited);
bool host_asks(Guard &guard, Awaited awaited);

// ---- graphs.cpp

// Whether what waits for everything would break a capture; it is invalid from then on.
bool breaks_capture();
CUresult join_capture(Stream *stream, const std::shared_ptr<Capture> &capture);

// ---- trace.cpp

uint32_t current_correlation();
int64_t traced_now();
void trace(const Operation &operation);
// A wait of the host or of a stream that ends now; `kind` and the stream are CUPTI's.
void trace_wait(Guard &guard, int kind, int64_t begin, int device, int64_t stream,
                uint64_t event_sync = 0);
enum WaitKind {
    EVENT_SYNCHRONIZE = 1,
    STREAM_WAIT_EVENT = 2,
    STREAM_SYNCHRONIZE = 3,
    CONTEXT_SYNCHRONIZE = 4
};

// ---- launches.cpp

void put_held_back(); // the kernel of machine_collect

// ---- memory.cpp

enum Place : uint8_t { PAGEABLE = 1, PINNED = 2, ON_DEVICE = 3 }; // CUPTI's kinds of memory

struct Block {
    size_t size, charged; // what was asked for, and what it takes; 0: it is another's
    int device;
    bool pooled;
};
extern std::map<uintptr_t, Block> &on_device;
Place place_of(const void *pointer);

// The memory of a device is a file without a name, so that another process can map it:
// first its addresses, of which most are holes, then what cuMemCreate gives.
struct DeviceMemory {
    uintptr_t base;
    int file;
    off_t physical_end;
};
DeviceMemory *memory_of(int device);
// Of another process, which must run as the same user and still live.
int open_file_of(pid_t process, int file);
void forbid_addresses(uintptr_t at, size_t size);

// The entry of a map by addresses in whose stretch an address lies.
template <class M> auto holding(M &map, uintptr_t address) -> decltype(map.begin())
{
    auto it = map.upper_bound(address);
    if (it == map.begin()) return map.end();
    --it;
    return address < it->first + it->second.size ? it : map.end();
}
