#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <string>

// The errors of I/O engines, the same for every engine.
namespace penstock::tiers {

/// The cause of a completion with `errno_value`, in words.
[[nodiscard]] std::string completion_text(const std::string& engine, int errno_value);

/// A request of `engine` completed with `errno_value`.
[[nodiscard]] Error request_error(const char* operation, const std::string& engine, int errno_value);

/// A request has ended after `moved` bytes and cannot be continued.
[[nodiscard]] Error short_transfer(IoOperation operation, const char* name, ByteCount moved);

/// A request has not completed within `deadline`.
[[nodiscard]] Error request_overdue(const char* operation, TimePoint deadline);

/// The thread that submits and reaps requests has not returned from a system call within `deadline`.
[[nodiscard]] Error call_overdue(const char* operation, TimePoint deadline);

/// `engine` failed, see IoEngine::failure(). deadline_exceeded: while a request was in flight.
[[nodiscard]] Error engine_failed(ErrorCode code, const char* operation, const std::string& engine,
                                  const std::string& failure);

/// The kernel refuses to set up `facility`, "io_uring" or "Linux AIO". `filter_advice` is for a refusal by a filter or
/// a setting of the kernel.
[[nodiscard]] Error setup_error(const char* operation, const std::string& facility, int errno_value,
                                const char* filter_advice);

}  // namespace penstock::tiers
