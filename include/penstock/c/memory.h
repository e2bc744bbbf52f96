#pragma once

#include <penstock/c/error.h>

PENSTOCK_C_BEGIN

/* Whether the kernel may move host memory or swap it out. */
typedef int32_t penstock_pinning;
enum { PENSTOCK_PIN_NONE = 0, PENSTOCK_PIN_PREFERRED = 1, PENSTOCK_PIN_REQUIRED = 2 };

/* Host memory in whole pages, of 2 MiB if possible: direct I/O needs no copy of it. The pages are there when it is
 * made, and hold zeros. With PENSTOCK_PIN_NONE a process that is forked has the bytes too, copy on write, at the same
 * address; with another pinning it does not have them. Safe from any thread. */
typedef struct penstock_memory penstock_memory;

/* Makes `bytes` bytes, more than 0. `data` gets their address.
 *
 * Errors: PENSTOCK_NO_SPACE, when the host has not that much; PENSTOCK_PERMISSION, when pinning is required and
 * RLIMIT_MEMLOCK is too small. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_memory_create(uint64_t bytes,
                                                                        penstock_pinning pinning,
                                                                        penstock_memory** memory,
                                                                        void** data);
/* 1, if the kernel neither moves nor swaps the pages out; 0 else, and for NULL. */
PENSTOCK_API int32_t penstock_memory_is_pinned(const penstock_memory* memory);
/* Options that are not in effect, with reasons. The caller frees the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_memory_notes(const penstock_memory* memory,
                                                                       penstock_lines** lines);
/* Nothing uses the memory any more. Takes NULL. */
PENSTOCK_API void penstock_memory_free(penstock_memory* memory);

PENSTOCK_C_END
