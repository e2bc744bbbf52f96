#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/base/time.hpp>

#include <cstdint>
#include <memory>
#include <optional>

namespace gpt {

/// Reads the times at which streams pass marks. Used by one thread at a time. Nothing blocks. An implementation keeps
/// the marks that were released, so that a steady number of them allocates nothing.
class StreamClock {
 public:
  using Mark = std::uint32_t;

  StreamClock() = default;
  StreamClock(const StreamClock&) = delete;
  StreamClock& operator=(const StreamClock&) = delete;
  virtual ~StreamClock() = default;

  /// Marks the end of what is enqueued on the stream.
  virtual Mark mark(penstock::StreamHandle stream) = 0;
  /// When the stream passed the mark, on Clock::steady(); empty if it has not yet. After an error it is now.
  virtual std::optional<penstock::TimePoint> passed(Mark mark) = 0;
  virtual void release(Mark mark) = 0;
  /// The first error.
  [[nodiscard]] virtual penstock::Result<void> status() const = 0;
};

/// For streams of a host device.
[[nodiscard]] std::unique_ptr<StreamClock> make_host_stream_clock();

}  // namespace gpt
