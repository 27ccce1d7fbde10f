// libcudart: memory, streams, events and graphs, which are the driver's.
#include "runtime.h"

#include <cstring>

// A function that is the driver's by another name, and what it needs; TRACED: one of which
// a trace is told.
#define SHELL(needs, name, parameters, answer) \
    cudaError_t name parameters { NEEDS_##needs; return told(answer); }
#define TRACED(needs, name, version, parameters, answer) \
    cudaError_t name parameters { CALL(name##_##version); NEEDS_##needs; return told(answer); }

// Both have the same values.
template <class To, class From> To *as(From *value) { return reinterpret_cast<To *>(value); }

// ------------------------------------------------------------------ memory

// Nothing is allocated for no bytes, and nothing is freed at no address.
TRACED(CONTEXT, cudaMalloc, v3020, (void **out, size_t size),
       (*out = nullptr, size ? cuMemAlloc(address(out), size) : CUDA_SUCCESS))
TRACED(CONTEXT, cudaFree, v3020, (void *pointer),
       pointer ? cuMemFree(address(pointer)) : CUDA_SUCCESS)
TRACED(CONTEXT, cudaMallocAsync, v11020, (void **out, size_t size, cudaStream_t stream),
       (*out = nullptr, size ? cuMemAllocAsync(address(out), size, stream) : CUDA_SUCCESS))
TRACED(CONTEXT, cudaFreeAsync, v11020, (void *pointer, cudaStream_t stream),
       pointer ? cuMemFreeAsync(address(pointer), stream) : CUDA_SUCCESS)
TRACED(CONTEXT, cudaHostAlloc, v3020, (void **out, size_t size, unsigned flags),
       (*out = nullptr, size ? cuMemHostAlloc(out, size, flags) : CUDA_SUCCESS))
TRACED(CONTEXT, cudaFreeHost, v3020, (void *pointer),
       pointer ? cuMemFreeHost(pointer) : CUDA_SUCCESS)

TRACED(CONTEXT, cudaMemGetInfo, v3020, (size_t *available, size_t *total),
       cuMemGetInfo(available, total))
TRACED(CONTEXT, cudaHostRegister, v4000, (void *pointer, size_t size, unsigned flags),
       cuMemHostRegister(pointer, size, flags))
TRACED(CONTEXT, cudaHostUnregister, v4000, (void *pointer), cuMemHostUnregister(pointer))

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *pointer)
{
    NEEDS_DRIVER;
    memset(a, 0, sizeof *a);
    a->device = -2;
    a->hostPointer = const_cast<void *>(pointer);
    unsigned kind;
    CUresult code =
        cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(pointer));
    if (code == CUDA_ERROR_INVALID_VALUE) return cudaSuccess; // unregistered
    if (code) return told(code);
    cuPointerGetAttribute(&a->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(pointer));
    a->devicePointer = const_cast<void *>(pointer);
    a->type = kind == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    if (kind == CU_MEMORYTYPE_DEVICE) a->hostPointer = nullptr;
    return cudaSuccess;
}

// ---- copies and memsets: which way is in the addresses

static CUDA_MEMCPY2D rows(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                          size_t width, size_t height)
{
    CUDA_MEMCPY2D copy{};
    copy.dstMemoryType = copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.dstDevice = address(to), copy.dstPitch = to_pitch;
    copy.srcDevice = address(from), copy.srcPitch = from_pitch;
    copy.WidthInBytes = width, copy.Height = height;
    return copy;
}

TRACED(CONTEXT, cudaMemcpyAsync, v3020,
       (void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream),
       cuMemcpyAsync(address(to), address(from), bytes, stream))
TRACED(CONTEXT, cudaMemcpy, v3020, (void *to, const void *from, size_t bytes, cudaMemcpyKind),
       cuMemcpy(address(to), address(from), bytes))
TRACED(CONTEXT, cudaMemcpyPeerAsync, v4000,
       (void *to, int, const void *from, int, size_t bytes, cudaStream_t stream),
       cuMemcpyAsync(address(to), address(from), bytes, stream))
TRACED(CONTEXT, cudaMemcpy2DAsync, v3020,
       (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
        size_t height, cudaMemcpyKind, cudaStream_t stream),
       [&] {
           auto copy = rows(to, to_pitch, from, from_pitch, width, height);
           return cuMemcpy2DAsync(&copy, stream);
       }())
TRACED(CONTEXT, cudaMemsetAsync, v3020,
       (void *at, int value, size_t bytes, cudaStream_t stream),
       cuMemsetD8Async(address(at), static_cast<unsigned char>(value), bytes, stream))
TRACED(CONTEXT, cudaMemset, v3020, (void *at, int value, size_t bytes),
       cuMemsetD8(address(at), static_cast<unsigned char>(value), bytes))

// ---- pools

SHELL(DRIVER, cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int device),
      cuDeviceGetDefaultMemPool(pool, device))
