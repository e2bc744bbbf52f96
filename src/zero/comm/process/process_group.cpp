#include <penstock/zero/comm/process_group.hpp>

#include "zero/comm/mpi/mpi_library.hpp"
#include "zero/comm/nccl/nccl_group.hpp"
#include "zero/comm/process/connect_peers.hpp"
#include "zero/comm/process/mesh_thread.hpp"
#include "zero/comm/process/process_transport.hpp"
#include "zero/comm/process/socket_pipes.hpp"
#include "zero/comm/process/split_channel.hpp"
#include "zero/comm/transport_communicator.hpp"
#include "zero/launch/control_channel.hpp"
#include "zero/launch/run_description.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <utility>

namespace penstock::zero {

namespace {

/// How long a rank waits for the reason why a peer's connection has ended, which comes over the control channel.
constexpr TimePoint reason_max = std::chrono::seconds(1);

/// Of a greeting's bytes, which also tell of the host and the build.
constexpr std::size_t job_bytes_max = 1024;

Result<void> check(const ProcessGroupOptions& options) {
  constexpr const char* operation = "ProcessGroup::join";
  if (options.ranks == 0 || options.rank >= options.ranks) {
    return Error::invalid_argument(operation)
        .object("rank")
        .wanted("below " + std::to_string(options.ranks) + ", the number of ranks")
        .got(options.rank);
  }
  if (options.ranks > Compute::mean_inputs_max) {
    return Error::unsupported(operation)
        .object("ranks")
        .wanted("at most " + std::to_string(Compute::mean_inputs_max))
        .got(options.ranks);
  }
  if (options.job.size() > job_bytes_max) {
    return Error::invalid_argument(operation)
        .object("job")
        .wanted("at most " + std::to_string(job_bytes_max) + " bytes")
        .got(options.job.size());
  }
  if (options.local_rank.has_value() != options.local_ranks.has_value()) {
    return Error::invalid_argument(operation)
        .object("local_rank and local_ranks")
        .reason("one is given without the other");
  }
  if (options.local_rank >= options.local_ranks && options.local_rank) {
    return Error::invalid_argument(operation)
        .object("local_rank")
        .wanted("below " + std::to_string(*options.local_ranks) + ", local_ranks")
        .got(*options.local_rank);
  }
  for (const auto& [name, time] :
       {std::pair("join_deadline", options.join_deadline), std::pair("silence_max", options.silence_max),
        std::pair("deadline", options.deadline)}) {
    if (time > TimePoint::zero()) continue;
    return Error::invalid_argument(operation)
        .object(name)
        .wanted("a time above 0")
        .got(std::to_string(time.count()) + " ns");
  }
  if (options.clock == nullptr)
    return Error::invalid_argument(operation).object("clock").reason("it is null");
  return ok();
}

/// Ranks of one kernel share its memory and its disks.
RankIdentity identity_of(const ProcessGroupOptions& options, const std::vector<control::Peer>& peers) {
  RankIdentity identity{.rank = options.rank, .ranks = options.ranks, .local_rank = 0, .local_ranks = 0};
  for (std::uint32_t r = 0; r < peers.size(); ++r) {
    if (peers[r].machine != peers[options.rank].machine) continue;
    if (r < options.rank) ++identity.local_rank;
    ++identity.local_ranks;
  }
  identity.local_rank = options.local_rank.value_or(identity.local_rank);
  identity.local_ranks = options.local_ranks.value_or(identity.local_ranks);
  return identity;
}

control::Patience patience_of(const ProcessGroupOptions& options) {
  return {.join = options.join_deadline,
          .silence = options.silence_max,
          .gather = options.deadline,
          .clock = options.clock};
}

class Group final : public ProcessGroup, public std::enable_shared_from_this<Group> {
 public:
  Group(const ProcessGroupOptions& options, std::unique_ptr<ControlChannel> channel,
        const RankIdentity& identity)
      : options_(options), identity_(identity), channel_(std::move(channel)) {}

  const RankIdentity& identity() const override { return identity_; }
  Result<void> agree(const std::string& description) override;
  Result<std::unique_ptr<Communicator>> connect(tiers::Device& device, Compute& compute,
                                                const CollectiveNeeds& needs) override;
  Result<Slots> gather(const std::string& label, std::span<const std::byte> bytes) override {
    if (channel_) return channel_->gather_for_trainer(label, bytes);
    return Slots{{bytes.begin(), bytes.end()}};
  }
  Result<std::shared_ptr<ProcessGroup>> split(std::uint32_t color) override;
  void abort(const Error& error) noexcept override {
    if (channel_) channel_->fail(error);
  }
  /// Whether a rank has its communicator, which reports its own failures.
  [[nodiscard]] bool has_rank() const { return has_rank_; }
  std::vector<std::string> take_messages() override {
    return channel_ ? channel_->take_messages() : std::vector<std::string>();
  }

