// libnccl.so.2 between the processes and threads of one machine.
//
// The ranks of a communicator share memory: a file without a name (memfd), which the
// unique id tells by process and descriptor, so that nothing is left behind by those that
// are killed.
// Every operation is a kernel of its stream; those of one communicator run in the order of
// the calls, whatever their streams.
//
// Time. A kernel takes 8 us and its bytes at 300 GB/s from the moment on at which the last
// rank's kernel has begun. When that will be is not known when it is put. So it has no end
// on the device's timeline until the others have really come: queries answer "not ready",
// waits wait, and what is behind it gets its place after it. Compared is virtual time, by
// clocks that are set when the ranks meet; what a rank worked out meanwhile does not
// count. A kernel that was given up ends when it really did.
//
//   GPUMAGIC_FAKE_NCCL_MIB          what each communicator takes of its device's memory, 0
//   GPUMAGIC_FAKE_NCCL_DEAD=error   a peer's process that is gone makes operations fail
//                                   (ncclRemoteError); else they wait, as over NVLink
#include <functional>

#include "nccl_operations.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

// ---------------------------------------------------------------- kernels

int64_t real_now_ns()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// On the thread of the stream that has come to the kernel.
void run(void *data)
{
    Launch &launch = *static_cast<Launch *>(data);
    Communicator &c = *launch.communicator;
    const int64_t began_ns = machine_kernel_began_ns(), really_began_ns = real_now_ns();
    launch.last_began_ns = began_ns - c.clock_zero_ns;
    bool done = !c.gone() && (launch.operations[0].collective()
                                  ? run_collective(launch)
                                  : run_sends_and_receives(launch));
    machine_kernel_ends_ns(
        done ? c.clock_zero_ns + launch.last_began_ns + launch.duration_ns
             : began_ns + real_now_ns() - really_began_ns);
    if (!launch.captured && !--c.queued) tell_change(c.shared);
}

void forget(void *data) { delete static_cast<Launch *>(data); }

