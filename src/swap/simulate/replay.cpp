#include "swap/simulate/replay.hpp"

#include "swap/simulate/replay_checks.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace penstock::swap {

using tiers::TensorId;

namespace {

constexpr Alignment alignment(4096);

/// Each has room for all tensors, so that only weights decide. Without costs there is one.
std::vector<ExtentAllocator::PathRoom> rooms_for(const AccessTrace& trace,
                                                 const std::optional<ReplayCosts>& costs) {
  ByteCount bytes;
  for (const auto& tensor : trace.tensors) bytes += round_up(tensor.size, alignment);
  std::vector<ExtentAllocator::PathRoom> rooms;
  if (!costs) return {{.capacity = bytes, .reserved = bytes}};
  for (const ReplayCosts::Disk& disk : costs->disks)
    rooms.push_back({.weight = disk.weight, .capacity = bytes, .reserved = bytes});
  return rooms;
}

std::vector<DiskRates> rates_of(const std::optional<ReplayCosts>& costs) {
  std::vector<DiskRates> rates;
  if (costs)
    for (const ReplayCosts::Disk& disk : costs->disks) rates.push_back(disk.rates);
  return rates;
}

std::vector<TransferCosts> eviction_costs_of(const std::optional<ReplayCosts>& costs) {
  std::vector<TransferCosts> of_disks;
  if (costs)
    for (const ReplayCosts::Disk& disk : costs->disks) of_disks.push_back(disk.eviction);
  return of_disks;
}

std::vector<std::string> names_of(std::size_t disks) {
  std::vector<std::string> names;
  for (std::size_t i = 1; i <= disks; ++i) names.push_back("disk " + std::to_string(i));
  return names;
}

}  // namespace

Result<std::unique_ptr<Replay>> Replay::create(const AccessTrace& trace, const ReplayOptions& options) {
  PENSTOCK_TRY(check_trace(trace));
  if (options.costs) PENSTOCK_TRY(check_costs(*options.costs));
  StepUses uses = StepUses::divide(trace, options.update_beside, options.update_in_backward);
  const BudgetNeed need(trace, uses, alignment);
  PENSTOCK_TRY(check_budget(need, options.host_budget));
  std::unique_ptr<Replay> replay(new Replay(trace, std::move(uses), options));
  replay->enough_ = need.enough();
  PENSTOCK_TRY(replay->add_tensors());
  PENSTOCK_TRY(replay->fill_memory());
  if (options.predicted) {
    std::vector<NextUses::Use> order;
    order.reserve(trace.uses.size());
    for (const auto& [tensor, access] : trace.uses) order.push_back({replay->tensors_[tensor], access});
    replay->residency_.predict(std::move(order));
  }
  return replay;
}

Replay::Replay(const AccessTrace& trace, StepUses uses, const ReplayOptions& options)
    : trace_(trace),
      uses_(std::move(uses)),
      costs_(options.costs),
      dropped_ahead_(options.dropped_ahead),
      dropped_ahead_later_(std::min(options.dropped_ahead_later, options.dropped_ahead)),
      dropped_between_(options.dropped_between),
      update_in_backward_(options.update_in_backward),
      stores_max_(options.stores_max),
      budget_(tiers::Tier::host, options.host_budget, ledger_, alignment, options.ranges),
      extents_(rooms_for(trace, costs_), alignment),
      residency_(store_, budget_, extents_, ledger_, *this,
                 {.eviction = options.eviction,
                  .costs = eviction_costs_of(costs_),
                  .reuse_distance_max = options.reuse_distance_max,
                  .lookahead = options.lookahead,
                  .file_names = names_of(costs_ ? costs_->disks.size() : 1)}),
      disks_(rates_of(costs_)),
      trainer_(uses_.of_trainer, trace),
      update_(uses_.of_update, trace),
      flats_(uses_.flats.size()) {
  trainer_.end = trainer_.uses.size();
}

Replay::Thread::Thread(const std::vector<std::uint32_t>& uses_of_trace, const AccessTrace& trace)
    : uses(uses_of_trace) {
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const auto& tensor = trace.tensors[trace.uses[uses[i]].tensor];
    if (tensor.on_disk && !tensor.retain) dropped.push_back(i);
  }
}

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
                                       .block = round_up(tensor.size, alignment),  // no checksums are kept
                                       .write_behind = tensor.write_behind,
                                       .retain = tensor.retain,
                                       .home_in_memory = tensor.home_in_memory,
                                       .transient = tensor.transient};
  if (tensor.on_disk) {
    PENSTOCK_TRY_ASSIGN(description.extent, extents_.allocate(tensor.size));
  }
  PENSTOCK_TRY_ASSIGN(const TensorId id, store_.add(std::move(description)));
  if (tensor.on_disk && !tensor.transient) PENSTOCK_TRY(put_on_disk(id));
  tensors_.push_back(id);
  return residency_.add(id);
}

