#pragma once

#include "tiers/io/running_time.hpp"
#include "zero/comm/job_control.hpp"
#include "zero/comm/process/peer_exchange.hpp"
#include "zero/comm/transport.hpp"

#include <penstock/base/time.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

/// Collectives between processes, on devices whose memory is host memory: a transfer waits for its stream, and then its
/// bytes move by a PeerExchange, but those of an exchange, which the ranks gather over the control channel. No peer
/// reads or writes this rank's memory.
class ProcessTransport final : public Transport {
 public:
  struct Options {
    TimePoint deadline;  ///< of a transfer; see InProcessGroupOptions
    /// How long the reason is awaited why a peer's streams have ended, which comes over the control channel.
    TimePoint reason_max;
    const Clock* clock = &Clock::steady();
  };
  /// The device's memory is accessible to the host. Errors: those of the device.
  [[nodiscard]] static Result<std::unique_ptr<ProcessTransport>> create(
      const Options& options, std::shared_ptr<JobControl> control, tiers::Device& device,
      std::unique_ptr<PeerExchange> exchange);
  ~ProcessTransport() override;

  std::uint32_t rank() const override { return control_->rank(); }
  std::uint32_t size() const override { return control_->ranks(); }
  void set_wake(std::function<void()> wake) override;
  Result<void> start(const Transfer& transfer) override;
  Result<TransferState> poll() override;
  TimePoint poll_interval() const override {
    return phase_ == Phase::stream ? short_interval : long_interval;
  }
  DeviceTensor slice(std::size_t f, std::uint32_t r) const override { return slot(f, r); }
  Result<void> release_slices() override;
  void abort(const Error& error) noexcept override { control_->fail(error); }
  void interrupt(const Error& cause) noexcept override { control_->interrupt(cause); }
  Result<void> start_recovery(tiers::Stream& stream) override;
  void retire(tiers::Stream& stream) noexcept override;

 private:
  enum class Phase : std::uint8_t {
    idle,
    stream,  ///< the stream has not executed what was enqueued before the transfer
    bytes,
    slices,       ///< they are read until release_slices()
    interrupted,  ///< this rank has noticed it
    recovery,
  };

  ProcessTransport(const Options& options, std::shared_ptr<JobControl> control,
                   std::unique_ptr<PeerExchange> exchange, std::unique_ptr<tiers::Event> ready);
  Result<void> start_exchange(const Transfer& transfer);
  Result<void> poll_exchange();
  [[nodiscard]] Result<TransferState> poll_bytes();
  [[nodiscard]] Result<TransferState> poll_recovery();
  [[nodiscard]] Error notice(Error obstacle, const Transfer& transfer);
  void interrupt_exchange();
  void begin_bytes();
  void begin_wait(Phase phase);
  [[nodiscard]] Result<void> check(const PeerExchange::Status& status);
  void end() noexcept;
  [[nodiscard]] DeviceTensor slot(std::size_t f, std::uint32_t r) const;

  const Options options_;
  const std::shared_ptr<JobControl> control_;
  std::unique_ptr<PeerExchange> exchange_;
  std::unique_ptr<tiers::Event> ready_;
  Phase phase_ = Phase::idle;
  Transfer transfer_;
  bool exchanged_ = false;  // the bytes of the exchange are here
  /// Interruptions of the job that this rank has noticed, which are as many on all ranks when they have recovered.
  std::uint64_t epoch_ = 0;
  bool recovered_ = false;
  std::optional<tiers::RunningTime> running_;
  TimePoint end_of_wait_{};
  std::optional<TimePoint> end_of_reason_;
};

}  // namespace penstock::zero
