/* What the processes of a fake machine hold of its devices.
 *
 * In the folder that GPUMAGIC_FAKE_USAGE names each process has a file under its number,
 * with a line "UUID BYTES" for every device on which it has a context. libcuda.c writes
 * it; both libraries read the files of the others. Without the variable nobody is seen.
 */
#ifndef GPUMAGIC_FAKE_USAGE_H
#define GPUMAGIC_FAKE_USAGE_H

#include "gpus.h"
#include <dirent.h>
#include <errno.h>
#include <signal.h>

typedef void (*UsageRow)(unsigned pid, const char *uuid, uint64_t bytes, void *data);

/* The process's file; an empty path where nothing is noted. */
static inline void usage_path(char *path, size_t length, unsigned pid)
{
    const char *folder = getenv("GPUMAGIC_FAKE_USAGE");
    *path = 0;
    if (folder && *folder)
        snprintf(path, length, "%s/%u", folder, pid);
}

static inline void read_usage_of(unsigned pid, UsageRow row, void *data)
{
    char path[4096], uuid[TEXT];
    unsigned long bytes;
    usage_path(path, sizeof path, pid);
    FILE *file = fopen(path, "r");
    while (file && fscanf(file, "%95s %lu", uuid, &bytes) == 2)
        row(pid, uuid, bytes, data);
    if (file)
        fclose(file);
}

/* Of all processes that still live. */
static inline void read_usage(UsageRow row, void *data)
{
    const char *folder = getenv("GPUMAGIC_FAKE_USAGE");
    DIR *all = folder ? opendir(folder) : NULL;
    struct dirent *entry;
    while (all && (entry = readdir(all))) {
        unsigned pid = (unsigned)strtoul(entry->d_name, NULL, 10);
        if (pid && !(kill((pid_t)pid, 0) && errno == ESRCH))
            read_usage_of(pid, row, data);
    }
    if (all)
        closedir(all);
}

#endif