/// Gives contents to what stays in memory and is read before it is written: it has them from an earlier round.
Result<void> Replay::fill_memory() {
  std::vector<bool> seen(trace_.tensors.size());
  for (const auto& [number, access] : trace_.uses) {
    const auto& tensor = trace_.tensors[number];
    const bool is_first = !seen[number];
    seen[number] = true;
    if (!is_first || access == Access::overwrite || tensor.on_disk || tensor.transient) continue;
    const RequestId request = residency_.request(tensors_[number], Access::overwrite, Use::unrecorded);
    residency_.advance();
    const auto outcome = residency_.take(request);
    if (!outcome || !*outcome) return budget_.too_small(tensor.size).object(tensor.name);
    release({number, Access::overwrite});
  }
  return ok();
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
  const auto before = traffic();
  const double began = disks_.now();
  const auto used_before = disks_.uses();
  round_ = {};
  trainer_.next = next_added_ = 0;
  if (of_last_round_ == 0) ask_for_flats(dropped_between_, dropped_between_);
  while (!trainer_.is_done() || of_last_round_ > 0) PENSTOCK_TRY(go_on());
  for (std::uint32_t i = 0; i < flats_.size(); ++i) {
    if (uses_.flats[i].added_at == 0) add_flat(i, /*of_last_round=*/true);
    if (Flat& flat = flats_[i]; flat.waits && !std::exchange(flat.of_last_round, true)) ++of_last_round_;
  }
  residency_.end_round();
  residency_.advance();
  if (!costs_) finish_transfers();
  round_.by_purpose = traffic();
  for (std::size_t i = 0; i < before.size(); ++i) {
    ReplayedRound::Traffic& moved = round_.by_purpose[i];
    moved = {moved.read - before[i].read, moved.written - before[i].written};
    round_.read += moved.read;
    round_.written += moved.written;
  }
  round_.seconds = disks_.now() - began;
  round_.disks = disks_.uses();
  for (std::size_t i = 0; i < used_before.size(); ++i) {
    SimulatedDisks::Use& use = round_.disks[i];
    use = {use.read - used_before[i].read, use.written - used_before[i].written,
           use.busy - used_before[i].busy};
  }
  return round_;
}

/// Since the replay began.
std::array<ReplayedRound::Traffic, tiers::purpose_count> Replay::traffic() const {
  std::array<ReplayedRound::Traffic, tiers::purpose_count> by_purpose;
  for (std::size_t i = 0; i < by_purpose.size(); ++i) {
    const auto moved = ledger_.traffic(tiers::Purpose(i));
    by_purpose[i] = {moved.read, moved.written};
  }
  return by_purpose;
}

/// Begins what can begin, or else lets time pass until something ends.
Result<void> Replay::go_on() {
  bool begun = false;
  for (Thread* const thread : {&trainer_, &update_}) {
    PENSTOCK_TRY_ASSIGN(const bool has_begun, begin_use(*thread));
    begun = begun || has_begun;
  }
  if (!begun) pass_time();
  return ok();
}

const AccessTrace::Use& Replay::use_of(const Thread& thread) const {
  return trace_.uses[thread.uses[thread.next]];
}

/// True if the thread's next use has begun, or begun and ended.
Result<bool> Replay::begin_use(Thread& thread) {
  if (thread.is_done() || thread.computes) return false;
  const auto [number, access] = use_of(thread);
  const TensorId tensor = tensors_[number];
  if (!thread.request) {
    if (must_wait(thread, {number, access})) return false;
    thread.request = residency_.request(tensor, access, Use::unrecorded);
    ask_ahead(thread);
    if (&thread == &trainer_ && thread.next == uses_.last_micro_batch)
      ask_for_flats(dropped_ahead_, dropped_ahead_later_);
    residency_.advance();
  }
  const auto outcome = residency_.take(*thread.request);
  if (!outcome) return false;
  thread.request.reset();
  if (!*outcome) {
    return Error(outcome->error())
        .note("use  " + std::to_string(thread.uses[thread.next]) + " of the trace")
        .advice("raise the host budget, which has room in every order with " + to_exact_string(enough_) +
                ", or use smaller units or tiles");
  }
  residency_.record_use(tensor, access);  // with the grant, as Runtime::acquire()
  residency_.advance();
  thread.computes = true;
  // An update goes through gradients and shards with the tiles, at their rate.
  const bool with_tiles =
      &thread == &update_ && trace_.tensors[number].purpose != tiers::Purpose::optimizer_tile;
  thread.left = with_tiles ? 0 : seconds_of(trace_.tensors[number]);
  if (thread.left == 0) end_use(thread);
  return true;
}

