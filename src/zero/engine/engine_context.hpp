#pragma once

#include "swap/runtime_internals.hpp"
#include "swap/stream_tracks.hpp"
#include "zero/comm/collective_hops.hpp"
#include "zero/comm/hop_order.hpp"
#include "zero/engine/device_region.hpp"
#include "zero/engine/flat_state.hpp"
#include "zero/engine/range_fences.hpp"

#include <penstock/base/compute.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>
#include <penstock/zero/config/config.hpp>
#include "tiers/store/memory_budget.hpp"
#include "zero/layout/shard_layout.hpp"

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace penstock::zero {

/// How a move is called in the timeline.
struct MoveName {
  const char* track = nullptr;               ///< null: it is not there
  std::string_view object = {};              ///< outlives the move
  std::optional<std::uint32_t> number = {};  ///< after it
  const char* of = "";                       ///< after both: " parameter shard"
};

/// The state that the parts of one rank's engine share: runtime, device, communicator, flats, and the engine's failure.
/// Used by the trainer's thread; the mover uses the streams, the orders and the communicator.
struct EngineContext {
  EngineContext(swap::Runtime& on, tiers::Device& with, Compute& by, Communicator& group,
                parallel::Workers& threads, const Config& settings, const ModelLayout& layout,
                TimePoint time_limit)
      : runtime(on),
        device(with),
        compute(by),
        communicator(group),
        workers(threads),
        config(settings),
        model(layout),
        device_deadline(time_limit),
        shards(layout, group.size()) {}

  /// Sizes of the regions.
  struct DeviceSizes {
    ByteCount flats, parameters, gradients, optimizer;
  };
  /// Creates streams, events and device memory. Errors: unsupported, for a reduction that the communicator does not
  /// have; those of the device.
  Result<void> open(const DeviceSizes& sizes);
  /// A stream, whose track in a timeline has this name. Errors: those of the device.
  [[nodiscard]] Result<std::unique_ptr<tiers::Stream>> create_stream(const char* track);
  /// Precondition: no operation uses it.
  void release_device_memory() noexcept;
  [[nodiscard]] CollectiveContext collectives();
  [[nodiscard]] DeviceTensor at(const tiers::Reservation& range, ElementCount count) const;
  /// Host memory as the device sees it, and the reverse. Only if the device's memory is host memory.
  [[nodiscard]] DeviceTensor on_device(HostSpan bytes, ElementCount count) const;
  [[nodiscard]] static HostSpan on_host(DeviceSpan bytes);

  /// Marks the engine as failed: aborts the communicator, and every later call fails. If `error` is an interruption by
  /// a rank, marks the engine as interrupted instead. Returns `error`, with the work that a failed device has lost.
  Result<void> fail(const Error& error);
  /// A failed write-behind can be repeated unless its swap file refuses writes; in that case fails the engine.
  Result<void> fail_unless_retryable(Result<void> stores);
  /// Adds `keeps_room` to an error of swap files without room.
  [[nodiscard]] Result<void> name_what_keeps_room(Result<void> stores) const;
  /// Returns the error that has stopped the update, once: UpdateSweep::resume() continues it. A final error fails the
  /// engine: a tile may have been updated in part.
  Result<void> check_update();
  /// Blocks until `done()`, which is evaluated with the runtime's lock held, or until the update has stopped. Errors:
  /// that of the update, as check_update(); that of a failed write-behind, as fail_unless_retryable().
  Result<void> wait_beside_update(const std::function<bool()>& done, swap::StallCause cause);
  /// Blocks until the last step's update is complete. Errors: as wait_beside_update().
  Result<void> finish_update();
  /// Discards the flat's accumulated gradient, if it has one. Errors: those of Runtime::discard().
  Result<void> discard_gradient(const FlatState& flat);
  [[nodiscard]] bool is_frozen(ParameterId parameter) const {
    return model.groups[model.parameter(parameter).group].frozen;
  }
  [[nodiscard]] ElementNames names() const { return {.model = &model, .rank = communicator.rank()}; }
  /// The signature of a collective of `flat` in the step in progress.
  [[nodiscard]] CollectiveSignature signature(CollectiveSignature::Subject subject,
                                              const FlatState& flat) const;
  /// Starts a move, of one hop or of several, whose progress is then in `progress`, which outlives it.
  void start(swap::Move move, MoveProgress& progress, const MoveName& name = {}) const;
  void start(std::unique_ptr<swap::Hop> hop, MoveProgress& progress, const MoveName& name = {}) const;
  /// Exchanges host bytes with all ranks. Blocks. An error fails the engine.
  Result<void> exchange(ConstHostSpan mine, HostSpan all, CollectiveSignature::Subject subject);
  /// Interrupts the collectives of all ranks. Every hop that waits for one ends with an error.
  void interrupt(const Error& cause);
  /// After interrupt(), and when no move is in flight: waits until every rank has called it, and until no stream of
  /// this rank, the trainer's included, or of a peer uses this rank's device memory. An error fails the engine.
  Result<void> recover(tiers::Stream& trainer);
  /// Blocks until the device has passed `event`, which stands for `work`, as RuntimeInternals::wait_for(). An error
  /// fails the engine.
  Result<void> wait_for(const tiers::Event& event, const char* work);
  /// Blocks until the stream, whose operations are `work`, has executed everything that is enqueued. Does not block the
  /// mover, nor an idle handler. An error fails the engine.
  Result<void> finish(tiers::Stream& stream, const char* work);
  /// The same for each stream of the engine that was created; returns the first error. Waits for no other stream once
  /// one has reached the deadline.
  Result<void> finish_streams();
  /// Whether a stream has made no progress for the deadline, so that it may use memory of this rank for ever. Call when
  /// no move is in flight.
  [[nodiscard]] bool device_hangs() const {
    return wait_hangs || copied_in.hangs() || copied_out.hangs() || checkpoints_in.hangs();
  }
  /// Gives up what a device that hangs may use for ever: streams, and the leases of flats. Its memory is not released.
  void abandon_device();
  /// Keeps host memory to which the device may copy results for ever.
  void abandon_results();

  swap::Runtime& runtime;
  const swap::RuntimeInternals internals{runtime};
  tiers::Device& device;
  Compute& compute;
  Communicator& communicator;
  parallel::Workers& workers;
  const Config& config;
  const ModelLayout& model;
  const TimePoint device_deadline;
  const ShardLayout shards;
  std::uint64_t completed_steps = 0;
  swap::StreamTracks* tracks = nullptr;  ///< what streams do; null: it is not written

  bool shares_memory = false;  ///< see MemoryPlan
  Reduction reduction = Reduction::exact;
  /// The device's memory, in regions that Engine::park() gives back.
  DeviceRegion flats_region{device, runtime.ledger()};      ///< gathered flats and full gradients
  DeviceRegion parameter_region{device, runtime.ledger()};  ///< kept shards, and slots of checkpoints
  DeviceRegion gradient_region{device, runtime.ledger()};   ///< kept accumulators, and `partials`
  DeviceRegion optimizer_region{device, runtime.ledger()};  ///< kept tiles, and slots of updates
  [[nodiscard]] std::array<DeviceRegion*, 4> regions() {
    return {&flats_region, &parameter_region, &gradient_region, &optimizer_region};
  }
  DeviceSpan partials;  ///< for the sums of squares of one flat, used in the order of copy_out; or empty
  swap::Lease results;  ///< the host memory of MemoryPlan::host_results
  std::unique_ptr<tiers::Stream> copy_in, copy_out, communication;
  /// Of the kernels that update tiles, and of copies of what is kept on the device; null if the plan has neither.
  std::unique_ptr<tiers::Stream> update_stream;
  /// Of checkpoints that come back; null if they stay on the device. In copy_in they would wait behind gathers that
  /// wait for room.
  std::unique_ptr<tiers::Stream> checkpoint_in;
  tiers::EventPool events{device};
  RangeFences fences;
  /// Of copy_in, copy_out and checkpoint_in; used by the mover. With an idle handler time is not the machine's.
  tiers::StreamProgress copied_in{progress_of("copies to the device")};
  tiers::StreamProgress copied_out{progress_of("copies to host memory")};
  tiers::StreamProgress checkpoints_in{progress_of("copies of checkpoints to the device")};
  HopOrder collective_order;
  CollectiveTrace collective_trace;  ///< of them
  /// The order in which gradient moves take leases: only one hop at a time holds some and waits for more.
  HopOrder accumulation_order;
  /// Buffers of incoming gradients that gradient moves have asked for and not given back. Of the mover.
  std::uint32_t incoming_buffers = 0;
  /// The order in which checkpoints are copied to the device, that of their use. A copy waits for its slot, and those
  /// behind it on the stream with it: one that is needed later must not be before one that is needed sooner.
  HopOrder checkpoint_order;
  std::vector<FlatState> flats;
  MoveProgress update;          ///< of the last step's parameters, by UpdateSweep
  bool update_stopped = false;  ///< by an error that check_update() has returned
  bool update_ended = false;    ///< by its error, after which it cannot be continued; set by the mover
  const std::function<void()> wake = [this] { internals.wake(); };  ///< wakes the mover
  struct KeepsRoom {
    std::string what, advice;
  };
  std::optional<KeepsRoom> keeps_room;  ///< in the swap files, beside the states and the last commit
  std::optional<Error> failure;
  std::optional<Error> interruption;  ///< until recover()
  bool wait_hangs = false;            ///< a wait of the trainer's thread has reached the deadline

 private:
  [[nodiscard]] tiers::StreamProgress::Options progress_of(const char* work) const {
    return {.clock = internals.has_threads() ? &Clock::steady() : nullptr,
            .deadline = device_deadline,
            .work = work};
  }
  Result<void> run(std::unique_ptr<swap::Hop> collective);
  [[nodiscard]] Error with_lost_work(Error error) const;
};

}  // namespace penstock::zero
