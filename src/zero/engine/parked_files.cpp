#include "zero/engine/parked_files.hpp"

#include "base/abandon.hpp"
#include "zero/layout/padded.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock::zero {

namespace {

/// Parts that are read ahead of the one that is copied.
constexpr std::size_t ahead = 2;

ByteCount padded(ByteCount size) {
  return round_up(size, extent_alignment);
}

void copy_in_parallel(parallel::Workers& workers, ConstHostSpan from, HostSpan to) {
  constexpr std::uint64_t piece = (1_MiB).value();
  const std::uint64_t size = from.size().value();
  workers.parallel_blocks((size + piece - 1) / piece, [&](std::size_t first, std::size_t last) {
    const std::uint64_t begin = first * piece, end = std::min(last * piece, size);
    std::memcpy(to.data() + begin, from.data() + begin, end - begin);
  });
}

/// While this thread waits for parked contents, it advances the engine's runtime too.
class BothAdvance final : public swap::IdleHandler {
 public:
  BothAdvance(swap::Runtime& of_engine, swap::IdleHandler& idle) : of_engine_(of_engine), idle_(idle) {}
  void idle() override {
    if (!of_engine_.poll()) idle_.idle();
  }

 private:
  swap::Runtime& of_engine_;
  swap::IdleHandler& idle_;
};

}  // namespace

Result<std::unique_ptr<ParkedFiles>> ParkedFiles::store(EngineContext& context,
                                                        const std::vector<ParkedRange>& ranges,
                                                        std::vector<swap::PathOptions> paths,
                                                        swap::RuntimeOptions with) {
  std::vector<Part> parts;
  ByteCount total;
  for (ParkedRange& range : divide(ranges, part_max)) {
    total += padded(range.size());
    parts.push_back({std::move(range)});
  }
  std::unique_ptr<swap::IdleHandler> idle;
  if (with.idle_handler != nullptr) idle = std::make_unique<BothAdvance>(context.runtime, *with.idle_handler);
  const ByteCount largest = std::min(total, part_max);
  // Room for one part and for those that are read ahead of it.
  const ByteCount staging = std::min(total, staging_max);
  swap::RuntimeOptions options{.host_budget = staging,
                               .paths = std::move(paths),
                               .swap_need = {.total = total, .tensor_max = largest},
                               .eviction = swap::Eviction::lru,
                               .lookahead = part_max * ahead,
                               .executor = with.executor,
                               .idle_handler = idle.get()};
  if (total.is_zero()) options.paths.clear();
  PENSTOCK_TRY_ASSIGN(auto runtime, swap::Runtime::create(std::move(options)));
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    PENSTOCK_TRY_ASSIGN(parts[i].tensor, runtime->add({.name = parts[i].range.name,
                                                       .key = {.unit = i, .role = tiers::Purpose::parked},
                                                       .purpose = tiers::Purpose::parked,
                                                       .size = parts[i].range.size(),
                                                       .write_behind = true,
                                                       .retain = false},
                                                      /*on_disk=*/true));
  }
  std::unique_ptr<ParkedFiles> parked(new ParkedFiles(std::move(idle), std::move(runtime), std::move(parts)));
  PENSTOCK_TRY(parked->copy_out(context));
  return parked;
}

/// The parts before are written while the next one is copied.
Result<void> ParkedFiles::copy_out(EngineContext& context) {
  tiers::Stream& stream = *context.copy_out;
  for (const Part& part : parts_) {
    PENSTOCK_TRY_ASSIGN(auto lease, runtime_->acquire(part.tensor, swap::Access::overwrite));
    if (!part.range.in_host.empty()) {
      copy_in_parallel(context.workers, part.range.in_host, lease.bytes());
      continue;
    }
    const auto enqueued = context.device.copy_to_host(stream.handle(), part.range.on_device, lease.bytes());
    PENSTOCK_TRY(finish(context, stream, std::move(lease)));  // a part of the copy may be enqueued
    PENSTOCK_TRY(enqueued);
  }
  return runtime_->flush();
}

Result<void> ParkedFiles::copy_back(EngineContext& context,
                                    const std::function<DeviceSpan(DeviceSpan)>& now_at) {
  tiers::Stream& stream = *context.copy_in;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (i + ahead < parts_.size()) PENSTOCK_TRY(runtime_->prefetch(parts_[i + ahead].tensor));
    PENSTOCK_TRY_ASSIGN(auto lease, runtime_->acquire(part.tensor, swap::Access::read));
    if (!part.range.in_host.empty()) {
      copy_in_parallel(context.workers, lease.bytes(), part.range.in_host);
      continue;
    }
    const auto enqueued =
        context.device.copy_to_device(stream.handle(), lease.bytes(), now_at(part.range.on_device));
    PENSTOCK_TRY(finish(context, stream, std::move(lease)));
    PENSTOCK_TRY(enqueued);
  }
  return ok();
}

Result<void> ParkedFiles::finish(EngineContext& context, tiers::Stream& stream, swap::Lease lease) {
  auto finished = context.finish(stream, "copies of what is parked");
  if (!finished) abandon(std::move(lease));
  return finished;
}

ByteCount ParkedFiles::held(tiers::Tier tier) const {
  if (tier == tiers::Tier::host) return runtime_->host_memory().size();
  ByteCount files;
  for (const swap::PathReport& path : runtime_->paths()) files += path.reserved;
  return tier == tiers::Tier::nvme ? files : ByteCount();
}

ParkedContents::Traffic ParkedFiles::traffic() const {
  const auto traffic = runtime_->ledger().traffic();
  return {.read = traffic.read, .written = traffic.written};
}

}  // namespace penstock::zero
