#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/device/device.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace penstock::zero {

/// How a reduction sums.
enum class Reduction : std::uint8_t {
  exact,   ///< fp32 in rank order, rounded once: the same bits on every transport
  native,  ///< as the transport does it, such as ncclAvg; bits depend on transport and number of ranks
};
[[nodiscard]] constexpr std::string_view to_string(Reduction reduction) {
  return reduction == Reduction::exact ? "exact" : "native";
}

/// Collectives of one data-parallel group, as one rank sees them.
///
/// Every rank starts the same collectives in the same order, one at a time: the next one once poll() has returned
/// true for the last. A rank that fails aborts, and poll() returns the cause to its peers.
///
///     PENSTOCK_TRY(communicator.start_all_gather(stream, flat));
///     while (!communicator.poll().value()) …      // other work; or sleep until the wake function is called
///     // what is enqueued on `stream` from here on sees all slots
///
/// An implementation may have a progress thread of its own. An error that it meets at any time is returned by the
/// next start or poll(); abort() sets a flag that the thread sees.
///
/// start, poll and retire come from one thread at a time; abort from any. Nothing here blocks.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  [[nodiscard]] virtual bool supports(Reduction reduction) const = 0;

  /// `wake` is called, on any thread and with no lock of the communicator's that start, poll or abort take, when
  /// poll() may answer something new. Empty: calls nothing from here on.
  virtual void set_wake(std::function<void()> wake) = 0;

  /// In place: `flat` is size() equal slots, of which slot rank() holds this rank's bytes; all are filled.
  virtual Result<void> start_all_gather(tiers::Stream& stream, DeviceSpan flat) = 0;

  /// In place: slot rank() of `flat` becomes the mean over ranks of that slot. The other slots are undefined
  /// afterwards. Errors: unsupported, for a reduction that the transport does not have.
  virtual Result<void> start_reduce_scatter(tiers::Stream& stream, DeviceTensor flat,
                                            Reduction reduction) = 0;

  /// Bytes of host memory: all[r] of size() equal slots becomes rank r's `mine`. Both stay alive until poll() has
  /// returned true, and then `all` is filled.
  virtual Result<void> start_exchange(ConstHostSpan mine, HostSpan all) = 0;

  /// True once everything that this rank must enqueue on the stream for the collective is enqueued there: a wait for
  /// the stream is a wait for the collective.
  ///
  /// Errors: peer_failed, naming the rank and its error; invalid_argument, when the ranks' collectives differ.
  [[nodiscard]] virtual Result<bool> poll() = 0;

  /// This rank leaves with `error`; every collective of its peers fails from now on.
  virtual void abort(const Error& error) noexcept = 0;

  /// This rank takes part in nothing more, and its wake function is not called any more. Once `stream` has passed
  /// this point, no peer reads or writes its memory, not even in a collective that was aborted.
  virtual void retire(tiers::Stream& stream) noexcept = 0;
};

/// How a rank becomes a member of its group, once its accelerator exists.
struct GroupMembership {
  std::function<Result<std::unique_ptr<Communicator>>(tiers::Device&, Compute&)> join;
  /// The rank could not be made before it joined: the collectives of its peers fail with this cause.
  std::function<void(const Error&)> abandon;
};

}  // namespace penstock::zero
