#include "rank.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <array>
#include <atomic>
#include <cstring>
#include <utility>

namespace penstock::bench {

using zero::CollectiveSignature;
using Subject = CollectiveSignature::Subject;

Result<std::unique_ptr<Rank>> Rank::create(const Join& join, ByteCount flat_max) {
  std::unique_ptr<Rank> rank(new Rank);
  rank->accelerator_ = zero::make_host_accelerator(flat_max * (2 * flats) + 1_MiB);
  tiers::Device& device = *rank->accelerator_.device;
  for (auto* stream : {&rank->copy_in_, &rank->communication_}) {
    PENSTOCK_TRY_ASSIGN(*stream, device.create_stream());
  }
  for (std::uint32_t f = 0; f < flats; ++f) {
    Flat& flat = rank->flats_.emplace_back();
    for (DeviceSpan* const span : {&flat.memory, &flat.shard}) {
      PENSTOCK_TRY_ASSIGN(*span, device.allocate(flat_max));
      std::memset(tiers::HostDevice::bytes(*span).data(), 0, flat_max.value());
    }
    for (auto* event : {&flat.gathered, &flat.written, &flat.reduced}) {
      PENSTOCK_TRY_ASSIGN(*event, device.create_event());
    }
  }
  PENSTOCK_TRY_ASSIGN(rank->runtime_, swap::Runtime::create({.host_budget = 1_MiB}));
  rank->events_ = std::make_unique<tiers::EventPool>(device);
  rank->copied_in_ =
      std::make_unique<tiers::StreamProgress>(tiers::StreamProgress::Options{.clock = &Clock::steady()});
  PENSTOCK_TRY_ASSIGN(rank->communicator_, join(device, *rank->accelerator_.compute));
  return rank;
}

Rank::~Rank() {
  runtime_.reset();
  communicator_.reset();
  for (const Flat& flat : flats_) {
    for (const DeviceSpan span : {flat.memory, flat.shard}) accelerator_.device->release(span);
  }
}

DeviceTensor Rank::slot(const Flat& of, ByteCount flat) const {
  const ByteCount size(flat.value() / communicator_->size());
  return {of.memory.subspan(size * communicator_->rank(), size), DType::bf16};
}

CollectiveSignature Rank::signature(Subject subject, std::size_t unit) const {
  return {.subject = subject, .unit = static_cast<std::uint32_t>(unit), .step = step_};
}

void Rank::wake() {
  {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  woken_.notify_one();
}

/// Polls as often as the mover does.
Result<void> Rank::finish() {
  while (true) {
    PENSTOCK_TRY_ASSIGN(const bool completed, communicator_->poll());
    if (completed) return ok();
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, communicator_->poll_interval(), [this] { return is_woken_; });
    is_woken_ = false;
  }
}

Result<void> Rank::meet() {
  communicator_->set_wake([this] { wake(); });
  std::byte mine{};
  std::vector<std::byte> all(communicator_->size());
  PENSTOCK_TRY(
      communicator_->start_exchange(ConstHostSpan(&mine, 1_B), HostSpan(std::span(all)), {.step = ++step_}));
  return finish();
}

Result<void> Rank::call_directly(ByteCount flat) {
  communicator_->set_wake([this] { wake(); });
  std::vector<tiers::Fence> copied(flats_.size());
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    const DeviceSpan target = slot(flats_[f], flat).bytes;
    PENSTOCK_TRY(accelerator_.device->copy_on_device(copy_in_->handle(),
                                                     flats_[f].shard.subspan(0_B, target.size()), target));
    PENSTOCK_TRY_ASSIGN(copied[f], events_->record(*copy_in_));
  }
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    const Flat& one = flats_[f];
    PENSTOCK_TRY(communication_->wait(*copied[f]));
    PENSTOCK_TRY(communicator_->start_all_gather(*communication_, one.memory.subspan(0_B, flat),
                                                 signature(Subject::parameters, f)));
    PENSTOCK_TRY(finish());
    PENSTOCK_TRY(communication_->record(*one.gathered));
  }
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    const Flat& one = flats_[f];
    PENSTOCK_TRY(communication_->wait(*one.written));
    const std::array whole{DeviceTensor{one.memory.subspan(0_B, flat), DType::bf16}};
    PENSTOCK_TRY(communicator_->start_reduce_scatter(*communication_, whole, zero::Reduction::exact,
                                                     signature(Subject::gradients, f)));
    PENSTOCK_TRY(finish());
    PENSTOCK_TRY(communication_->record(*one.reduced));
  }
  return ok();
}

void Rank::start(std::unique_ptr<swap::Hop> hop) {
  ++moves_;
  swap::Move move;
  move.then(std::move(hop));
  move.on_event = [this](swap::HopState state, const Result<void>& result) {
    if (state != swap::HopState::done) return;
    if (!result && outcome_) outcome_ = result;
    --moves_;
  };
  swap::RuntimeInternals(*runtime_).start(std::move(move));
}

Result<void> Rank::call_through_hops(ByteCount flat) {
  static const std::atomic<bool> updated = true;
  const swap::RuntimeInternals internals(*runtime_);
  communicator_->set_wake([internals] { internals.wake(); });
  const zero::CollectiveContext context{.runtime = *runtime_,
                                        .device = *accelerator_.device,
                                        .communicator = *communicator_,
                                        .order = order_,
                                        .trace = trace_,
                                        .copy_in = *copy_in_,
                                        .communication = *communication_,
                                        .events = *events_,
                                        .copied_in = *copied_in_};
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    const Flat& one = flats_[f];
    const DeviceTensor target = slot(one, flat);
    start(zero::make_gather_hop(context,
                                {.name = "flat",
                                 .kept_shard = one.shard.subspan(0_B, target.bytes.size()),
                                 .signature = signature(Subject::parameters, f),
                                 .slot = target,
                                 .flat = one.memory.subspan(0_B, flat),
                                 .writable = {},
                                 .updated = &updated,
                                 .gathered = one.gathered.get()},
                                {}));
  }
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    const Flat& one = flats_[f];
    auto bucket = std::make_shared<zero::GradientBucket>();
    bucket->flats = {{one.memory.subspan(0_B, flat), DType::bf16}};
    bucket->written = {one.written.get()};
    bucket->reduced = {one.reduced.get()};
    bucket->signature = signature(Subject::gradients, f);
    start(zero::make_reduce_scatter_hop(context, std::move(bucket)));
  }
  PENSTOCK_TRY(internals.wait_until([this] { return moves_ == 0; }));
  return outcome_;
}

}  // namespace penstock::bench
