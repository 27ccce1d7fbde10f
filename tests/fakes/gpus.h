/* The one machine that both fake libraries describe, read from a scenario file.
 *
 * The file named by GPUMAGIC_FAKE_SCENARIO has one key=value a line; a line [gpu]
 * starts the next GPU, in NVML's order. An unknown key ends the process, so that
 * a misspelt scenario cannot pass for a machine without the property.
 *
 * For the machine:
 *   driver_version, nvml_version   text
 *   cuda_version                   13020 is CUDA 13.2
 *   init_error, cuinit_error       what nvmlInit or cuInit answers instead of 0
 *   cuinit_does = hang | crash     instead of answering
 *   mps = MASK                     an MPS daemon serves the GPUs of this mask alone,
 *                                  and the numbers of its clients count among them
 *   process_row_bytes              32: the rows that drivers 535.43 to 535.86 write
 *   context_mib                    what a context takes of its device (500)
 *   launch_queue                   how many launches a stream holds (1000)
 *   addresses = descending         memory is allocated from the highest ones down
 *   fail = FUNCTION CODE           that NVML function answers CODE
 *   hide = FUNCTION                this driver lacks it (build.py leaves it out)
 * For a GPU:
 *   name, uuid, pci, capability (9.0), total_mib, reserved_mib, used_mib,
 *   utilisation, temperature, power_mw, compute_mode, sm_count
 *   sm_clock, sm_clock_max         in MHz; without them it does not tell its clocks
 *   clock_limits                   bits of what holds the clock down, as 0x44
 *   link, link_most                generation and lanes of PCI Express, as 5 16;
 *                                  without them it does not tell its link
 *   c2c = yes | no                 whether NVLink-C2C joins it to the processor
 *   speed                          FASTEST_FIRST puts the highest first
 *   cuda = no                      the CUDA driver does not list it
 *   mig = enabled | disabled       without this line MIG is not supported
 *   slice = GI CI MIB UUID [USED]  a MIG device, and the MIB used of it if any are;
 *                                  `slice = hole` is an empty place
 *   process = KIND PID MIB         KIND is compute or graphics, MIB may be unknown;
 *                                  PID may be self, which is the process under test
 *   fail = FUNCTION CODE           for this GPU; FUNCTION * means all of them
 */
#ifndef GPUMAGIC_FAKE_GPUS_H
#define GPUMAGIC_FAKE_GPUS_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MANY 32
#define TEXT 96
#define MIB ((uint64_t)1 << 20)
#define NOT_AVAILABLE UINT64_MAX

typedef struct { char function[64]; int code; } Failure;
typedef struct { Failure each[MANY]; int count; } Failures;
typedef struct { unsigned pid; int graphics; uint64_t used; } Process;
typedef struct {
    int hole;
    unsigned gi, ci;
    uint64_t mib, used_mib;
    char uuid[TEXT];
} Slice;

typedef struct {
    char name[TEXT], uuid[TEXT];
    unsigned domain, bus, device;
    int major, minor;
    uint64_t total_mib, reserved_mib, used_mib;
    unsigned utilisation, temperature, power_mw, compute_mode, sm_count;
    unsigned sm_clock, sm_clock_max, clock_limits;
    unsigned generation, width, most_generation, most_width;
    int c2c_supported, c2c;
    int speed, outside_cuda, mig_supported, mig_enabled;
    Slice slices[MANY];
    int slice_count;
    Process processes[MANY];
    int process_count;
    Failures failures;
} Gpu;

typedef struct {
    char driver_version[TEXT], nvml_version[TEXT], cuinit_does[TEXT], mps[TEXT];
    int cuda_version, init_error, cuinit_error, process_row_bytes;
    int launch_queue, descending_addresses;
    uint64_t context_mib;
    Failures failures;
    Gpu gpus[MANY];
    int gpu_count;
} Machine;

static Machine machine;

static void wrong_scenario(const char *line)
{
    fprintf(stderr, "fake GPUs: this scenario line is not understood: %s\n", line);
    exit(86);
}

static void copy_text(char *target, const char *text)
{
    if (strlen(text) >= TEXT)
        wrong_scenario(text);
    strcpy(target, text);
}

/* The code with which a function is to fail, or 0. */
static inline int failure_of(const Failures *failures, const char *function)
{
    for (int i = 0; i < failures->count; i++) {
        const Failure *each = &failures->each[i];
        if (!strcmp(each->function, function) || !strcmp(each->function, "*"))
            return each->code;
    }
    return 0;
}

static void add_failure(Failures *failures, const char *value)
{
    Failure *added = &failures->each[failures->count++];
    if (failures->count > MANY
        || sscanf(value, "%63s %d", added->function, &added->code) != 2)
        wrong_scenario(value);
}

static void add_slice(Gpu *gpu, const char *value)
{
    Slice *added = &gpu->slices[gpu->slice_count++];
    added->hole = !strcmp(value, "hole");
    if (gpu->slice_count > MANY
        || (!added->hole && sscanf(value, "%u %u %lu %95s %lu", &added->gi, &added->ci,
                                   &added->mib, added->uuid, &added->used_mib) < 4))
        wrong_scenario(value);
}

