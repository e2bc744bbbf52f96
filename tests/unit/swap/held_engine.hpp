#pragma once

#include <penstock/base/time.hpp>
#include <penstock/swap/runtime_options.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace penstock::swap::test {

/// Keeps calls of a HeldEngine from returning. Shared with the engine, which an abandoned thread may use last.
class Gate {
 public:
  enum class Call : std::uint8_t { submit, detach, close };

  /// From now on such calls do not return.
  void hold(Call call) {
    const std::lock_guard lock(mutex_);
    held_ = call;
  }
  /// Requests are accepted, but no completion is reported.
  void withhold_completions(bool withhold) {
    const std::lock_guard lock(mutex_);
    withheld_ = withhold;
  }
  /// close() says that requests are in flight.
  void keep_in_use() {
    const std::lock_guard lock(mutex_);
    in_use_ = true;
  }
  /// Lets one call return.
  void release_one() {
    change([this] { ++passes_; });
  }
  void release_all() {
    change([this] { held_.reset(); });
  }

  /// Until `count` calls have been held so far.
  void wait_until_held(std::uint64_t count = 1) {
    wait([&] { return held_count_ >= count; });
  }
  /// Until reap() waits. The number of calls that have returned so far.
  std::uint64_t wait_until_reaping() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return reaping_; });
    return reap_count_;
  }
  /// Until `count` calls of reap() have returned so far.
  void wait_until_reaped(std::uint64_t count) {
    wait([&] { return reap_count_ >= count; });
  }
  /// Until no engine exists.
  void wait_until_destroyed() {
    wait([this] { return engines_ == 0; });
  }
  [[nodiscard]] std::uint64_t submitted() {
    const std::lock_guard lock(mutex_);
    return submit_count_;
  }

 private:
  friend class HeldEngine;
  template <class Change>
  void change(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  template <class Done>
  void wait(const Done& done) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, done);
  }
  void pass(Call call) {
    std::unique_lock lock(mutex_);
    if (held_ != call) return;
    ++held_count_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return held_ != call || passes_ > 0; });
    if (held_ == call) --passes_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Call> held_;
  std::uint64_t passes_ = 0, held_count_ = 0, submit_count_ = 0, reap_count_ = 0;
  bool withheld_ = false, woken_ = false, reaping_ = false, in_use_ = false;
  int engines_ = 0;
};

/// Wraps an engine whose calls a Gate holds, as the kernel does when it executes a request inside of a system call.
/// reap() waits on `clock`.
class HeldEngine final : public tiers::IoEngine {
 public:
  HeldEngine(std::unique_ptr<tiers::IoEngine> engine, std::shared_ptr<Gate> gate, const Clock& clock)
      : engine_(std::move(engine)), gate_(std::move(gate)), clock_(clock) {
    gate_->change([this] { ++gate_->engines_; });
  }
  ~HeldEngine() override {
    engine_.reset();
    gate_->change([this] { --gate_->engines_; });
  }

  std::size_t submit(std::span<const tiers::IoRequest> requests) noexcept override {
    gate_->pass(Gate::Call::submit);
    gate_->change([&] { gate_->submit_count_ += requests.size(); });
    return engine_->submit(requests);
  }
  std::size_t reap(std::span<tiers::IoCompletion> completions, TimePoint deadline) noexcept override {
    while (true) {
      std::unique_lock lock(gate_->mutex_);
      const std::size_t count = gate_->withheld_ ? 0 : engine_->reap(completions, TimePoint::min());
      if (count > 0 || std::exchange(gate_->woken_, false) || clock_.now() >= deadline) {
        ++gate_->reap_count_;
        gate_->reaping_ = false;
        gate_->changed_.notify_all();
        return count;
      }
      gate_->reaping_ = true;
      gate_->changed_.notify_all();
      gate_->changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
  }
  void wake() noexcept override {
    gate_->change([this] { gate_->woken_ = true; });
  }
  void attach(tiers::FileHandle file, HostSpan buffers) noexcept override { engine_->attach(file, buffers); }
  bool detach() noexcept override {
    gate_->pass(Gate::Call::detach);
    return engine_->detach();
  }
  bool close(TimePoint deadline) noexcept override {
    gate_->pass(Gate::Call::close);
    const bool at_rest = engine_->close(deadline);
    const std::lock_guard lock(gate_->mutex_);
    return at_rest && !gate_->in_use_;
  }
  [[nodiscard]] tiers::IoLimits limits() const noexcept override { return engine_->limits(); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return engine_->in_flight(); }
  [[nodiscard]] const char* name() const noexcept override { return "held"; }
  [[nodiscard]] std::string notes() const override { return engine_->notes(); }

 private:
  std::unique_ptr<tiers::IoEngine> engine_;
  const std::shared_ptr<Gate> gate_;
  const Clock& clock_;
};

/// Makes the engine of a path a HeldEngine.
inline void hold_engine(PathOptions& path, const std::shared_ptr<Gate>& gate) {
  path.engine = tiers::EngineChoice::threads;
  path.decorate = [gate, clock = path.clock](std::unique_ptr<tiers::IoEngine> engine) {
    return std::make_unique<HeldEngine>(std::move(engine), gate, *clock);
  };
}

}  // namespace penstock::swap::test