std::string kernel_name(const Operation &o)
{
    static const char *const operations[] = {"Sum", "Prod", "MinMax", "MinMax",
                                             "SumPostDiv", "PreMulSum"};
    static const char *const types[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16",
                                        "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
    std::string name = std::string("ncclDevKernel_") + kinds[o.kind].name;
    if (kinds[o.kind].reduces)
        name += std::string("_") + operations[std::min(o.reduction.operation, 5)] + "_"
                + types[o.type];
    if (o.collective()) name += "_RING_LL";
    return name + "(ncclDevKernelArgsStorage<4096ul>)";
}

// Makes a device current for a while: a group is launched by one thread for several.
class CurrentDevice {
public:
    explicit CurrentDevice(int device) : wanted_(device)
    {
        cudaGetDevice(&before_);
        if (before_ != wanted_) cudaSetDevice(wanted_);
    }
    ~CurrentDevice()
    {
        if (before_ != wanted_) cudaSetDevice(before_);
    }

private:
    int wanted_, before_ = 0;
};

ncclResult_t launch(std::vector<Operation> operations)
{
    const Operation first = operations[0];
    Owner communicator = first.communicator;
    auto *made = new Launch{std::move(operations), communicator};
    for (const Operation &o : made->operations)
        made->duration_ns += int64_t(link_bytes(o) / 300);
    CurrentDevice current(communicator->device);
    // A graph lives as long as its owner likes; nobody can wait for its kernels.
    made->captured = machine_capturing(first.stream);
    if (!made->captured) communicator->queued++;
    int failed = machine_kernel_work(kernel_name(first).c_str(), first.stream,
                                     made->duration_ns, 24, 512, communicator.get(), run,
                                     forget, made);
    return failed ? refuse(ncclUnhandledCudaError, "the kernel was not launched")
                  : ncclSuccess;
}

// ---------------------------------------------------------------- groups

struct Group {
    int depth = 0;
    std::vector<Operation> operations;
    std::vector<Owner> starting;
};
thread_local Group group;

ncclResult_t wait_for_starting()
{
    ncclResult_t worst = ncclSuccess;
    for (Owner &c : std::exchange(group.starting, {})) {
        if (!c->blocking) {
            worst = ncclInProgress;
            continue;
        }
        c->starter.join();
        if (c->state != ncclSuccess) worst = ncclResult_t(c->state.load());
    }
    return worst;
}

// Collectives as they come; the sends and receives of a communicator in one kernel, where
// the first of them is.
ncclResult_t flush_group()
{
    ncclResult_t worst = wait_for_starting();
    std::vector<Operation> waiting = std::exchange(group.operations, {});
    while (!waiting.empty()) {
        const Operation first = waiting.front();
        auto is_apart = [&](const Operation &o) {
            return first.collective() || o.collective()
                || o.communicator != first.communicator;
        };
        auto along = std::stable_partition(waiting.begin() + 1, waiting.end(), is_apart);
        std::vector<Operation> together{first};
        together.insert(together.end(), along, waiting.end());
        waiting.erase(along, waiting.end());
        waiting.erase(waiting.begin());
        if (ncclResult_t code = launch(std::move(together))) worst = code;
    }
    return worst;
}

ncclResult_t enqueue(Kind kind, const void *from, void *to, size_t count,
                     ncclDataType_t type, int operation, int peer, ncclComm_t handle,
                     cudaStream_t stream)
{
    if (!handle) return refuse(ncclInvalidArgument, "no communicator");
    Owner c = owner_of(handle);
    if (c->state == ncclInProgress)
        return refuse(ncclInvalidArgument, "the communicator is not initialised yet");
    if (c->aborted) return refuse(ncclInvalidUsage, "the communicator was aborted");
    if (type < 0 || type >= ncclNumTypes) return refuse(ncclInvalidArgument, "type");
    if ((kinds[kind].one_gives || kinds[kind].one_takes) && (peer < 0 || peer >= c->ranks))
        return refuse(ncclInvalidArgument, "root or peer");
    Reduction reduction;
    if (size_t scaled = operation - ncclNumOps; operation >= ncclNumOps) {
        if (scaled >= c->scaled.size()) return refuse(ncclInvalidArgument, "reduction");
        reduction = c->scaled[scaled];
    }
    reduction.operation = operation;
    if (!count) return ncclSuccess;
    group.operations.push_back({kind, static_cast<const char *>(from),
                                static_cast<char *>(to), count, type, reduction, peer, c,
                                stream});
    return group.depth ? ncclSuccess : flush_group();
}

// ---------------------------------------------------------------- communicators

// Hands out a communicator that `how` makes ready: now, or, in a group and where the
// configuration says so, by a thread of its own.
ncclResult_t start(ncclComm_t *handle, Owner c, bool blocking,
                   std::function<ncclResult_t()> how)
{
    cudaGetDevice(&c->device);
    const char *mib = getenv("GPUMAGIC_FAKE_NCCL_MIB");
    if (mib && cudaMalloc(&c->buffers, strtoul(mib, nullptr, 0) << 20))
        return refuse(ncclUnhandledCudaError, "out of memory");
    c->blocking = blocking;
    c->state = ncclInProgress;
    *handle = reinterpret_cast<ncclComm_t>(new Owner(c));
    if (!group.depth && c->blocking) {
        c->state = how();
        return ncclResult_t(c->state.load());
    }
    // Whoever owns the communicator joins the thread before it goes.
    c->starter = std::thread([raw = c.get(), how] { raw->state = how(); });
    group.starting.push_back(c);
    return group.depth ? ncclSuccess : wait_for_starting();
}

bool is_blocking(const ncclConfig_t *config, bool otherwise)
{
    bool unsaid = !config || config->blocking == NCCL_CONFIG_UNDEF_INT;
    return unsaid ? otherwise : config->blocking != 0;
}

void drop(ncclComm_t handle)
{
    Communicator &c = behind(handle);
    if (c.starter.joinable()) c.starter.join();
    // By a thread of its own: the caller's current device, which may be another one, would
    // be given a context.
    if (c.buffers)
        std::thread([&] { cudaSetDevice(c.device), cudaFree(c.buffers); }).join();
    delete &owner_of(handle);
}

}  // namespace

API ncclResult_t ncclGetVersion(int *version)
{ return answer(version, NCCL_VERSION_CODE); }
API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    File file;
    ncclResult_t code = make_file(&file);
    memset(id, 0, sizeof *id);
    memcpy(id, &file, sizeof file);
    return code;
}

API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id,
                                        int rank, ncclConfig_t *config)
{
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks)
        return refuse(ncclInvalidArgument, "ranks");
    File file;
    memcpy(&file, &id, sizeof file);
    cudaFree(nullptr);  // makes the context
    auto c = std::make_shared<Communicator>();
    c->rank = rank, c->ranks = ranks;
    return start(comm, c, is_blocking(config, true),
                 [raw = c.get(), file] { return meet(*raw, file); });
}

