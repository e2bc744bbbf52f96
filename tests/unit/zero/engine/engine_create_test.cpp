// Engine::create() refuses parts that do not belong together.
#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/rank.hpp>

#include <penstock/tiers/device/host_device.hpp>

#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace penstock::zero {
namespace {

/// The parts of an engine that is alone, all from one configuration and layout.
class EngineCreate : public testing::Test {
 protected:
  EngineCreate() {
    model_.units = {{.name = "first", .parameters = {{"weight", ElementCount(400'000), 0}}},
                    {.name = "second", .parameters = {{"weight", ElementCount(400'000), 0}}}};
    config_.stage = 3;
    config_.offload_param.device = config_.offload_optimizer.device = OffloadDevice::cpu;
    plan_ = plan_memory(config_, model_, 1, 1).value();
    runtime_ = swap::Runtime::create(plan_.runtime_options(config_, 0)).value();
    accelerator_ = make_host_accelerator(plan_.device_budget);
    workers_.emplace(parallel::Workers::create({.threads = 1}).value());
  }

  /// The error of creating an engine from these parts, after `change`; empty without an error.
  template <class Change>
  std::string error_after(const Change& change, ErrorCode code = ErrorCode::invalid_argument) {
    // A communicator serves one engine.
    const auto group = InProcessGroup::create(1).value();
    const auto communicator = group->join(0, *accelerator_.device, *accelerator_.compute).value();
    Engine::Options options{.runtime = runtime_.get(),
                            .device = accelerator_.device.get(),
                            .compute = accelerator_.compute.get(),
                            .communicator = communicator.get(),
                            .workers = &*workers_,
                            .config = config_,
                            .model = model_,
                            .plan = plan_};
    change(options);
    const auto engine = Engine::create(std::move(options));
    if (engine) return {};
    EXPECT_EQ(engine.error().code(), code) << engine.error().message();
    EXPECT_TRUE(runtime_->tensors().empty());
    return engine.error().message();
  }

  Config config_;
  ModelLayout model_;
  MemoryPlan plan_;
  std::unique_ptr<swap::Runtime> runtime_;
  Accelerator accelerator_;
  std::optional<parallel::Workers> workers_;
};

TEST_F(EngineCreate, RefusesAnUpdateFunctionThatTheConfigurationDoesNotNameAndTheReverse) {
  const auto missing = error_after(
      [](auto& options) { options.config.optimizer.type = cpu_adam::Optimizer::custom_one_moment; },
      ErrorCode::invalid_config);
  EXPECT_NE(missing.find("Rank::Options::update"), std::string::npos) << missing;
  EXPECT_NE(missing.find("AdamW"), std::string::npos) << missing;

  const auto unnamed =
      error_after([](auto& options) { options.update = [](const UpdateSegment&) { return ok(); }; },
                  ErrorCode::invalid_config);
  EXPECT_NE(unnamed.find("got adam"), std::string::npos) << unnamed;
  EXPECT_NE(unnamed.find("optimizer.type to \"Custom\""), std::string::npos) << unnamed;
}

TEST_F(EngineCreate, TakesPartsThatBelongTogether) {
  EXPECT_EQ(error_after([](Engine::Options&) {}), "");
  // Settings that need no memory may change after the plan.
  EXPECT_EQ(error_after([](Engine::Options& options) { options.config.optimizer.learning_rate = 0.5f; }), "");
}

TEST_F(EngineCreate, NamesAPartThatIsMissing) {
  const auto expect_names = [&](const char* name, const auto& remove) {
    EXPECT_NE(error_after(remove).find(name), std::string::npos) << name;
  };
  expect_names("runtime", [](Engine::Options& options) { options.runtime = nullptr; });
  expect_names("device", [](Engine::Options& options) { options.device = nullptr; });
  expect_names("compute", [](Engine::Options& options) { options.compute = nullptr; });
  expect_names("communicator", [](Engine::Options& options) { options.communicator = nullptr; });
  expect_names("workers", [](Engine::Options& options) { options.workers = nullptr; });
  expect_names("a default MemoryPlan", [](Engine::Options& options) { options.plan = {}; });
}

TEST_F(EngineCreate, RefusesThePlanOfAnotherConfigurationLayoutOrNumberOfRanks) {
  constexpr const char* reason = "the plan of another configuration, layout or number of ranks";
  const auto expect_refused = [&](const auto& change) {
    const std::string error = error_after(change);
    EXPECT_NE(error.find(reason), std::string::npos) << error;
  };
  expect_refused(
      [](Engine::Options& options) { options.config.dtype = options.config.grad_accum_dtype = DType::bf16; });
  expect_refused([](Engine::Options& options) { options.config.gradient_accumulation_steps = 2; });
  expect_refused(
      [](Engine::Options& options) { options.model.units[0].parameters[0].count = ElementCount(400'001); });
  expect_refused(
      [&](Engine::Options& options) { options.plan = plan_memory(config_, model_, 2, 1).value(); });
}

// A difference below 2 MiB, to which a runtime rounds its memory, is budget_too_small when tensors are added.
TEST_F(EngineCreate, RefusesARuntimeWithLessHostMemoryThanThePlan) {
  const auto small = swap::Runtime::create({.host_budget = 4_KiB}).value();

  const std::string error = error_after([&](Engine::Options& options) { options.runtime = small.get(); });

  EXPECT_NE(error.find("less host memory than the plan"), std::string::npos) << error;
}

TEST_F(EngineCreate, NeedsAnOptimizerOfTheDeviceWhereTilesAreKeptThere) {
  Rank::Options options{.config = {}, .model = model_};
  options.make_accelerator = [](ByteCount memory) -> Result<Accelerator> {
    Accelerator made = make_host_accelerator(memory);
    made.device = std::make_unique<tiers::HostDevice>(
        tiers::HostDevice::Options{.memory = memory, .location = tiers::DeviceMemory::separate});
    made.adam = nullptr;
    return made;
  };

  const auto rank = Rank::create(std::move(options));

  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().code(), ErrorCode::unsupported);
  EXPECT_NE(rank.error().message().find("offload_optimizer.device to cpu"), std::string::npos)
      << rank.error().message();
}

}  // namespace
}  // namespace penstock::zero
