// libcudart: its start, its errors, its devices and its kernels.
#include "machine.h"
#include "runtime.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace {

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<bool> started{false};

// The library of values is given what torch's operators are; it finds them in torch.
void load_values()
{
    static std::atomic<bool> asked{false};
    const char *path = getenv("GPUMAGIC_FAKE_TORCH");
    if (!path || !*path || asked.exchange(true)) return;
    bool has_torch = dlsym(RTLD_DEFAULT, "_ZN3c104cuda14device_synchronizeEv")
                     || dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_NOW);
    if (has_torch && !dlopen(path, RTLD_NOW | RTLD_GLOBAL))
        fprintf(stderr, "no values are worked out: %s\n", dlerror());
}

// As the real one: the driver must know this version of CUDA.
cudaError_t begin()
{
    static auto &lock = *new std::mutex;
    std::lock_guard<std::mutex> guard(lock);
    int version = 0;
    cuDriverGetVersion(&version);
    if (version < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
    auto code = started ? cudaSuccess : cudaError_t(cuInit(0));
    started = started || code == cudaSuccess;
    return code;
}

}  // namespace

cudaError_t told(cudaError_t code)
{
    if (code) last_error = code;
    return code;
}

// Once started it may be that a forked child asks, which is refused everything.
cudaError_t start_driver()
{
    int count;
    return started ? cudaError_t(cuDeviceGetCount(&count)) : begin();
}

cudaError_t start_context()
{
    if (cudaError_t code = start_driver()) return code;
    CUcontext context;
    cuCtxGetCurrent(&context);
    cudaError_t code = context ? cudaSuccess : cudaSetDevice(0);
    return code ? code : cudaError_t(machine_broken());
}

// ------------------------------------------------------------------ errors

