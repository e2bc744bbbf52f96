#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace penstock::test {

/// An engine that calls `on_end` when it is destroyed, before the engine within.
class ListedEngine final : public tiers::IoEngine {
 public:
  ListedEngine(std::unique_ptr<tiers::IoEngine> engine, std::function<void()> on_end)
      : engine_(std::move(engine)), on_end_(std::move(on_end)) {}
  ~ListedEngine() override { on_end_(); }

  std::size_t submit(std::span<const tiers::IoRequest> requests) noexcept override {
    return engine_->submit(requests);
  }
  std::size_t reap(std::span<tiers::IoCompletion> completions, TimePoint deadline) noexcept override {
    return engine_->reap(completions, deadline);
  }
  void wake() noexcept override { engine_->wake(); }
  void attach(tiers::FileHandle file, HostSpan buffers) noexcept override { engine_->attach(file, buffers); }
  bool detach() noexcept override { return engine_->detach(); }
  bool close(TimePoint deadline) noexcept override { return engine_->close(deadline); }
  [[nodiscard]] tiers::IoLimits limits() const noexcept override { return engine_->limits(); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return engine_->in_flight(); }
  [[nodiscard]] const char* name() const noexcept override { return engine_->name(); }
  [[nodiscard]] std::string notes() const override { return engine_->notes(); }
  [[nodiscard]] std::string failure() const override { return engine_->failure(); }

 private:
  std::unique_ptr<tiers::IoEngine> engine_;
  std::function<void()> on_end_;
};

}  // namespace penstock::test
