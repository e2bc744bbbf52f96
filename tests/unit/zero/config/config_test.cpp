#include <penstock/zero/config/config.hpp>

#include "kit/print.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <fstream>
#include <tuple>

namespace penstock::zero {
namespace {

Result<Config> read(std::string_view text, std::uint32_t world_size = 1) {
  return Config::from_text(text, "ds_config.json", world_size);
}

/// The message of a refusal, or what it was accepted as.
std::string refusal(std::string_view text, std::uint32_t world_size = 1) {
  const auto config = read(text, world_size);
  return config ? "accepted: " + config->to_json() : config.error().message();
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(Config, ReportsEveryErrorOfAFileAtOnceInTheOrderOfItsLines) {
  const auto config = read(R"({
  "train_batch_size": "8",
  "zero_optimization": {
    "stage": 2,
    "stage3_max_live_parameter": 1000,
    "offload_optimizer": {"device": "gpu"}
  },
  "gradient_cliping": 0.5
})");

  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code(), ErrorCode::invalid_config);
  EXPECT_EQ(config.error().message(),
            "the configuration cannot be used: 5 errors: ds_config.json [Config::from_text]\n"
            "  train_batch_size, line 2: wanted an integer from 1 to 4294967295, got \"8\"; write it without "
            "quotes\n"
            "  zero_optimization.stage, line 4: stage 2 is not supported yet; only 3 is\n"
            "  zero_optimization.stage3_max_live_parameter, line 5: unknown key; did you mean "
            "\"stage3_max_live_parameters\"?\n"
            "  zero_optimization.offload_optimizer.device, line 6: wanted \"none\", \"cpu\" or \"nvme\", got "
            "\"gpu\"\n"
            "  gradient_cliping, line 8: unknown key; did you mean \"gradient_clipping\"?");
}

TEST(Config, NamesTheKeyForANameThatOtherLibrariesUse) {
  const std::string message = refusal(R"({"train_batch_size": 8, "max_grad_norm": 1, "optimizer": {"params": {
    "learning_rate": 1e-4,
    "epsilon": 1e-8,
    "beta1": 0.9,
    "beta2": 0.95,
    "weight_decay_rate": 0.1}}})");

  for (const char* says :
       {"max_grad_norm, line 1: unknown key; use \"gradient_clipping\", a number of at least 0",
        "optimizer.params.learning_rate, line 2: unknown key; use \"lr\", a number of at least 0",
        "optimizer.params.epsilon, line 3: unknown key; use \"eps\", a number of at least 0",
        "optimizer.params.beta1, line 4: unknown key; use \"betas\", two numbers from 0 to 1",
        "optimizer.params.beta2, line 5: unknown key; use \"betas\", two numbers from 0 to 1",
        "optimizer.params.weight_decay_rate, line 6: unknown key; use \"weight_decay\", a number of at least "
        "0"}) {
    EXPECT_TRUE(contains(message + "\n", std::string("\n  ") + says + "\n")) << says << "\n" << message;
  }
  EXPECT_TRUE(
      contains(refusal(R"({"train_batch_size": 8, "learning_rate": 1})"), "use \"optimizer.params.lr\""));
}

TEST(Config, SaysWhereAMisplacedKeyBelongs) {
  const std::string message =
      refusal(R"({"train_batch_size": 8, "zero_optimization": {"aio": {"block_size": 262144}}})");

  EXPECT_TRUE(
      contains(message, "zero_optimization.aio, line 1: unknown key; \"aio\" belongs at the top level"))
      << message;
}

TEST(Config, NamesTheLineOfASyntaxErrorAndOfAValueAtItsStart) {
  const std::string unterminated = refusal("{\"train_batch_size\": 8,\n \"bf16\": {\"enabled\": true}\n");
  const std::string twice = refusal("{\"train_batch_size\": 8,\n \"train_batch_size\": 16}");

  EXPECT_TRUE(contains(unterminated, "\n  line 3: ")) << unterminated;
  EXPECT_TRUE(contains(refusal("{\"train_batch_size\":\n\"8\"}"), "train_batch_size, line 2: "));
  EXPECT_TRUE(contains(twice, "\n  line 2: Duplicate key: 'train_batch_size'")) << twice;
}

