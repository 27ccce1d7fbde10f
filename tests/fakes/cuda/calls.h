// A call of CUDA that a trace tells, and that costs the host time by a model's clock.
// Only the outermost of nested calls counts.
#pragma once
#include <cstdint>
#include <cupti_runtime_cbid.h>

extern "C" void machine_call_begins(uint32_t cbid);
extern "C" void machine_call_ends(void);

struct Call {
    explicit Call(uint32_t cbid) { machine_call_begins(cbid); }
    ~Call() { machine_call_ends(); }
};
#define CALL(name) Call call_(CUPTI_RUNTIME_TRACE_CBID_##name)
