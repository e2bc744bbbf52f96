#include "zero/engine/parked_files.hpp"

#include "zero/layout/padded.hpp"

#include <algorithm>
#include <utility>

namespace penstock::zero {

namespace {

/// Parts that are read ahead of the one that is copied.
constexpr std::size_t ahead = 2;

ByteCount padded(ByteCount size) {
  return round_up(size, extent_alignment);
}

}  // namespace

Result<std::unique_ptr<ParkedFiles>> ParkedFiles::store(EngineContext& context,
                                                        const std::vector<MemoryRange>& ranges,
                                                        std::vector<swap::PathOptions> paths) {
  std::vector<Part> parts;
  ByteCount total;
  for (MemoryRange& range : divide(ranges, part_max)) {
    total += padded(range.size());
    parts.push_back({std::move(range)});
  }
  // Staging has room for one part and for those that are read ahead of it.
  swap::RuntimeOptions options{.host_budget = std::min(total, staging_max),
                               .paths = std::move(paths),
                               .swap_need = {.total = total, .tensor_max = std::min(total, part_max)},
                               .eviction = swap::Eviction::lru,
                               .lookahead = part_max * ahead};
  if (total.is_zero()) options.paths.clear();
  PENSTOCK_TRY_ASSIGN(auto side, SideRuntime::create(context, std::move(options)));
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    PENSTOCK_TRY_ASSIGN(parts[i].tensor, side.get().add({.name = parts[i].range.name,
                                                         .key = {.unit = i, .role = tiers::Purpose::parked},
                                                         .purpose = tiers::Purpose::parked,
                                                         .size = parts[i].range.size(),
                                                         .write_behind = true,
                                                         .retain = false},
                                                        /*on_disk=*/true));
  }
  std::unique_ptr<ParkedFiles> parked(new ParkedFiles(std::move(side), std::move(parts)));
  PENSTOCK_TRY(parked->copy_all_out(context));
  return parked;
}

/// The parts before are written while the next one is copied.
Result<void> ParkedFiles::copy_all_out(EngineContext& context) {
  for (const Part& part : parts_) {
    PENSTOCK_TRY_ASSIGN(auto lease, runtime().acquire(part.tensor, swap::Access::overwrite));
    PENSTOCK_TRY(copy_out(context, part.range, std::move(lease)));
  }
  return runtime().flush();
}

Result<void> ParkedFiles::copy_back(EngineContext& context,
                                    const std::function<DeviceSpan(DeviceSpan)>& now_at) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (i + ahead < parts_.size()) PENSTOCK_TRY(runtime().prefetch(parts_[i + ahead].tensor));
    PENSTOCK_TRY_ASSIGN(auto lease, runtime().acquire(part.tensor, swap::Access::read));
    MemoryRange to = part.range;
    if (!to.on_device.empty()) to.on_device = now_at(to.on_device);
    PENSTOCK_TRY(zero::copy_back(context, to, std::move(lease)));
  }
  return ok();
}

ByteCount ParkedFiles::held(tiers::Tier tier) const {
  if (tier == tiers::Tier::host) return runtime().host_memory().size();
  ByteCount files;
  for (const swap::PathReport& path : runtime().paths()) files += path.reserved;
  return tier == tiers::Tier::nvme ? files : ByteCount();
}

ParkedContents::Traffic ParkedFiles::traffic() const {
  const auto traffic = runtime().ledger().traffic();
  return {.read = traffic.read, .written = traffic.written};
}

}  // namespace penstock::zero