TEST(Config, RefusesWhatIsNoObjectOrNestedWithoutEnd) {
  EXPECT_TRUE(contains(refusal("[1]"), "wanted an object of keys"));
  EXPECT_TRUE(contains(refusal(""), "1 error"));
  EXPECT_TRUE(contains(refusal(std::string(100'000, '[')), "nested too deeply"));
}

TEST(Config, ReadsCommentsTrailingCommasAndHashesInsideStrings) {
  const auto config = read(R"(// a comment
{
  # another, with "quotes" and /* a start
  "train_batch_size": 8, /* a # block */
  "zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/disk#1//a"}, "stage": 3,},
})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->offload_param.nvme_paths, std::vector<std::filesystem::path>{"/disk#1//a"});
}

TEST(Config, TakesIntegralFloatsAsIntegersAndNothingElse) {
  EXPECT_EQ(read(R"({"train_batch_size": 1e1})")->train_batch_size, 10u);
  EXPECT_EQ(read(R"({"train_batch_size": 15.0})")->train_batch_size, 15u);
  EXPECT_FALSE(read(R"({"train_batch_size": 1.5})"));
  EXPECT_FALSE(read(R"({"train_batch_size": -8})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 4294967296})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 1e400})"));
  EXPECT_FALSE(read(R"({"train_batch_size": true})"));
}

TEST(Config, TakesAnIntegerInAStringOnlyAsDigitsAndOnlyWhereDeepSpeedConvertsIt) {
  const auto sub_group = [](const std::string& value) {
    return refusal(R"({"train_batch_size": 8, "zero_optimization": {"sub_group_size": )" + value + "}}");
  };
  for (const char* digits : {R"("500000000")", R"("008")", R"("0")"}) {
    EXPECT_TRUE(contains(sub_group(digits), "accepted")) << digits;
  }
  for (const char* other : {R"("5e8")", R"("5.5")", R"("-8")", R"("0x10")", R"("")", R"("8 ")"}) {
    EXPECT_TRUE(contains(sub_group(other),
                         "zero_optimization.sub_group_size, line 1: wanted an integer of "
                         "at least 0, got " +
                             std::string(other)))
        << sub_group(other);
  }
  EXPECT_TRUE(contains(sub_group(R"("5e8")"), "; write it without quotes")) << sub_group(R"("5e8")");
  EXPECT_FALSE(contains(sub_group(R"("-8")"), "quotes")) << sub_group(R"("-8")");
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": "8"})"), "wanted an integer from 1"));
  EXPECT_TRUE(read(R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": "1e3"}})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 8, "fp16": {"min_loss_scale": 0.5}})"));
}

TEST(Config, RefusesNumbersThatAreNotJson) {
  for (const char* number : {"+8", "008", "-08", "8.", "00", "8e", "8.e1", "08.5"}) {
    const std::string message = refusal("{\n\"train_batch_size\": " + std::string(number) + "}");
    EXPECT_TRUE(contains(message, "\n  train_batch_size, line 2: wanted a number as JSON writes it, got " +
                                      std::string(number) + "; ") ||
                contains(message, "\n  line 2: "))
        << message;
  }
  const std::string nested = refusal(
      "{\"train_batch_size\": 8, \"optimizer\": {\"params\": {\n\"betas\": [0.9,\n"
      "+0.999], \"lr\": 01}}}");
  EXPECT_TRUE(contains(nested, "2 errors")) << nested;
  EXPECT_TRUE(
      contains(nested, "optimizer.params.betas, line 3: wanted a number as JSON writes it, got +0.999"))
      << nested;
  for (const char* number : {"8", "8.0", "8e0", "0.8E+1", "80e-1"}) {
    EXPECT_TRUE(read("{\"train_batch_size\": " + std::string(number) + "}")) << number;
  }
  EXPECT_TRUE(read(R"({"train_batch_size": 8, "gradient_clipping": -0.0})"));
}

