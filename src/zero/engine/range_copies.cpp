#include "zero/engine/range_copies.hpp"

#include "base/abandon.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock::zero {

namespace {

void copy_in_parallel(parallel::Workers& workers, ConstHostSpan from, HostSpan to) {
  constexpr std::uint64_t piece = (1_MiB).value();
  const std::uint64_t size = from.size().value();
  workers.parallel_blocks((size + piece - 1) / piece, [&](std::size_t first, std::size_t last) {
    const std::uint64_t begin = first * piece, end = std::min(last * piece, size);
    std::memcpy(to.data() + begin, from.data() + begin, end - begin);
  });
}

/// For the side runtime: its own polls advance it, and this the engine's.
class EngineAdvances final : public swap::IdleHandler {
 public:
  EngineAdvances(swap::Runtime& of_engine, swap::IdleHandler& idle) : of_engine_(of_engine), idle_(idle) {}
  void idle() override {
    if (!of_engine_.poll()) idle_.idle();
  }

 private:
  swap::Runtime& of_engine_;
  swap::IdleHandler& idle_;
};

Result<void> finish(EngineContext& context, tiers::Stream& stream, const Result<void>& enqueued,
                    swap::Lease lease) {
  auto finished = context.finish(stream, "copies between memory and files");  // a part of one may be enqueued
  if (!finished) abandon(std::move(lease));
  PENSTOCK_TRY(finished);
  return enqueued;
}

}  // namespace

MemoryRange MemoryRange::part(ByteCount begin, ByteCount length) const {
  const std::string at = begin.is_zero() ? "" : " from " + to_string(begin) + " on";
  return {name + at, on_device.subspan(begin, length), in_host.subspan(begin, length)};
}

std::vector<MemoryRange> divide(const std::vector<MemoryRange>& ranges, ByteCount part_max) {
  std::vector<MemoryRange> parts;
  for (const MemoryRange& range : ranges) {
    for (ByteCount begin; begin < range.size(); begin += part_max)
      parts.push_back(range.part(begin, std::min(part_max, range.size() - begin)));
  }
  return parts;
}

Result<SideRuntime> SideRuntime::create(EngineContext& context, swap::RuntimeOptions options) {
  SideRuntime made(context.runtime);
  const swap::RuntimeOptions of_engine = context.internals.options();
  options.executor = of_engine.executor;
  if (of_engine.idle_handler != nullptr) {
    made.idle_ = std::make_unique<EngineAdvances>(context.runtime, *of_engine.idle_handler);
    options.idle_handler = made.idle_.get();
  }
  PENSTOCK_TRY_ASSIGN(made.runtime_, swap::Runtime::create(std::move(options)));
  if (made.idle_) context.internals.accompany(*made.runtime_);
  return made;
}

SideRuntime::~SideRuntime() {
  if (!runtime_ || !idle_) return;
  swap::RuntimeInternals(*of_engine_).leave(*runtime_);
}

Result<void> copy_out(EngineContext& context, const MemoryRange& range, swap::Lease lease) {
  if (!range.in_host.empty()) {
    copy_in_parallel(context.workers, range.in_host, lease.bytes());
    return ok();
  }
  tiers::Stream& stream = *context.copy_out;
  const auto enqueued = context.device.copy_to_host(stream.handle(), range.on_device, lease.bytes());
  return finish(context, stream, enqueued, std::move(lease));
}

Result<void> copy_back(EngineContext& context, const MemoryRange& range, swap::Lease lease) {
  if (!range.in_host.empty()) {
    copy_in_parallel(context.workers, lease.bytes(), range.in_host);
    return ok();
  }
  tiers::Stream& stream = *context.copy_in;
  const auto enqueued = context.device.copy_to_device(stream.handle(), lease.bytes(), range.on_device);
  return finish(context, stream, enqueued, std::move(lease));
}

}  // namespace penstock::zero
