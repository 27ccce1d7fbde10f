// libcudart: memory, streams, events and graphs, which are the driver's.
#include "runtime.h"

#include <cstring>

// ------------------------------------------------------------------ memory

cudaError_t cudaMalloc(void **out, size_t size)
{
    CALL(cudaMalloc_v3020);
    NEEDS_CONTEXT;
    *out = nullptr;
    return size ? told(cuMemAlloc(address(out), size)) : cudaSuccess;
}

cudaError_t cudaFree(void *pointer)
{
    CALL(cudaFree_v3020);
    NEEDS_CONTEXT;
    return pointer ? told(cuMemFree(address(pointer))) : cudaSuccess;
}

cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t stream)
{
    CALL(cudaMallocAsync_v11020);
    NEEDS_CONTEXT;
    *out = nullptr;
    return size ? told(cuMemAllocAsync(address(out), size, stream)) : cudaSuccess;
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    CALL(cudaFreeAsync_v11020);
    NEEDS_CONTEXT;
    return pointer ? told(cuMemFreeAsync(address(pointer), stream)) : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    CALL(cudaMemGetInfo_v3020);
    NEEDS_CONTEXT;
    return told(cuMemGetInfo(available, total));
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    CALL(cudaHostAlloc_v3020);
    NEEDS_CONTEXT;
    *out = nullptr;
    return size ? told(cuMemHostAlloc(out, size, flags)) : cudaSuccess;
}

cudaError_t cudaFreeHost(void *pointer)
{
    CALL(cudaFreeHost_v3020);
    NEEDS_CONTEXT;
    return pointer ? told(cuMemFreeHost(pointer)) : cudaSuccess;
}

cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags)
{
    CALL(cudaHostRegister_v4000);
    NEEDS_CONTEXT;
    return told(cuMemHostRegister(pointer, size, flags));
}

cudaError_t cudaHostUnregister(void *pointer)
{
    CALL(cudaHostUnregister_v4000);
    NEEDS_CONTEXT;
    return told(cuMemHostUnregister(pointer));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *pointer)
{
    NEEDS_DRIVER;
    memset(a, 0, sizeof *a);
    a->device = -2;
    a->hostPointer = const_cast<void *>(pointer);
    unsigned kind;
    CUresult code = cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address(pointer));
    if (code == CUDA_ERROR_INVALID_VALUE) return cudaSuccess; // unregistered
    if (code) return told(code);
    cuPointerGetAttribute(&a->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address(pointer));
    a->devicePointer = const_cast<void *>(pointer);
    a->type = kind == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    if (kind == CU_MEMORYTYPE_DEVICE) a->hostPointer = nullptr;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream)
{
    CALL(cudaMemcpyAsync_v3020);
    NEEDS_CONTEXT;
    return told(cuMemcpyAsync(address(to), address(from), bytes, stream));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
    CALL(cudaMemcpy_v3020);
    NEEDS_CONTEXT;
    return told(cuMemcpy(address(to), address(from), bytes));
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream)
{
    CALL(cudaMemcpyPeerAsync_v4000);
    NEEDS_CONTEXT;
    return told(cuMemcpyAsync(address(to), address(from), bytes, stream));
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream)
{
    CALL(cudaMemcpy2DAsync_v3020);
    NEEDS_CONTEXT;
    CUDA_MEMCPY2D copy{};
    copy.dstDevice = address(to), copy.dstPitch = to_pitch;
    copy.srcDevice = address(from), copy.srcPitch = from_pitch;
    copy.WidthInBytes = width, copy.Height = height;
    copy.dstMemoryType = copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    return told(cuMemcpy2DAsync(&copy, stream));
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    CALL(cudaMemsetAsync_v3020);
    NEEDS_CONTEXT;
    return told(cuMemsetD8Async(address(at), static_cast<unsigned char>(value), bytes, stream));
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
    CALL(cudaMemset_v3020);
    NEEDS_CONTEXT;
    return told(cuMemsetD8(address(at), static_cast<unsigned char>(value), bytes));
}

// ---- pools

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    NEEDS_DRIVER;
    return told(cuDeviceGetDefaultMemPool(pool, device));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    return told(cuMemPoolSetAttribute(pool, CUmemPool_attribute(attribute), value));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void *value)
{
    return told(cuMemPoolGetAttribute(pool, CUmemPool_attribute(attribute), value));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc *, size_t) { return cudaSuccess; }

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) { return told(cuMemPoolTrimTo(pool, keep)); }

cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute, void *value)
{
    return told(cuDeviceGetGraphMemAttribute(device, CUgraphMem_attribute(attribute), value));
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType attribute, void *value)
{
    return told(cuDeviceSetGraphMemAttribute(device, CUgraphMem_attribute(attribute), value));
}

// ---- between processes: the handles are the driver's, byte by byte

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *pointer)
{
    NEEDS_CONTEXT;
    return told(cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle *>(out), address(pointer)));
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t given, unsigned flags)
{
    NEEDS_CONTEXT;
    CUipcMemHandle handle;
    memcpy(&handle, &given, sizeof handle);
    return told(cuIpcOpenMemHandle(address(out), handle, flags));
}

cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    NEEDS_CONTEXT;
    return told(cuIpcCloseMemHandle(address(pointer)));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *out, cudaEvent_t event)
{
    NEEDS_CONTEXT;
    return told(cuIpcGetEventHandle(reinterpret_cast<CUipcEventHandle *>(out), event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *out, cudaIpcEventHandle_t given)
{
    NEEDS_CONTEXT;
    CUipcEventHandle handle;
    memcpy(&handle, &given, sizeof handle);
    return told(cuIpcOpenEventHandle(out, handle));
}

// ------------------------------------------------------------------ streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    CALL(cudaStreamCreateWithPriority_v5050);
    NEEDS_CONTEXT;
    return told(cuStreamCreateWithPriority(out, flags, priority));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, 0, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CALL(cudaStreamDestroy_v5050);
    NEEDS_CONTEXT;
    return told(cuStreamDestroy(stream));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    NEEDS_CONTEXT;
    return told(cuStreamGetPriority(stream, priority));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CALL(cudaStreamSynchronize_v3020);
    NEEDS_CONTEXT;
    return told(cuStreamSynchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    CALL(cudaStreamQuery_v3020);
    NEEDS_CONTEXT;
    return told(cuStreamQuery(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    CALL(cudaStreamWaitEvent_v3020);
    NEEDS_CONTEXT;
    return told(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
    CALL(cudaLaunchHostFunc_v10000);
    NEEDS_CONTEXT;
    return told(cuLaunchHostFunc(stream, function, data));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags)
{
    CALL(cudaStreamAddCallback_v5000);
    NEEDS_CONTEXT;
    return told(cuStreamAddCallback(stream, reinterpret_cast<CUstreamCallback>(function), data, flags));
}

// ------------------------------------------------------------------ events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    CALL(cudaEventCreateWithFlags_v3020);
    NEEDS_CONTEXT;
    return told(cuEventCreate(out, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    CALL(cudaEventDestroy_v3020);
    NEEDS_DRIVER;
    return told(cuEventDestroy(event));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    CALL(cudaEventRecord_v3020);
    NEEDS_CONTEXT;
    return told(cuEventRecordWithFlags(event, stream, flags));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CALL(cudaEventQuery_v3020);
    NEEDS_DRIVER;
    return told(cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    CALL(cudaEventSynchronize_v3020);
    NEEDS_DRIVER;
    return told(cuEventSynchronize(event));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    NEEDS_DRIVER;
    return told(cuEventElapsedTime(milliseconds, start, end));
}

// ------------------------------------------------------------------ graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    CALL(cudaStreamBeginCapture_v10000);
    NEEDS_CONTEXT;
    return told(cuStreamBeginCapture(stream, CUstreamCaptureMode(mode)));
}

cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                          const cudaGraphEdgeData *, size_t count, cudaStreamCaptureMode mode)
{
    NEEDS_CONTEXT;
    return told(cuStreamBeginCaptureToGraph(stream, graph, nodes, nullptr, count, CUstreamCaptureMode(mode)));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    CALL(cudaStreamEndCapture_v10000);
    NEEDS_CONTEXT;
    return told(cuStreamEndCapture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
    NEEDS_CONTEXT;
    return told(cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus *>(status)));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count)
{
    NEEDS_CONTEXT;
    return told(cuStreamGetCaptureInfo(stream, reinterpret_cast<CUstreamCaptureStatus *>(status),
                                       reinterpret_cast<cuuint64_t *>(id), graph, nodes,
                                       reinterpret_cast<const CUgraphEdgeData **>(edges), count));
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                const cudaGraphEdgeData *, size_t count, unsigned flags)
{
    return told(cuStreamUpdateCaptureDependencies(stream, nodes, nullptr, count, flags));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    return told(cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode *>(mode)));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    CALL(cudaGraphInstantiateWithFlags_v11040);
    NEEDS_CONTEXT;
    return told(cuGraphInstantiateWithFlags(out, graph, flags));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    CALL(cudaGraphLaunch_v10000);
    NEEDS_CONTEXT;
    return told(cuGraphLaunch(exec, stream));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    return told(cuGraphGetNodes(graph, nodes, count));
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *nodes, cudaGraphEdgeData *,
                                         size_t *count)
{
    return told(cuGraphNodeGetDependencies(node, nodes, nullptr, count));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return told(cuGraphDestroy(graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return told(cuGraphExecDestroy(exec)); }

cudaError_t cudaUserObjectCreate(cudaUserObject_t *out, void *pointer, cudaHostFn_t destroy, unsigned count,
                                 unsigned flags)
{
    return told(cuUserObjectCreate(out, pointer, destroy, count, flags));
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned count)
{
    return told(cuUserObjectRelease(object, count));
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags)
{
    return told(cuGraphRetainUserObject(graph, object, count, flags));
}

// Graphs are made by capturing alone.
cudaError_t cudaGraphAddNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, const cudaGraphEdgeData *,
                             size_t, cudaGraphNodeParams *)
{
    return told(cudaErrorNotSupported);
}

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *, cudaGraph_t, unsigned, unsigned)
{
    return told(cudaErrorNotSupported);
}