namespace {

// Texts are the driver's, but for errors that only the runtime knows.
struct Word {
    int code;
    const char *name, *text;
};
const Word words[] = {
    {0, "cudaSuccess", nullptr},
    {1, "cudaErrorInvalidValue", nullptr},
    {2, "cudaErrorMemoryAllocation", nullptr},
    {3, "cudaErrorInitializationError", nullptr},
    {9, "cudaErrorInvalidConfiguration", nullptr},
    {13, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {35, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {52, "cudaErrorMissingConfiguration", "__global__ function call is not configured"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", nullptr},
    {101, "cudaErrorInvalidDevice", nullptr},
    {200, "cudaErrorInvalidKernelImage", nullptr},
    {201, "cudaErrorDeviceUninitialized", nullptr},
    {205, "cudaErrorMapBufferObjectFailed", nullptr},
    {209, "cudaErrorNoKernelImageForDevice", nullptr},
    {301, "cudaErrorFileNotFound", nullptr},
    {304, "cudaErrorOperatingSystem", nullptr},
    {400, "cudaErrorInvalidResourceHandle", nullptr},
    {401, "cudaErrorIllegalState", nullptr},
    {500, "cudaErrorSymbolNotFound", nullptr},
    {600, "cudaErrorNotReady", nullptr},
    {700, "cudaErrorIllegalAddress", nullptr},
    {704, "cudaErrorPeerAccessAlreadyEnabled", nullptr},
    {710, "cudaErrorAssert", nullptr},
    {712, "cudaErrorHostMemoryAlreadyRegistered", nullptr},
    {713, "cudaErrorHostMemoryNotRegistered", nullptr},
    {719, "cudaErrorLaunchFailure", nullptr},
    {801, "cudaErrorNotSupported", nullptr},
    {802, "cudaErrorSystemNotReady", nullptr},
    {803, "cudaErrorSystemDriverMismatch", nullptr},
    {900, "cudaErrorStreamCaptureUnsupported", nullptr},
    {901, "cudaErrorStreamCaptureInvalidated", nullptr},
    {903, "cudaErrorStreamCaptureUnmatched", nullptr},
    {905, "cudaErrorStreamCaptureIsolation", nullptr},
    {906, "cudaErrorStreamCaptureImplicit", nullptr},
    {907, "cudaErrorCapturedEvent", nullptr},
    {999, "cudaErrorUnknown", nullptr},
};

const Word *word_of(int code)
{
    for (const Word &each : words)
        if (each.code == code) return &each;
    return nullptr;
}

}  // namespace

// What a kernel has broken stays so.
cudaError_t cudaPeekAtLastError()
{
    int code = machine_broken();
    return code ? cudaError_t(code) : last_error;
}

cudaError_t cudaGetLastError()
{
    cudaError_t code = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return code;
}

const char *cudaGetErrorName(cudaError_t code)
{
    const Word *word = word_of(code);
    return word ? word->name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code)
{
    const Word *word = word_of(code);
    const char *text = word ? word->text : "unrecognized error code";
    if (!text) cuGetErrorString(CUresult(code), &text);
    return text;
}

// ------------------------------------------------------------------ devices

cudaError_t cudaDriverGetVersion(int *version) { return told(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    NEEDS_DRIVER;
    return told(cuDeviceGetCount(count));
}

cudaError_t cudaGetDevice(int *device)
{
    NEEDS_DRIVER;
    if (cuCtxGetDevice(device)) *device = 0; // no context yet: it will be the first one's
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    NEEDS_DRIVER;
    CUcontext context;
    if (CUresult code = cuDevicePrimaryCtxRetain(&context, device)) return told(code);
    if (CUresult code = cuCtxSetCurrent(context)) return told(code);
    load_values();
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    NEEDS_DRIVER;
    return told(cuDeviceGetAttribute(value, CUdevice_attribute(attribute), device));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    NEEDS_DRIVER;
    memset(p, 0, sizeof *p);
    if (CUresult code = cuDeviceGetName(p->name, sizeof p->name, device)) return told(code);
    cuDeviceGetUuid(&p->uuid, device);
    cuDeviceTotalMem(&p->totalGlobalMem, device);
    auto of = [&](cudaDeviceAttr attribute) {
        int value = 0;
        cuDeviceGetAttribute(&value, CUdevice_attribute(attribute), device);
        return value;
    };
    p->sharedMemPerBlock = size_t(of(cudaDevAttrMaxSharedMemoryPerBlock));
    p->regsPerBlock = of(cudaDevAttrMaxRegistersPerBlock);
    p->warpSize = of(cudaDevAttrWarpSize);
    p->memPitch = size_t(of(cudaDevAttrMaxPitch));
    p->maxThreadsPerBlock = of(cudaDevAttrMaxThreadsPerBlock);
    p->maxThreadsDim[0] = of(cudaDevAttrMaxBlockDimX),
    p->maxGridSize[0] = of(cudaDevAttrMaxGridDimX);
    p->maxThreadsDim[1] = of(cudaDevAttrMaxBlockDimY),
    p->maxGridSize[1] = of(cudaDevAttrMaxGridDimY);
    p->maxThreadsDim[2] = of(cudaDevAttrMaxBlockDimZ),
    p->maxGridSize[2] = of(cudaDevAttrMaxGridDimZ);
    p->totalConstMem = size_t(of(cudaDevAttrTotalConstantMemory));
    p->major = of(cudaDevAttrComputeCapabilityMajor),
    p->minor = of(cudaDevAttrComputeCapabilityMinor);
    p->textureAlignment = size_t(of(cudaDevAttrTextureAlignment));
    p->texturePitchAlignment = size_t(of(cudaDevAttrTexturePitchAlignment));
    p->multiProcessorCount = of(cudaDevAttrMultiProcessorCount);
    p->canMapHostMemory = of(cudaDevAttrCanMapHostMemory);
    p->concurrentKernels = of(cudaDevAttrConcurrentKernels);
    p->ECCEnabled = of(cudaDevAttrEccEnabled);
    p->pciBusID = of(cudaDevAttrPciBusId), p->pciDeviceID = of(cudaDevAttrPciDeviceId);
    p->pciDomainID = of(cudaDevAttrPciDomainId);
    p->asyncEngineCount = of(cudaDevAttrAsyncEngineCount);
    p->unifiedAddressing = of(cudaDevAttrUnifiedAddressing);
    p->memoryBusWidth = of(cudaDevAttrGlobalMemoryBusWidth);
    p->l2CacheSize = of(cudaDevAttrL2CacheSize);
    p->persistingL2CacheMaxSize = of(cudaDevAttrMaxPersistingL2CacheSize);
    p->maxThreadsPerMultiProcessor = of(cudaDevAttrMaxThreadsPerMultiProcessor);
    p->streamPrioritiesSupported = of(cudaDevAttrStreamPrioritiesSupported);
    p->globalL1CacheSupported = of(cudaDevAttrGlobalL1CacheSupported);
    p->localL1CacheSupported = of(cudaDevAttrLocalL1CacheSupported);
    p->sharedMemPerMultiprocessor = size_t(of(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
    p->regsPerMultiprocessor = of(cudaDevAttrMaxRegistersPerMultiprocessor);
    p->managedMemory = of(cudaDevAttrManagedMemory);
    p->concurrentManagedAccess = of(cudaDevAttrConcurrentManagedAccess);
    p->computePreemptionSupported = of(cudaDevAttrComputePreemptionSupported);
    p->canUseHostPointerForRegisteredMem = of(cudaDevAttrCanUseHostPointerForRegisteredMem);
    p->cooperativeLaunch = of(cudaDevAttrCooperativeLaunch);
    p->sharedMemPerBlockOptin = size_t(of(cudaDevAttrMaxSharedMemoryPerBlockOptin));
    p->maxBlocksPerMultiProcessor = of(cudaDevAttrMaxBlocksPerMultiprocessor);
    p->reservedSharedMemPerBlock = size_t(of(cudaDevAttrReservedSharedMemoryPerBlock));
    p->hostRegisterSupported = of(cudaDevAttrHostRegisterSupported);
    p->memoryPoolsSupported = of(cudaDevAttrMemoryPoolsSupported);
    p->clusterLaunch = of(cudaDevAttrClusterLaunch);
    p->hostNumaId = -1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    NEEDS_DRIVER;
    return told(cuDeviceGetPCIBusId(text, length, device));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    NEEDS_DRIVER;
    return told(cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    NEEDS_CONTEXT;
    CUcontext context;
    if (CUresult code = cuDevicePrimaryCtxRetain(&context, peer)) return told(code);
    return told(cuCtxEnablePeerAccess(context, flags));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    NEEDS_CONTEXT;
    return told(cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceSynchronize()
{
    CALL(cudaDeviceSynchronize_v3020);
    NEEDS_CONTEXT;
    return told(cuCtxSynchronize());
}

// No context is made: torch asks before it has chosen a device.
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                             unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found)
{
    NEEDS_DRIVER;
    CUdriverProcAddressQueryResult result;
    CUresult code = cuGetProcAddress(symbol, function, int(version), flags, &result);
    if (found) *found = cudaDriverEntryPointQueryResult(result);
    return told(code);
}

// Their header is in no wheel.
extern "C" cudaError_t cudaProfilerStart() { return cudaSuccess; }
extern "C" cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ------------------------------------------------------------------ kernels

// A library registers its kernels as it is loaded, long before there is a driver to ask: the
// address of the host's function stands for the kernel of that name.
namespace {

struct Registered {
    const char *name;
    CUfunction function;
};
struct Variable {
    void *at;
    size_t size;
};
struct Configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};

std::mutex &registry = *new std::mutex;
std::unordered_map<const void *, Registered> &kernels = *[] {
    auto *made = new std::unordered_map<const void *, Registered>;
    made->reserve(1 << 17); // torch's
    return made;
}();
std::map<const void *, Variable> &variables = *new std::map<const void *, Variable>;
thread_local std::vector<Configuration> configurations;

CUfunction kernel_of(const void *function)
{
    std::lock_guard<std::mutex> guard(registry);
    auto it = kernels.find(function);
    if (it == kernels.end()) return nullptr;
    if (!it->second.function) {
        CUkernel kernel;
        cuLibraryGetKernel(&kernel, nullptr, it->second.name);
        it->second.function = reinterpret_cast<CUfunction>(kernel);
    }
    return it->second.function;
}

cudaError_t launch(CUfunction kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                   cudaStream_t stream)
{
    NEEDS_CONTEXT;
    if (!kernel) return told(cudaErrorInvalidDeviceFunction);
    CUresult code = cuLaunchKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                   unsigned(shared), stream, arguments, nullptr);
    return code == CUDA_ERROR_INVALID_VALUE ? told(cudaErrorInvalidConfiguration) : told(code);
}

}  // namespace

// What compilers put calls of into every library with kernels; no header declares them.
extern "C" {

void **__cudaRegisterFatBinary(void *)
{
    static void *handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }

void __cudaRegisterFunction(void **, const char *function, char *, const char *name, int,
                            uint3 *, uint3 *, dim3 *, dim3 *, int *)
{
    std::lock_guard<std::mutex> guard(registry);
    kernels[function] = {name, nullptr};
}

void __cudaRegisterVar(void **, char *variable, char *, const char *, int, size_t size, int,
                       int)
{
    std::lock_guard<std::mutex> guard(registry);
    variables[variable] = {calloc(1, size ? size : 1), size};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream stream)
{
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (configurations.empty()) return told(cudaErrorMissingConfiguration);
    Configuration c = configurations.back();
    configurations.pop_back();
    *grid = c.grid, *block = c.block, *shared = c.shared;
    *static_cast<cudaStream_t *>(stream) = c.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    *kernel = reinterpret_cast<cudaKernel_t>(kernel_of(function));
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream)
{
    CALL(cudaLaunchKernel_v7000);
    return launch(reinterpret_cast<CUfunction>(kernel), grid, block, arguments, shared, stream);
}

}  // extern "C"

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream)
{
    CALL(cudaLaunchKernel_v7000);
    return launch(kernel_of(function), grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block,
                                        void **arguments, size_t shared, cudaStream_t stream)
{
    CALL(cudaLaunchCooperativeKernel_v9000);
    return launch(kernel_of(function), grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *function,
                                void **arguments)
{
    CALL(cudaLaunchKernelExC_v11060);
    return launch(kernel_of(function), c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes,
                  c->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, const void *function)
{
    NEEDS_CONTEXT;
    auto of = [&](CUfunction_attribute attribute) {
        int value = 0;
        cuFuncGetAttribute(&value, attribute, kernel_of(function));
        return value;
    };
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = of(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    a->numRegs = of(CU_FUNC_ATTRIBUTE_NUM_REGS);
    a->ptxVersion = of(CU_FUNC_ATTRIBUTE_PTX_VERSION);
    a->binaryVersion = of(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
    a->maxDynamicSharedSizeBytes = of(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int)
{
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                                   const void *function,
                                                                   int block_size,
                                                                   size_t shared, unsigned)
{
    NEEDS_CONTEXT;
    return told(cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel_of(function),
                                                            block_size, shared));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                          int block_size, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                  shared, 0);
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, cudaJitOption *,
                                void **, unsigned, cudaLibraryOption *, void **, unsigned)
{
    NEEDS_CONTEXT;
    return told(cuLibraryLoadData(library, code, nullptr, nullptr, 0, nullptr, nullptr, 0));
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    return told(cuLibraryGetKernel(kernel, library, name));
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return told(cuLibraryUnload(library)); }

// ---- a library's variables: memory of the host stands for them

cudaError_t cudaGetSymbolAddress(void **at, const void *symbol)
{
    NEEDS_CONTEXT;
    auto it = variables.find(symbol);
    if (it == variables.end()) return told(cudaErrorInvalidSymbol);
    *at = it->second.at;
    return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes,
                               size_t offset, cudaMemcpyKind)
{
    NEEDS_CONTEXT;
    auto it = variables.find(symbol);
    if (it == variables.end() || offset + bytes > it->second.size)
        return told(cudaErrorInvalidSymbol);
    memcpy(static_cast<char *>(it->second.at) + offset, from, bytes);
    return cudaSuccess;
}
