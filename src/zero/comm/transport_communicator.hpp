#pragma once

#include "zero/comm/transport.hpp"

#include <penstock/base/compute.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include <memory>
#include <vector>

namespace penstock::zero {

/// Collectives on a transport that moves bytes. Implements the `exact` reduction for all transports: each rank
/// gets its peers' slices of its own slot and computes their mean in rank order, rounded once.
class TransportCommunicator final : public Communicator {
 public:
  /// `compute` is that of the rank's device and must outlive the communicator.
  TransportCommunicator(std::unique_ptr<Transport> transport, Compute& compute)
      : transport_(std::move(transport)), compute_(compute) {}

  std::uint32_t rank() const override { return transport_->rank(); }
  std::uint32_t size() const override { return transport_->size(); }
  bool supports(Reduction reduction) const override {
    return reduction == Reduction::exact || transport_->supports_native();
  }
  std::shared_ptr<const DeviceSpan> arena() const override { return transport_->arena(); }
  ByteCount scratch() const override { return transport_->scratch(); }
  void set_wake(std::function<void()> wake) override { transport_->set_wake(std::move(wake)); }

  Result<void> start_all_gather(tiers::Stream& stream, DeviceSpan flat,
                                const CollectiveSignature& signature) override;
  Result<void> start_reduce_scatter(tiers::Stream& stream, std::span<const DeviceTensor> flats,
                                    Reduction reduction, const CollectiveSignature& signature) override;
  Result<void> start_exchange(ConstHostSpan mine, HostSpan all,
                              const CollectiveSignature& signature) override;
  Result<bool> poll() override;
  TimePoint poll_interval() const override { return transport_->poll_interval(); }
  void abort(const Error& error) noexcept override { transport_->abort(error); }
  void interrupt(const Error& cause) noexcept override { transport_->interrupt(cause); }
  Result<void> start_recovery(tiers::Stream& stream) override { return transport_->start_recovery(stream); }
  void retire(tiers::Stream& stream) noexcept override { transport_->retire(stream); }

 private:
  Result<void> start(const Transfer& transfer);
  [[nodiscard]] Result<void> check(const Transfer& transfer) const;
  Result<void> average_slices();

  std::unique_ptr<Transport> transport_;
  Compute& compute_;
  Transfer current_;
  std::vector<DeviceTensor> slices_;
};

}  // namespace penstock::zero
