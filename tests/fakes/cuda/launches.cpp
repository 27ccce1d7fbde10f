// Kernels: where they come from, what they take, and what the library of values makes of them.
#include "parts.h"

#include <cstring>
#include <unistd.h>

struct CUmod_st {};
struct CUlib_st {};

namespace {

struct Shape {
    unsigned grid[3], block[3], shared;

    bool is_possible() const
    {
        uint64_t threads = uint64_t(block[0]) * block[1] * block[2];
        return grid[0] && grid[1] && grid[2] && threads && threads <= 1024;
    }
};

std::atomic<MachineLaunchHook> launch_hook{nullptr};

// Kernels are known by their names: nothing else of them is looked at.
CUfunction kernel_named(const char *name, bool of_module)
{
    static auto &known = *new std::map<std::pair<std::string, bool>, CUfunction>;
    static auto &known_lock = *new std::mutex;
    std::lock_guard<std::mutex> guard(known_lock);
    CUfunction &kernel = known[{name, of_module}];
    if (!kernel)
        kernel = new CUfunc_st{name, of_module, strstr(name, "spin_kernel") != nullptr};
    return kernel;
}

// The operator of which this thread collects the kernels.
struct Collected {
    bool collects = false;
    Stream *stream = nullptr;  // where its last kernel goes; none: none is held back
    Operation kernel;
    int64_t left = -1; // of the operator's time, which its last kernel takes; -1: not told
};
thread_local Collected collected;

void put_kernel(CUstream handle, Operation kernel)
{
    put_held_back(); // two kernels of one call: a library's
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    kernel.submitted = host.now();
    kernel.record.correlation = current_correlation();
    if (collected.collects)
        collected.stream = stream, collected.kernel = std::move(kernel);
    else
        put(guard, stream, std::move(kernel));
}

// The last kernel of an operator takes what is left of the operator's time.
void give_rest()
{
    collected.kernel.duration = std::max(collected.kernel.duration, collected.left);
    collected.left = -1;
}

Operation kernel_operation(const char *name, int64_t duration, const Shape &shape)
{
    Operation kernel;
    kernel.duration = duration;
    kernel.traced = true;
    kernel.record.kind = MACHINE_KERNEL;
    kernel.record.name = name;
    std::copy_n(shape.grid, 3, kernel.record.grid);
    std::copy_n(shape.block, 3, kernel.record.block);
    kernel.record.shared = shape.shared;
    return kernel;
}

CUresult launch(CUfunction function, const Shape &shape, CUstream stream, void **parameters,
                uint32_t cbid)
{
    Call call(cbid);
    NEEDS_CONTEXT;
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!shape.is_possible()) return CUDA_ERROR_INVALID_VALUE;
    int64_t duration = KERNEL_NS;
    if (function->spins && parameters && parameters[0])
        duration = *static_cast<int64_t *>(parameters[0]) * 1000 / CYCLES_A_US;
    put_kernel(stream, kernel_operation(function->name.c_str(), duration, shape));
    if (MachineLaunchHook hook = launch_hook; hook && function->of_module)
        hook(function->name.c_str(), shape.grid, parameters, stream);
    return CUDA_SUCCESS;
}

} // namespace

void put_held_back()
{
    if (!collected.stream) return;
    Guard guard(lock);
    Stream *stream = collected.stream;
    collected.stream = nullptr;
    if (collected.left >= 0)
        collected.left = std::max<int64_t>(0, collected.left - collected.kernel.duration);
    put(guard, stream, std::move(collected.kernel));
}

// ------------------------------------------------------------------ machine.h

void machine_collect(int on)
{
    if (!on && collected.stream) give_rest();
    if (!on) put_held_back();
    collected.left = -1;
    collected.collects = on;
}

void machine_cost(int64_t nanoseconds) { collected.left = nanoseconds; }

void machine_work(MachineStream handle, void (*work)(void *), void *data)
{
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    Operation operation;
    operation.instant = true;
    if (collected.stream == stream) {
        give_rest();
        operation = std::move(collected.kernel);
        collected.stream = nullptr;
    }
    operation.work = [=] { work(data); };
    put(guard, stream, std::move(operation));
}

