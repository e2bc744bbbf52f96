#pragma once

#include <penstock/c/error.h>

PENSTOCK_C_BEGIN

/* Reads and writes ranges of files that the caller names, in the background: what DeepSpeed's aio_handle does.
 *
 * Any offset, length and address is taken. Multiples of 4096 are fastest: their bytes bypass the page cache, where the
 * file system allows it, and are not copied. Nothing is made durable. Transfers are executed in any order: do not start
 * one that overlaps another, in the file or in memory, before penstock_files_wait(). */
typedef struct penstock_files penstock_files;

typedef struct penstock_files_options {
  size_t size;
  uint64_t request_max; /* most bytes of one request to the drive; 0: 1 MiB; a multiple of 4096 */
  uint32_t depth;       /* most requests in flight of each thread; 0: 128 */
  uint32_t threads;     /* a transfer is cut into as many parts, moved at the same time; 0: 1 */
  penstock_io_engine engine;
  double deadline_seconds; /* for one request, and for opening a file; 0: 60 */
} penstock_files_options;

/* Errors: PENSTOCK_INVALID_ARGUMENT, naming the option; PENSTOCK_NO_SPACE, for a thread. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_files_create(const penstock_files_options* options,
                                                                       penstock_files** files);
/* Waits until all transfers have ended. */
PENSTOCK_API void penstock_files_free(penstock_files* files);

/* Starts to fill `into` with `bytes` bytes of the file `path` from `offset` on. `into` stays alive until
 * penstock_files_wait().
 *
 * Errors, which start nothing: PENSTOCK_NOT_FOUND, PENSTOCK_PERMISSION; PENSTOCK_INVALID_ARGUMENT, for what is no
 * regular file; PENSTOCK_TRUNCATED, if the file ends before the last byte; PENSTOCK_FAILED_STATE, after
 * PENSTOCK_DEADLINE_EXCEEDED of a call that did not return. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_files_begin_read(penstock_files* files,
                                                                           const char* path, uint64_t offset,
                                                                           void* into, uint64_t bytes);
/* Starts to write `bytes` bytes to the file from `offset` on, which stay alive and unchanged until
 * penstock_files_wait(). Makes the file, with mode 0600, or extends it if necessary; bytes that it has elsewhere stay.
 *
 * Errors, which start nothing: as above. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_files_begin_write(penstock_files* files,
                                                                            const char* path, uint64_t offset,
                                                                            const void* from, uint64_t bytes);
/* Waits until all transfers have ended. `ended`, unless NULL, gets how many were started since the last call.
 *
 * Errors: that of the first transfer that has failed, with the file and the offset; those of the others are notes.
 * PENSTOCK_DEADLINE_EXCEEDED comes before all others: the kernel may still use the memory of these transfers, so keep
 * it until the process ends. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_files_wait(penstock_files* files, uint64_t* ended);
/* How many were started since the last wait; 0, for NULL. */
PENSTOCK_API uint64_t penstock_files_started(const penstock_files* files);
/* What was done otherwise than asked for so far, with reasons: another engine, buffered I/O, copies. The caller frees
 * the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_files_notes(const penstock_files* files,
                                                                      penstock_lines** lines);

PENSTOCK_C_END