TEST(Config, MindsTheCaseOfANameWhereDeepSpeedDoes) {
  const auto given = [](const std::string& keys) {
    return refusal("{\"train_batch_size\": 8, " + keys + "}");
  };

  EXPECT_TRUE(
      contains(given(R"("zero_optimization": {"offload_param": {"device": "CPU"}})"),
               "zero_optimization.offload_param.device, line 1: wanted \"none\", \"cpu\" or \"nvme\", got "
               "\"CPU\"; did you mean \"cpu\"?"));
  EXPECT_TRUE(contains(given(R"("data_types": {"grad_accum_dtype": "FP32"})"), "did you mean \"fp32\"?"));
  EXPECT_TRUE(contains(given(R"("penstock": {"eviction": "LRU"})"), "did you mean \"lru\"?"));
  for (const char* any_case :
       {R"("communication_data_type": "FP32")", R"("seq_parallel_communication_data_type": "FP32")",
        R"("gradient_allreduce_op": "Mean")", R"("checkpoint": {"tag_validation": "warn"})",
        R"("optimizer": {"type": "ADAMW"})"}) {
    EXPECT_TRUE(contains(given(any_case), "accepted")) << given(any_case);
  }
}

TEST(Config, RefusesEveryBlockThatDeepSpeedRemovedEvenIfItIsOff) {
  for (const std::string block : {"nebula", "compression_training", "amp", "quantize_training",
                                  "sparse_gradients", "eigenvalue", "sparse_attention", "elasticity",
                                  "graph_harvesting", "curriculum_learning", "progressive_layer_drop"}) {
    for (const char* value : {R"({"enabled": false})", "{}", "false", "null"}) {
      const std::string message = refusal("{\"train_batch_size\": 8,\n\"" + block + "\": " + value + "}");
      EXPECT_TRUE(contains(message, "\n  " + block + ", line 2: ") &&
                  contains(message, "removed from DeepSpeed"))
          << message;
    }
  }
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "monitor_config": {}})"), "unknown key"));
}

TEST(Config, RefusesWhatDeepSpeedRefusesInABlockThatIsOff) {
  const auto given = [](const std::string& keys) {
    return refusal("{\"train_batch_size\": 8, " + keys + "}");
  };

  for (const char* const off :
       {R"("wandb": {"enabled": false, "group": null, "team": "t", "project": "p"})",
        R"("comet": {"enabled": "no", "samples_log_interval": 5, "online": null})",
        R"("comms_logger": {"enabled": false, "prof_all": false, "prof_ops": ["all_reduce"]})",
        R"("hybrid_engine": {"enabled": 0, "max_out_tokens": "512"})",
        R"("compile": {"deepcompile": false, "passes": null, "debug_log": true})",
        R"("timers": {"throughput": {"enabled": true, "synchronized": false}})",
        R"("flops_profiler": {"enabled": false, "output_file": null})", R"("scheduler": {})",
        R"("zero_optimization": {"zenflow": null, "leaf_module": {}})"}) {
    EXPECT_TRUE(contains(given(off), "accepted")) << given(off);
  }
  for (const auto& [keys, says] : std::vector<std::pair<const char*, const char*>>{
           {R"("wandb": {"enabled": false, "projet": "p"})",
            "wandb.projet, line 1: unknown key; did you mean \"project\"?"},
           {R"("comms_logger": {"enabled": false, "prof_al": true})",
            "comms_logger.prof_al, line 1: unknown key"},
           {R"("comms_logger": {"enabled": false, "prof_ops": 5})",
            "comms_logger.prof_ops, line 1: wanted a list, got 5"},
           {R"("hybrid_engine": {"max_out_tokens": 0})",
            "hybrid_engine.max_out_tokens, line 1: wanted an integer of at least 1"},
           {R"("compile": {"enabled": false})", "compile.enabled, line 1: unknown key"},
           {R"("timers": {"throughput": {"enable": true}})", "timers.throughput.enable, line 1: unknown key"},
           {R"("timers": {"throughput": "auto"})", "timers.throughput, line 1: \"auto\" has no meaning"},
           {R"("flops_profiler": {"enabled": false, "profile_stp": 1})",
            "flops_profiler.profile_stp, line 1: unknown key; did you mean \"profile_step\"?"},
           {R"("scheduler": {"enabled": false})", "scheduler.enabled, line 1: unknown key"},
           {R"("zero_optimization": {"zenflow": {}})",
            "zero_optimization.zenflow, line 1: not supported yet; leave it out"},
           {R"("zero_optimization": {"zenflow": {"enabled": false}})",
            "zero_optimization.zenflow.enabled, line 1: unknown key"},
           {R"("hybrid_engine": {"enabled": true})",
            "hybrid_engine.enabled, line 1: not supported yet; only false is"},
       }) {
    EXPECT_TRUE(contains(given(keys), std::string("\n  ") + says)) << given(keys);
  }
}

