#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero {

/// The data movement of a collective.
struct Transfer {
  enum class Kind : std::uint8_t {
    all_gather,   ///< slot r of every rank's flat becomes that of rank r
    all_to_all,   ///< slice(f, r) becomes readable: slot rank() of rank r's flats[f]
    native_mean,  ///< slot rank() of each flat becomes the mean of that slot, if Transport::supports_native()
    exchange,     ///< slot r of every rank's `all` becomes rank r's `mine`
  };
  Kind kind{};
  CollectiveSignature signature{};
  tiers::Stream* stream = nullptr;    ///< of all but exchange
  std::vector<DeviceTensor> flats{};  ///< of one dtype; of an all-gather one, of an exchange none
  ConstHostSpan mine{};
  HostSpan all{};
};

/// The data movement of a reduction.
[[nodiscard]] constexpr Transfer::Kind kind_of(Reduction reduction) {
  return reduction == Reduction::native ? Transfer::Kind::native_mean : Transfer::Kind::all_to_all;
}

[[nodiscard]] constexpr std::string_view to_string(Transfer::Kind kind) {
  switch (kind) {
    case Transfer::Kind::all_gather: return "all-gather";
    case Transfer::Kind::all_to_all: return "reduce-scatter";
    case Transfer::Kind::native_mean: return "native reduce-scatter";
    case Transfer::Kind::exchange: return "exchange";
  }
  return "unknown";
}

/// "all-gather of parameters of unit 3, …".
[[nodiscard]] inline std::string to_string(const Transfer& transfer) {
  return std::string(to_string(transfer.kind)) + " of " + to_string(transfer.signature);
}

/// The progress of a transfer on this rank's stream.
enum class TransferState : std::uint8_t {
  pending,
  readable,  ///< all_to_all only: work enqueued now may read the slices; then call release_slices()
  complete,  ///< everything is enqueued; this rank's memory may be written again in stream order
};

/// Moves bytes between ranks, one transfer at a time, without arithmetic but that of native_mean; TransportCommunicator
/// does the sums of the `exact` reduction.
///
/// Thread rules as for Communicator, which forwards start, poll, poll_interval, abort, interrupt, retire and set_wake.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  /// Whether it has an arithmetic of its own.
  [[nodiscard]] virtual bool supports_native() const { return false; }
  /// As Communicator::arena().
  [[nodiscard]] virtual std::shared_ptr<const DeviceSpan> arena() const { return nullptr; }
  /// As Communicator::scratch().
  [[nodiscard]] virtual ByteCount scratch() const { return {}; }
  virtual void set_wake(std::function<void()> wake) = 0;

  /// Errors: peer_failed; failed_state, before the previous transfer has completed; those of the stream.
  virtual Result<void> start(const Transfer& transfer) = 0;
  /// Errors: peer_failed, deadline_exceeded, invalid_argument for transfers that differ between ranks; those of the
  /// stream.
  [[nodiscard]] virtual Result<TransferState> poll() = 0;
  /// As Communicator::poll_interval(): short_interval while it waits for what wakes no thread, else long_interval.
  [[nodiscard]] virtual TimePoint poll_interval() const { return short_interval; }
  /// Rank r's slice of flats[f] of the readable all_to_all.
  [[nodiscard]] virtual DeviceTensor slice(std::size_t f, std::uint32_t r) const = 0;
  /// Call after all work that reads the slices was enqueued.
  virtual Result<void> release_slices() = 0;

  virtual void abort(const Error& error) noexcept = 0;
  virtual void interrupt(const Error& cause) noexcept = 0;
  virtual Result<void> start_recovery(tiers::Stream& stream) = 0;
  virtual void retire(tiers::Stream& stream) noexcept = 0;

 protected:
  static constexpr TimePoint short_interval = std::chrono::microseconds(50);
  static constexpr TimePoint long_interval = std::chrono::milliseconds(5);
};

}  // namespace penstock::zero
