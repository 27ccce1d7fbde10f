// What every function of libcudart does before it asks the driver.
//
// The runtime is a thin shell: it starts the driver and the context at the first call that
// needs them, remembers the last error of each thread, and tells a trace of the calls. Its
// error codes, streams, events, graphs and attributes are the driver's own.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "calls.h"

cudaError_t start_driver();
cudaError_t start_context(); // of the calling thread's device
cudaError_t told(cudaError_t code); // as the thread's last error, if it is one
inline cudaError_t told(CUresult code) { return told(cudaError_t(code)); }

#define NEEDS_DRIVER if (cudaError_t code_ = start_driver()) return told(code_)
#define NEEDS_CONTEXT if (cudaError_t code_ = start_context()) return told(code_)

inline CUdeviceptr address(const void *pointer) { return CUdeviceptr(pointer); }
inline CUdeviceptr *address(void **pointer) { return reinterpret_cast<CUdeviceptr *>(pointer); }