SHELL(DRIVER, cudaMemPoolSetAttribute,
      (cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value),
      cuMemPoolSetAttribute(pool, CUmemPool_attribute(attribute), value))
SHELL(DRIVER, cudaMemPoolGetAttribute,
      (cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value),
      cuMemPoolGetAttribute(pool, CUmemPool_attribute(attribute), value))
SHELL(DRIVER, cudaMemPoolSetAccess,
      (cudaMemPool_t pool, const cudaMemAccessDesc *, size_t count),
      cuMemPoolSetAccess(pool, nullptr, count))
SHELL(DRIVER, cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep), cuMemPoolTrimTo(pool, keep))
SHELL(DRIVER, cudaDeviceGetGraphMemAttribute,
      (int device, cudaGraphMemAttributeType attribute, void *value),
      cuDeviceGetGraphMemAttribute(device, CUgraphMem_attribute(attribute), value))
SHELL(DRIVER, cudaDeviceSetGraphMemAttribute,
      (int device, cudaGraphMemAttributeType attribute, void *value),
      cuDeviceSetGraphMemAttribute(device, CUgraphMem_attribute(attribute), value))

// ---- between processes: the handles are the driver's, byte by byte

template <class To, class From> To same_bytes(const From &handle)
{
    static_assert(sizeof(To) == sizeof(From));
    To result;
    memcpy(&result, &handle, sizeof result);
    return result;
}

SHELL(CONTEXT, cudaIpcGetMemHandle, (cudaIpcMemHandle_t * out, void *pointer),
      cuIpcGetMemHandle(as<CUipcMemHandle>(out), address(pointer)))
SHELL(CONTEXT, cudaIpcOpenMemHandle, (void **out, cudaIpcMemHandle_t handle, unsigned flags),
      cuIpcOpenMemHandle(address(out), same_bytes<CUipcMemHandle>(handle), flags))
SHELL(CONTEXT, cudaIpcCloseMemHandle, (void *pointer), cuIpcCloseMemHandle(address(pointer)))
SHELL(CONTEXT, cudaIpcGetEventHandle, (cudaIpcEventHandle_t * out, cudaEvent_t event),
      cuIpcGetEventHandle(as<CUipcEventHandle>(out), event))
SHELL(CONTEXT, cudaIpcOpenEventHandle, (cudaEvent_t * out, cudaIpcEventHandle_t handle),
      cuIpcOpenEventHandle(out, same_bytes<CUipcEventHandle>(handle)))

// ------------------------------------------------------------------ streams

TRACED(CONTEXT, cudaStreamCreateWithPriority, v5050,
       (cudaStream_t * out, unsigned flags, int priority),
       cuStreamCreateWithPriority(out, flags, priority))
SHELL(CONTEXT, cudaStreamCreateWithFlags, (cudaStream_t * out, unsigned flags),
      cudaStreamCreateWithPriority(out, flags, 0))
SHELL(CONTEXT, cudaStreamCreate, (cudaStream_t * out), cudaStreamCreateWithPriority(out, 0, 0))
TRACED(CONTEXT, cudaStreamDestroy, v5050, (cudaStream_t stream), cuStreamDestroy(stream))
SHELL(CONTEXT, cudaStreamGetPriority, (cudaStream_t stream, int *priority),
      cuStreamGetPriority(stream, priority))
TRACED(CONTEXT, cudaStreamSynchronize, v3020, (cudaStream_t stream),
       cuStreamSynchronize(stream))
TRACED(CONTEXT, cudaStreamQuery, v3020, (cudaStream_t stream), cuStreamQuery(stream))
TRACED(CONTEXT, cudaStreamWaitEvent, v3020,
       (cudaStream_t stream, cudaEvent_t event, unsigned flags),
       cuStreamWaitEvent(stream, event, flags))
TRACED(CONTEXT, cudaLaunchHostFunc, v10000,
       (cudaStream_t stream, cudaHostFn_t function, void *data),
       cuLaunchHostFunc(stream, function, data))
TRACED(CONTEXT, cudaStreamAddCallback, v5000,
       (cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags),
       cuStreamAddCallback(stream, reinterpret_cast<CUstreamCallback>(function), data, flags))

// ------------------------------------------------------------------ events

TRACED(CONTEXT, cudaEventCreateWithFlags, v3020, (cudaEvent_t * out, unsigned flags),
       cuEventCreate(out, flags))
