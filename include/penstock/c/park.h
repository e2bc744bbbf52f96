#pragma once

#include <penstock/c/engine.h>

PENSTOCK_C_BEGIN

/* A kind of memory. */
typedef int32_t penstock_tier;
enum { PENSTOCK_TIER_DEVICE = 0, PENSTOCK_TIER_HOST = 1, PENSTOCK_TIER_NVME = 2 };

/* What is parked, added up. */
enum {
  PENSTOCK_PARK_PARAMETERS = 1,
  PENSTOCK_PARK_GRADIENTS = 2,
  PENSTOCK_PARK_OPTIMIZER = 4,
  PENSTOCK_PARK_ALL = 7
};

typedef struct penstock_park_report {
  size_t size;
  uint64_t given_back[3]; /* bytes, by penstock_tier */
  uint64_t taken[3];
} penstock_park_report;

/* Gives the memory of `kinds` back, so that another program can use it: with PENSTOCK_TIER_HOST that of the device,
 * with PENSTOCK_TIER_NVME that of the host too. `directories` are for swap files; none: those of the configuration.
 * `report` may be NULL; `notes`, unless NULL, gets what stays and what is done otherwise, which the caller frees.
 * Collective.
 *
 * Errors, on all ranks, which change nothing: PENSTOCK_INVALID_ARGUMENT; PENSTOCK_FAILED_STATE, while a lease is held;
 * PENSTOCK_NO_SPACE. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_park(
    penstock_engine* engine, penstock_tier to, uint32_t kinds, const char* const* directories,
    size_t directory_count, penstock_park_report* report, penstock_lines** notes);
/* Brings it back, with the same bits. Errors: PENSTOCK_FAILED_STATE, if nothing is parked; PENSTOCK_BUDGET_TOO_SMALL
 * and PENSTOCK_NO_SPACE, after which the call can be repeated. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_unpark(penstock_engine* engine,
                                                                        penstock_park_report* report,
                                                                        penstock_lines** notes);
/* The kinds that are parked; 0, for NULL. */
PENSTOCK_API uint32_t penstock_engine_parked(const penstock_engine* engine);

/* Limits the host memory of this rank while the run goes on: penstock_runtime_limit_memory() of its runtime. The bits
 * stay the same, and steps read more from the drives. Where penstock.memory_reserve has a limit of its own, the lower
 * one applies. Not collective.
 *
 * Errors: those of penstock_runtime_limit_memory(); PENSTOCK_FAILED_STATE, also while an engine is parked. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_limit_memory(penstock_engine* engine,
                                                                              uint64_t most, uint64_t* used);
/* The least that it can be limited to now: what has no place on disk, and what the engine needs for progress. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_engine_memory_least(const penstock_engine* engine,
                                                                              uint64_t* bytes);

PENSTOCK_C_END
