#pragma once

#include <penstock/c/engine.h>

PENSTOCK_C_BEGIN

/* Runs that survive their process, see docs/checkpoints.md. All functions are collective, but for
 * penstock_engine_begin_commit() and those of a penstock_resumed. */

typedef struct penstock_commit_report {
  size_t size;
  uint64_t generation; /* the number of the commit, from 1 */
  uint64_t copied;     /* bytes of what is in memory only */
  uint64_t kept;       /* bytes that were in the swap files already */
  uint64_t manifest;   /* bytes */
  double duration_seconds;
  double stall_seconds; /* how long calls of the engine have waited for it */
} penstock_commit_report;

/* Makes the run durable as of the last step, with `bytes` bytes of the trainer. `report` may be NULL. Needs
 * penstock.durable_directory of the configuration. Errors, on all ranks: PENSTOCK_NO_SPACE, PENSTOCK_IO, with the file;
 * the last commit is as it was, and training may go on. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_commit(penstock_engine* engine,
                                                                        const void* client, uint64_t bytes,
                                                                        penstock_commit_report* report);
/* The same in two calls, so that the bytes are written behind the next step, whose penstock_engine_step() completes the
 * commit. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_begin_commit(penstock_engine* engine,
                                                                              const void* client,
                                                                              uint64_t bytes);
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_finish_commit(
    penstock_engine* engine, penstock_commit_report* report);

/* The run that was continued. */
typedef struct penstock_resumed penstock_resumed;
/* Sets all values to those of the last commit; instead of penstock_engine_initialize(). `resumed` gets NULL, if there
 * is none. Errors, on all ranks: PENSTOCK_INVALID_ARGUMENT, for another model; PENSTOCK_CORRUPTED, with file and
 * offset. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_resume(penstock_engine* engine,
                                                                        penstock_resumed** resumed);
typedef struct penstock_resumed_report {
  size_t size;
  uint64_t generation;
  uint64_t step;
  uint32_t ranks;     /* of the run that committed */
  const void* client; /* what the trainer has passed; lives as long as the penstock_resumed */
  uint64_t client_bytes;
} penstock_resumed_report;
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_resumed_get_report(const penstock_resumed* resumed,
                                                                             penstock_resumed_report* report);
/* What was not as it should be. The caller frees the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_resumed_notes(const penstock_resumed* resumed,
                                                                        penstock_lines** lines);
PENSTOCK_API void penstock_resumed_free(penstock_resumed* resumed);

typedef struct penstock_save_options {
  size_t size;
  const void* client;
  uint64_t client_bytes;
  uint32_t keep; /* how many checkpoints of this run stay in the directory; 0: all */
} penstock_save_options;
/* Commits, and copies the commit to a new subdirectory of `directory`. `options` may be NULL. `path`, unless NULL, gets
 * one line, the subdirectory, which the caller frees. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_save_checkpoint(
    penstock_engine* engine, const char* directory, const penstock_save_options* options,
    penstock_lines** path);
/* Sets all values to those of a checkpoint; instead of penstock_engine_initialize(). Errors: PENSTOCK_NOT_FOUND, and
 * those of penstock_engine_resume(). */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_load_checkpoint(penstock_engine* engine,
                                                                                 const char* directory,
                                                                                 penstock_resumed** resumed);

PENSTOCK_C_END
