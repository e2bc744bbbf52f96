// The checks of a configuration made in code; a file is checked with the same rules.

#include <penstock/zero/config/config.hpp>

#include "kit/print.hpp"

#include <gtest/gtest.h>
#include <limits>

namespace penstock::zero {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

struct Case {
  const char* name;
  void (*spoil)(Config&);
  const char* says;  ///< key, wanted, got
};

Config on_disk() {
  Config config;
  config.stage = 3;
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param =
      config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/a", "/b"}};
  return config;
}

DynamicLossScale& with_dynamic_scale(Config& config) {
  config.dtype = config.grad_accum_dtype = DType::fp16;
  config.loss_scale = 0;
  return config.dynamic_loss_scale;
}

class WrongConfig : public testing::TestWithParam<Case> {};

TEST_P(WrongConfig, IsRefusedNamingItsKeyAndWhatWasWanted) {
  Config config = on_disk();
  ASSERT_TRUE(config.validate()) << config.validate().error().message();
  GetParam().spoil(config);

  const auto refused = config.validate();

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_config);
  EXPECT_EQ(refused.error().message(),
            std::string("the configuration cannot be used: 1 error [Config::validate]\n  ")
                .append(GetParam().says));
}

const Case wrong[] = {
    {"DurableWithoutChecksums",
     [](Config& c) {
       c.penstock.durable_directories = {"/run"};
       c.penstock.integrity = Integrity::off;
     },
     "penstock.integrity: a run with a durable_directory needs \"checksum\": what a later process reads is "
     "verified"},
    {"DurableDirectoryWithoutName", [](Config& c) { c.penstock.durable_directories = {""}; },
     "penstock.durable_directory: wanted a directory, or a list of directories, got \"\""},
    {"DurableDirectoryWithNul",
     [](Config& c) { c.penstock.durable_directories = {std::string("/run\0", 5)}; },
     "penstock.durable_directory: wanted the name of a directory, got a text with a NUL character"},
    {"NoBatch", [](Config& c) { c.train_batch_size = 0; },
     "train_batch_size: wanted an integer from 1 to 4294967295, got 0"},
    {"NoMicroBatch", [](Config& c) { c.micro_batch_size = 0; },
     "train_micro_batch_size_per_gpu: wanted an integer from 1 to 4294967295, got 0"},
    {"NoAccumulation", [](Config& c) { c.gradient_accumulation_steps = 0; },
     "gradient_accumulation_steps: wanted an integer from 1 to 4294967295, got 0"},
    {"NoSuchStage",
     [](Config& c) {
       c.stage = 4;
       c.offload_param = {};
     },
     "zero_optimization.stage: wanted an integer from 0 to 3, got 4"},
    {"OffloadedParametersBelowStage3", [](Config& c) { c.stage = 2; },
     "zero_optimization.offload_param.device: needs zero_optimization.stage 3, got 2: below it the device "
     "holds all parameters; leave out offload_param"},
    {"SumAtStage3", [](Config& c) { c.gradient_allreduce_op = AllreduceOp::sum; },
     "gradient_allreduce_op: stage 3 has the mean only, as in DeepSpeed; multiply the loss by the number of "
     "ranks, or choose another stage"},
    {"RatioBelowStage3",
     [](Config& c) {
       c.stage = 1;
       c.offload_param = {};
       c.cpu_update_ratio = 0.5f;
     },
     "zero_optimization.offload_optimizer.ratio: needs zero_optimization.stage 3, got 1, as in DeepSpeed"},
    {"NegativeClip", [](Config& c) { c.gradient_clipping = -0.5f; },
     "gradient_clipping: wanted a number of at least 0, got -0.5"},
    {"NanRate", [](Config& c) { c.optimizer.learning_rate = nan; },
     "optimizer.params.lr: wanted a number of at least 0, got nan"},
    {"InfiniteDecay", [](Config& c) { c.optimizer.weight_decay = infinity; },
     "optimizer.params.weight_decay: wanted a number of at least 0, got inf"},
    {"NegativeEpsilon", [](Config& c) { c.optimizer.epsilon = -1e-8; },
     "optimizer.params.eps: wanted a number of at least 0, got -1e-08"},
    {"InfiniteEpsilon", [](Config& c) { c.optimizer.epsilon = infinity; },
     "optimizer.params.eps: wanted a number of at least 0, got inf"},
    {"NanEpsilon", [](Config& c) { c.optimizer.epsilon = nan; },
     "optimizer.params.eps: wanted a number of at least 0, got nan"},
    {"BetaOfOne", [](Config& c) { c.optimizer.betas[1] = 1; },
     "optimizer.params.betas: wanted two numbers of at least 0 and, in single precision, below 1, got [0.9, "
     "1]"},
    {"NegativeBeta", [](Config& c) { c.optimizer.betas[0] = -0.1; },
     "optimizer.params.betas: wanted two numbers from 0 to 1, got [-0.1, 0.999]"},
    {"NoDecayMode", [](Config& c) { c.optimizer.decay_mode = cpu_adam::AdamDecay::none; },
     "optimizer.params.adam_w_mode: wanted decoupled or l2, got none; for no decay set weight_decay to 0"},
    {"OddTile", [](Config& c) { c.penstock.tile_elements = ElementCount(20'000); },
     "penstock.tile_elements: wanted an integer from 16384 to 4294967295, a multiple of 16384, got 20000"},
    {"NoTile", [](Config& c) { c.penstock.tile_elements = ElementCount(); },
     "penstock.tile_elements: wanted an integer from 16384 to 4294967295, a multiple of 16384, got 0"},
    {"NoBucket", [](Config& c) { c.reduce_bucket_size = ElementCount(); },
     "zero_optimization.reduce_bucket_size: wanted an integer of at least 1, got 0"},
    {"NoTilesInFlight", [](Config& c) { c.penstock.tiles_in_flight = 0; },
     "penstock.tiles_in_flight: wanted an integer from 1 to 4096, got 0"},
    {"NoDeadline", [](Config& c) { c.penstock.io_deadline_seconds = 0; },
     "penstock.io_deadline_seconds: wanted an integer from 1 to 86400, got 0"},
    {"OddRequest", [](Config& c) { c.aio_block_size = ByteCount(5000); },
     "aio.block_size: wanted an integer of at least 4096, a multiple of 4096, got 5000"},
    {"NoQueue", [](Config& c) { c.aio_queue_depth = 0; },
     "aio.queue_depth: wanted an integer from 1 to 4096, got 0"},
    {"NoSuchFormat",
     [](Config& c) {
       c.penstock.state_format = cpu_adam::StateFormat(7);
       c.penstock.tile_elements = cpu_adam::block_elements;
     },
     "penstock.state_format: wanted \"fp32\", \"split\", \"split_bf16\" or \"split_q8\", got \"unknown\""},
    {"SplitFp32",
     [](Config& c) {
       c.penstock.state_format = cpu_adam::StateFormat::split;
       c.dtype = c.grad_accum_dtype = DType::fp32;
     },
     "penstock.state_format: split takes bf16 parameters, which are the upper halves of the masters, got "
     "fp32; "
     "enable bf16, or use fp32"},
    {"OtherAccumulator", [](Config& c) { c.grad_accum_dtype = DType::fp16; },
     "data_types.grad_accum_dtype: not supported yet; only fp32 and bf16, the type of the parameters, are"},
    {"ScaleWithoutFp16", [](Config& c) { c.loss_scale = 8; },
     "fp16.loss_scale: wanted 1 without fp16, got 8; enable fp16, or leave it out"},
    {"DynamicScaleWithoutFp16", [](Config& c) { c.loss_scale = 0; },
     "fp16.loss_scale: wanted 1 without fp16, got 0; enable fp16, or leave it out"},
    {"LossScaleWindowOfZero", [](Config& c) { with_dynamic_scale(c).loss_scale_window = 0; },
     "fp16.loss_scale_window: wanted 1 or more for a dynamic loss scale, got 0"},
    {"LeastLossScaleOfZero", [](Config& c) { with_dynamic_scale(c).min_loss_scale = 0; },
     "fp16.min_loss_scale: wanted 1 or more for a dynamic loss scale, got 0"},
    {"FirstLossScaleTooLarge", [](Config& c) { c.dynamic_loss_scale.initial_scale_power = 127; },
     "fp16.initial_scale_power: wanted an integer from 0 to 126, got 127"},
    {"ScheduleOfNoSteps", [](Config& c) { c.scheduler = WarmupDecayLR(); },
     "scheduler.params.total_num_steps: wanted an integer of at least 1, got 0"},
    {"ScheduledRateThatIsNotFinite", [](Config& c) { c.scheduler = WarmupLR{.warmup_max_lr = nan}; },
     "scheduler.params.warmup_max_lr: wanted a number of at least 0, got nan"},
    {"NoDirectory", [](Config& c) { c.offload_param.nvme_paths.clear(); },
     "zero_optimization.offload_param.device: \"nvme\" needs nvme_path, a directory or a list of "
     "directories"},
    {"ADirectoryTwice",
     [](Config& c) {
       c.offload_param.nvme_paths = {"/a", "/c/../a/"};
       c.offload_optimizer = {.device = OffloadDevice::cpu};
     },
     "zero_optimization.offload_param.nvme_path: wanted each directory once, got /c/../a/ again"},
    {"ADurableDirectoryTwice",
     [](Config& c) {
       c.penstock.durable_directories = {"/a", "/a"};
     },
     "penstock.durable_directory: wanted each directory once, got /a again"},
    {"EmptyDirectory",
     [](Config& c) {
       c.offload_param = {};
       c.offload_optimizer.nvme_paths = {"/a", ""};
     },
     "zero_optimization.offload_optimizer.nvme_path: wanted a directory, or a list of directories, got "
     "[\"/a\", \"\"]"},
    {"OtherDirectories",
     [](Config& c) {
       c.offload_optimizer.nvme_paths = {"/b", "/a"};
     },
     "zero_optimization.offload_optimizer.nvme_path: offload_param and offload_optimizer name different "
     "directories; "
     "give both the same nvme_path, a list for several directories"},
    {"OneLimit", [](Config& c) { c.penstock.path_limits = {1e9}; },
     "penstock.path_limits: wanted one number for each directory of swap files, 2, got 1"},
    {"OneEndurance", [](Config& c) { c.penstock.path_endurance = {1024_GiB}; },
     "penstock.path_endurance: wanted one number for each directory of swap files, 2, got 1"},
    {"CapOfNoEndurance", [](Config& c) { c.penstock.endurance_cap = 0.5; },
     "penstock.endurance_cap: needs path_endurance, of which it is a part"},
    {"CapAboveOne",
     [](Config& c) {
       c.penstock.path_endurance = {1024_GiB, 1024_GiB};
       c.penstock.endurance_cap = 1.5;
     },
     "penstock.endurance_cap: wanted a number from 0 to 1, got 1.5"},
    {"UpdatesBeforeTheNormOfClipping",
     [](Config& c) {
       c.gradient_clipping = 0.5;
       c.penstock.update_in_backward = true;
     },
     "gradient_clipping: wanted 0 with penstock.update_in_backward, because clipping needs the norm of all "
     "gradients before any is used; got 0.5"},
    {"UpdatesThatALossScaleMaySkip",
     [](Config& c) {
       c.gradient_clipping = 0;
       c.dtype = c.grad_accum_dtype = DType::fp16;
       c.penstock.state_format = cpu_adam::StateFormat::fp32;
       c.penstock.update_in_backward = true;
     },
     "fp16.enabled: wanted bf16 or fp32 with penstock.update_in_backward, because a loss scale needs steps "
     "that "
     "can be skipped"},
    {"UpdatesThatACapMayRefuse",
     [](Config& c) {
       c.gradient_clipping = 0;
       c.penstock.path_endurance = {1024_GiB, 1024_GiB};
       c.penstock.endurance_cap = 0.5;
       c.penstock.update_in_backward = true;
     },
     "penstock.endurance_cap: wanted none with penstock.update_in_backward, because an update that has begun "
     "cannot be refused"},
    {"WarningThatIsNone", [](Config& c) { c.penstock.endurance_warning = nan; },
     "penstock.endurance_warning: wanted a number from 0 to 1, got nan"},
    {"ReportFileWithNul", [](Config& c) { c.penstock.report_file = std::string("a\0b", 3); },
     "penstock.report_file: wanted the name of a file, got a text with a NUL character"},
    {"JobNameWithNul", [](Config& c) { c.csv_monitor.job_name = std::string("a\0b", 3); },
     "csv_monitor.job_name: wanted the name of a file, got a text with a NUL character"},
    {"OneWeight", [](Config& c) { c.penstock.path_weights = {1}; },
     "penstock.path_weights: wanted one number for each directory of swap files, 2, got 1"},
    {"ThreeNodes",
     [](Config& c) {
       c.penstock.path_nodes = {0, 1, 1};
     },
     "penstock.path_nodes: wanted one number for each directory of swap files, 2, got 3"},
    {"NoWeight",
     [](Config& c) {
       c.penstock.path_weights = {1, 0};
     },
     "penstock.path_weights: wanted a list of numbers from 1e-06 to 1e+06, got [1, 0]"},
};

INSTANTIATE_TEST_SUITE_P(Cases, WrongConfig, testing::ValuesIn(wrong),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(ConfigCheck, ReportsEverythingThatIsWrongAtOnce) {
  Config config = on_disk();
  config.penstock.tiles_in_flight = 0;
  config.optimizer.epsilon = -1;

  const std::string message = config.validate().error().message();

  EXPECT_NE(message.find("2 errors"), std::string::npos) << message;
  EXPECT_NE(message.find("penstock.tiles_in_flight"), std::string::npos) << message;
  EXPECT_NE(message.find("optimizer.params.eps"), std::string::npos) << message;
}

// Each of them is named, with its own line.
TEST(ConfigCheck, ReportsEverythingThatUpdatesInTheBackwardDoNotHave) {
  const auto config = Config::from_text(R"({"train_batch_size": 8, "fp16": {"enabled": true},
    "penstock": {"update_in_backward": true, "endurance_cap": 0.5, "path_endurance": ["1TiB"]},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"}}})",
                                        "ds_config.json", 1);

  ASSERT_FALSE(config);
  const std::string message = config.error().message();
  for (const char* problem :
       {"fp16.enabled, line 1: wanted bf16 or fp32 with", "penstock.endurance_cap, line 2: wanted none",
        "gradient_clipping: wanted 0 with", "got 1, as where it is not given"})
    EXPECT_NE(message.find(problem), std::string::npos) << message;
}

// As in DeepSpeed.
TEST(ConfigCheck, AcceptsAnEpsilonOfZero) {
  for (const std::string epsilon : {"0", "0.0", "1e-60"}) {  // the last is 0 in single precision
    const auto config = Config::from_text(
        R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"eps": )" + epsilon + "}}}",
        "ds_config.json", 1);
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_EQ(static_cast<float>(config->optimizer.epsilon), 0.0f);
  }
}

