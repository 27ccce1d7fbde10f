/* What libcuda.c, which knows the devices, offers to the rest of the driver in cuda/.
 *
 * Devices are numbered as the process sees them.
 */
#ifndef GPUMAGIC_FAKE_LIBCUDA_H
#define GPUMAGIC_FAKE_LIBCUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

int fake_state(void);  /* 0, or why no function answers */
int fake_device(void); /* of the calling thread's context; -1: it has none */
uint64_t fake_free_bytes(int device);
void fake_use(int device, int64_t bytes); /* less than 0 gives back */
int fake_device_count(void);
const char *fake_uuid(int device);
int fake_launch_queue(void);
int fake_descending_addresses(void);

#ifdef __cplusplus
}
#endif
#endif
