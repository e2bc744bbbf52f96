#pragma once

#include <penstock/c/engine.h>
#include <penstock/c/optimizer.h>

PENSTOCK_C_BEGIN

/* AdamW and Adam on tiles in the memory of a device, with the bits of penstock_tile_step(). Any thread may call it; the
 * calls of one stream come from one thread at a time. */
typedef struct penstock_device_adam penstock_device_adam;
/* `ordinal`: of a CUDA device, on which the call loads the kernels and which it leaves current in this thread. With
 * PENSTOCK_DEVICE_HOST the device's memory is host memory. Errors: PENSTOCK_UNSUPPORTED, for a build without CUDA and
 * for a device without kernels; PENSTOCK_INVALID_ARGUMENT, for a device that does not exist. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_device_adam_create(penstock_device device,
                                                                             int32_t ordinal,
                                                                             penstock_device_adam** adam);
PENSTOCK_API void penstock_device_adam_free(penstock_device_adam* adam);
/* Enqueues one step of a tile whose `state`, `gradient` and `parameter` are addresses of the device; they stay until
 * the stream has executed it. `cuda_stream`: a cudaStream_t of the device; NULL: its default stream. On HOST the step
 * is done when the call returns. `non_finite_block`: on the device, gets the number of the first block of 16384
 * elements with a value that is not finite now, or all ones. Errors: those of penstock_tile_step();
 * PENSTOCK_UNSUPPORTED, for another optimizer; those of the device. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_device_adam_step(
    penstock_device_adam* adam, void* cuda_stream, const penstock_tile* tile,
    const penstock_hyperparameters* hyperparameters, uint64_t step, float gradient_factor,
    uint64_t* non_finite_block);

PENSTOCK_C_END