API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{ return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr); }
API ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int,
                                          ncclUniqueId *ids, ncclConfig_t *config)
{ return ncclCommInitRankConfig(comm, ranks, ids[0], rank, config); }
API ncclResult_t ncclGroupStart()
{
    group.depth++;
    return ncclSuccess;
}

API ncclResult_t ncclGroupEnd()
{
    if (!group.depth) return refuse(ncclInvalidUsage, "ncclGroupEnd without a start");
    return --group.depth ? ncclSuccess : flush_group();
}

API ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    if (info) info->estimatedTime = 10;
    group.operations.clear();
    if (group.depth) group.depth--;
    return ncclSuccess;
}

API ncclResult_t ncclCommInitAll(ncclComm_t *comms, int count, const int *devices)
{
    ncclUniqueId id;
    if (ncclResult_t code = ncclGetUniqueId(&id)) return code;
    int before = 0;
    cudaGetDevice(&before);
    ncclGroupStart();
    for (int i = 0; i < count; i++) {
        cudaSetDevice(devices ? devices[i] : i);
        ncclCommInitRank(&comms[i], count, id, i);
    }
    ncclResult_t code = ncclGroupEnd();
    cudaSetDevice(before);
    return code;
}

API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made,
                               ncclConfig_t *config)
{
    Owner parent = owner_of(comm);
    if (parent->state != ncclSuccess)
        return refuse(ncclInvalidArgument, "the communicator is not ready");
    auto c = std::make_shared<Communicator>();
    auto how = [=, raw = c.get(), step = parent->host_steps + 1,
                number = ++parent->offers] {
        return split(*parent, *raw, color, key, step, number);
    };
    parent->host_steps += 2;
    if (color != NCCL_SPLIT_NOCOLOR)
        return start(made, c, is_blocking(config, parent->blocking), how);
    *made = nullptr;
    return how();
}

API ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count, ncclComm_t *made,
                                ncclConfig_t *config, int flags)
{
    Owner parent = owner_of(comm);
    if (flags & NCCL_SHRINK_ABORT) parent->aborted = true;
    auto c = std::make_shared<Communicator>();
    int leader = -1;
    for (int r = 0; r < parent->ranks; r++) {
        if (std::find(excluded, excluded + count, r) != excluded + count) continue;
        if (leader < 0) leader = r;
        if (r < parent->rank) c->rank++;
        c->ranks++;
    }
    auto how = [=, raw = c.get(), number = ++parent->offers] {
        return meet_by_offer(*parent, *raw, leader, number);
    };
    return start(made, c, is_blocking(config, parent->blocking), how);
}

API ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
API ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm) return ncclSuccess;
    Communicator &c = behind(comm);
    if (c.state == ncclInProgress) c.aborted = true;
    if (c.shared) wait(c, c.shared, [&] { return !c.queued; });
    drop(comm);
    return ncclSuccess;
}

API ncclResult_t ncclCommRevoke(ncclComm_t comm, int)
{
    behind(comm).aborted = true;
    return ncclSuccess;
}

API ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm) return ncclSuccess;
    ncclCommRevoke(comm, 0);
    drop(comm);
    return ncclSuccess;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *code)
{ return answer(code, ncclResult_t(behind(comm).state.load())); }
API ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{ return answer(count, behind(comm).ranks); }
API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{ return answer(device, behind(comm).device); }
API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{ return answer(rank, behind(comm).rank); }
API const char *ncclGetErrorString(ncclResult_t code)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
        "timeout",
    };
    return unsigned(code) < ncclNumResults ? texts[code] : "unknown result code";
}

API const char *ncclGetLastError(ncclComm_t comm)
{
    if (int lost = comm ? behind(comm).lost_rank.load() : -1; lost >= 0)
        last_error = "remote process exited (rank " + std::to_string(lost) + ")";
    return last_error.c_str();
}

// ---------------------------------------------------------------- memory and reductions

