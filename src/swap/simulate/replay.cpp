#include "swap/simulate/replay.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
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

Result<void> check(const ReplayCosts& costs) {
  const auto refused = [](const std::string& rate, const char* wanted, double got) {
    return Error::invalid_argument("Replay::create").object(rate).wanted(wanted).got(std::to_string(got));
  };
  const std::pair<const char*, double> disk[] = {
      {"disk.read", costs.disk.read}, {"disk.write", costs.disk.write}, {"disk.mixed", costs.disk.mixed}};
  for (const auto& [name, rate] : disk)
    if (!(rate > 0) || !std::isfinite(rate)) return refused(name, "bytes a second, more than 0", rate);
  for (std::size_t i = 0; i < costs.use.size(); ++i) {
    const double rate = costs.use[i];
    if (!(rate >= 0) || !std::isfinite(rate)) {
      return refused("use of " + std::string(to_string(static_cast<tiers::Purpose>(i))),
                     "bytes a second, 0 or more", rate);
    }
  }
  return ok();
}

}  // namespace

Result<std::unique_ptr<Replay>> Replay::create(const AccessTrace& trace, const ReplayOptions& options) {
  PENSTOCK_TRY(check_trace(trace));
  if (options.costs) PENSTOCK_TRY(check(*options.costs));
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
      costs_(options.costs),
      budget_(tiers::Tier::host, options.host_budget, ledger_, alignment, options.ranges),
      extents_(disk_for(trace), alignment),
      residency_(store_, budget_, extents_, ledger_, *this,
                 {.eviction = options.eviction,
                  .reuse_distance_max = options.reuse_distance_max,
                  .lookahead = options.lookahead,
                  .file_names = {"disk"}}),
      disk_(costs_ ? std::optional(costs_->disk) : std::nullopt) {}

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

Result<ReplayedRound> Replay::round() {
  const auto before = ledger_.traffic();
  const double began = disk_.now(), busy = disk_.busy();
  round_ = {};
  for (std::size_t i = 0; i < trace_.uses.size(); ++i) {
    if (auto used = use(trace_.uses[i]); !used)
      return std::move(used).error().note("use  " + std::to_string(i) + " of the trace");
  }
  residency_.end_round();
  residency_.advance();
  if (!costs_) finish_transfers();
  const auto after = ledger_.traffic();
  round_.read = after.read - before.read;
  round_.written = after.written - before.written;
  round_.seconds = disk_.now() - began;
  round_.disk_busy = disk_.busy() - busy;
  return round_;
}

Result<void> Replay::use(const AccessTrace::Use& use) {
  const TensorId tensor = tensors_[use.tensor];
  const Access access = use.access;
  const RequestId id = residency_.request(tensor, access, Use::unrecorded);
  residency_.advance();
  auto outcome = residency_.take(id);
  while (!outcome) {
    if (!disk_.is_idle()) {
      wait_for_transfer(tensor);
    } else if (residency_.fail_starved_request()) {
      residency_.advance();
    }
    outcome = residency_.take(id);
  }
  PENSTOCK_TRY(*outcome);
  residency_.record_use(tensor, access);  // with the grant, as Runtime::acquire()
  residency_.advance();
  hold(trace_.tensors[use.tensor]);
  residency_.release(tensor, access);
  residency_.advance();
  if (!costs_) finish_transfers();
  return ok();
}

void Replay::wait_for_transfer(TensorId wanted) {
  const bool is_loaded = disk_.loads(wanted);
  const double began = disk_.now();
  finish(*disk_.run(std::numeric_limits<double>::infinity()));
  (is_loaded ? round_.waited_for_loads : round_.waited_for_room) += disk_.now() - began;
}

void Replay::hold(const AccessTrace::Tensor& tensor) {
  if (!costs_) return;
  const double rate = costs_->use[static_cast<std::size_t>(tensor.purpose)];
  if (rate == 0) return;
  const double began = disk_.now(), seconds = static_cast<double>(tensor.size.value()) / rate;
  while (auto ended = disk_.run(std::max(0.0, began + seconds - disk_.now()))) finish(*ended);
  round_.used += disk_.now() - began;
}

ByteCount Replay::flush() {
  const ByteCount before = ledger_.traffic().written;
  for (const TensorId tensor : residency_.dirty()) residency_.queue_store(tensor);
  residency_.advance();
  finish_transfers();
  return ledger_.traffic().written - before;
}

void Replay::finish(const SimulatedDisk::Transfer& transfer) {
  if (transfer.is_load) {
    residency_.finish_load(transfer.tensor, ok());
  } else {
    residency_.finish_store(transfer.tensor, ok());
  }
  residency_.advance();
}

void Replay::finish_transfers() {
  while (!disk_.is_idle()) finish(*disk_.run(std::numeric_limits<double>::infinity()));
}

void Replay::load(TensorId tensor, bool) {
  disk_.begin({tensor, true}, store_.description(tensor).size);
}

void Replay::store(TensorId tensor, const tiers::Extent&) {
  disk_.begin({tensor, false}, store_.description(tensor).size);
}

}  // namespace penstock::swap
