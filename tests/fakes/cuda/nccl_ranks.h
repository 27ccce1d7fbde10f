// What the ranks of a communicator share, how they wait for each other, and how they meet.
#pragma once

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <linux/futex.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <utility>

#include "machine.h"
#include "nccl_values.h"

namespace {

constexpr int MOST_RANKS = 64;
constexpr size_t HALF = size_t(2) << 20, SLOT = 2 * HALF, BOX = size_t(1) << 20;

struct File {
    pid_t process;
    int descriptor;
    ino_t inode;  // a descriptor's number may have become another file's
};

// One step after the other, each passed once all ranks have arrived at it.
struct alignas(64) Gate { std::atomic<uint64_t> arrivals; };

// What is on its way from one rank to another.
struct Box {
    std::atomic<uint64_t> filled, emptied;
    uint32_t bytes;
    int64_t sender_began_ns, receiver_began_ns;
};

// The words at the beginning of a communicator's file. Behind them come a slot for each
// rank and a box for each pair, of which only what is used takes memory.
struct Shared {
    std::atomic<uint32_t> changes;  // the futex on which all wait
    std::atomic<bool> descriptor_closed;
    Gate on_hosts, on_streams;
    pid_t processes[MOST_RANKS];
    char devices[MOST_RANKS][16];  // their PCI addresses
    int64_t began_ns[2][MOST_RANKS];
    struct { int color, key; } splits[MOST_RANKS];
    struct { std::atomic<uint64_t> number; File file; } offers[MOST_RANKS];
    Box boxes[MOST_RANKS][MOST_RANKS];  // from, to
};
constexpr size_t CONTROL = (sizeof(Shared) + 4095) / 4096 * 4096;

struct Communicator {
    int rank = 0, ranks = 0, device = 0;
    bool blocking = true;
    Shared *shared = nullptr;
    char *slots = nullptr, *boxes = nullptr;
    uint64_t host_steps = 0, stream_steps = 0, pieces = 0, offers = 0;
    int64_t clock_zero_ns = 0;
    std::vector<Reduction> scaled;
    void *buffers = nullptr;          // what the real one takes of the device's memory
    std::atomic<int> queued{0};       // kernels that have yet to end
    std::atomic<bool> aborted{false};
    std::atomic<int> state{ncclSuccess}, lost_rank{-1};
    std::thread starter;

