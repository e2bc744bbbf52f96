#pragma once

#include "tiers/device/event_pool.hpp"
#include "tiers/io/running_time.hpp"
#include "zero/comm/job_control.hpp"
#include "zero/comm/nccl/nccl_connection.hpp"
#include "zero/comm/nccl/nccl_group.hpp"
#include "zero/comm/nccl/watch_thread.hpp"
#include "zero/comm/transfer_header.hpp"
#include "zero/comm/transport.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace penstock::zero {

/// Moves bytes with a non-blocking communicator of NCCL.
///
/// A transfer is first compared over the job's control channel, which also names the ranks that do not come; then NCCL
/// enqueues it. What NCCL has enqueued is in flight until the stream has passed a fence. An obstacle of the job ends
/// what is in flight by ncclCommAbort. A recovery waits until this rank's kernels have ended, then until those of all
/// ranks have, and makes a new communicator.
///
/// NCCL is called by one thread at a time: by that which polls, and by a watch while no transfer is in progress: then
/// a rank that waits for its stream need not poll.
class NcclTransport final : public Transport {
 public:
  /// `nccl` and `device`, which is CUDA's number `ordinal`, outlive it.
  NcclTransport(const NcclLibrary& nccl, std::shared_ptr<JobControl> control, tiers::Device& device,
                int ordinal, const CollectiveNeeds& needs, const NcclGroupOptions& options);
  ~NcclTransport() override;

  /// Begins to meet the other ranks; poll() returns `complete` once all are connected. Call it first.
  Result<void> connect();

  std::uint32_t rank() const override { return control_->rank(); }
  std::uint32_t size() const override { return control_->ranks(); }
  bool supports_native() const override { return true; }
  std::shared_ptr<const DeviceSpan> arena() const override { return arena_; }
  ByteCount scratch() const override { return scratch_.size(); }
  void set_wake(std::function<void()> wake) override;

  Result<void> start(const Transfer& transfer) override;
  [[nodiscard]] Result<TransferState> poll() override;
  [[nodiscard]] DeviceTensor slice(std::size_t f, std::uint32_t r) const override;
  Result<void> release_slices() override;

  void abort(const Error& error) noexcept override;
  void interrupt(const Error& cause) noexcept override;
  Result<void> start_recovery(tiers::Stream& stream) override;
  void retire(tiers::Stream& stream) noexcept override;

 private:
  enum class Stage : std::uint8_t {
    idle,
    comparing,    // with the transfers of the other ranks
    enqueuing,    // NCCL has been called
    readable,     // until release_slices()
    ending,       // a recovery: the kernels of this rank have not ended
    recovering,   // those of another rank have not
    meeting,      // rank 0 gives the id of the communicator to all
    connecting,   // NCCL connects the ranks
    registering,  // NCCL registers the arena
  };
  /// A collective that NCCL has enqueued.
  struct InFlight {
    std::string collective;
    tiers::Fence passed;
  };

  Result<void> allocate();
  void look();
  Result<void> meet(TimePoint time);
  Result<TransferState> advance();
  Result<TransferState> poll_meeting();
  Result<TransferState> compare();
  Result<TransferState> take(const JobControl::Slots& announcements);
  Result<void> call_nccl();
  Result<TransferState> poll_nccl();
  Result<void> follow();
  Result<void> watch();
  void begin_run();
  void end_collectives() noexcept;
  [[nodiscard]] std::string in_progress() const;
  [[nodiscard]] bool finish_in_flight();
  [[nodiscard]] bool leave();

  void begin_wait(TimePoint time);
  [[nodiscard]] bool is_late();
  Result<TransferState> wait();
  [[nodiscard]] Error late() const;

  const NcclLibrary& library_;
  const std::shared_ptr<JobControl> control_;
  tiers::Device& device_;
  const CollectiveNeeds needs_;
  const NcclGroupOptions options_;
  tiers::EventPool events_{device_};
  std::shared_ptr<const DeviceSpan> arena_;
  DeviceSpan scratch_;  // for the peers' slots of an exact reduction
  tiers::Fence scratch_used_;

  std::mutex mutex_;  // guards the following members
  NcclConnection nccl_;
  Stage stage_ = Stage::idle;
  Transfer transfer_;  // the last that was started
  bool retired_ = false, kept_ = false;
  std::optional<Error> broken_;  // of this rank alone
  std::optional<tiers::RunningTime> waited_;
  TimePoint wait_{}, end_of_wait_{};

  std::deque<InFlight> in_flight_;          // in their order
  std::optional<tiers::RunningTime> runs_;  // the first of them
  TimePoint end_of_run_{};

  std::unique_ptr<WatchThread> watch_;  // calls look()
};

}  // namespace penstock::zero
