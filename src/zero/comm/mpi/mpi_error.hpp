#pragma once

#include <penstock/base/result.hpp>

#include <mpi.h>
#include <string>

namespace penstock::zero {

/// Of `call`, which has returned `status`. The message has MPI's text.
inline Error mpi_error(ErrorCode code, const char* operation, const std::string& call, int status) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(status, text, &length) != MPI_SUCCESS) length = 0;
  return Error(code, operation)
      .reason(call + " has failed")
      .got(length > 0 ? std::string(text, static_cast<std::size_t>(length))
                      : "error " + std::to_string(status));
}

}  // namespace penstock::zero
