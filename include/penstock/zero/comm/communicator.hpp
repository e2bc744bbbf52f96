#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/reduction.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace penstock::zero {

/// The place of a collective in a training step. Ranks start collectives with equal signatures in the same order; units
/// of equal size differ in nothing else.
struct CollectiveSignature {
  enum class Subject : std::uint8_t {
    parameters,
    gradients,
    gradient_norm,
    step_outcome,
    digest,
    park,
    commit,
    checkpoint
  };
  Subject subject{};
  std::uint32_t unit = 0, group = 0;  ///< of the flat; 0 for an exchange
  std::uint32_t micro_batch = 0;  ///< number of the flat's gradients of this step that were complete before
  std::uint64_t step = 0;         ///< number of the step in progress
  std::uint64_t others = 0;       ///< a hash of the flats that are reduced together with this one

  bool operator==(const CollectiveSignature&) const = default;
};
/// "gradients of unit 3, optimizer group 0, micro-batch 1 of step 5".
[[nodiscard]] std::string to_string(const CollectiveSignature& signature);

/// One rank's interface to the collectives of a data-parallel group.
///
/// Every rank starts the same collectives in the same order, one at a time: it starts a collective only after poll()
/// has returned true for the previous one. A rank that fails calls abort(); then poll() of its peers returns the error.
/// A rank that gives up the collectives in flight and goes on calls interrupt().
///
///     PENSTOCK_TRY(communicator.start_all_gather(stream, flat, {.unit = 3, .step = 1}));
///     while (!communicator.poll().value()) …      // other work; or sleep until the wake function is called
///     // work that is enqueued on `stream` from here on sees all slots
///
/// An implementation may have its own progress thread. The next start or poll() returns an error of that thread;
/// abort() sets a flag that the thread checks.
///
/// One thread at a time calls start, poll, poll_interval and retire; any thread may call abort and interrupt. Only
/// retire may block.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  [[nodiscard]] virtual std::uint32_t rank() const = 0;
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  [[nodiscard]] virtual bool supports(Reduction reduction) const = 0;

  /// CollectiveNeeds::arena bytes of device memory from which collectives are the fastest, if their flats are at equal
  /// offsets on all ranks. Null, where all memory of the device is alike. Freed when the caller and the communicator
  /// have released it; no operation may use it then.
  [[nodiscard]] virtual std::shared_ptr<const DeviceSpan> arena() const { return nullptr; }
  /// What it has allocated for CollectiveNeeds::exact_slots_max with Device::allocate(), until it is destroyed.
  [[nodiscard]] virtual ByteCount scratch() const { return {}; }

  /// Sets the function that is called when the result of poll() may have changed because of a peer; progress that only
  /// a vendor's library knows of wakes nobody. It is called on any thread, without holding a lock that start, poll or
  /// abort take. An empty function ends the calls.
  virtual void set_wake(std::function<void()> wake) = 0;

  // Each start returns invalid_argument, and changes nothing, for operands that are null or do not divide into slots,
  // and failed_state, before poll() has returned true for the previous collective. What is enqueued on `stream` after
  // the start and before that has no order with the collective.

  /// In place: `flat` consists of size() equal slots. Slot rank() holds this rank's bytes; the others are filled with
  /// those of the peers.
  virtual Result<void> start_all_gather(tiers::Stream& stream, DeviceSpan flat,
                                        const CollectiveSignature& signature) = 0;

  /// In place: slot rank() of each of `flats` becomes the mean over ranks of that slot. The other slots are undefined
  /// afterwards. Each flat is divided into slots on its own; all have one dtype. The span is read during the call.
  ///
  /// Errors: unsupported, for a reduction that the transport does not support; invalid_argument, for no flat and for
  /// flats that overlap too.
  virtual Result<void> start_reduce_scatter(tiers::Stream& stream, std::span<const DeviceTensor> flats,
                                            Reduction reduction, const CollectiveSignature& signature) = 0;

  /// An all-gather of host memory: slot r of the size() equal slots of `all` becomes rank r's `mine`. `all` is filled
  /// when poll() returns true; both spans must stay alive until then.
  virtual Result<void> start_exchange(ConstHostSpan mine, HostSpan all,
                                      const CollectiveSignature& signature) = 0;

  /// Returns true once this rank has enqueued everything for the collective on its stream: waiting for the stream then
  /// waits for the collective.
  ///
  /// Errors: peer_failed, naming the rank and its error; deadline_exceeded, naming the ranks that have not joined the
  /// collective in the time that the group allows; invalid_argument, when ranks have started collectives of different
  /// kind, size or signature; both are named.
  [[nodiscard]] virtual Result<bool> poll() = 0;
  /// After which time poll() is to be called again although nothing has called the wake function: what the collective
  /// waits for may wake no thread, as a stream, and poll() compares the time with the deadline. Called as poll() is.
  [[nodiscard]] virtual TimePoint poll_interval() const { return std::chrono::microseconds(50); }

  /// This rank leaves the group with `error`; from now on every collective of its peers fails.
  virtual void abort(const Error& error) noexcept = 0;

  /// Ends the collectives in flight of all ranks, because this rank will not start or finish its part: start and poll()
  /// return `interrupted` with `cause` until the group has recovered. Has no effect while the group is interrupted or
  /// aborted.
  virtual void interrupt(const Error& cause) noexcept = 0;
  /// Collective, on every rank after an interrupt: when poll() has returned true, collectives can be started again, and
  /// once `stream` has executed the waits that poll() enqueued, no peer reads or writes the memory that this rank gave
  /// to an interrupted collective. Errors: peer_failed; failed_state, for a group that is not interrupted.
  virtual Result<void> start_recovery(tiers::Stream& stream) = 0;

  /// Ends this rank's participation and the calls of its wake function. Once `stream` has executed the waits that this
  /// call enqueues, no peer reads or writes this rank's memory any more, even if a collective was aborted. Blocks while
  /// a peer enqueues a reduction that reads this rank's memory.
  virtual void retire(tiers::Stream& stream) noexcept = 0;
};

/// What a rank's collectives need, equal on all ranks.
struct CollectiveNeeds {
  /// Of this rank's slots of the flats that one exact reduction averages: the most. A transport whose device cannot
  /// read its peers' memory keeps those of the peers in as much memory each, which Device::allocate() gives.
  ByteCount exact_slots_max;
  ByteCount arena;  ///< of Communicator::arena(), for the flats
};

/// The functions with which a rank joins its group after its accelerator was created.
struct GroupMembership {
  /// The device and the Compute outlive the communicator.
  std::function<Result<std::unique_ptr<Communicator>>(tiers::Device&, Compute&, const CollectiveNeeds&)> join;
  /// Called when creating the rank fails before it has joined: the collectives of its peers fail with this cause.
  std::function<void(const Error&)> abandon;
  /// Called before anything is allocated, with what every rank must have in common, the settings and the layout: one
  /// per line, a name, a tab and a value. An error ends the creation of the rank. Empty: they are not compared.
  std::function<Result<void>(const std::string& description)> agree = {};
};

}  // namespace penstock::zero
