// Reductions in all the types of NCCL: how each is stored, and in which C++ type it is
// worked out. Half, bfloat16 and the 8-bit floats are worked out as float and rounded
// once at the end.
#pragma once

#define __CUDA_FP16_H__  // these three want libcu++, and nothing of them is needed
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
#include <nccl.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// What a rank's values meet: one of NCCL's operations, or a sum of values that each rank
// scales first, by a number or by what lies at an address on the device.
struct Reduction {
    int operation = ncclSum;
    double scale = 1;
    const void *scale_at = nullptr;
};

template <class Number> struct Plain {
    using Stored = Number;
    using Worked = Number;
    static Number load(Number s) { return s; }
    static Number store(Number w) { return w; }
};

struct Half {
    using Stored = _Float16;
    using Worked = float;
    static float load(_Float16 s) { return float(s); }
    static _Float16 store(float w) { return _Float16(w); }
};

struct Bfloat16 {
    using Stored = uint16_t;
    using Worked = float;
    static float load(uint16_t s)
    {
        uint32_t bits = uint32_t(s) << 16;
        float w;
        memcpy(&w, &bits, sizeof w);
        return w;
    }
    static uint16_t store(float w)
    {
        uint32_t bits;
        memcpy(&bits, &w, sizeof bits);
        uint32_t to_even = 0x7fff + (bits >> 16 & 1);
        return std::isnan(w) ? 0x7fc0 : uint16_t((bits + to_even) >> 16);
    }
};

// e4m3 has no infinity, and one NaN for each sign; e5m2 is a half cut short. What is too
// large becomes the largest number, as NCCL's conversions have it.
template <int mantissa_bits, bool has_infinity> struct Float8 {
    using Stored = uint8_t;
    using Worked = float;
    static constexpr int mantissa_mask = (1 << mantissa_bits) - 1;
    static constexpr int exponent_mask = 0x7f >> mantissa_bits;
    static constexpr int bias = exponent_mask / 2;
    static constexpr uint8_t largest = has_infinity ? 0x7b : 0x7e;

    static float load(uint8_t s)
    {
        int exponent = (s & 0x7f) >> mantissa_bits, mantissa = s & mantissa_mask;
        float size = std::ldexp(float(exponent ? mantissa + mantissa_mask + 1 : mantissa),
                                (exponent ? exponent : 1) - bias - mantissa_bits);
        if ((s & 0x7f) > largest) size = has_infinity && !mantissa ? INFINITY : NAN;
        return s & 0x80 ? -size : size;
    }
    static uint8_t store(float w)
    {
        if (std::isnan(w)) return 0x7f;
        // The patterns of positive numbers are in the order of the numbers.
        uint8_t below = 0, above = largest;
        float size = std::fabs(w);
        while (below < above) {
            uint8_t middle = uint8_t((below + above + 1) / 2);
            if (load(middle) <= size) below = middle;
            else above = uint8_t(middle - 1);
        }
        if (below < largest) {
            float down = size - load(below), up = load(uint8_t(below + 1)) - size;
            if (up < down || (up == down && below & 1)) below++;
        }
        return uint8_t(below | (std::signbit(w) ? 0x80 : 0));
    }
};

// Calls `use` with a value of the struct above that describes a type.
template <class Use> void as_type(ncclDataType_t type, Use use)
{
    switch (type) {
    case ncclInt8: return use(Plain<int8_t>());
    case ncclUint8: return use(Plain<uint8_t>());
    case ncclInt32: return use(Plain<int32_t>());
    case ncclUint32: return use(Plain<uint32_t>());
    case ncclInt64: return use(Plain<int64_t>());
    case ncclUint64: return use(Plain<uint64_t>());
    case ncclFloat16: return use(Half());
    case ncclFloat32: return use(Plain<float>());
    case ncclFloat64: return use(Plain<double>());
    case ncclBfloat16: return use(Bfloat16());
    case ncclFloat8e4m3: return use(Float8<3, false>());
    case ncclFloat8e5m2: return use(Float8<2, true>());
    default: return;
    }
}

size_t size_of(ncclDataType_t type)
{
    size_t bytes = 0;
    as_type(type, [&](auto t) { bytes = sizeof(typename decltype(t)::Stored); });
    return bytes;
}

// A scale that the host has given; exact but for 64-bit integers beyond 2^53.
double number_at(const void *at, ncclDataType_t type)
{
    double number = 0;
    as_type(type, [&](auto t) {
        typename decltype(t)::Stored stored;
        memcpy(&stored, at, sizeof stored);
        number = double(t.load(stored));
    });
    return number;
}

// Folds the ranks' values, a stretch at a time so that the compiler can use vectors.
template <class Type, class Combine>
void fold(void *out, const std::vector<const char *> &ranks, size_t count,
          typename Type::Worked scale, typename Type::Worked divisor, Combine combine)
{
    using Stored = typename Type::Stored;
    using Worked = typename Type::Worked;
    constexpr size_t STRETCH = 1024;
    for (size_t at = 0; at < count; at += STRETCH) {
        size_t n = std::min(STRETCH, count - at);
        Worked folded[STRETCH];
        for (size_t r = 0; r < ranks.size(); r++) {
            auto *values = reinterpret_cast<const Stored *>(ranks[r]) + at;
            if (r == 0)
                for (size_t i = 0; i < n; i++)
                    folded[i] = Worked(Type::load(values[i]) * scale);
            else
                for (size_t i = 0; i < n; i++)
                    folded[i] = combine(folded[i], Worked(Type::load(values[i]) * scale));
        }
        auto *to = static_cast<Stored *>(out) + at;
        for (size_t i = 0; i < n; i++) to[i] = Type::store(Worked(folded[i] / divisor));
    }
}

template <class Type>
void reduce_as(void *out, const std::vector<const char *> &ranks, size_t count,
               const Reduction &how)
{
    using Worked = typename Type::Worked;
    auto with = [&](Worked scale, Worked divisor, auto combine) {
        fold<Type>(out, ranks, count, scale, divisor, combine);
    };
    auto sum = [](Worked a, Worked b) { return Worked(a + b); };
    switch (how.operation) {
    case ncclSum: return with(1, 1, sum);
    case ncclAvg: return with(1, Worked(ranks.size()), sum);
    case ncclProd: return with(1, 1, [](Worked a, Worked b) { return Worked(a * b); });
    // A NaN is passed on, as torch's own maximum does.
    case ncclMax: return with(1, 1, [](Worked a, Worked b) { return b > a || b != b ? b : a; });
    case ncclMin: return with(1, 1, [](Worked a, Worked b) { return b < a || b != b ? b : a; });
    }
    auto *at = static_cast<const typename Type::Stored *>(how.scale_at);
    with(at ? Type::load(*at) : Worked(how.scale), 1, sum);
}

void reduce(void *out, const std::vector<const char *> &ranks, size_t count,
                   ncclDataType_t type, const Reduction &how)
{
    as_type(type, [&](auto t) { reduce_as<decltype(t)>(out, ranks, count, how); });
}

}  // namespace
