// What an operation does once its stream has come to it, with the memory of all ranks.
#pragma once

#include "nccl_ranks.h"

namespace {

enum Kind {
    ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER,
    SEND, RECV
};

struct KindOfOperation {
    const char *name;
    bool reduces;
    bool in_parts;   // what a rank gives has a part for each rank
    bool one_gives, one_takes;  // the root
};
const KindOfOperation kinds[] = {
    {"AllReduce", true, false, false, false},
    {"Reduce", true, false, false, true},
    {"Broadcast", false, false, true, false},
    {"AllGather", false, false, false, false},
    {"ReduceScatter", true, true, false, false},
    {"AlltoAll", false, true, false, false},
    {"Gather", false, false, false, true},
    {"Scatter", false, true, true, false},
    {"SendRecv", false, false, true, true},
    {"SendRecv", false, false, true, true},
};

struct Operation {
    Kind kind;
    const char *from;
    char *to;
    size_t count;
    ncclDataType_t type;
    Reduction reduction;
    int peer;  // or the root
    Owner communicator;
    cudaStream_t stream;
    size_t moved_bytes = 0;

    bool collective() const { return kind < SEND; }
    size_t bytes() const { return count * size_of(type); }
};

// What goes over the links of one rank.
size_t link_bytes(const Operation &o)
{
    size_t others = o.communicator->ranks - 1, bytes = o.bytes();
    switch (o.kind) {
    case ALL_REDUCE: return 2 * bytes * others / (others + 1);
    case REDUCE: case BROADCAST: case SEND: case RECV: return bytes;
    default: return bytes * others;
    }
}

// A kernel's operations: one collective, or the sends and receives of a group.
struct Launch {
    std::vector<Operation> operations;
    Owner communicator;
    int64_t duration_ns = 8000;
    bool captured = false;
    int64_t last_began_ns = 0;  // of all ranks, since they met
};

// Goes through a collective in pieces. Each rank lays its piece into its slot, and takes
// out of all slots once all have. A slot has two halves, used in turn: when all have
// arrived with a piece, all have taken what the other half held. A reduction has one more
// step, in which each rank reduces its share of the piece for all.
bool run_collective(Launch &launch)
{
    const Operation &o = launch.operations[0];
    const KindOfOperation &kind = kinds[o.kind];
    Communicator &c = *o.communicator;
    const size_t each = size_of(o.type);
    const size_t most = HALF / each / (kind.in_parts ? c.ranks : 1);
    const bool gives = !kind.one_gives || c.rank == o.peer;
    const bool takes = !kind.one_takes || c.rank == o.peer;
    const bool shared_out = kind.reduces && !kind.in_parts;

    for (size_t at = 0; at < o.count; at += most) {
        const size_t n = std::min(most, o.count - at), bytes = n * each;
        const int half = c.pieces++ & 1;
        auto slot = [&](int rank) { return c.slots + rank * SLOT + half * HALF; };
        auto from_ranks = [&](size_t offset) {
            std::vector<const char *> all;
            for (int r = 0; r < c.ranks; r++) all.push_back(slot(r) + offset);
            return all;
        };
        for (int part = 0; gives && part < (kind.in_parts ? c.ranks : 1); part++)
            memcpy(slot(c.rank) + part * bytes, o.from + (part * o.count + at) * each, bytes);
        int64_t *began_ns = c.shared->began_ns[half];
        if (!at) began_ns[c.rank] = launch.last_began_ns;
        if (!arrive_on_stream(c)) return false;
        if (!at) launch.last_began_ns = *std::max_element(began_ns, began_ns + c.ranks);

        const size_t share = (n + c.ranks - 1) / c.ranks;
        auto first = [&](int rank) { return std::min(n, rank * share); };
        auto share_bytes = [&](int rank) { return (first(rank + 1) - first(rank)) * each; };
        if (shared_out) {
            size_t offset = first(c.rank) * each;
            reduce(slot(c.rank) + offset, from_ranks(offset), share_bytes(c.rank) / each,
                   o.type, o.reduction);
            if (!arrive_on_stream(c)) return false;
        }
        if (!takes) continue;

        const auto sources = from_ranks(kind.in_parts ? c.rank * bytes : 0);
        char *to = o.to + at * each;
        if (shared_out)
            for (int r = 0; r < c.ranks; r++)
                memcpy(to + first(r) * each, sources[r] + first(r) * each, share_bytes(r));
        else if (kind.reduces)
            reduce(to, sources, n, o.type, o.reduction);
        else if (kind.one_gives)
            memcpy(to, sources[o.peer], bytes);
        else
            for (int r = 0; r < c.ranks; r++) memcpy(to + r * o.bytes(), sources[r], bytes);
    }
    return true;
}

// Moves one boxful of a send or a receive; false if the other side has to act first.
bool move_boxful(Launch &launch, Operation &o)
{
    Communicator &c = *o.communicator;
    const bool sends = o.kind == SEND;
    const int from = sends ? c.rank : o.peer, to = sends ? o.peer : c.rank;
    Box &box = c.shared->boxes[from][to];
    char *content = c.boxes + (from * c.ranks + to) * BOX;
    if ((box.filled == box.emptied) != sends) return false;

    int64_t &mine_ns = sends ? box.sender_began_ns : box.receiver_began_ns;
    int64_t theirs_ns = sends ? box.receiver_began_ns : box.sender_began_ns;
    mine_ns = launch.last_began_ns = std::max(launch.last_began_ns, theirs_ns);
    size_t bytes = std::min(BOX, o.bytes() - o.moved_bytes);
    if (sends) {
        memcpy(content, o.from + o.moved_bytes, bytes);
        box.bytes = uint32_t(bytes);
        box.filled++;
    } else {
        bytes = std::min(bytes, size_t(box.bytes));
        memcpy(o.to + o.moved_bytes, content, bytes);
        box.emptied++;
    }
    o.moved_bytes += bytes;
    tell_change(c.shared);
    return true;
}

// Sends and receives go on together, but those of one pair in their order. Moves what can
// be moved, and says whether all is done.
bool move_all(Launch &launch)
{
    for (bool moved = true; moved;) {
        moved = false;
        bool left = false, first_is_under_way[2][MOST_RANKS] = {};
        for (Operation &o : launch.operations) {
            if (o.moved_bytes == o.bytes()) continue;
            left = true;
            bool &behind_another = first_is_under_way[o.kind == SEND][o.peer];
            if (!behind_another) moved = move_boxful(launch, o) || moved;
            behind_another = true;
        }
        if (!left) return true;
    }
    return false;
}

bool run_sends_and_receives(Launch &launch)
{
    for (Operation &o : launch.operations) o.moved_bytes = 0;
    Communicator &c = *launch.communicator;
    return wait(c, c.shared, [&] { return move_all(launch); });
}

}  // namespace
