// What is parked on disk leaves host memory too, and faults of the disk lose nothing.
#include "kit/failing_copies.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/trainer.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using tiers::Tier;
using enum ParkKinds;

ModelLayout model_of(ElementCount elements) {
  ModelLayout model;
  for (const char* unit : {"first", "second", "third", "fourth"})
    model.units.push_back({.name = unit, .parameters = {{"weight", elements, 0}}});
  return model;
}
void initialize(Engine& engine) {
  engine
      .initialize([](ParameterId, std::uint64_t first, std::span<float> values) {
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = 0.01f * static_cast<float>((first + i) % 997);
      })
      .value();
}

/// A rank on threads with four units of a million parameters each, if not told otherwise. Their values depend on their
/// place.
class ThreadedRank {
 public:
  struct Options {
    Config config{.stage = 3};
    tiers::DeviceMemory memory = tiers::DeviceMemory::separate;
    ElementCount elements = ElementCount(1'000'000);  // of a unit
    std::function<void(swap::RuntimeOptions&)> change_runtime = {};
    std::function<void(Accelerator&)> change_accelerator = {};
  };
  explicit ThreadedRank(const Options& options) {
    rank_ = Rank::create({.config = options.config,
                          .model = model_of(options.elements),
                          .make_accelerator = [&](ByteCount memory) -> Result<Accelerator> {
                            Accelerator made =
                                make_host_accelerator({.memory = memory, .location = options.memory});
                            if (options.change_accelerator) options.change_accelerator(made);
                            return made;
                          },
                          .hooks = {.runtime_options = options.change_runtime}})
                .value();
    stream_ = rank_->device().create_stream().value();
    initialize(engine());
  }

  [[nodiscard]] Engine& engine() { return rank_->engine(); }
  [[nodiscard]] Rank& rank() { return *rank_; }
  /// One step, in which each gradient is the parameter.
  void train() {
    engine().begin_step({}).value();
    for (std::uint32_t unit = 0; unit < 4; ++unit) {
      const auto bits = [](const DeviceTensor& tensor) {
        return tiers::HostDevice::bytes(tensor.bytes).as<std::uint16_t>();
      };
      const auto lease = engine().acquire(unit, *stream_).value();
      auto gradients = engine().gradients(unit, *stream_).value();
      std::ranges::copy(bits(lease.parameters()[0]), bits(gradients.slots()[0].tensor).begin());
      engine().reduce(std::move(gradients), *stream_).value();
    }
    (void)engine().step().value();
  }

