/* What the card does in a nanosecond, as large operators reach it: an H100 SXM.
 *
 * Its memory moves 3.35e12 bytes a second by its data sheet and 3.0e12 when measured,
 * which is 3,000 bytes a nanosecond; products in bfloat16 reach 0.8e15 operations a
 * second. GPUMAGIC_CLOCK_BYTES_NS and GPUMAGIC_CLOCK_FLOPS_NS (for every type) stand in
 * for it.
 */
#ifndef GPUMAGIC_FAKE_RATES_H
#define GPUMAGIC_FAKE_RATES_H

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace rates {

enum Unit { FP64, FP32, TF32, HALF, EIGHT_BITS };

inline double number_of(const char *variable, double otherwise)
{
    const char *text = getenv(variable);
    return text && *text ? atof(text) : otherwise;
}

inline int64_t moving_ns(double bytes)
{
    static const double bytes_a_ns = number_of("GPUMAGIC_CLOCK_BYTES_NS", 3000);
    return int64_t(bytes / bytes_a_ns);
}

/* Additions and multiplications counted each. */
inline int64_t computing_ns(double operations, Unit unit)
{
    static const double any = number_of("GPUMAGIC_CLOCK_FLOPS_NS", 0);
    constexpr double operations_a_ns[] = {60e3, 52e3, 415e3, 800e3, 1450e3};
    return int64_t(operations / (any ? any : operations_a_ns[unit]));
}

}  // namespace rates

#endif
