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

PENSTOCK_C_END
