#include "contestants.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <array>
#include <cstring>
#include <thread>
#include <utility>

namespace penstock::bench {

namespace {

class ContestOfProcesses final : public Contest {
 public:
  ~ContestOfProcesses() override {
    for (Carrier& carrier : carriers_) carrier.communicator.reset();
    stream_.reset();
    accelerator_.device->release(flat_);
    accelerator_.device->release(source_);
  }
  Result<void> open(const zero::ProcessGroupOptions& options, ByteCount slot_max, bool bare_mpi) {
    ranks_ = options.ranks;
    accelerator_ = zero::make_host_accelerator(slot_max * (2 * ranks_) + ByteCount(1 << 20));
    PENSTOCK_TRY_ASSIGN(flat_, accelerator_.device->allocate(slot_max * ranks_));
    PENSTOCK_TRY_ASSIGN(source_, accelerator_.device->allocate(slot_max * ranks_));
    PENSTOCK_TRY_ASSIGN(stream_, accelerator_.device->create_stream());
    for (const DeviceSpan span : {flat_, source_}) std::memset(data(span), 0, span.size().value());
    contestants_.push_back({"memcpy", [this](Collective, ByteCount slot) -> Result<void> {
                              std::memcpy(data(flat_), data(source_), (slot * (ranks_ - 1)).value());
                              return ok();
                            }});
    if (bare_mpi) {
      contestants_.push_back({"bare MPI", [this](Collective collective, ByteCount slot) {
                                return run_bare_mpi(collective, data(flat_), slot);
                              }});
    }
    PENSTOCK_TRY(add(options, zero::Carrier::tcp, "TCP"));
    if (bare_mpi) PENSTOCK_TRY(add(options, zero::Carrier::mpi, "MPI"));
    return ok();
  }
  const std::vector<Contestant>& contestants() const override { return contestants_; }
  Result<void> meet() override {
    std::byte mine{};
    std::vector<std::byte> all(ranks_);
    zero::Communicator& by = *carriers_.front().communicator;
    PENSTOCK_TRY(by.start_exchange(ConstHostSpan(&mine, ByteCount(1)), HostSpan(std::span(all)), {}));
    return finish(by);
  }

 private:
  struct Carrier {
    std::shared_ptr<zero::ProcessGroup> group;
    std::unique_ptr<zero::Communicator> communicator;
  };

  static std::byte* data(DeviceSpan span) { return tiers::HostDevice::bytes(span).data(); }

  /// Each group has a port of its own.
  Result<void> add(zero::ProcessGroupOptions options, zero::Carrier carrier, const char* name) {
    options.carrier = carrier;
    options.rank_0.port = static_cast<std::uint16_t>(options.rank_0.port + carriers_.size());
    Carrier& added = carriers_.emplace_back();
    PENSTOCK_TRY_ASSIGN(added.group, zero::ProcessGroup::join(options));
    PENSTOCK_TRY_ASSIGN(added.communicator,
                        added.group->connect(*accelerator_.device, *accelerator_.compute, {}));
    contestants_.push_back(
        {name, [this, by = added.communicator.get()](Collective collective, ByteCount slot) -> Result<void> {
           const DeviceSpan flat = flat_.subspan(ByteCount(), slot * ranks_);
           if (collective == Collective::all_gather) {
             PENSTOCK_TRY(by->start_all_gather(*stream_, flat, {}));
           } else {
             PENSTOCK_TRY(by->start_reduce_scatter(*stream_, std::array{DeviceTensor{flat, DType::bf16}},
                                                   zero::Reduction::exact, {}));
           }
           PENSTOCK_TRY(finish(*by));
           return stream_->synchronize();
         }});
    return ok();
  }
  static Result<void> finish(zero::Communicator& by) {
    while (true) {
      PENSTOCK_TRY_ASSIGN(const bool completed, by.poll());
      if (completed) return ok();
      std::this_thread::yield();
    }
  }

  std::uint32_t ranks_ = 1;
  zero::Accelerator accelerator_;
  DeviceSpan flat_, source_;
  std::unique_ptr<tiers::Stream> stream_;
  std::vector<Carrier> carriers_;
  std::vector<Contestant> contestants_;
};

}  // namespace

Result<std::unique_ptr<Contest>> Contest::create(const zero::ProcessGroupOptions& options, ByteCount slot_max,
                                                 bool bare_mpi) {
  auto contest = std::make_unique<ContestOfProcesses>();
  PENSTOCK_TRY(contest->open(options, slot_max, bare_mpi));
  return contest;
}

}  // namespace penstock::bench
