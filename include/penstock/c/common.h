#pragma once

#include <stddef.h>
#include <stdint.h>

#define PENSTOCK_API __attribute__((visibility("default")))
#define PENSTOCK_MUST_CHECK __attribute__((warn_unused_result))

#ifdef __cplusplus
#define PENSTOCK_C_BEGIN extern "C" {
#define PENSTOCK_C_END }
#else
#define PENSTOCK_C_BEGIN
#define PENSTOCK_C_END
#endif

/* The version of this interface, see docs/abi.md: a library of the same major number, and of at least this minor one,
 * has everything that a program compiled with these headers uses. */
#define PENSTOCK_ABI_MAJOR 0
#define PENSTOCK_ABI_MINOR 6

PENSTOCK_C_BEGIN

/* The numbers of the library that was loaded: major * 65536 + minor. */
PENSTOCK_API uint32_t penstock_abi_version(void);
/* The library's own version, "0.1.0". */
PENSTOCK_API const char* penstock_version(void);

/* The type of an element. */
typedef int32_t penstock_dtype;
enum { PENSTOCK_FP32 = 0, PENSTOCK_BF16 = 1, PENSTOCK_FP16 = 2 };

/* Which of the kernel's interfaces moves bytes. */
typedef int32_t penstock_io_engine;
enum {
  PENSTOCK_IO_AUTOMATIC = 0, /* the first that works, in this order; libaio for direct I/O alone */
  PENSTOCK_IO_URING = 1,
  PENSTOCK_IO_LIBAIO = 2,
  PENSTOCK_IO_THREADS = 3
};

/* Several texts, one for each message. */
typedef struct penstock_lines penstock_lines;
/* 0, for NULL. */
PENSTOCK_API size_t penstock_lines_count(const penstock_lines* lines);
/* NULL, if there are not that many. */
PENSTOCK_API const char* penstock_lines_get(const penstock_lines* lines, size_t index);
PENSTOCK_API void penstock_lines_free(penstock_lines* lines);

PENSTOCK_C_END
