#pragma once

#include <penstock/c/common.h>

PENSTOCK_C_BEGIN

/* Why a call has failed. The functions of errors take NULL, and return 0 or an empty text for it. They are safe from
 * any thread. */
typedef struct penstock_error penstock_error;

/* What kind of error it is, a closed set. The numbers are never reused. */
typedef int32_t penstock_code;
enum {
  PENSTOCK_OK = 0,               /* of NULL */
  PENSTOCK_INVALID_ARGUMENT = 1, /* misuse by the caller: the call changed nothing */
  PENSTOCK_INVALID_CONFIG = 2,   /* the configuration cannot be used as written */
  PENSTOCK_UNSUPPORTED = 3,      /* understood, but not available on this machine or not implemented */
  PENSTOCK_WOULD_BLOCK = 4,      /* no free slot now: repeat the call */
  PENSTOCK_BUDGET_TOO_SMALL = 5, /* nothing in flight can ever free the requested bytes */
  PENSTOCK_NO_SPACE = 6,         /* the file system is full or too small; or host memory is */
  PENSTOCK_PERMISSION = 7,       /* the operating system refused access */
  PENSTOCK_NOT_FOUND = 8,        /* the named object does not exist */
  PENSTOCK_ALREADY_EXISTS = 9,   /* the named object exists and must not */
  PENSTOCK_IN_USE = 10,     /* another process, or another owner in this process, uses the named object */
  PENSTOCK_IO = 11,         /* the device or the kernel reported a failure */
  PENSTOCK_TRUNCATED = 12,  /* the file is shorter than the bytes that it must contain */
  PENSTOCK_CORRUPTED = 13,  /* bytes read back differ from the bytes written */
  PENSTOCK_NON_FINITE = 14, /* a value that must be finite is not */
  PENSTOCK_DEADLINE_EXCEEDED = 15, /* an operation did not complete in the time allowed */
  PENSTOCK_PEER_FAILED = 16,       /* another rank failed or left */
  PENSTOCK_INTERRUPTED = 17,       /* a rank abandoned the training step */
  PENSTOCK_FAILED_STATE = 18 /* an earlier error made this object unusable; the message names that error */
};

PENSTOCK_API penstock_code penstock_error_code(const penstock_error* error);
/* "no space", for PENSTOCK_NO_SPACE. */
PENSTOCK_API const char* penstock_error_code_name(penstock_code code);
/* Everything that follows, in one or more lines. */
PENSTOCK_API const char* penstock_error_message(const penstock_error* error);

/* The parts of the message; empty where it has none. */
typedef int32_t penstock_error_field;
enum {
  PENSTOCK_ERROR_OPERATION = 0, /* "FileTransfers::wait" */
  PENSTOCK_ERROR_OBJECT = 1,    /* a file, a tensor, a key of the configuration, an argument */
  PENSTOCK_ERROR_REASON = 2,    /* the cause in one sentence, where the code does not say it */
  PENSTOCK_ERROR_WANTED = 3,
  PENSTOCK_ERROR_GOT = 4,
  PENSTOCK_ERROR_WHERE = 5, /* where the user can change the setting */
  PENSTOCK_ERROR_ADVICE = 6 /* what the user can do about it */
};
PENSTOCK_API const char* penstock_error_text(const penstock_error* error, penstock_error_field field);
/* Additional lines, from 0; NULL, if there are not that many. */
PENSTOCK_API const char* penstock_error_note(const penstock_error* error, size_t index);
/* In the file that is the object; -1, if there is none. */
PENSTOCK_API int64_t penstock_error_offset(const penstock_error* error);
/* The errno that caused it; 0, if none did. */
PENSTOCK_API int penstock_error_os_error(const penstock_error* error);

PENSTOCK_API void penstock_error_free(penstock_error* error);

PENSTOCK_C_END
