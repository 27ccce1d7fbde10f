// Captured graphs: the operations of the streams that took part, in the order of the calls.
#include "parts.h"

#include <pthread.h>

struct CUgraphExec_st {
    CUgraph_st graph;
};

namespace {

cuuint64_t last_capture_id = 0;
unsigned last_graph_id = 0;
std::set<std::shared_ptr<Capture>> &captures =
    *new std::set<std::shared_ptr<Capture>>; // under way
thread_local CUstreamCaptureMode mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUstreamCaptureStatus status_of(const Stream *stream)
{
    if (!stream->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// `graph`: to which it is added; none: a new one.
CUresult begin(CUstream handle, CUgraph graph, CUstreamCaptureMode mode)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    if (stream->is_default) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (!graph) graph = new CUgraph_st, graph->id = ++last_graph_id;
    stream->capture = std::make_shared<Capture>(
        Capture{graph, ++last_capture_id, mode, stream, pthread_self()});
    captures.insert(stream->capture);
    return CUDA_SUCCESS;
}

void release(CUuserObject object, unsigned count)
{
    object->count -= count;
    if (object->count) return;
    object->destroy(object->pointer);
    delete object;
}

}  // namespace

// What the thread may not do, unless it or the capture is relaxed about that.
bool breaks_capture()
{
    bool breaks = false;
    if (mode_of_thread == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    for (const auto &each : captures)
        if (each->mode == CU_STREAM_CAPTURE_MODE_GLOBAL
            || (each->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                && pthread_equal(each->thread, pthread_self())))
            each->invalid = breaks = true;
    return breaks;
}

// By waiting for an event of a capture a stream becomes part of it.
CUresult join_capture(Stream *stream, const std::shared_ptr<Capture> &capture)
{
    if (!captures.count(capture)) return CUDA_ERROR_CAPTURED_EVENT;
    if (!stream->capture) stream->capture = capture, capture->members.insert(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    return begin(stream, nullptr, mode);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *,
                                     const CUgraphEdgeData *, size_t, CUstreamCaptureMode mode)
{
    return begin(stream, graph, mode);
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    std::shared_ptr<Capture> capture = stream->capture;
    *graph = nullptr;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    for (Stream *member : capture->members) member->capture = nullptr;
    captures.erase(capture);
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    *graph = capture->graph;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    if (stream->is_default && breaks_capture()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

// Nodes are not told: torch only hands them on.
CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                CUgraph *graph, const CUgraphNode **nodes,
                                const CUgraphEdgeData **edges, size_t *count)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    *status = status_of(stream);
    if (nodes) *nodes = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    if (stream->capture && id) *id = stream->capture->id;
    if (stream->capture && graph) *graph = stream->capture->graph;
    return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream, CUgraphNode *, const CUgraphEdgeData *,
                                           size_t, unsigned)
{
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    std::swap(mode_of_thread, *mode);
    return CUDA_SUCCESS;
}

int machine_capturing(MachineStream stream)
{
    Guard guard(lock);
    return stream_of(stream)->capture != nullptr;
}

// ------------------------------------------------------------------ graphs

CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, unsigned long long)
{
    NEEDS_DRIVER;
    *out = new CUgraphExec_st{*graph};
    for (auto &[object, count] : graph->objects) object->count += count;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    NEEDS_CONTEXT;
    Guard guard(lock);
    Stream *stream = stream_of(handle);
    for (Operation operation : exec->graph.operations) {
        operation.record.correlation = current_correlation();
        operation.record.graph = exec->graph.id;
        put(guard, stream, std::move(operation));
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    for (auto &[object, count] : exec->graph.objects) release(object, count);
    delete exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    for (auto &[object, count] : graph->objects) release(object, count);
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    size_t there = graph->operations.size();
    if (!nodes) *count = there;
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < there ? reinterpret_cast<CUgraphNode>(i + 1) : nullptr;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode, CUgraphNode *, CUgraphEdgeData *,
                                    size_t *count)
{
    *count = 0;
    return CUDA_SUCCESS;
}

// ---- what a graph keeps alive

CUresult cuUserObjectCreate(CUuserObject *out, void *pointer, CUhostFn destroy, unsigned count,
                            unsigned)
{
    *out = new CUuserObject_st{pointer, destroy, count};
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count)
{
    release(object, count);
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count,
                                 unsigned flags)
{
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->count += count;
    graph->objects.push_back({object, count});
    return CUDA_SUCCESS;
}