API ncclResult_t ncclMemAlloc(void **at, size_t bytes)
{ return cudaMalloc(at, bytes) ? ncclUnhandledCudaError : ncclSuccess; }
API ncclResult_t ncclMemFree(void *at)
{ return cudaFree(at) ? ncclUnhandledCudaError : ncclSuccess; }
API ncclResult_t ncclCommRegister(const ncclComm_t, void *at, size_t, void **handle)
{ return answer(handle, at); }
API ncclResult_t ncclCommDeregister(const ncclComm_t, void *) { return ncclSuccess; }
API ncclResult_t ncclCommWindowRegister(ncclComm_t, void *at, size_t, ncclWindow_t *window,
                                        int)
{ return answer(window, static_cast<ncclWindow_t>(at)); }
API ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclSuccess; }
API ncclResult_t ncclWinGetUserPtr(ncclComm_t, ncclWindow_t window, void **at)
{ return answer(at, static_cast<void *>(window)); }
API ncclResult_t ncclCommSuspend(ncclComm_t, int) { return ncclSuccess; }
API ncclResult_t ncclCommResume(ncclComm_t) { return ncclSuccess; }
API ncclResult_t ncclCommMemStats(ncclComm_t, ncclCommMemStat_t, uint64_t *value)
{ return answer(value, uint64_t(0)); }
API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *made, void *scale,
                                          ncclDataType_t type,
                                          ncclScalarResidence_t residence, ncclComm_t comm)
{
    auto &scaled = behind(comm).scaled;
    Reduction reduction;
    if (residence == ncclScalarDevice) reduction.scale_at = scale;
    else reduction.scale = number_at(scale, type);
    *made = ncclRedOp_t(ncclNumOps + scaled.size());
    scaled.push_back(reduction);
    return ncclSuccess;
}

API ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }

// ---------------------------------------------------------------- what ranks do together

#define ON ncclComm_t comm, cudaStream_t stream

API ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                            ncclRedOp_t op, int root, ON)
{ return enqueue(REDUCE, from, to, count, type, op, root, comm, stream); }
API ncclResult_t ncclBroadcast(const void *from, void *to, size_t count,
                               ncclDataType_t type, int root, ON)
{ return enqueue(BROADCAST, from, to, count, type, 0, root, comm, stream); }
API ncclResult_t ncclBcast(void *at, size_t count, ncclDataType_t type, int root, ON)
{ return enqueue(BROADCAST, at, at, count, type, 0, root, comm, stream); }
API ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                               ncclDataType_t type, ncclRedOp_t op, ON)
{ return enqueue(ALL_REDUCE, from, to, count, type, op, 0, comm, stream); }
API ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count,
                                   ncclDataType_t type, ncclRedOp_t op, ON)
{ return enqueue(REDUCE_SCATTER, from, to, count, type, op, 0, comm, stream); }
API ncclResult_t ncclAllGather(const void *from, void *to, size_t count,
                               ncclDataType_t type, ON)
{ return enqueue(ALL_GATHER, from, to, count, type, 0, 0, comm, stream); }
API ncclResult_t ncclAlltoAll(const void *from, void *to, size_t count,
                              ncclDataType_t type, ON)
{ return enqueue(ALL_TO_ALL, from, to, count, type, 0, 0, comm, stream); }
API ncclResult_t ncclGather(const void *from, void *to, size_t count, ncclDataType_t type,
                            int root, ON)
{ return enqueue(GATHER, from, to, count, type, 0, root, comm, stream); }
API ncclResult_t ncclScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                             int root, ON)
{ return enqueue(SCATTER, from, to, count, type, 0, root, comm, stream); }
API ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ON)
{ return enqueue(SEND, from, nullptr, count, type, 0, peer, comm, stream); }
API ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ON)
{ return enqueue(RECV, nullptr, to, count, type, 0, peer, comm, stream); }

// ---------------------------------------------------------------- what is not there

// Torch is linked against these, but calls them only for communicators that grow, for
// one-sided operations, and for kernels that reach into other ranks' memory. Their names
// stand as the assembler's, since some are declared with arguments and some not at all.
#define NOT_THERE(name)                                                                 \
    __attribute__((visibility("default"))) ncclResult_t refused_##name() asm(#name);    \
    ncclResult_t refused_##name() { return refuse(ncclInvalidUsage, "no " #name " here"); }

NOT_THERE(ncclCommGetUniqueId)
NOT_THERE(ncclCommGrow)
NOT_THERE(ncclPutSignal)
NOT_THERE(ncclSignal)
NOT_THERE(ncclWaitSignal)
NOT_THERE(ncclDevCommCreate)
NOT_THERE(ncclDevCommDestroy)
NOT_THERE(ncclGetLsaMultimemDevicePointer)
NOT_THERE(ncclGetPeerDevicePointer)