// The bindings name every member, so that a new one does not compile until it is compared.
auto members(const OffloadConfig& offload) {
  const auto& [device, paths, pin] = offload;
  return std::tie(device, paths, pin);
}
auto members(const OptimizerConfig& optimizer) {
  const auto& [decay_mode, rate, betas, epsilon, decay, correction] = optimizer;
  return std::tie(decay_mode, rate, betas, epsilon, decay, correction);
}
auto members(const PenstockConfig& penstock) {
  const auto& [host, device, tile, in_flight, eviction, engine, integrity, format, weights, path_nodes,
               rank_nodes, deadline, threads] = penstock;
  return std::tie(host, device, tile, in_flight, eviction, engine, integrity, format, weights, path_nodes,
                  rank_nodes, deadline, threads);
}

void expect_equal(const Config& left, const Config& right) {
  const auto own_members = [](const Config& config) {
    const auto& [train, micro, steps, stage, dtype, accumulated, param, optimizer_offload, optimizer,
                 clipping, scale, block, depth, penstock, notes] = config;
    return std::tie(train, micro, steps, stage, dtype, accumulated, clipping, scale, block, depth);
  };
  EXPECT_TRUE(own_members(left) == own_members(right));
  EXPECT_TRUE(members(left.offload_param) == members(right.offload_param));
  EXPECT_TRUE(members(left.offload_optimizer) == members(right.offload_optimizer));
  EXPECT_TRUE(members(left.optimizer) == members(right.optimizer));
  EXPECT_TRUE(members(left.penstock) == members(right.penstock));
  EXPECT_EQ(left.to_json(), right.to_json());
}

TEST(Config, MeansInCodeWhatTheSmallestFileMeans) {
  for (const std::uint32_t world_size : {1u, 4u}) {
    const auto smallest = read(R"({"train_micro_batch_size_per_gpu": 1})", world_size);
    Config expected;
    expected.train_batch_size = world_size;  // the only member that depends on the ranks

    ASSERT_TRUE(smallest) << smallest.error().message();
    expect_equal(*smallest, expected);
    EXPECT_TRUE(expected.validate()) << expected.validate().error().message();
  }
}

TEST(Config, RefusesAFileWithoutABatchSizeAndNamesTheSmallestFile) {
  for (const std::uint32_t world_size : {1u, 4u}) {
    for (const char* file : {"{}", R"({"gradient_accumulation_steps": 2})"}) {
      EXPECT_TRUE(
          contains(refusal(file, world_size),
                   "\n  train_batch_size: this or train_micro_batch_size_per_gpu must be given; for the "
                   "defaults set \"train_micro_batch_size_per_gpu\": 1"))
          << refusal(file, world_size);
    }
  }
}

