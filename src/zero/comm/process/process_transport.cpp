#include "zero/comm/process/process_transport.hpp"

#include "base/duration_text.hpp"

#include <penstock/base/check.hpp>
#include <penstock/tiers/device/host_device.hpp>

#include <cstring>
#include <utility>

namespace penstock::zero {

namespace {

using tiers::HostDevice;

constexpr const char* operation = "Communicator";

std::string text_of(const Transfer& transfer) {
  return std::string(to_string(transfer.kind)) + " of " + to_string(transfer.signature);
}

/// A line of an error's message.
std::string in(const Transfer& transfer) {
  return "in      " + text_of(transfer);
}

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
  if (transfer.stream != nullptr) PENSTOCK_TRY(transfer.stream->record(*ready_));
  transfer_ = transfer;
  begin_wait(Phase::stream);
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
  const PeerExchange::Status status = exchange_->poll();
  if (!status.done) {
    // A rank that fails or interrupts after its part is done does not make the transfer fail.
    if (auto obstacle = control_->obstacle()) return notice(*obstacle, transfer_);
    PENSTOCK_TRY(check(status));
    return TransferState::pending;
  }
  if (transfer_.kind == Transfer::Kind::all_to_all) {
    phase_ = Phase::slices;
    return TransferState::readable;
  }
  if (transfer_.kind == Transfer::Kind::exchange && !exchanged_.empty())
    std::memcpy(transfer_.all.data(), exchanged_.data(), exchanged_.size());
  phase_ = Phase::idle;
  return TransferState::complete;
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
  return std::move(obstacle).note(in(transfer));
}

void ProcessTransport::interrupt_exchange() {
  if (std::exchange(phase_, Phase::interrupted) != Phase::interrupted) exchange_->interrupt(++epoch_);
}

void ProcessTransport::begin_bytes() {
  phase_ = Phase::bytes;
  std::vector<LinkOperation> operations(size());
  const bool exchanges = transfer_.kind == Transfer::Kind::exchange;
  const ByteCount exchanged = transfer_.mine.size();
  if (exchanges) {
    exchanged_.resize((exchanged * size()).value());
    if (!exchanged.is_zero())
      std::memcpy(exchanged_.data() + (exchanged * rank()).value(), transfer_.mine.data(), exchanged.value());
  }
  for (std::uint32_t r = 0; r < size(); ++r) {
    LinkOperation& one = operations[r];
    one.kind = transfer_.kind;
    one.signature = transfer_.signature;
    if (!exchanges) one.dtype = transfer_.flats[0].dtype;
    if (exchanges) {
      const HostSpan slots{std::span(exchanged_)};
      one.pieces.push_back({.send = slots.subspan(exchanged * rank(), exchanged),
                            .receive = slots.subspan(exchanged * r, exchanged)});
    }
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
    const bool ended = status.error->code() == ErrorCode::peer_failed;
    if (!end_of_reason_) end_of_reason_ = running_->end_of(ended ? options_.reason_max : TimePoint::zero());
    if (running_->elapsed() < *end_of_reason_) return ok();
    control_->fail_job(*status.error);
    Error error = *status.error;
    // The other errors name both ranks' collectives.
    return ended && !recovers ? std::move(error).note(in(transfer_)) : error;
  }
  if (running_->elapsed() < end_of_wait_) return ok();
  std::string missing;
  for (const std::uint32_t r : recovers && !recovered_ ? control_->absent() : status.missing) {
    missing.append(missing.empty() ? "rank " : ", rank ").append(std::to_string(r));
  }
  const Error late =
      Error(ErrorCode::deadline_exceeded, operation)
          .reason("ranks are missing in a collective")
          .object(recovers ? "recovery" : text_of(transfer_))
          .got((missing.empty() ? "a rank" : missing) + " did not come in " +
               duration_text(options_.deadline))
          .advice("look for the first error of the missing ranks, or raise the deadline of the group");
  control_->fail_job(late);
  return late;
}

}  // namespace penstock::zero
