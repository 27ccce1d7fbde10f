// The virtual time of the host, V, and by it that of the devices; nanoseconds.
//
// GPUMAGIC_CLOCK says which kind of clock the process has:
//   paced   (default) V is the real clock, less the time in which somebody was blocked only
//           because values were being worked out. A wait for the device really lasts.
//   model   V moves by what calls cost by a model, and by waits: the same in every run.
//
// Who waits for the device blocks V: from block(target) on V does not pass `target`, the
// moment at which the device is done by its own timeline; unblock(target) lets a paced host
// sleep for what is left of that, and sets V to it. In between the values may take their time.
#pragma once
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <time.h>

class HostClock {
public:
    HostClock()
    {
        const char *kind = getenv("GPUMAGIC_CLOCK");
        is_model_ = kind && !strcmp(kind, "model");
    }

    static int64_t real()
    {
        timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
    }

    int64_t now()
    {
        if (stands_at_) return stands_at_;
        if (is_model_) return modelled_;
        for (;;) {
            uint64_t before = version_.load(std::memory_order_acquire);
            if (before & 1) continue;
            int64_t offset = offset_.load(std::memory_order_relaxed);
            int64_t ceiling = ceiling_.load(std::memory_order_relaxed), r = real();
            std::atomic_thread_fence(std::memory_order_acquire);
            if (version_.load(std::memory_order_relaxed) == before)
                return std::min(r + offset, ceiling);
        }
    }

    // What the host has done takes so long by a model.
    void cost(int64_t nanoseconds)
    {
        if (is_model_ && !stands_at_) modelled_ += nanoseconds;
    }

    // V is held at the earliest moment for which somebody waits.
    void block(int64_t target)
    {
        std::lock_guard<std::mutex> guard(lock_);
        blocked_.insert(target);
        latest_ = *blocked_.rbegin();
        if (is_model_) return;
        change([&](int64_t r, int64_t offset, int64_t ceiling) {
            int64_t v = std::min(r + offset, ceiling);
            return Rule{offset, std::max(*blocked_.begin(), v)};
        });
    }

    void unblock(int64_t target)
    {
        if (!stands_at_ && (!is_model_ || traced_)) {
            int64_t ahead = is_model_ ? target - real() - lead_ : target - (real() + offset_);
            if (ahead > 0) sleep_until(real() + ahead);
        }
        std::lock_guard<std::mutex> guard(lock_);
        blocked_.erase(blocked_.find(target));
        latest_ = blocked_.empty() ? INT64_MIN : *blocked_.rbegin();
        if (is_model_) {
            if (!stands_at_ && modelled_ < target) advance(target);
            return;
        }
        change([&](int64_t r, int64_t offset, int64_t ceiling) {
            int64_t v = std::min(r + offset, ceiling);
            if (!stands_at_) v = std::max(v, target);
            return Rule{v - r, blocked_.empty() ? INT64_MAX : std::max(*blocked_.begin(), v)};
        });
        note_lead();
    }

    // Whether somebody waits for what is at `moment`, or later.
    bool wants(int64_t moment) const { return latest_ >= moment; }

    // A trace has the host's real time: it tells a virtual moment less this lead, which only
    // falls, so that nothing is told behind what was told before. Waits last meanwhile.
    int64_t lead()
    {
        note_lead();
        return lead_;
    }
    void start_trace()
    {
        lead_ = now() - real();
        traced_ = true;
    }
    void end_trace() { traced_ = false; }
    bool traced() const { return traced_; }

    // For a function of the host that a stream calls V stands still, where the stream is.
    class Standing {
    public:
        explicit Standing(int64_t moment) { stands_at_ = moment; }
        ~Standing() { stands_at_ = 0; }
    };

private:
    static void sleep_until(int64_t when)
    {
        timespec t{when / 1000000000, when % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) == EINTR) {}
    }
    void advance(int64_t target)
    {
        int64_t v = modelled_;
        while (v < target && !modelled_.compare_exchange_weak(v, target)) {}
    }
    void note_lead()
    {
        if (!traced_) return;
        int64_t now_ahead = now() - real(), least = lead_;
        while (now_ahead < least && !lead_.compare_exchange_weak(least, now_ahead)) {}
    }
    struct Rule { int64_t offset, ceiling; };
    // now() reads both as one, without the lock. The real time that the new rule follows from
    // is read while readers wait: else one who reads a little later would be ahead of it.
    template <class Next> void change(Next next)
    {
        version_.fetch_add(1, std::memory_order_seq_cst);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        Rule rule = next(real(), offset_.load(), ceiling_.load());
        offset_.store(rule.offset, std::memory_order_relaxed);
        ceiling_.store(rule.ceiling, std::memory_order_relaxed);
        version_.fetch_add(1, std::memory_order_release);
    }

    bool is_model_;
    std::mutex lock_;
    std::multiset<int64_t> blocked_;
    std::atomic<uint64_t> version_{0};
    std::atomic<int64_t> offset_{0}, ceiling_{INT64_MAX}, latest_{INT64_MIN};
    std::atomic<int64_t> modelled_{1000000000}, lead_{INT64_MAX};
    std::atomic<bool> traced_{false};
    static inline thread_local int64_t stands_at_ = 0; // 0: it does not
};