TEST(Config, CompletesTheBatchSizesAsDeepSpeedDoes) {
  const auto sizes = [](std::string_view text, std::uint32_t world) {
    const auto config = read(text, world);
    if (!config) return config.error().message();
    return std::to_string(config->train_batch_size) + " = " + std::to_string(config->micro_batch_size) +
           " * " + std::to_string(config->gradient_accumulation_steps);
  };
  EXPECT_EQ(sizes(R"({"train_batch_size": 64, "gradient_accumulation_steps": 4})", 8), "64 = 2 * 4");
  EXPECT_EQ(sizes(R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 5})", 7),
            "105 = 3 * 5");
  EXPECT_EQ(sizes(R"({"train_micro_batch_size_per_gpu": 3})", 8), "24 = 3 * 1");
  EXPECT_TRUE(contains(sizes(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 3})", 2),
                       "10 is not 3 (train_micro_batch_size_per_gpu) * 1 (gradient_accumulation_steps) * 2"));
  EXPECT_TRUE(contains(sizes(R"({"train_batch_size": 2})", 4), "2 is not 0 "));
  EXPECT_TRUE(contains(sizes(R"({"train_micro_batch_size_per_gpu": 4294967295})", 4), "more than"));
}

TEST(Config, UsesTheDefaultForAutoWhereThereIsOneAndSaysSo) {
  const auto config =
      read(R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->optimizer.learning_rate, 1e-3f);
  ASSERT_FALSE(config->notes.empty());
  EXPECT_EQ(config->notes.front(), "optimizer.params.lr, line 1: \"auto\" means the default here");
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": "auto"})"), "give a value"));
}

TEST(Config, TakesNoAutoWhereDeepSpeedTakesNone) {
  for (const char* text :
       {R"("zero_optimization": "auto")", R"("bf16": "auto")", R"("scheduler": "auto")",
        R"("communication_data_type": "auto")", R"("checkpoint": {"tag_validation": "auto"})",
        R"("train_micro_batch_size_per_gpu": "auto")", R"("optimizer": null)"}) {
    EXPECT_FALSE(read("{\"train_batch_size\": 8, " + std::string(text) + "}")) << text;
  }
  EXPECT_TRUE(read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": "auto"}})"));
}

TEST(Config, RefusesNullForAKeyOfPenstock) {
  for (const char* key : {"host_budget", "device_budget", "tile_elements", "tiles_in_flight", "path_weights",
                          "path_nodes", "rank_nodes", "io_deadline_seconds", "unit_elements_max", "eviction",
                          "io_engine", "integrity", "state_format", "threads"}) {
    const std::string message =
        refusal(R"({"train_batch_size": 8, "penstock": {")" + std::string(key) + R"(": null}})");
    EXPECT_TRUE(contains(message, "penstock." + std::string(key) + ", line 1: ") &&
                contains(message, "got null"))
        << message;
  }
}

TEST(Config, NotesEveryKeyThatHasNoEffectHere) {
  const auto config = read(R"({"train_batch_size": 8, "steps_per_print": 10,
    "zero_optimization": {"stage": 3, "sub_group_size": 1e9}, "optimizer": {"type": "Adam"}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->notes,
            (std::vector<std::string>{
                "steps_per_print, line 1: no effect here: concerns DeepSpeed's own reports only",
                "zero_optimization.sub_group_size, line 2: no effect here: the optimizer's state moves in "
                "tiles, see penstock.tile_elements"}));
}

TEST(Config, RefusesBothNamesOfAKeyAndOldAndNewTogether) {
  EXPECT_TRUE(
      contains(refusal(R"({"train_batch_size": 8, "bf16": {}, "bfloat16": {}})"), "keep one of them"));
  EXPECT_TRUE(
      contains(refusal(R"({"train_batch_size": 8, "zero_optimization":
    {"stage": 3, "cpu_offload": true, "offload_optimizer": {"device": "cpu"}}})"),
               "cpu_offload, line 2: deprecated, and zero_optimization.offload_optimizer is given too"));
}

TEST(Config, ReadsDeprecatedOffloadKeys) {
  const auto config = read(R"({"train_batch_size": 8, "zero_optimization":
    {"stage": 3, "cpu_offload": true, "cpu_offload_param": true}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->offload_optimizer.device, OffloadDevice::cpu);
  EXPECT_EQ(config->offload_param.device, OffloadDevice::cpu);
}

