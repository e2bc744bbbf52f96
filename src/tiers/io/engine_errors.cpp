#include "tiers/io/engine_errors.hpp"

#include "base/duration_text.hpp"
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
  if (errno_value == EINVAL) {  // the request was right: no misuse by the caller
    return Error(ErrorCode::io, operation)
        .reason("the kernel refuses a request of " + engine + ": " + std::strerror(errno_value))
        .advice("check the kernel log (dmesg), and the limit on file sizes (ulimit -f)");
  }
  Error error = Error::from_errno(operation, errno_value);
  if (errno_value == ECANCELED) {
    return std::move(error)
        .reason(completion_text(engine, errno_value))
        .advice("raise the limit on processes and threads (ulimit -u, pids.max of the container)");
  }
  // BlockFile has repeated such a request; explain() describes calls that are repeated more often.
  if (errno_value == EINTR || errno_value == EAGAIN) {
    return std::move(error).advice("check the file system and the kernel log (dmesg), then repeat the call");
  }
  if (errno_value == ENOSPC) {
    // The file's space was reserved.
    return std::move(error).advice(
        "free space on that file system and, on a thin device, in its pool, or name another directory");
  }
  return explain(std::move(error), errno_value);
}

Error short_transfer(IoOperation operation, const char* name, ByteCount moved) {
  Error error(ErrorCode::truncated, name);
  if (operation == IoOperation::write) {
    return std::move(error)
        .reason("the device takes no more bytes")
        .got(moved)
        .advice("check the free space, and the kernel log (dmesg)");
  }
  return std::move(error)
      .reason("the file is shorter than the data that was written to it")
      .got(moved)
      .advice("the swap file was truncated; the run cannot continue without these bytes");
}

Error request_overdue(const char* operation, TimePoint deadline) {
  return Error(ErrorCode::deadline_exceeded, operation)
      .reason("a request did not complete in time")
      .got(duration_text(deadline) + " without an answer")
      .advice("check the drive and the kernel log; nothing more is written to this swap file");
}

Error call_overdue(const char* operation, TimePoint deadline) {
  return Error(ErrorCode::deadline_exceeded, operation)
      .reason("the path's driver is in a system call that does not return")
      .got(duration_text(deadline) + " without an answer")
      .advice("check the drive and the kernel log; this swap file is neither read nor written any more");
}

Error engine_failed(ErrorCode code, const char* operation, const std::string& engine,
                    const std::string& failure) {
  return Error(code, operation)
      .reason(code == ErrorCode::deadline_exceeded
                  ? "the I/O engine failed while a request was in flight; its result will never be known"
                  : "the I/O engine failed")
      .got(engine + ": " + failure)
      .advice("set penstock.io_engine to another one (penstock doctor shows which ones work here)");
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
