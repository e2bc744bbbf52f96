/* The C interface of Penstock: one header, one shared library (libpenstock.so), no C++ in between.
 *
 *     penstock_error* error = penstock_files_create(&(penstock_files_options){.size = sizeof(penstock_files_options)},
 *                                                   &files);
 *     if (error != NULL) {
 *       fprintf(stderr, "%s\n", penstock_error_message(error));
 *       penstock_error_free(error);
 *     }
 *
 * Rules of every function:
 *  - A function that can fail returns an error, or NULL. The caller frees the error. What a refused call was to change
 *    is unchanged, and its results are not written.
 *  - Objects are handles. `penstock_X_create` makes one, `penstock_X_free` ends it and takes NULL. A handle keeps the
 *    handles that it was made from alive, so they may be freed in any order. NULL instead of a handle is an error of
 *    the call, a handle that was freed is undefined behaviour.
 *  - A `…_begin` has an `…_end`, which frees its handle.
 *  - A struct begins with its size: `{.size = sizeof(the struct)}`, the other members 0. In a struct that the caller
 *    fills, 0 and NULL are the default of each member that has one. Later versions append members, see docs/abi.md.
 *  - Texts are UTF-8 and end with 0. Those that a function returns live as long as the handle that they are of.
 *  - Handles may be used by any thread, by one at a time, unless their header says otherwise. A handle is freed when no
 *    call with it is in progress.
 *  - A process that is forked has none of the threads of a handle, nor its memory, but for penstock_memory (see
 *    c/memory.h): calls with it return PENSTOCK_FAILED_STATE there, and freeing it does nothing. Handles that it makes
 *    itself are its own.
 *  - No call throws, and no call ends the process.
 */
#pragma once

#include <penstock/c/common.h>
#include <penstock/c/config.h>
#include <penstock/c/device_optimizer.h>
#include <penstock/c/durable.h>
#include <penstock/c/engine.h>
#include <penstock/c/error.h>
#include <penstock/c/files.h>
#include <penstock/c/layout.h>
#include <penstock/c/memory.h>
#include <penstock/c/optimizer.h>
#include <penstock/c/park.h>
#include <penstock/c/process_group.h>
#include <penstock/c/runtime.h>
#include <penstock/c/trace.h>
