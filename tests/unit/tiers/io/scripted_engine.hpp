#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace penstock::tiers {

/// Completes requests from memory at once, except those that the test scripts.
class ScriptedEngine final : public IoEngine {
 public:
  using Script = std::function<std::optional<std::int64_t>(const IoRequest&, std::size_t index)>;

  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    for (const IoRequest& request : requests) {
      largest = std::max(largest, request.buffer.size());
      auto scripted = script ? script(request, count) : std::nullopt;
      const auto result = scripted.value_or(static_cast<std::int64_t>(request.buffer.size().value()));
      for (std::int64_t i = 0; i < result; ++i) {
        std::byte& stored = stored_[request.offset.value() + static_cast<std::uint64_t>(i)];
        std::byte& buffered = request.buffer.data()[i];
        (request.operation == IoOperation::read ? buffered : stored) =
            request.operation == IoOperation::read ? stored : buffered;
      }
      done_.push_back({request.tag, result});
      ++count;
    }
    return requests.size();
  }
  std::size_t reap(std::span<IoCompletion> completions, TimePoint) noexcept override {
    const std::size_t reaped = std::min(completions.size(), done_.size());
    for (std::size_t i = 0; i < reaped; ++i) completions[i] = done_[i];
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(reaped));
    return reaped;
  }
  /// Reports a completion of no request.
  void report(const IoCompletion& completion) { done_.push_back(completion); }
  void wake() noexcept override {}
  void attach(FileHandle, HostSpan) noexcept override {}
  bool detach() noexcept override { return true; }
  bool close(TimePoint) noexcept override { return true; }
  IoLimits limits() const noexcept override { return {1_GiB, 64}; }
  std::uint32_t in_flight() const noexcept override { return static_cast<std::uint32_t>(done_.size()); }
  const char* name() const noexcept override { return "scripted"; }
  std::string notes() const override { return {}; }
  std::string failure() const override { return failed; }

  Script script;
  std::size_t count = 0;
  ByteCount largest;
  std::string failed;  // the reason of a failure that the test sets

 private:
  std::map<std::uint64_t, std::byte> stored_;
  std::vector<IoCompletion> done_;
};

}  // namespace penstock::tiers