static void add_process(Gpu *gpu, const char *value)
{
    char kind[16], pid[16], mib[24];
    Process *added = &gpu->processes[gpu->process_count++];
    if (gpu->process_count > MANY
        || sscanf(value, "%15s %15s %23s", kind, pid, mib) != 3)
        wrong_scenario(value);
    added->pid = strcmp(pid, "self") ? (unsigned)strtoul(pid, NULL, 10)
                                     : (unsigned)getpid();
    added->graphics = !strcmp(kind, "graphics");
    added->used = strcmp(mib, "unknown") ? strtoull(mib, NULL, 10) * MIB : NOT_AVAILABLE;
}

static void read_numbers(Gpu *gpu, const char *key, const char *value)
{
    unsigned long number = strtoul(value, NULL, 0);
    if (!strcmp(key, "total_mib")) gpu->total_mib = number;
    else if (!strcmp(key, "reserved_mib")) gpu->reserved_mib = number;
    else if (!strcmp(key, "used_mib")) gpu->used_mib = number;
    else if (!strcmp(key, "utilisation")) gpu->utilisation = (unsigned)number;
    else if (!strcmp(key, "temperature")) gpu->temperature = (unsigned)number;
    else if (!strcmp(key, "power_mw")) gpu->power_mw = (unsigned)number;
    else if (!strcmp(key, "compute_mode")) gpu->compute_mode = (unsigned)number;
    else if (!strcmp(key, "sm_clock")) gpu->sm_clock = (unsigned)number;
    else if (!strcmp(key, "sm_clock_max")) gpu->sm_clock_max = (unsigned)number;
    else if (!strcmp(key, "clock_limits")) gpu->clock_limits = (unsigned)number;
    else if (!strcmp(key, "sm_count")) gpu->sm_count = (unsigned)number;
    else if (!strcmp(key, "speed")) gpu->speed = (int)number;
    else wrong_scenario(key);
}

static void read_gpu_line(Gpu *gpu, const char *key, const char *value)
{
    if (!strcmp(key, "name")) copy_text(gpu->name, value);
    else if (!strcmp(key, "uuid")) copy_text(gpu->uuid, value);
    else if (!strcmp(key, "fail")) add_failure(&gpu->failures, value);
    else if (!strcmp(key, "slice")) add_slice(gpu, value);
    else if (!strcmp(key, "process")) add_process(gpu, value);
    else if (!strcmp(key, "cuda")) gpu->outside_cuda = !strcmp(value, "no");
    else if (!strcmp(key, "capability")) sscanf(value, "%d.%d", &gpu->major, &gpu->minor);
    else if (!strcmp(key, "pci"))
        sscanf(value, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->device);
    else if (!strcmp(key, "link"))
        sscanf(value, "%u %u", &gpu->generation, &gpu->width);
    else if (!strcmp(key, "link_most"))
        sscanf(value, "%u %u", &gpu->most_generation, &gpu->most_width);
    else if (!strcmp(key, "c2c")) {
        gpu->c2c_supported = 1;
        gpu->c2c = !strcmp(value, "yes");
    }
    else if (!strcmp(key, "mig")) {
        gpu->mig_supported = 1;
        gpu->mig_enabled = !strcmp(value, "enabled");
    } else read_numbers(gpu, key, value);
}

static void read_machine_line(const char *key, const char *value)
{
    if (!strcmp(key, "driver_version")) copy_text(machine.driver_version, value);
    else if (!strcmp(key, "nvml_version")) copy_text(machine.nvml_version, value);
    else if (!strcmp(key, "cuda_version")) machine.cuda_version = atoi(value);
    else if (!strcmp(key, "init_error")) machine.init_error = atoi(value);
    else if (!strcmp(key, "cuinit_error")) machine.cuinit_error = atoi(value);
    else if (!strcmp(key, "cuinit_does")) copy_text(machine.cuinit_does, value);
    else if (!strcmp(key, "mps")) copy_text(machine.mps, value);
    else if (!strcmp(key, "process_row_bytes")) machine.process_row_bytes = atoi(value);
    else if (!strcmp(key, "context_mib")) machine.context_mib = strtoul(value, NULL, 0);
    else if (!strcmp(key, "launch_queue")) machine.launch_queue = atoi(value);
    else if (!strcmp(key, "addresses"))
        machine.descending_addresses = !strcmp(value, "descending");
    else if (!strcmp(key, "fail")) add_failure(&machine.failures, value);
    else if (strcmp(key, "hide")) wrong_scenario(key);
}

static void read_line(char *line)
{
    char *value = strchr(line, '=');
    line[strcspn(line, "\n")] = 0;
    if (!*line || *line == '#')
        return;
    if (!strcmp(line, "[gpu]") && machine.gpu_count < MANY) {
        machine.gpu_count++;
        return;
    }
    if (!value)
        wrong_scenario(line);
    *value++ = 0;
    if (machine.gpu_count)
        read_gpu_line(&machine.gpus[machine.gpu_count - 1], line, value);
    else
        read_machine_line(line, value);
}

/* At load, so that a later change of the variable cannot swap the machine. */
__attribute__((constructor)) static void read_scenario(void)
{
    char line[512];
    const char *path = getenv("GPUMAGIC_FAKE_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        wrong_scenario(path ? path : "GPUMAGIC_FAKE_SCENARIO is not set");
    machine.process_row_bytes = 24;
    machine.context_mib = 500;
    machine.launch_queue = 1000;
    while (fgets(line, sizeof line, file))
        read_line(line);
    fclose(file);
}

#endif