 private:
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

Config offloaded(OffloadDevice to, const std::filesystem::path& directory = {}) {
  Config config{.stage = 3};
  config.offload_optimizer.device = config.offload_param.device = to;
  if (to == OffloadDevice::nvme)
    config.offload_optimizer.nvme_paths = config.offload_param.nvme_paths = {directory};
  return config;
}

/// The digest of two steps that nothing interrupts.
std::string expected_digest() {
  static const std::string digest = [] {
    ThreadedRank rank({.config = offloaded(OffloadDevice::cpu)});
    rank.train();
    rank.train();
    return rank.engine().digest().value();
  }();
  return digest;
}

ByteCount resident(HostSpan memory) {
  std::vector<unsigned char> pages(memory.size().value() / 4096);
  if (::mincore(memory.data(), memory.size().value(), pages.data()) != 0) return {};
  return 4_KiB * static_cast<std::uint64_t>(std::count_if(
                     pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
}

TEST(EngineParkOnDisk, GivesTheMachineItsPagesBack) {
  const penstock::test::ScratchDirectory directory;
  for (const auto memory : {tiers::DeviceMemory::separate, tiers::DeviceMemory::host}) {
    for (const OffloadDevice to : {OffloadDevice::cpu, OffloadDevice::nvme}) {
      SCOPED_TRACE(std::string(to_string(to)));
      Config config = offloaded(to, directory.path());
      config.penstock.host_budget = 96_MiB;  // on nvme too some tiles stay in memory
      ThreadedRank rank({.config = config, .memory = memory});
      const HostSpan host = rank.rank().runtime().host_memory();
      const tiers::Ledger& ledger = rank.rank().runtime().ledger();
      rank.train();
      ASSERT_EQ(resident(host), host.size());

      const ParkReport out = rank.engine().park(Tier::nvme, all, {directory.path()}).value();

      const MemoryPlan& plan = rank.rank().plan();
      const ByteCount kept = plan.host_tiles + plan.host_shards + plan.host_gradients + plan.homes();
      EXPECT_GE(kept, 16_MiB);
      EXPECT_GE(out[Tier::host].given_back + 8_MiB, kept);
      EXPECT_EQ(resident(host), host.size() - out[Tier::host].given_back);
      EXPECT_LE(out[Tier::host].taken, 64_MiB);
      EXPECT_EQ(ledger.line(Tier::nvme, tiers::Purpose::parked).held, out[Tier::nvme].taken);
      EXPECT_EQ(rank.engine().digest().error().code(), ErrorCode::failed_state);
      swap::Runtime& runtime = rank.rank().runtime();
      if (!plan.homes().is_zero()) {
        const auto limited = runtime.limit_memory(host.size());
        ASSERT_FALSE(limited);
        EXPECT_EQ(limited.error().code(), ErrorCode::failed_state);
      }
      const ParkReport back = rank.engine().unpark().value();
      EXPECT_EQ(back[Tier::host].taken, out[Tier::host].given_back);
      EXPECT_EQ(resident(host), host.size());
      EXPECT_EQ(ledger.line(Tier::nvme, tiers::Purpose::parked).held, ByteCount());
      rank.train();
      EXPECT_EQ(rank.engine().digest().value(), expected_digest());
    }
  }
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(EngineParkOnDisk, EndsWhileItIsParked) {
  const penstock::test::ScratchDirectory directory;
  for (const OffloadDevice to : {OffloadDevice::cpu, OffloadDevice::nvme}) {
    const std::size_t before = open_descriptors();
    {
      ThreadedRank rank({.config = offloaded(to, directory.path())});
      EXPECT_TRUE(rank.engine().park(Tier::nvme, all, {directory.path()}));
    }
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST(EngineParkOnDisk, LeavesItsPagesToTheEngineBesideWhereItEnds) {
  const penstock::test::ScratchDirectory directory;
  const Config config = offloaded(OffloadDevice::cpu);
  const ModelLayout model = model_of(ElementCount(1'000'000));
  const MemoryPlan plan = plan_memory(config, model, 1, 1, tiers::DeviceMemory::host).value();
  ThreadedRank rank(
      {.config = config,
       .memory = tiers::DeviceMemory::host,
       .change_runtime = [&](swap::RuntimeOptions& options) {
         const std::array engines = {PlannedEngine{&config, &plan}, PlannedEngine{&config, &plan}};
         options = shared_runtime_options(engines, 0).value();
       }});
  Rank& shared = rank.rank();
  const auto communicator =
      InProcessGroup::create(1).value()->join(0, shared.device(), shared.compute()).value();
  auto second = Engine::create({.runtime = &shared.runtime(),
                                .device = &shared.device(),
                                .compute = &shared.compute(),
                                .communicator = communicator.get(),
                                .workers = &shared.workers(),
                                .config = config,
                                .model = model,
                                .plan = plan,
                                .engine_number = 1})
                    .value();
  initialize(*second);
  rank.train();
  const HostSpan host = shared.runtime().host_memory();

  const ParkReport out = second->park(Tier::nvme, all, {directory.path()}).value();

  ASSERT_GE(out[Tier::host].given_back, 2_MiB);
  EXPECT_EQ(resident(host), host.size() - out[Tier::host].given_back);
  second.reset();
  EXPECT_EQ(resident(host), host.size());
  rank.train();
  EXPECT_EQ(rank.engine().digest().value(), expected_digest());
}

TEST(EngineParkOnDisk, DividesWhatIsLargerThanItsStaging) {
  const penstock::test::ScratchDirectory directory;
  Config config = offloaded(OffloadDevice::cpu);
  config.penstock.tile_elements = ElementCount(16384 * 200);  // 25 MiB
  const ThreadedRank::Options options{.config = config, .elements = ElementCount(3'000'000)};
  std::string expected;
  {
    ThreadedRank rank(options);
    rank.train();
    expected = rank.engine().digest().value();
  }
  ThreadedRank rank(options);
  rank.train();

  const ParkReport out = rank.engine().park(Tier::nvme, all, {directory.path()}).value();
  (void)rank.engine().unpark().value();

  EXPECT_GE(out[Tier::host].given_back, 128_MiB);
  EXPECT_EQ(out[Tier::host].taken, 64_MiB);
  EXPECT_EQ(rank.engine().digest().value(), expected);
  const auto traffic = rank.rank().runtime().ledger().traffic(tiers::Purpose::parked);
  EXPECT_LE(traffic.read, traffic.predicted_read);
  EXPECT_LE(traffic.written, traffic.predicted_written);
  EXPECT_GE(traffic.read, 128_MiB);
  EXPECT_GE(traffic.written, 128_MiB);
}

/// An engine that does not release its buffers.
class KeepingEngine final : public tiers::IoEngine {
 public:
  explicit KeepingEngine(std::unique_ptr<tiers::IoEngine> engine) : engine_(std::move(engine)) {}
  std::size_t submit(std::span<const tiers::IoRequest> requests) noexcept override {
    return engine_->submit(requests);
  }
  std::size_t reap(std::span<tiers::IoCompletion> completions, TimePoint deadline) noexcept override {
    return engine_->reap(completions, deadline);
  }
  void wake() noexcept override { engine_->wake(); }
  void attach(tiers::FileHandle file, HostSpan buffers) noexcept override { engine_->attach(file, buffers); }
  bool detach() noexcept override { return false; }
  bool close(TimePoint deadline) noexcept override { return engine_->close(deadline); }
  [[nodiscard]] tiers::IoLimits limits() const noexcept override { return engine_->limits(); }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override { return engine_->in_flight(); }
  [[nodiscard]] const char* name() const noexcept override { return engine_->name(); }
  [[nodiscard]] std::string notes() const override { return engine_->notes(); }

 private:
  std::unique_ptr<tiers::IoEngine> engine_;
};

TEST(EngineParkOnDisk, SaysWhyHostMemoryStays) {
  const penstock::test::ScratchDirectory directory;
  Config config = offloaded(OffloadDevice::nvme, directory.path());
  config.penstock.host_budget = 96_MiB;
  ThreadedRank rank({.config = config,
                     .memory = tiers::DeviceMemory::host,
                     .change_runtime = [](swap::RuntimeOptions& options) {
                       options.paths.front().decorate = [](std::unique_ptr<tiers::IoEngine> engine) {
                         return std::make_unique<KeepingEngine>(std::move(engine));
                       };
                     }});
  rank.train();
  const HostSpan host = rank.rank().runtime().host_memory();

  const ParkReport out = rank.engine().park(Tier::nvme).value();

  EXPECT_EQ(out[Tier::host].given_back, ByteCount());
  EXPECT_EQ(resident(host), host.size());
  ASSERT_FALSE(out.stays.empty());
  EXPECT_NE(out.stays.front().find("does not release it"), std::string::npos) << out.stays.front();
  (void)rank.engine().unpark().value();
  rank.train();
  EXPECT_EQ(rank.engine().digest().value(), expected_digest());
}

/// A directory with faults: of the engine of `number`, counted from 0 as they are opened, and of the file system.
class FaultyDisk {
 public:
  FaultyDisk(std::uint32_t number, tiers::FaultPlan faults, tiers::FileSystemFaultPlan of_files = {})
      : files_(tiers::real_file_system(), std::move(of_files)), number_(number), faults_(std::move(faults)) {}

  [[nodiscard]] std::filesystem::path directory() const { return directory_.path(); }
  [[nodiscard]] std::function<void(swap::RuntimeOptions&)> change_runtime() {
    return [this](swap::RuntimeOptions& options) {
      for (swap::PathOptions& path : options.paths) {
        path.weight = 1;
        path.file_system = &files_;
        path.decorate = [this](std::unique_ptr<tiers::IoEngine> engine) -> std::unique_ptr<tiers::IoEngine> {
          if (opened_++ != number_) return engine;
          return std::make_unique<tiers::FaultEngine>(std::move(engine), faults_);
        };
      }
    };
  }

 private:
  penstock::test::ScratchDirectory directory_;
  tiers::FaultFileSystem files_;
  const std::uint32_t number_;
  const tiers::FaultPlan faults_;
  std::atomic<std::uint32_t> opened_{0};
};

/// The optimizer's states are on the device, and leave it; parameters are on disk.
Config on_device_and(const FaultyDisk& disk) {
  Config config = offloaded(OffloadDevice::nvme, disk.directory());
  config.offload_optimizer = {};
  return config;
}

TEST(EngineParkOnDisk, ChangesNothingWhereTheDiskFails) {
  using tiers::FileSystemFault;
  const auto second_file = FileSystemFault::fail(FileSystemFault::Operation::create_scratch, 1, ENOSPC);
  for (const auto& [faults, of_files, code] :
       {std::tuple{tiers::FaultPlan{tiers::Fault::fail(tiers::IoOperation::write, 3, EIO, 1000)},
                   tiers::FileSystemFaultPlan{}, ErrorCode::io},
        {{tiers::Fault::fail(tiers::IoOperation::write, 3, ENOSPC, 1000)}, {}, ErrorCode::no_space},
        {{}, {second_file}, ErrorCode::no_space}}) {
    SCOPED_TRACE(to_string(code));
    FaultyDisk disk(1, faults, of_files);
    ThreadedRank rank({.config = on_device_and(disk), .change_runtime = disk.change_runtime()});
    rank.train();

    const auto refused = rank.engine().park(Tier::nvme);

    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), code) << refused.error().message();
    EXPECT_NE(refused.error().message().find(disk.directory().string()), std::string::npos)
        << refused.error().message();
    EXPECT_EQ(rank.engine().parked(), none);
    EXPECT_EQ(rank.engine().status(), Engine::Status::ready);
    rank.train();
    EXPECT_EQ(rank.engine().digest().value(), expected_digest());
  }
}

TEST(EngineParkOnDisk, StaysParkedAfterAReadThatFails) {
  FaultyDisk disk(1, {tiers::Fault::fail(tiers::IoOperation::read, 2, ENXIO, 12)});
  ThreadedRank rank({.config = on_device_and(disk), .change_runtime = disk.change_runtime()});
  rank.train();
  (void)rank.engine().park(Tier::nvme).value();

  const auto refused = rank.engine().unpark();

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::io) << refused.error().message();
  EXPECT_EQ(rank.engine().parked(), all);
  int attempts = 0;
  while (!rank.engine().unpark() && attempts < 50) ++attempts;
  rank.train();
  EXPECT_EQ(rank.engine().digest().value(), expected_digest());
}

TEST(EngineParkOnDisk, LeavesTheMachineItsPagesWhenItCannotComeBack) {
  const penstock::test::ScratchDirectory directory;
  penstock::test::FailingCopies* device = nullptr;
  Config config = offloaded(OffloadDevice::none);
  config.offload_param.device = OffloadDevice::cpu;
  ThreadedRank rank({.config = config, .change_accelerator = [&](Accelerator& made) {
                       auto failing = std::make_unique<penstock::test::FailingCopies>(std::move(made.device));
                       device = failing.get();
                       made.device = std::move(failing);
                     }});
  rank.train();
  const ParkReport out = rank.engine().park(Tier::nvme, all, {directory.path()}).value();
  const HostSpan host = rank.rank().runtime().host_memory();
  ASSERT_GE(out[Tier::host].given_back, 2_MiB);
  device->fails = true;

  EXPECT_EQ(rank.engine().unpark().error().code(), ErrorCode::io);

  EXPECT_EQ(rank.engine().parked(), all);
  EXPECT_EQ(resident(host), host.size() - out[Tier::host].given_back);
  device->fails = false;
  (void)rank.engine().unpark().value();
  rank.train();
  EXPECT_EQ(rank.engine().digest().value(), expected_digest());
}

TEST(EngineParkOnDisk, NamesATensorWhoseBytesHaveChanged) {
  FaultyDisk disk(1, {{.operation = tiers::IoOperation::read,
                       .occurrence = 2,
                       .count = 100,
                       .effect = tiers::Fault::Effect::flip_bit,
                       .bit = 12'345}});
  ThreadedRank rank({.config = on_device_and(disk), .change_runtime = disk.change_runtime()});
  (void)rank.engine().park(Tier::nvme).value();

  const auto back = rank.engine().unpark();

  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code(), ErrorCode::corrupted) << back.error().message();
  EXPECT_NE(back.error().message().find("optimizer tile"), std::string::npos) << back.error().message();
  EXPECT_EQ(rank.engine().status(), Engine::Status::failed);
}

TEST(EngineParkOnDisk, NamesADirectoryThatIsNotThere) {
  ThreadedRank rank({.config = offloaded(OffloadDevice::cpu)});
  for (const char* directory : {"/no/such/directory", "", "/proc/version"}) {
    const auto refused = rank.engine().park(Tier::nvme, all, {directory});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find(directory), std::string::npos) << refused.error().message();
    EXPECT_EQ(rank.engine().parked(), none);
  }
}

}  // namespace
}  // namespace penstock::zero::test