TEST(ConfigCheck, ChecksAFileWithTheSameRulesAndNamesTheLine) {
  const auto refusal = [](const std::string& text) {
    const auto config = Config::from_text("{\"train_batch_size\": 8,\n" + text + "}", "ds_config.json", 1);
    return config ? "accepted" : config.error().message();
  };
  EXPECT_NE(
      refusal(R"("optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.9999999999]}})")
          .find("optimizer.params.betas, line 2: wanted two numbers of at least 0 and, in single precision, "
                "below 1, got [0.9, 0.9999999999]"),
      std::string::npos);
  EXPECT_NE(
      refusal(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a"},
                       "offload_optimizer": {"device": "nvme", "nvme_path": "/b"}})")
          .find("offload_optimizer.nvme_path, line 3: offload_param and offload_optimizer name different"),
      std::string::npos);
  EXPECT_NE(
      refusal(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": null}})")
          .find("offload_param.device, line 2: \"nvme\" needs nvme_path"),
      std::string::npos);
}

TEST(ConfigCheck, DoesNotReportWhatFollowsFromAnotherErrorOfTheFile) {
  const auto config = Config::from_text(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, 
    "offload_param": {"device": "nvme", "nvme_path": 5}}, "fp16": {"enabled": true, "loss_scale": "much"}})",
                                        "ds_config.json", 1);

  ASSERT_FALSE(config);
  EXPECT_NE(config.error().message().find("2 errors"), std::string::npos) << config.error().message();
}

TEST(Config, PinsHostMemoryIfAnOffloadInUseRequiresIt) {
  const auto pins = [](OffloadConfig param, OffloadConfig optimizer) {
    Config config;
    config.offload_param = std::move(param), config.offload_optimizer = std::move(optimizer);
    return config.pins_host_memory();
  };
  const OffloadConfig on{.device = OffloadDevice::cpu, .pin_memory = true},
      on_disk{.device = OffloadDevice::nvme, .pin_memory = true},
      off{.device = OffloadDevice::nvme, .pin_memory = false}, unused{.pin_memory = true},
      unused_off{.pin_memory = false};

  EXPECT_TRUE(pins(on, off));
  EXPECT_TRUE(pins(off, on));
  EXPECT_TRUE(pins(on_disk, unused_off));
  EXPECT_FALSE(pins(off, off));
  EXPECT_FALSE(pins(off, unused));
  EXPECT_FALSE(pins(unused, off));
  EXPECT_TRUE(pins(unused_off, on));
  EXPECT_TRUE(pins(unused, unused_off));
  EXPECT_FALSE(pins(unused_off, unused_off));
}

}  // namespace
}  // namespace penstock::zero
