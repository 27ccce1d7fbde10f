/* What the libraries of the machine know of each other.
 *
 * libcuda.so.1 is the machine: memory, streams, events, modules and the clock are there.
 * libcudart, libcupti, libcublas, libnccl and the library of values stand on it and are
 * linked against it. They use CUDA's own driver API (cuda.h) where it can say what they
 * want, and these functions where it cannot. All of them may be called from any thread.
 */
#ifndef GPUMAGIC_FAKE_MACHINE_H
#define GPUMAGIC_FAKE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUstream_st *MachineStream; /* a CUstream, and a cudaStream_t */
typedef struct CUevent_st *MachineEvent;

/* ---- the clock: virtual nanoseconds of the host (clock.h has the rules) */

int64_t machine_now_ns(void);
/* What the calling thread does from 1 to 0 takes no virtual time. */
void machine_freeze(int on);
/* The host does something else for so long; only with GPUMAGIC_CLOCK=model. */
void machine_pass(int64_t nanoseconds);
/* When the work before an event has ended, exactly; -1 if it was never recorded. */
int64_t machine_event_ns(MachineEvent event);

/* ---- kernels of libraries, and what they work out */

/* A kernel that takes so long and works out nothing, as one of cuBLAS; a CUresult. */
int machine_kernel(const char *name, MachineStream stream, int64_t nanoseconds);

/* One that works something out when the stream has come to it. Those of one `chain` (any
 * address; NULL for none) run in the order of these calls, whatever their streams. In a
 * graph `work` runs at each replay; `forget` is called once nobody will run it any more. */
int machine_kernel_work(const char *name, MachineStream stream, int64_t nanoseconds,
                        unsigned blocks, unsigned threads, void *chain,
                        void (*work)(void *), void (*forget)(void *), void *data);
/* For its `work` alone: when this kernel has begun, and that it does not end before so
 * much (on the virtual clock). How long it waits for others is not known when it is put:
 * until `work` returns neither it nor what is behind it has a place on the timeline. */
int64_t machine_kernel_began_ns(void);
void machine_kernel_ends_ns(int64_t end);

/* Between collect(1) and collect(0) the last kernel that this thread launches is held
 * back, until machine_work has said what it works out; machine_cost gives the operator's
 * kernels together so many nanoseconds of device time. */
void machine_collect(int on);
void machine_cost(int64_t nanoseconds);
/* Worked out by the kernel that is held back, or, where there is none, by the stream at
 * no time of its own. While a graph is captured: at each replay. */
void machine_work(MachineStream stream, void (*work)(void *), void *data);

int machine_capturing(MachineStream stream);
/* Of the memory at an address; -1 if it is none of a device. */
int machine_device_of(const void *pointer);
/* As an assertion of a kernel does: from now on every call answers this code. */
void machine_break(int code);
int machine_broken(void); /* that code; 0: nothing is broken */

/* Called at each launch of a loaded module's kernel (Triton's), on the launching thread. */
typedef int (*MachineLaunchHook)(const char *name, const unsigned *grid, void **parameters,
                                 MachineStream stream);
void machine_set_launch_hook(MachineLaunchHook hook);

/* ---- tracing: what CUPTI is told, by the thread that makes the call */

enum MachineRecordKind {
    MACHINE_KERNEL, MACHINE_MEMCPY, MACHINE_MEMSET, MACHINE_CALL, MACHINE_WAIT, MACHINE_EVENT
};

typedef struct {
    int kind;
    const char *name;         /* of a kernel; lives as long as the process */
    int64_t start, end;       /* nanoseconds of CLOCK_MONOTONIC, or of the trace's clock */
    uint32_t correlation, device, stream, cbid, thread;
    uint32_t grid[3], block[3], shared;
    uint64_t bytes, event_sync;
    uint8_t copy_kind, source, target, asynchronous; /* CUPTI's numbers */
    uint32_t value;           /* of a memset; which kind of wait (CUPTI's number) */
    uint32_t graph;
    uint8_t native;           /* the times are in the trace's own clock already */
} MachineRecord;

typedef void (*MachineTracer)(const MachineRecord *record);
typedef uint64_t (*MachineTraceClock)(void);
void machine_set_tracer(MachineTracer tracer);           /* NULL: nobody listens any more */
void machine_set_trace_clock(MachineTraceClock clock);

#ifdef __cplusplus
}
#endif
#endif