TEST(Config, NeedsAPathForNvme) {
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "zero_optimization":
    {"stage": 3, "offload_optimizer": {"device": "nvme"}}})"),
                       "offload_optimizer.device, line 2: \"nvme\" needs nvme_path"));
  const auto config = read(R"({"train_batch_size": 8, "zero_optimization":
    {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": ["/a", "/b"]}}})");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->offload_optimizer.nvme_paths, (std::vector<std::filesystem::path>{"/a", "/b"}));
}

TEST(Config, RefusesBf16WithFp16AndADynamicLossScale) {
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "bf16": {"enabled": true},
    "fp16": {"enabled": true, "loss_scale": 8}})"),
                       "cannot both be enabled"));
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "fp16": {"enabled": true}})"),
                       "fp16.loss_scale: a dynamic loss scale"));
  const auto config = read(R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 1024}})");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->dtype, DType::fp16);
  EXPECT_EQ(config->loss_scale, 1024.0f);
}

TEST(Config, TrainsInSinglePrecisionUnlessToldOtherwise) {
  EXPECT_EQ(read(R"({"train_batch_size": 8})")->dtype, DType::fp32);
  EXPECT_EQ(read(R"({"train_batch_size": 8, "bfloat16": {"enabled": true}})")->dtype, DType::bf16);
}

TEST(Config, AcceptsWhatIsNotSupportedAsLongAsItIsOff) {
  const auto off = read(R"({"train_batch_size": 8, "prescale_gradients": false, "scheduler": {},
    "flops_profiler": {"enabled": false, "profile_step": 1},
    "zero_optimization": {"stage": 3, "zero_quantized_weights": false, "zero_hpz_partition_size": 1}})");
  ASSERT_TRUE(off) << off.error().message();

  const std::string on = refusal(R"({"train_batch_size": 8, "prescale_gradients": true,
    "scheduler": {"type": "WarmupLR"}, "flops_profiler": {"enabled": true},
    "zero_optimization": {"stage": 3, "zero_quantized_weights": true, "zero_hpz_partition_size": 8}})");
  EXPECT_TRUE(contains(on, "5 errors")) << on;
  EXPECT_TRUE(contains(on, "prescale_gradients, line 1: not supported yet; only false is")) << on;
  EXPECT_TRUE(contains(on, "scheduler, line 2: not supported yet")) << on;
}

TEST(Config, TakesAdamForAdamWUnlessAdamWModeIsOff) {
  const auto decoupled = [](std::string_view optimizer) {
    return read("{\"train_batch_size\": 8, \"optimizer\": " + std::string(optimizer) + "}")
               ->optimizer.decay_mode == cpu_adam::AdamDecay::decoupled;
  };
  EXPECT_TRUE(decoupled(R"({"type": "Adam"})"));
  EXPECT_FALSE(decoupled(R"({"type": "ADAM", "params": {"adam_w_mode": false}})"));
  EXPECT_TRUE(decoupled(R"({"type": "AdamW", "params": {"adam_w_mode": false}})"));
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "optimizer": {"type": "Lion"}})"), "only Adam"));
}

TEST(Config, ReadsItsOwnBlockWithBytesAsNumbersOrStrings) {
  const auto config = read(R"({"train_batch_size": 8, "penstock": {"host_budget": "160MiB",
    "device_budget": 4096, "tile_elements": 32768, "tiles_in_flight": 8,
    "eviction": "lru", "io_engine": "threads", "integrity": "off", "io_deadline_seconds": 7, "threads": 2}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->penstock.host_budget, 160_MiB);
  EXPECT_EQ(config->penstock.device_budget, 4_KiB);
  EXPECT_EQ(config->penstock.tile_elements, ElementCount(32768));
  EXPECT_EQ(config->penstock.tiles_in_flight, 8u);
  EXPECT_EQ(config->penstock.eviction, swap::Eviction::lru);
  EXPECT_EQ(config->penstock.io_engine, tiers::EngineChoice::threads);
  EXPECT_EQ(config->penstock.integrity, Integrity::off);
  EXPECT_EQ(config->penstock.io_deadline_seconds, 7u);
  EXPECT_EQ(config->penstock.threads, 2u);
  for (const char* bad :
       {R"({"host_budget": "160 apples"})", R"({"host_budget": "-1MiB"})", R"({"host_budget": ""})",
        R"({"host_budget": "99999999TiB"})", R"({"tile_elements": 20000})", R"({"unit_elements_max": 1e6})",
        R"({"tiles_in_flight": 0})", R"({"io_deadline_seconds": 0})"}) {
    EXPECT_FALSE(read("{\"train_batch_size\": 8, \"penstock\": " + std::string(bad) + "}")) << bad;
  }
}