SHELL(CONTEXT, cudaEventCreate, (cudaEvent_t * out), cudaEventCreateWithFlags(out, 0))
TRACED(CONTEXT, cudaEventRecord, v3020, (cudaEvent_t event, cudaStream_t stream),
       cuEventRecord(event, stream))
TRACED(CONTEXT, cudaEventRecordWithFlags, v11010,
       (cudaEvent_t event, cudaStream_t stream, unsigned flags),
       cuEventRecordWithFlags(event, stream, flags))
TRACED(DRIVER, cudaEventDestroy, v3020, (cudaEvent_t event), cuEventDestroy(event))
TRACED(DRIVER, cudaEventQuery, v3020, (cudaEvent_t event), cuEventQuery(event))
TRACED(DRIVER, cudaEventSynchronize, v3020, (cudaEvent_t event), cuEventSynchronize(event))
SHELL(DRIVER, cudaEventElapsedTime, (float *milliseconds, cudaEvent_t start, cudaEvent_t end),
      cuEventElapsedTime(milliseconds, start, end))

// ------------------------------------------------------------------ graphs

TRACED(CONTEXT, cudaStreamBeginCapture, v10000,
       (cudaStream_t stream, cudaStreamCaptureMode mode),
       cuStreamBeginCapture(stream, CUstreamCaptureMode(mode)))
SHELL(CONTEXT, cudaStreamBeginCaptureToGraph,
      (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
       const cudaGraphEdgeData *, size_t count, cudaStreamCaptureMode mode),
      cuStreamBeginCaptureToGraph(stream, graph, nodes, nullptr, count,
                                  CUstreamCaptureMode(mode)))
TRACED(CONTEXT, cudaStreamEndCapture, v10000, (cudaStream_t stream, cudaGraph_t *graph),
       cuStreamEndCapture(stream, graph))
SHELL(CONTEXT, cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus *status),
      cuStreamIsCapturing(stream, as<CUstreamCaptureStatus>(status)))
SHELL(CONTEXT, cudaStreamGetCaptureInfo,
      (cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *id,
       cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
       size_t *count),
      cuStreamGetCaptureInfo(stream, as<CUstreamCaptureStatus>(status), as<cuuint64_t>(id),
                             graph, nodes, as<const CUgraphEdgeData *>(edges), count))
SHELL(DRIVER, cudaStreamUpdateCaptureDependencies,
      (cudaStream_t stream, cudaGraphNode_t *nodes, const cudaGraphEdgeData *, size_t count,
       unsigned flags),
      cuStreamUpdateCaptureDependencies(stream, nodes, nullptr, count, flags))
SHELL(DRIVER, cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * mode),
      cuThreadExchangeStreamCaptureMode(as<CUstreamCaptureMode>(mode)))

TRACED(CONTEXT, cudaGraphInstantiateWithFlags, v11040,
       (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags),
       cuGraphInstantiateWithFlags(out, graph, flags))
TRACED(CONTEXT, cudaGraphLaunch, v10000, (cudaGraphExec_t exec, cudaStream_t stream),
       cuGraphLaunch(exec, stream))
SHELL(DRIVER, cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count),
      cuGraphGetNodes(graph, nodes, count))
SHELL(DRIVER, cudaGraphNodeGetDependencies,
      (cudaGraphNode_t node, cudaGraphNode_t *nodes, cudaGraphEdgeData *, size_t *count),
      cuGraphNodeGetDependencies(node, nodes, nullptr, count))
SHELL(DRIVER, cudaGraphDestroy, (cudaGraph_t graph), cuGraphDestroy(graph))
SHELL(DRIVER, cudaGraphExecDestroy, (cudaGraphExec_t exec), cuGraphExecDestroy(exec))
SHELL(DRIVER, cudaUserObjectCreate,
      (cudaUserObject_t * out, void *pointer, cudaHostFn_t destroy, unsigned count,
       unsigned flags),
      cuUserObjectCreate(out, pointer, destroy, count, flags))
SHELL(DRIVER, cudaUserObjectRelease, (cudaUserObject_t object, unsigned count),
      cuUserObjectRelease(object, count))
SHELL(DRIVER, cudaGraphRetainUserObject,
      (cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags),
      cuGraphRetainUserObject(graph, object, count, flags))

// Graphs are made by capturing alone.
SHELL(CONTEXT, cudaGraphAddNode,
      (cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, const cudaGraphEdgeData *,
       size_t, cudaGraphNodeParams *),
      cudaErrorNotSupported)
SHELL(CONTEXT, cudaGraphConditionalHandleCreate,
      (cudaGraphConditionalHandle *, cudaGraph_t, unsigned, unsigned), cudaErrorNotSupported)