int machine_kernel(const char *name, MachineStream stream, int64_t nanoseconds)
{
    CALL(cudaLaunchKernel_v7000);
    NEEDS_CONTEXT;
    const char *kept_name = kernel_named(name, false)->name.c_str();
    put_kernel(stream, kernel_operation(kept_name, nanoseconds, {{128, 1, 1}, {128, 1, 1}, 0}));
    return CUDA_SUCCESS;
}

int machine_kernel_work(const char *name, MachineStream handle, int64_t nanoseconds,
                        unsigned blocks, unsigned threads, void *chain, void (*work)(void *),
                        void (*forget)(void *), void *data)
{
    static auto &chains = *new std::map<void *, std::weak_ptr<Completion>>;
    std::shared_ptr<void> kept(data, forget);
    CALL(cudaLaunchKernelExC_v11060);
    NEEDS_CONTEXT;
    const char *kept_name = kernel_named(name, false)->name.c_str();
    Operation kernel =
        kernel_operation(kept_name, nanoseconds, {{blocks, 1, 1}, {threads, 1, 1}, 0});
    kernel.open = true;
    kernel.work = [=] { work(kept.get()); };
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    CompletionPtr before = chain && !stream->capture ? chains[chain].lock() : nullptr;
    if (before && !before->reached) kernel.after.push_back(before);
    CompletionPtr done = put(guard, stream, std::move(kernel));
    if (chain && done) chains[chain] = done;
    return CUDA_SUCCESS;
}

void machine_break(int code) { broken = code; }
int machine_broken() { return broken; }
void machine_set_launch_hook(MachineLaunchHook hook) { launch_hook = hook; }

// ------------------------------------------------------------------ modules and libraries

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    NEEDS_CONTEXT;
    if (!image) return CUDA_ERROR_INVALID_IMAGE;
    *out = new CUmod_st;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned, CUjit_option *, void **)
{
    return cuModuleLoadData(out, image);
}

CUresult cuModuleLoad(CUmodule *out, const char *path)
{
    return access(path, R_OK) ? CUDA_ERROR_FILE_NOT_FOUND : cuModuleLoadData(out, path);
}

CUresult cuModuleUnload(CUmodule module)
{
    delete module;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule, const char *name)
{
    *out = kernel_named(name, true);
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *out, const void *, CUjit_option *, void **, unsigned,
                           CUlibraryOption *, void **, unsigned)
{
    *out = new CUlib_st;
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    delete library;
    return CUDA_SUCCESS;
}

// As on the real one a CUkernel is launched as a CUfunction.
CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary, const char *name)
{
    *out = reinterpret_cast<CUkernel>(kernel_named(name, false));
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction)
{
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = 49152; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction, int block_size,
                                                     size_t)
{
    *blocks = block_size > 0 ? std::clamp(2048 / block_size, 1, 32) : 1;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction, const CUlaunchConfig *)
{
    *clusters = 66;
    return CUDA_SUCCESS;
}

// ------------------------------------------------------------------ launches

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void **parameters, void **)
{
    return launch(function, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, parameters,
                  CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                                   unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                   CUstream stream, void **parameters)
{
    return launch(function, {{gx, gy, gz}, {bx, by, bz}, shared}, stream, parameters,
                  CUPTI_RUNTIME_TRACE_CBID_cudaLaunchCooperativeKernel_v9000);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **parameters,
                          void **)
{
    Shape shape{{c->gridDimX, c->gridDimY, c->gridDimZ},
                {c->blockDimX, c->blockDimY, c->blockDimZ},
                c->sharedMemBytes};
    return launch(function, shape, c->hStream, parameters,
                  CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060);
}

// ---- what Triton asks besides: the maps are not NVIDIA's form, but nobody else reads them

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *at, const cuuint64_t *, const cuuint64_t *,
                                const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill)
{
    if (rank < 1 || rank > 5 || uintptr_t(at) % 16) return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    map->opaque[0] = uintptr_t(at), map->opaque[1] = uintptr_t(type) << 8 | rank;
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType, cuuint32_t, void *at,
                                 const cuuint64_t *, const cuuint64_t *, const int *,
                                 const int *, cuuint32_t, cuuint32_t, const cuuint32_t *,
                                 CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    memset(map, 0, sizeof *map);
    map->opaque[0] = uintptr_t(at);
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }

CUresult cuCtxGetLimit(size_t *value, CUlimit)
{
    *value = MEBIBYTE;
    return CUDA_SUCCESS;
}
