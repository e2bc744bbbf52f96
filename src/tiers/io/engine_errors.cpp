#include "tiers/io/engine_errors.hpp"

#include "tiers/io/file_errors.hpp"

#include <cerrno>
#include <cstring>

namespace penstock::tiers {

std::string completion_text(const std::string& engine, int errno_value) {
  if (errno_value != ECANCELED) return std::strerror(errno_value);
  // An engine that is closed cancels requests too, but then nobody waits for them.
  return engine + " canceled the request, because the kernel could not start a worker thread for it";
}

Error request_error(const char* operation, const std::string& engine, int errno_value) {
  Error error = Error::from_errno(operation, errno_value);
  if (errno_value == ECANCELED) {
    return std::move(error)
        .reason(completion_text(engine, errno_value))
        .advice("raise the limit on processes and threads (ulimit -u, pids.max of the container)");
  }
  // BlockFile has repeated such a request; explain() describes calls that are repeated more often.
  if (errno_value == EINTR) return error;
  return explain(std::move(error), errno_value);
}

Error setup_error(const char* operation, const std::string& facility, int errno_value,
                  const char* filter_advice) {
  Error error =
      Error::unsupported(operation).reason(facility + " is refused here: " + std::strerror(errno_value));
  switch (errno_value) {
    case EPERM:
    case EACCES:
    case ENOSYS: return std::move(error).advice(filter_advice);
    case ENOMEM:
      return std::move(error).advice(
          "raise the limit on locked memory (ulimit -l) or on memory (memory.max)");
    default: return explain(std::move(error), errno_value);
  }
}

}  // namespace penstock::tiers
