#pragma once

#include <penstock/c/engine.h>

PENSTOCK_C_BEGIN

/* Traces: the order in which a round, such as a training step, uses tensors in host memory. `penstock trace` compares
 * and derives them, see docs/policies.md. Not collective; any thread may call them. */

/* Begins to record the leases that are asked for. What was recorded before is forgotten. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_begin_trace(penstock_runtime* runtime);
/* Ends the recording and replaces `file` by it. `label`: of the round, such as "train"; NULL: "". Control characters of
 * names are shown by their numbers, and a tensor without a name has its key.
 *
 * Errors: PENSTOCK_FAILED_STATE, if none has begun; PENSTOCK_INVALID_ARGUMENT, for a label with a control character,
 * after which the recording goes on. Of the file, which is as before: PENSTOCK_ALREADY_EXISTS, for one that is no
 * trace, PENSTOCK_INVALID_ARGUMENT, for a directory, a device, a pipe or a socket, PENSTOCK_NOT_FOUND,
 * PENSTOCK_PERMISSION, PENSTOCK_NO_SPACE and PENSTOCK_IO; a repeated call saves what was recorded until the first one,
 * with its label. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_save_trace(penstock_runtime* runtime,
                                                                             const char* label,
                                                                             const char* file);
/* Predicts that the round that begins now, and the next ones, have the uses of the file: from the first use on, what is
 * used next is loaded ahead, and what is used last is evicted. Its tensors are found by name and size; of several with
 * both, in the order in which they were added.
 *
 * Errors, after which the prediction is as before: PENSTOCK_NOT_FOUND, PENSTOCK_PERMISSION and PENSTOCK_IO, of the
 * file; PENSTOCK_INVALID_ARGUMENT, for no regular file, for one above 4 GiB, for one that is no trace, with the line,
 * and for one of another model: a tensor that the runtime does not have, or of another size. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_runtime_predict_trace(penstock_runtime* runtime,
                                                                                const char* file);

/* The same of a rank. A step is recorded alone if penstock_engine_finish_update() is called before each of the two. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_begin_trace(penstock_engine* engine);
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_save_trace(penstock_engine* engine,
                                                                            const char* label,
                                                                            const char* file);

PENSTOCK_C_END
