#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace penstock::swap {

/// Counts the calls of an engine, so that another thread can see that one of them does not return: some kernels and
/// file systems execute a request inside the system call that submits it.
///
/// Thread rules: those of the engine; call() and refuse() are safe from any thread.
class WatchedEngine final : public tiers::IoEngine {
 public:
  explicit WatchedEngine(std::unique_ptr<tiers::IoEngine> engine) : engine_(std::move(engine)) {}

  /// Odd while the driver is in submit(), reap() or detach(), another number in each call.
  [[nodiscard]] std::uint64_t call() const noexcept { return call_.load(std::memory_order_acquire); }
  /// From now on submit() accepts no request, and reap() does not wait.
  void refuse() noexcept {
    refused_.store(true);
    engine_->wake();
  }

  /// Passes one request at a time: each may take its deadline.
  std::size_t submit(std::span<const tiers::IoRequest> requests) noexcept override {
    std::size_t accepted = 0;
    while (accepted < requests.size() && !refused_.load()) {
      const Call call(call_);
      if (engine_->submit(requests.subspan(accepted, 1)) == 0) break;
      ++accepted;
    }
    return accepted;
  }
  std::size_t reap(std::span<tiers::IoCompletion> completions, TimePoint deadline) noexcept override {
    const Call call(call_);
    return engine_->reap(completions, refused_.load() ? TimePoint::min() : deadline);
  }
  void wake() noexcept override { engine_->wake(); }
  /// Not counted: it waits for no request, and takes as long as the memory is large.
  void attach(tiers::FileHandle file, HostSpan buffers) noexcept override { engine_->attach(file, buffers); }
  bool detach() noexcept override {
    const Call call(call_);
    return engine_->detach();
  }
  bool close(TimePoint deadline) noexcept override { return engine_->close(deadline); }

  [[nodiscard]] tiers::IoLimits limits() const noexcept override { return engine_->limits(); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return engine_->in_flight(); }
  [[nodiscard]] const char* name() const noexcept override { return engine_->name(); }
  [[nodiscard]] std::string notes() const override { return engine_->notes(); }
  [[nodiscard]] std::string failure() const override { return engine_->failure(); }

 private:
  class Call {
   public:
    explicit Call(std::atomic<std::uint64_t>& number) noexcept : number_(number) { number_.fetch_add(1); }
    ~Call() { number_.fetch_add(1); }

   private:
    std::atomic<std::uint64_t>& number_;
  };

  std::unique_ptr<tiers::IoEngine> engine_;
  std::atomic<std::uint64_t> call_{0};
  std::atomic<bool> refused_{false};
};

}  // namespace penstock::swap