TEST(Config, KeepsSixteenMebibytesInFlightWhateverTheRequestSize) {
  EXPECT_EQ(read(R"({"train_batch_size": 1})")->aio_queue_depth, 4u);
  EXPECT_EQ(read(R"({"train_batch_size": 1, "aio": {"block_size": 1048576}})")->aio_queue_depth, 16u);
  EXPECT_EQ(read(R"({"train_batch_size": 1, "aio": {"block_size": 67108864}})")->aio_queue_depth, 1u);
  EXPECT_EQ(
      read(R"({"train_batch_size": 1, "aio": {"block_size": 1048576, "queue_depth": 3}})")->aio_queue_depth,
      3u);
}

TEST(Config, TakesSplitStateFormatsForBf16Alone) {
  const auto of = [](const std::string& precision, const std::string& format) {
    return read(R"({"train_batch_size": 1, )" + precision + R"("penstock": {"state_format": ")" + format +
                R"("}})");
  };
  const std::string bf16 = R"("bf16": {"enabled": true}, )";
  const std::string fp16 = R"("fp16": {"enabled": true, "loss_scale": 1024}, )";

  EXPECT_EQ(of(bf16, "split_q8")->penstock.state_format, cpu_adam::StateFormat::split_q8);
  EXPECT_EQ(read(of(bf16, "split")->to_json())->penstock.state_format, cpu_adam::StateFormat::split);
  EXPECT_EQ(of(fp16, "fp32")->penstock.state_format, cpu_adam::StateFormat::fp32);
  for (const std::string& precision : {fp16, std::string()}) {
    const auto refused = of(precision, "split_bf16");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("penstock.state_format"), std::string::npos)
        << refused.error().message();
  }
  EXPECT_FALSE(of(bf16, "split_fp8"));
}

TEST(Config, WantsOneNumberForEachPath) {
  const auto config = read(R"({"train_batch_size": 1, "zero_optimization": {
    "offload_optimizer": {"device": "nvme", "nvme_path": ["/a", "/b"]}},
    "penstock": {"path_weights": [1, 2, 3], "path_nodes": [0]}})");

  ASSERT_FALSE(config);
  const std::string message = config.error().message();
  EXPECT_NE(message.find("wanted one number for each directory of nvme_path, 2, got 3"), std::string::npos)
      << message;
  EXPECT_NE(message.find("penstock.path_nodes"), std::string::npos) << message;
  EXPECT_FALSE(read(R"({"train_batch_size": 1, "penstock": {"path_weights": [0, 1]}})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 1, "penstock": {"path_nodes": [0.5]}})"));
}

TEST(Config, WritesWhatItReadsBackUnchanged) {
  const auto config =
      read(R"({"train_batch_size": 96, "gradient_accumulation_steps": 2, "gradient_clipping": 0.3,
    "fp16": {"enabled": true, "loss_scale": 128}, "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": false},
      "offload_optimizer": {"device": "nvme", "nvme_path": ["/a", "/b"]}},
    "optimizer": {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.8, 0.95], "eps": 1e-9,
      "weight_decay": 0.1, "bias_correction": false, "adam_w_mode": false}},
    "aio": {"block_size": 262144, "queue_depth": 32},
    "penstock": {"host_budget": "1.5GiB", "eviction": "lru", "io_engine": "io_uring", "integrity": "off",
      "io_deadline_seconds": 5, "path_weights": [0.12345678901234568, 1], "path_nodes": [0, 1], "rank_nodes": [1]}})",
           3);
  ASSERT_TRUE(config) << config.error().message();

  const auto again = read(config->to_json(), 3);

  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->to_json(), config->to_json());
  EXPECT_EQ(again->optimizer.betas[0], 0.8f);
  EXPECT_EQ(again->optimizer.learning_rate, 3e-5f);
  EXPECT_EQ(again->penstock.path_weights, (std::vector<double>{0.12345678901234568, 1}));
  EXPECT_NE(config->to_json().find("\"betas\": [0.8, 0.95]"), std::string::npos) << config->to_json();
  EXPECT_TRUE(again->notes.empty()) << again->notes.front();
}