 private:
  [[nodiscard]] Error has_a_rank(const char* operation) const;
  [[nodiscard]] Result<std::unique_ptr<PeerPipes>> open_pipes();
  [[nodiscard]] Result<void> compare_carriers();
  [[nodiscard]] Result<std::unique_ptr<Communicator>> connect_once(tiers::Device& device, Compute& compute,
                                                                   const CollectiveNeeds& needs);
  [[nodiscard]] Result<std::unique_ptr<Communicator>> connect_hosts(tiers::Device& device, Compute& compute);
  [[nodiscard]] std::shared_ptr<JobControl> control() { return {shared_from_this(), channel_.get()}; }

  const ProcessGroupOptions options_;
  const RankIdentity identity_;
  const std::unique_ptr<ControlChannel> channel_;  // of several ranks
  std::atomic<bool> is_connected_ = false, has_rank_ = false;
  std::atomic<std::uint64_t> splits_ = 0;
};

Result<void> Group::agree(const std::string& description) {
  if (is_connected_) return has_a_rank("ProcessGroup::agree");
  if (!channel_) return ok();
  const auto gather = [this](const std::string& label, std::span<const std::byte> bytes) {
    return channel_->gather(label, bytes);
  };
  return check_same_run(identity_.rank, gather, description);
}

Error Group::has_a_rank(const char* operation) const {
  return Error(ErrorCode::already_exists, operation)
      .reason("the group has a communicator already")
      .object("rank " + std::to_string(identity_.rank))
      .advice(
          "create one Rank for each group; ProcessGroup::split() makes more groups of the same processes");
}

Result<void> Group::compare_carriers() {
  const auto carrier = static_cast<std::byte>(options_.carrier);
  PENSTOCK_TRY_ASSIGN(const auto all, channel_->gather("the carrier of collectives", std::span(&carrier, 1)));
  const auto name = [](const std::vector<std::byte>& one) {
    return std::string(one == std::vector{static_cast<std::byte>(Carrier::mpi)} ? "mpi" : "tcp");
  };
  const auto other = std::ranges::find_if(all, [&all](const auto& one) { return one != all[0]; });
  if (other == all.end()) return ok();
  return Error::invalid_argument("ProcessGroup::connect")
      .reason("ranks choose different carriers")
      .object("rank " + std::to_string(other - all.begin()))
      .wanted(name(all[0]) + ", as rank 0")
      .got(name(*other))
      .advice("set ProcessGroupOptions::carrier to the same value on every rank");
}

Result<std::unique_ptr<PeerPipes>> Group::open_pipes() {
  PENSTOCK_TRY(compare_carriers());
  if (options_.carrier == Carrier::mpi) {
    PENSTOCK_TRY_ASSIGN(const MpiModule* const mpi, load_mpi_module());
    const auto has_failed = [channel = channel_.get()] {
      const auto obstacle = channel->obstacle();
      return obstacle && obstacle->code() != ErrorCode::interrupted;
    };
    auto pipes = mpi->open_pipes({.rank = identity_.rank,
                                  .ranks = identity_.ranks,
                                  .deadline = options_.join_deadline,
                                  .has_failed = has_failed});
    if (!pipes && has_failed()) return *channel_->obstacle();  // which has the cause
    return pipes;
  }
  const auto& [own, rank_0] = channel_->addresses();
  PENSTOCK_TRY_ASSIGN(auto sockets,
                      connect_peers(*channel_, {.own = own, .rank_0 = rank_0}, options_.join_deadline));
  return SocketPipes::create(identity_.rank, std::move(sockets), options_.silence_max);
}

Result<std::unique_ptr<Communicator>> Group::connect_hosts(tiers::Device& device, Compute& compute) {
  PENSTOCK_TRY_ASSIGN(auto pipes, open_pipes());
  PENSTOCK_TRY_ASSIGN(auto exchange, MeshThread::start(std::make_unique<PeerMesh>(
                                         identity_.rank, identity_.ranks, std::move(pipes))));
  PENSTOCK_TRY_ASSIGN(auto transport,
                      ProcessTransport::create(
                          {.deadline = options_.deadline, .reason_max = reason_max, .clock = options_.clock},
                          control(), device, std::move(exchange)));
  return std::make_unique<TransportCommunicator>(std::move(transport), compute);
}

Result<std::unique_ptr<Communicator>> Group::connect(tiers::Device& device, Compute& compute,
                                                     const CollectiveNeeds& needs) {
  const bool on_host = device.memory() == tiers::DeviceMemory::host;
  if (channel_ && !on_host && !device.cuda_ordinal()) {
    return Error::unsupported("ProcessGroup::connect")
        .object("device " + device.name())
        .reason("the host cannot access its memory, and NCCL needs a CUDA device")
        .advice("forward Device::cuda_ordinal(), if the device wraps one of CUDA; or train on a HostDevice");
  }
  if (is_connected_.exchange(true)) return has_a_rank("ProcessGroup::connect");
  auto connected = connect_once(device, compute, needs);
  has_rank_ = connected.has_value();
  return connected;
}

Result<std::unique_ptr<Communicator>> Group::connect_once(tiers::Device& device, Compute& compute,
                                                          const CollectiveNeeds& needs) {
  if (!channel_) {
    PENSTOCK_TRY_ASSIGN(const auto alone, InProcessGroup::create(1));
    return alone->join(0, device, compute);
  }
  if (device.memory() == tiers::DeviceMemory::host) return connect_hosts(device, compute);
  const NcclGroupOptions options{.join = options_.join_deadline,
                                 .deadline = options_.deadline,
                                 .leave = options_.silence_max,
                                 .clock = options_.clock};
  return nccl_membership(control(), options).join(device, compute, needs);
}

Result<std::shared_ptr<ProcessGroup>> Group::split(std::uint32_t color) {
  if (options_.carrier == Carrier::mpi) {
    return Error::unsupported("ProcessGroup::split")
        .object("carrier")
        .wanted("tcp")
        .got("mpi, whose processes are the ranks of MPI_COMM_WORLD");
  }
  ProcessGroupOptions options = options_;
  options.local_rank = options.local_ranks = std::nullopt;
  if (!channel_) return std::make_shared<Group>(options, nullptr, RankIdentity::local(0, 1));
  PENSTOCK_TRY_ASSIGN(auto part, split_channel(*channel_, color, options.job, splits_, patience_of(options)));
  options.rank = part.rank;
  options.ranks = part.ranks;
  if (!part.channel) return std::make_shared<Group>(options, nullptr, RankIdentity::local(0, 1));
  const RankIdentity identity = identity_of(options, part.channel->peers());
  return std::make_shared<Group>(options, std::move(part.channel), identity);
}

}  // namespace

Result<ProcessGroupOptions> ProcessGroupOptions::of(const Launch& launch) {
  ProcessGroupOptions options{.rank = launch.rank, .ranks = launch.ranks, .rank_0 = {}, .job = launch.job};
  if (launch.local_rank && launch.local_ranks) {
    options.local_rank = launch.local_rank;
    options.local_ranks = launch.local_ranks;
  }
  if (launch.ranks == 1) return options;
  constexpr const char* operation = "ProcessGroupOptions::of";
  if (!launch.master) {
    return Error::invalid_argument(operation)
        .reason("where rank 0 is cannot be told")
        .where(launch.source)
        .advice(
            "set MASTER_ADDR to a host name or address of rank 0 that all ranks can reach, and MASTER_PORT");
  }
  options.rank_0 = *launch.master;
  if (launch.master->port == 65535) {
    return Error::invalid_argument(operation)
        .object("MASTER_PORT")
        .wanted("below 65535, because rank 0 listens on the next port")
        .got(launch.master->port);
  }
  ++options.rank_0.port;
  return options;
}

Result<std::shared_ptr<ProcessGroup>> ProcessGroup::join(const ProcessGroupOptions& options) {
  PENSTOCK_TRY(check(options));
  if (options.ranks == 1) return std::make_shared<Group>(options, nullptr, RankIdentity::local(0, 1));
  PENSTOCK_TRY_ASSIGN(auto channel, ControlChannel::join({.job = options.job,
                                                          .rank = options.rank,
                                                          .ranks = options.ranks,
                                                          .rank_0 = options.rank_0,
                                                          .patience = patience_of(options),
                                                          .notice = options.notice}));
  const RankIdentity identity = identity_of(options, channel->peers());
  return std::make_shared<Group>(options, std::move(channel), identity);
}

namespace {
/// Also while the first one connects. Other calls have other reasons for already_exists, such as a report file.
bool is_of_second_rank(const Error& error) {
  return error.code() == ErrorCode::already_exists &&
         std::string_view(error.operation()).starts_with("ProcessGroup::");
}
}  // namespace

GroupMembership process_membership(std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) {
    return {.join = [](tiers::Device&, Compute&,
                       const CollectiveNeeds&) -> Result<std::unique_ptr<Communicator>> {
      return Error::invalid_argument("process_membership").object("group").reason("it is null");
    }};
  }
  return {.join = [group](tiers::Device& device, Compute& compute,
                          const CollectiveNeeds& needs) { return group->connect(device, compute, needs); },
          .abandon =
              [group](const Error& error) {
                // A second rank is a mistake of this process: the first one goes on.
                const auto* const own = dynamic_cast<const Group*>(group.get());
                if (own != nullptr && (own->has_rank() || is_of_second_rank(error))) return;
                group->abort(error);
              },
          .agree = [group](const std::string& description) { return group->agree(description); }};
}

}  // namespace penstock::zero
