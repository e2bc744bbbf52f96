#include "zero/comm/process/process_transport.hpp"

#include "zero/comm/collective_errors.hpp"
#include "zero/comm/transfer_header.hpp"

#include <penstock/base/check.hpp>
#include <penstock/tiers/device/host_device.hpp>

#include <utility>

namespace penstock::zero {

namespace {

using tiers::HostDevice;

constexpr const char* operation = "Communicator";

Error out_of_order(const char* reason) {
  return Error(ErrorCode::failed_state, operation).reason(reason);
}

}  // namespace

Result<std::unique_ptr<ProcessTransport>> ProcessTransport::create(const Options& options,
                                                                   std::shared_ptr<JobControl> control,
                                                                   tiers::Device& device,
                                                                   std::unique_ptr<PeerExchange> exchange) {
  PENSTOCK_CHECK(device.memory() == tiers::DeviceMemory::host);
  PENSTOCK_TRY_ASSIGN(auto ready, device.create_event());
  return std::unique_ptr<ProcessTransport>(
      new ProcessTransport(options, std::move(control), std::move(exchange), std::move(ready)));
}

ProcessTransport::ProcessTransport(const Options& options, std::shared_ptr<JobControl> control,
                                   std::unique_ptr<PeerExchange> exchange,
                                   std::unique_ptr<tiers::Event> ready)
    : options_(options),
      control_(std::move(control)),
      exchange_(std::move(exchange)),
      ready_(std::move(ready)) {}

ProcessTransport::~ProcessTransport() {
  end();
}

void ProcessTransport::end() noexcept {
  ProcessTransport::set_wake({});
  exchange_
      ->stop();  // peers that need this rank no more have all its bytes, or get them; the others see the end
}

void ProcessTransport::set_wake(std::function<void()> wake) {
  control_->set_wake(wake);
  exchange_->set_wake(std::move(wake));
}

Result<void> ProcessTransport::start(const Transfer& transfer) {
  if (phase_ == Phase::recovery) return out_of_order("the recovery has not completed");
  if (auto obstacle = control_->obstacle()) return notice(*obstacle, transfer);
  if (phase_ != Phase::idle) return out_of_order("the previous collective has not completed");
  if (transfer.kind == Transfer::Kind::exchange) return start_exchange(transfer);
  if (transfer.stream != nullptr) PENSTOCK_TRY(transfer.stream->record(*ready_));
  transfer_ = transfer;
  begin_wait(Phase::stream);
  return ok();
}

/// Its bytes go by rank 0, which gives them to all ranks before it passes an interruption on: where one rank
/// completes it, all do. The peers compare that none of them is in another collective.
Result<void> ProcessTransport::start_exchange(const Transfer& transfer) {
  PENSTOCK_TRY(control_->start_gather("exchange", announcement_of(transfer)));
  transfer_ = transfer;
  exchanged_ = false;
  begin_wait(Phase::bytes);
  exchange_->begin(std::vector<LinkOperation>(
      size(), {.kind = transfer.kind, .signature = transfer.signature, .dtype = {}, .pieces = {}}));
  return ok();
}

Result<TransferState> ProcessTransport::poll() {
  switch (phase_) {
    case Phase::idle: return TransferState::complete;
    case Phase::stream: {
      if (auto obstacle = control_->obstacle()) return notice(*obstacle, transfer_);
      if (transfer_.stream != nullptr) {
        PENSTOCK_TRY_ASSIGN(const bool passed, ready_->query());
        if (!passed) return TransferState::pending;
      }
      begin_bytes();
      [[fallthrough]];
    }
    case Phase::bytes: return poll_bytes();
    case Phase::slices: return TransferState::readable;
    case Phase::interrupted: return *control_->obstacle();  // there is one until this rank recovers
    case Phase::recovery: return poll_recovery();
  }
  return TransferState::pending;
}

Result<TransferState> ProcessTransport::poll_bytes() {
  const bool exchanges = transfer_.kind == Transfer::Kind::exchange;
  auto obstacle = control_->obstacle();  // before the bytes, which are here then if they come at all
  if (exchanges && !exchanged_) PENSTOCK_TRY(poll_exchange());
  const PeerExchange::Status status = exchange_->poll();
  if (!status.done || (exchanges && !exchanged_)) {
    // A rank that fails or interrupts after its part is done does not make the transfer fail.
    if (obstacle) {
      Error error = notice(*std::move(obstacle), transfer_);
      if (exchanges && exchanged_) return TransferState::complete;
      return error;
    }
    PENSTOCK_TRY(check(status));
    return TransferState::pending;
  }
  if (transfer_.kind == Transfer::Kind::all_to_all) {
    phase_ = Phase::slices;
    return TransferState::readable;
  }
  phase_ = Phase::idle;
  return TransferState::complete;
}

Result<void> ProcessTransport::poll_exchange() {
  const auto all = control_->poll_gather();
  if (!all) return notice(all.error(), transfer_);
  if (!*all) return ok();
  PENSTOCK_TRY(take_announcements(rank(), transfer_, **all));
  exchanged_ = true;
  return ok();
}

Result<void> ProcessTransport::release_slices() {
  phase_ = Phase::idle;
  return ok();
}

Result<void> ProcessTransport::start_recovery(tiers::Stream&) {
  PENSTOCK_TRY(control_->start_recovery());
  interrupt_exchange();
  recovered_ = false;
  begin_wait(Phase::recovery);
  return ok();
}

/// First every rank has stopped its collectives, then no bytes of the interrupted ones move any more.
Result<TransferState> ProcessTransport::poll_recovery() {
  if (!recovered_) {
    PENSTOCK_TRY_ASSIGN(recovered_, control_->poll_recovery());
  } else if (auto obstacle = control_->obstacle(); obstacle && obstacle->code() != ErrorCode::interrupted) {
    return *obstacle;
  }
  const PeerExchange::Status status = exchange_->poll();
  if (!recovered_ || status.interrupted) {
    PENSTOCK_TRY(check(status));
    return TransferState::pending;
  }
  phase_ = Phase::idle;
  return TransferState::complete;
}

void ProcessTransport::retire(tiers::Stream&) noexcept {
  end();
}

/// The obstacle to `transfer`, which it names.
Error ProcessTransport::notice(Error obstacle, const Transfer& transfer) {
  if (obstacle.code() == ErrorCode::interrupted) interrupt_exchange();
  return ended(std::move(obstacle), to_string(transfer));
}

void ProcessTransport::interrupt_exchange() {
  if (std::exchange(phase_, Phase::interrupted) != Phase::interrupted) exchange_->interrupt(++epoch_);
}

void ProcessTransport::begin_bytes() {
  phase_ = Phase::bytes;
  std::vector<LinkOperation> operations(size());
  for (std::uint32_t r = 0; r < size(); ++r) {
    LinkOperation& one = operations[r];
    one.kind = transfer_.kind;
    one.signature = transfer_.signature;
    one.dtype = transfer_.flats[0].dtype;
    const std::uint32_t sent = transfer_.kind == Transfer::Kind::all_gather ? rank() : r;
    for (std::size_t f = 0; f < transfer_.flats.size(); ++f) {
      one.pieces.push_back(
          {.send = HostDevice::bytes(slot(f, sent).bytes), .receive = HostDevice::bytes(slot(f, r).bytes)});
    }
  }
  exchange_->begin(std::move(operations));
}

/// After an all_to_all, rank r's slice has taken the place of the one that was sent to it.
DeviceTensor ProcessTransport::slot(std::size_t f, std::uint32_t r) const {
  const DeviceTensor& flat = transfer_.flats[f];
  const ElementCount length = flat.count() / size();
  return flat.slice(length * r, length);
}

void ProcessTransport::begin_wait(Phase phase) {
  phase_ = phase;
  running_.emplace(*options_.clock, tiers::running_time_step(options_.deadline));
  end_of_wait_ = running_->end_of(options_.deadline);
  end_of_reason_.reset();
}

/// Errors of the exchange, and the deadline. They are those of every rank.
Result<void> ProcessTransport::check(const PeerExchange::Status& status) {
  (void)running_->update();
  const bool recovers = phase_ == Phase::recovery;
  if (status.error) {
    const bool has_ended = status.error->code() == ErrorCode::peer_failed;
    if (!end_of_reason_)
      end_of_reason_ = running_->end_of(has_ended ? options_.reason_max : TimePoint::zero());
    if (running_->elapsed() < *end_of_reason_) return ok();
    control_->fail_job(*status.error);
    // The other errors name both ranks' collectives.
    return has_ended && !recovers ? ended(*status.error, to_string(transfer_)) : *status.error;
  }
  if (running_->elapsed() < end_of_wait_) return ok();
  const auto missing = recovers && !recovered_ ? control_->absent() : status.missing;
  const Error late =
      ranks_missing(recovers ? "recovery" : to_string(transfer_), names_of(missing), options_.deadline);
  control_->fail_job(late);
  return late;
}

}  // namespace penstock::zero