TEST(Config, WritesNoKeyThatHasNoValue) {
  const auto config = read(R"({"train_batch_size": 8})");

  const auto again = read(config->to_json());

  EXPECT_FALSE(contains(config->to_json(), "null")) << config->to_json();
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->to_json(), config->to_json());
}

TEST(Config, ReadsAFileAndNamesOneThatItCannotRead) {
  test::ScratchDirectory directory;
  std::ofstream(directory.path() / "ds_config.json") << R"({"train_batch_size": 8, "gradient_cliping": 1})";

  const auto misspelled = Config::from_file(directory.path() / "ds_config.json", 1);
  const auto missing = Config::from_file(directory.path() / "missing.json", 1);
  const auto no_file = Config::from_file(directory.path(), 1);

  EXPECT_TRUE(contains(misspelled.error().message(), (directory.path() / "ds_config.json").string()));
  EXPECT_EQ(missing.error().code(), ErrorCode::not_found);
  EXPECT_FALSE(no_file);
}

TEST(Config, ChecksItsDirectoriesOnlyWhenAsked) {
  test::ScratchDirectory directory;
  auto config = read(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/nonexistent/penstock"}}})");
  ASSERT_TRUE(config) << config.error().message();

  const auto missing = config->check_paths();
  std::ofstream(directory.path() / "file") << "x";
  config->offload_optimizer.nvme_paths = {directory.path() / "file"};
  const auto file = config->check_paths();
  config->offload_optimizer.nvme_paths = {directory.path()};
  const auto usable = config->check_paths();

  EXPECT_TRUE(contains(missing.error().message(), "/nonexistent/penstock does not exist"));
  EXPECT_TRUE(contains(file.error().message(), "is not a directory"));
  EXPECT_TRUE(usable);
}

TEST(Config, AnswersEveryTruncatedOrDamagedTextWithAValueOrAnError) {
  const std::string text = R"({"train_batch_size": 96, # "comment"
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": ["/a", "\u00e9"]}},
    "optimizer": {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.8, 0.95]}}, /* and */
    "penstock": {"host_budget": "1.5GiB", "tile_elements": 1.6384e4},})";
  ASSERT_TRUE(read(text)) << refusal(text);

  for (std::size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_FALSE(read(std::string_view(text).substr(0, length))) << length;
  }
  test::SeededRandom random(1);
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = text;
    for (std::uint64_t n = random.below(3) + 1; n > 0; --n) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    const auto config = read(damaged);
    if (config)
      EXPECT_TRUE(read(config->to_json())) << damaged;
    else
      EXPECT_EQ(config.error().code(), ErrorCode::invalid_config) << damaged;
  }
}

TEST(Config, RefusesAWorldWithoutRanks) {
  const auto refused = read("{}", 0);

  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(contains(refused.error().message(), "world_size, wanted at least 1, got 0"));
}

TEST(Config, TakesTheSwapDirectoriesOfTheParametersBeforeThoseOfTheOptimizer) {
  using Directories = std::vector<std::filesystem::path>;
  Config config;
  config.offload_param.nvme_paths = {"parameters"};
  config.offload_optimizer.nvme_paths = {"optimizer"};
  EXPECT_EQ(config.swap_directories(), Directories());

  config.offload_optimizer.device = OffloadDevice::nvme;
  EXPECT_EQ(config.swap_directories(), Directories{"optimizer"});

  config.offload_param.device = OffloadDevice::nvme;
  EXPECT_EQ(config.swap_directories(), Directories{"parameters"});
}

}  // namespace
}  // namespace penstock::zero
