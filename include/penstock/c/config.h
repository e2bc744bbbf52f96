#pragma once

#include <penstock/c/error.h>

PENSTOCK_C_BEGIN

/* A ds_config.json that was read. Does not change; safe from any thread. */
typedef struct penstock_config penstock_config;

typedef struct penstock_config_options {
  size_t size;
  uint32_t world_size; /* ranks of the run, for the batch sizes; 0: 1 */
  int32_t lenient;     /* 1: unknown keys of blocks that have no effect here are notes, not errors */
} penstock_config_options;

/* Reads a file. `options` may be NULL. Errors: PENSTOCK_INVALID_CONFIG, whose notes list what is wrong, with lines;
 * PENSTOCK_NOT_FOUND, PENSTOCK_PERMISSION, PENSTOCK_IO; PENSTOCK_INVALID_ARGUMENT, for an empty name, and for no
 * regular file, such as a pipe. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_config_read(const char* file,
                                                                      const penstock_config_options* options,
                                                                      penstock_config** config);
/* Reads a text; `name` stands for the file's name in messages. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_config_parse(const char* text, const char* name,
                                                                       const penstock_config_options* options,
                                                                       penstock_config** config);
PENSTOCK_API void penstock_config_free(penstock_config* config);

/* The effective configuration as JSON. Lives as long as the configuration; "", for NULL. */
PENSTOCK_API const char* penstock_config_json(const penstock_config* config);
/* Keys that have no effect here, and other things to know. The caller frees the lines. */
PENSTOCK_API PENSTOCK_MUST_CHECK penstock_error* penstock_config_notes(const penstock_config* config,
                                                                       penstock_lines** lines);

PENSTOCK_C_END
