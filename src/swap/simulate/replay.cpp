#include "swap/simulate/replay.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace penstock::swap {

using tiers::TensorId;

namespace {

constexpr Alignment alignment(4096);

std::array<ExtentAllocator::PathRoom, 1> disk_for(const AccessTrace& trace) {
  ByteCount bytes;
  for (const auto& tensor : trace.tensors) bytes += round_up(tensor.size, alignment);
  return {{{.capacity = bytes, .reserved = bytes}}};
}

}  // namespace

Result<std::unique_ptr<Replay>> Replay::create(const AccessTrace& trace, const ReplayOptions& options) {
  PENSTOCK_TRY(check_trace(trace));
  std::unique_ptr<Replay> replay(new Replay(trace, options));
  PENSTOCK_TRY(replay->add_tensors());
  if (options.predicted) {
    std::vector<NextUses::Use> order;
    order.reserve(trace.uses.size());
    for (const auto& [tensor, access] : trace.uses) order.push_back({replay->tensors_[tensor], access});
    replay->residency_.predict(std::move(order));
  }
  return replay;
}

Replay::Replay(const AccessTrace& trace, const ReplayOptions& options)
    : trace_(trace),
      budget_(tiers::Tier::host, options.host_budget, ledger_, alignment, options.ranges),
      extents_(disk_for(trace), alignment),
      residency_(store_, budget_, extents_, ledger_, *this,
                 {.eviction = options.eviction,
                  .reuse_distance_max = options.reuse_distance_max,
                  .lookahead = options.lookahead,
                  .file_names = {"disk"}}) {}

Result<void> Replay::add_tensors() {
  tensors_.reserve(trace_.tensors.size());
  for (const auto& tensor : trace_.tensors) PENSTOCK_TRY(add(tensor));
  return ok();
}

Result<void> Replay::add(const AccessTrace::Tensor& tensor) {
  tiers::TensorDescription description{.name = tensor.name,
                                       .key = {.unit = static_cast<std::uint32_t>(tensors_.size())},
                                       .purpose = tensor.purpose,
                                       .size = tensor.size,
                                       .write_behind = tensor.write_behind,
                                       .retain = tensor.retain,
                                       .transient = tensor.transient};
  if (tensor.on_disk) {
    PENSTOCK_TRY_ASSIGN(description.extent, extents_.allocate(tensor.size));
  }
  PENSTOCK_TRY_ASSIGN(const TensorId id, store_.add(std::move(description)));
  if (tensor.on_disk && !tensor.transient) PENSTOCK_TRY(put_on_disk(id));
  tensors_.push_back(id);
  return residency_.add(id);
}

Result<void> Replay::put_on_disk(TensorId tensor) {
  const auto& description = store_.description(tensor);
  auto range =
      budget_.reserve(description.extent->length, description.purpose, tiers::RangeAllocator::End::low);
  if (!range) return budget_.too_small(description.extent->length).object(description.name);
  store_.begin_overwrite(tensor, std::move(*range));
  store_.end_exclusive(tensor);
  store_.begin_store(tensor);
  store_.finish_store(tensor, true);
  store_.drop(tensor);
  return ok();
}

Result<RoundTraffic> Replay::round() {
  const auto before = ledger_.traffic();
  for (std::size_t i = 0; i < trace_.uses.size(); ++i) {
    const auto& [tensor, access] = trace_.uses[i];
    if (auto used = use(tensors_[tensor], access); !used)
      return std::move(used).error().note("use  " + std::to_string(i) + " of the trace");
  }
  residency_.end_round();
  residency_.advance();
  finish_transfers();
  const auto after = ledger_.traffic();
  return RoundTraffic{after.read - before.read, after.written - before.written};
}

Result<void> Replay::use(TensorId tensor, Access access) {
  const RequestId id = residency_.request(tensor, access, Use::unrecorded);
  residency_.advance();
  auto outcome = residency_.take(id);
  while (!outcome) {
    if (!transfers_.empty()) {
      finish_transfer();
    } else if (residency_.fail_starved_request()) {
      residency_.advance();
    }
    outcome = residency_.take(id);
  }
  PENSTOCK_TRY(*outcome);
  residency_.record_use(tensor, access);  // with the grant, as Runtime::acquire()
  residency_.advance();
  residency_.release(tensor, access);
  residency_.advance();
  finish_transfers();
  return ok();
}

ByteCount Replay::flush() {
  const ByteCount before = ledger_.traffic().written;
  for (const TensorId tensor : residency_.dirty()) residency_.queue_store(tensor);
  residency_.advance();
  finish_transfers();
  return ledger_.traffic().written - before;
}

void Replay::finish_transfer() {
  const auto [tensor, is_load] = transfers_.front();
  transfers_.pop_front();
  if (is_load) {
    residency_.finish_load(tensor, ok());
  } else {
    residency_.finish_store(tensor, ok());
  }
  residency_.advance();
}

void Replay::finish_transfers() {
  while (!transfers_.empty()) finish_transfer();
}

void Replay::load(TensorId tensor, bool) {
  transfers_.push_back({tensor, true});
}

void Replay::store(TensorId tensor, const tiers::Extent&) {
  transfers_.push_back({tensor, false});
}

}  // namespace penstock::swap