std::uint32_t Replay::ask_ahead(const Thread& thread, std::size_t from, std::size_t end,
                                std::uint32_t count) {
  const Hint hint = update_in_backward_ ? Hint::next : Hint::soon;  // as UpdateSweep
  std::uint32_t asked = 0;
  auto next = std::lower_bound(thread.dropped.begin(), thread.dropped.end(), from);
  for (; asked < count && next != thread.dropped.end() && *next < end; ++asked, ++next)
    residency_.prefetch(tensors_[trace_.uses[thread.uses[*next]].tensor], hint);
  return asked;
}

void Replay::ask_ahead(const Thread& thread) {
  const std::uint32_t asked = ask_ahead(thread, thread.next + 1, thread.end, dropped_ahead_);
  const std::uint32_t left = dropped_ahead_later_ - std::min(asked, dropped_ahead_later_);
  if (&thread == &update_) ask_for_flats(left, left);
}

double Replay::seconds_of(const AccessTrace::Tensor& tensor) const {
  const double rate = costs_ ? costs_->use[static_cast<std::size_t>(tensor.purpose)] : 0;
  return rate == 0 ? 0 : static_cast<double>(tensor.size.value()) / rate;
}

void Replay::end_use(Thread& thread) {
  const AccessTrace::Use use = use_of(thread);
  thread.computes = false;
  ++thread.next;
  const bool of_tile = trace_.tensors[use.tensor].purpose == tiers::Purpose::optimizer_tile;
  if (&thread == &trainer_ || of_tile) {
    release(use);
  } else {
    thread.held.push_back(use);
  }
  if (&thread == &update_) {
    if (thread.is_done()) end_flat();
  } else {
    for (; next_added_ < uses_.added_after.size(); ++next_added_) {
      const std::uint32_t flat = uses_.added_after[next_added_];
      if (uses_.flats[flat].added_at > thread.next) break;
      add_flat(flat, /*of_last_round=*/false);
    }
  }
  if (!costs_) finish_transfers();
}

void Replay::release(const AccessTrace::Use& use) {
  residency_.release(tensors_[use.tensor], use.access);
  if (uses_.is_discarded[use.tensor] && use.access == Access::read) residency_.discard(tensors_[use.tensor]);
  residency_.advance();
}

/// Until a transfer or a use ends.
void Replay::pass_time() {
  constexpr double never = std::numeric_limits<double>::infinity();
  const bool halves = trainer_.computes && update_.computes && costs_->shared_processor;
  double next = never;
  for (const Thread* const thread : {&trainer_, &update_})
    if (thread->computes) next = std::min(next, std::max(0.0, thread->left) * (halves ? 2 : 1));
  if (next == never && disks_.is_idle()) {
    PENSTOCK_CHECK(residency_.fail_starved_request());
    return residency_.advance();
  }
  const bool is_loaded = !trainer_.is_done() && disks_.loads(tensors_[use_of(trainer_).tensor]);
  const auto [passed, ended] = disks_.run(next);
  account(passed, is_loaded);
  for (Thread* const thread : {&trainer_, &update_}) {
    if (!thread->computes) continue;
    thread->left -= passed / (halves ? 2 : 1);
    if (!ended && thread->left <= 1e-12 * passed) end_use(*thread);
  }
  if (ended) finish(*ended);
}

/// `is_loaded`: what the trainer waits for was being read.
void Replay::account(double seconds, bool is_loaded) {
  if (!update_.is_done()) round_.update += seconds;
  if (update_.computes) round_.update_used += seconds;
  if (trainer_.computes) {
    round_.used += seconds;
  } else if (!trainer_.request) {
    round_.waited_for_update += seconds;
  } else {
    (is_loaded ? round_.waited_for_loads : round_.waited_for_room) += seconds;
  }
}

ByteCount Replay::flush() {
  const ByteCount before = ledger_.traffic().written;
  for (const TensorId tensor : residency_.dirty()) residency_.queue_store(tensor);
  residency_.advance();
  finish_transfers();
  return ledger_.traffic().written - before;
}

void Replay::finish(const SimulatedDisks::Transfer& transfer) {
  if (transfer.is_load) {
    residency_.finish_load(transfer.tensor, ok());
  } else {
    residency_.finish_store(transfer.tensor, ok());
  }
  residency_.advance();
}

void Replay::finish_transfers() {
  while (!disks_.is_idle()) finish(*disks_.run(std::numeric_limits<double>::infinity()).ended);
}

void Replay::load(TensorId tensor, bool, bool urgent) {
  const auto& description = store_.description(tensor);
  disks_.begin({tensor, description.extent->path, /*is_load=*/true, urgent}, description.extent->length);
}

void Replay::store(TensorId tensor, const tiers::Extent& place) {
  disks_.begin({tensor, place.path, /*is_load=*/false}, place.length);
}

}  // namespace penstock::swap