    size_t bytes() const { return CONTROL + ranks * (SLOT + ranks * BOX); }
    bool gone() const { return aborted || state == ncclRemoteError; }
    ~Communicator()
    {
        if (shared) munmap(shared, bytes());
    }
};
using Owner = std::shared_ptr<Communicator>;

Owner &owner_of(ncclComm_t handle) { return *reinterpret_cast<Owner *>(handle); }
Communicator &behind(ncclComm_t handle) { return *owner_of(handle); }

thread_local std::string last_error;

ncclResult_t refuse(ncclResult_t code, std::string why)
{
    last_error = std::move(why);
    return code;
}

template <class Value> ncclResult_t answer(Value *asked, Value value)
{
    *asked = value;
    return ncclSuccess;
}

// ---------------------------------------------------------------- waiting for others

void tell_change(Shared *shared)
{
    shared->changes++;
    syscall(SYS_futex, &shared->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A process that has ended, though nobody has asked for its exit status, runs no file.
bool has_ended(pid_t process)
{
    char path[64], target[1];
    snprintf(path, sizeof path, "/proc/%d/exe", int(process));
    return process && readlink(path, target, sizeof target) < 0 && errno == ENOENT;
}

void look_for_the_dead(Communicator &c)
{
    static const bool told = getenv("GPUMAGIC_FAKE_NCCL_DEAD") != nullptr;
    for (int r = 0; told && c.shared && r < c.ranks; r++)
        if (has_ended(c.shared->processes[r])) c.lost_rank = r;
}

// False if the communicator was aborted, or a peer is gone.
template <class Condition>
bool wait(Communicator &c, Shared *shared, Condition reached)
{
    while (!c.gone()) {
        uint32_t seen = shared->changes;
        if (reached()) return true;
        if (c.lost_rank >= 0) {
            c.state = ncclRemoteError;
            break;
        }
        timespec at_most{0, 20'000'000};
        syscall(SYS_futex, &shared->changes, FUTEX_WAIT, seen, &at_most, nullptr, 0);
        look_for_the_dead(c);
    }
    return false;
}

bool arrive(Communicator &c, Gate &gate, uint64_t step)
{
    auto passed = [&](uint64_t s) {
        return wait(c, c.shared, [&] { return gate.arrivals >= s * c.ranks; });
    };
    if (!passed(step - 1)) return false;
    if (++gate.arrivals == step * c.ranks) tell_change(c.shared);
    return passed(step);
}

bool arrive_on_stream(Communicator &c)
{
    return arrive(c, c.shared->on_streams, ++c.stream_steps);
}

// ---------------------------------------------------------------- meeting

ncclResult_t make_file(File *file)
{
    int descriptor = int(syscall(SYS_memfd_create, "nccl", MFD_CLOEXEC));
    struct stat status;
    if (descriptor < 0 || fstat(descriptor, &status))
        return refuse(ncclSystemError, "no memory to share");
    *file = {getpid(), descriptor, status.st_ino};
    return ncclSuccess;
}

// As the real one does, which would wait for itself.
ncclResult_t refuse_shared_device(const Communicator &c)
{
    const auto &devices = c.shared->devices;
    for (int r = 0; r < c.ranks; r++)
        if (r != c.rank && !strcmp(devices[r], devices[c.rank]))
            return refuse(ncclInvalidUsage,
                          "Duplicate GPU detected : rank " + std::to_string(c.rank) + " and rank "
                              + std::to_string(r) + " both on CUDA device " + devices[r]);
    return ncclSuccess;
}

// Maps the file and waits until all ranks have.
ncclResult_t meet(Communicator &c, const File &file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", int(file.process), file.descriptor);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    bool same = opened >= 0 && !fstat(opened, &status) && status.st_ino == file.inode;
    void *at = MAP_FAILED;
    if (same && !ftruncate(opened, off_t(c.bytes())))
        at = mmap(nullptr, c.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                  opened, 0);
    if (opened >= 0) close(opened);
    if (at == MAP_FAILED) return refuse(ncclSystemError, "the ranks' memory is gone");

    c.shared = static_cast<Shared *>(at);
    c.slots = static_cast<char *>(at) + CONTROL;
    c.boxes = c.slots + c.ranks * SLOT;
    c.shared->processes[c.rank] = getpid();
    cudaDeviceGetPCIBusId(c.shared->devices[c.rank], sizeof c.shared->devices[c.rank], c.device);
    if (!arrive(c, c.shared->on_hosts, ++c.host_steps)) return ncclInternalError;
    c.clock_zero_ns = machine_now_ns();
    if (file.process == getpid() && !c.shared->descriptor_closed.exchange(true))
        close(file.descriptor);
    return refuse_shared_device(c);
}

// The leader of a new communicator, a rank of its parent, makes the file and offers it.
ncclResult_t meet_by_offer(Communicator &parent, Communicator &c, int leader,
                           uint64_t number)
{
    auto &offer = parent.shared->offers[leader];
    if (leader == parent.rank) {
        if (ncclResult_t code = make_file(&offer.file)) return code;
        offer.number = number;
        tell_change(parent.shared);
    }
    bool offered = wait(c, parent.shared, [&] { return offer.number == number; });
    return offered ? meet(c, offer.file) : ncclInternalError;
}

// Takes two steps of the parent: what all want is known; all have seen it, and met.
ncclResult_t split(Communicator &parent, Communicator &c, int color, int key,
                   uint64_t step, uint64_t number)
{
    auto &wishes = parent.shared->splits;
    wishes[parent.rank].color = color, wishes[parent.rank].key = key;
    if (!arrive(parent, parent.shared->on_hosts, step)) return ncclInternalError;
    std::vector<std::pair<int, int>> members;  // by their keys, then as in the parent
    for (int r = 0; r < parent.ranks; r++)
        if (wishes[r].color == color) members.push_back({wishes[r].key, r});
    std::sort(members.begin(), members.end());
    auto me = std::find(members.begin(), members.end(), std::pair(key, parent.rank));
    c.ranks = int(members.size()), c.rank = int(me - members.begin());
    ncclResult_t code = ncclSuccess;
    if (color != NCCL_SPLIT_NOCOLOR)
        code = meet_by_offer(parent, c, members[0].second, number);
    if (!arrive(parent, parent.shared->on_hosts, step + 1)) return ncclInternalError;
    return code;
}

}  // namespace
