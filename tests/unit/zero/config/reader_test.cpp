#include "config_text.hpp"

#include <penstock/zero/config/config_file.hpp>

#include "kit/print.hpp"

#include <gtest/gtest.h>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

TEST(ConfigReader, ReportsEveryErrorOfAFileAtOnceInTheOrderOfItsLines) {
  const auto config = read(R"({
  "train_batch_size": "8",
  "zero_optimization": {
    "stage": 4,
    "stage3_max_live_parameter": 1000,
    "offload_optimizer": {"device": "gpu"}
  },
  "gradient_cliping": 0.5
})");

  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code(), ErrorCode::invalid_config);
  EXPECT_EQ(config.error().message(),
            "the configuration cannot be used: 5 errors: ds_config.json [ConfigFile::parse]\n"
            "  train_batch_size, line 2: wanted an integer from 1 to 4294967295, got \"8\"; write it without "
            "quotes\n"
            "  zero_optimization.stage, line 4: wanted an integer from 0 to 3, got 4\n"
            "  zero_optimization.stage3_max_live_parameter, line 5: unknown key; did you mean "
            "\"stage3_max_live_parameters\"?\n"
            "  zero_optimization.offload_optimizer.device, line 6: wanted \"none\", \"cpu\" or \"nvme\", got "
            "\"gpu\"\n"
            "  gradient_cliping, line 8: unknown key; did you mean \"gradient_clipping\"?");
}

TEST(ConfigReader, NamesTheKeyForANameThatOtherLibrariesUse) {
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

TEST(ConfigReader, SuggestsNothingForAShortWordThatHasLittleInCommonWithAnyKey) {
  const std::string unlike = refusal(R"({"train_batch_size": 8, "foo": 1})");
  EXPECT_TRUE(contains(unlike, "foo, line 1: unknown key")) << unlike;
  EXPECT_FALSE(contains(unlike, "did you mean")) << unlike;
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "aoi": {}})"), "did you mean \"aio\"?"));
}

TEST(ConfigReader, TakesTheKeysOfDeepSpeedThatHaveNoEffectHere) {
  const auto config = read(R"({"train_batch_size": 8, "log_level": "info", "disable_python_gc": true,
    "managed_gradient_accumulation": false, "vocabulary_size": 50257, "expert_parallel": {"enabled": false},
    "use_data_before_expert_parallelism": false, "datastates_ckpt": {"a member of another library": 16},
    "data_types": {"param_dtype": null, "buffer_dtype": "fp32", "keep_in_fp32_modules": "auto"}})");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "expert_parallel": {"enabled": true}})"),
                       "expert_parallel, line 1: not supported yet"));
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "data_types": {"param_dtype": "bf16"}})"),
                       "data_types.param_dtype, line 1: not supported yet"));
}

TEST(ConfigReader, SaysWhereAMisplacedKeyBelongs) {
  const std::string message =
      refusal(R"({"train_batch_size": 8, "zero_optimization": {"aio": {"block_size": 262144}}})");

  EXPECT_TRUE(
      contains(message, "zero_optimization.aio, line 1: unknown key; \"aio\" belongs at the top level"))
      << message;
}

TEST(ConfigReader, RefusesEveryBlockThatDeepSpeedRemovedEvenIfItIsOff) {
  for (const std::string block : {"nebula", "compression_training", "amp", "quantize_training",
                                  "sparse_gradients", "eigenvalue", "sparse_attention", "elasticity",
                                  "graph_harvesting", "curriculum_learning", "progressive_layer_drop"}) {
    for (const char* value : {R"({"enabled": false})", "{}", "false", "null"}) {
      const std::string message = refusal("{\"train_batch_size\": 8,\n\"" + block + "\": " + value + "}");
      EXPECT_TRUE(contains(message, "\n  " + block + ", line 2: ") &&
                  contains(message, "removed in DeepSpeed"))
          << message;
    }
  }
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "monitor_config": {}})"), "unknown key"));
}

TEST(ConfigReader, RefusesWhatDeepSpeedRefusesInABlockThatIsOff) {
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

TEST(ConfigReader, AcceptsWhatIsNotSupportedAsLongAsItIsOff) {
  const auto off = read(R"({"train_batch_size": 8, "prescale_gradients": false, "scheduler": {},
    "flops_profiler": {"enabled": false, "profile_step": 1},
    "zero_optimization": {"stage": 3, "zero_quantized_weights": false, "zero_hpz_partition_size": 1}})");
  ASSERT_TRUE(off) << off.error().message();

  const std::string on = refusal(R"({"train_batch_size": 8, "disable_allgather": true,
    "scheduler": {"type": "StepLR"}, "data_efficiency": {"enabled": true},
    "zero_optimization": {"stage": 3, "zero_quantized_weights": true, "zero_hpz_partition_size": 8}})");
  EXPECT_TRUE(contains(on, "5 errors")) << on;
  EXPECT_TRUE(contains(on, "disable_allgather, line 1: not supported yet; only false is")) << on;
  EXPECT_TRUE(contains(on, "scheduler.type, line 2: not supported yet")) << on;
}

TEST(ConfigReader, NotesEveryKeyThatHasNoEffectHere) {
  const auto config = read(R"({"train_batch_size": 8, "steps_per_print": 10,
    "zero_optimization": {"stage": 3, "max_reuse_distance": 2e9}, "optimizer": {"type": "Adam"}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->notes,
            (std::vector<std::string>{
                "steps_per_print, line 1: no effect here: concerns DeepSpeed's own reports only",
                "zero_optimization.max_reuse_distance, line 2: has no effect: neither penstock.release nor "
                "penstock.eviction is reuse_distance, so parameters are kept while there is room"}));
}

TEST(ConfigReader, RefusesBothNamesOfAKeyAndOldAndNewTogether) {
  EXPECT_TRUE(
      contains(refusal(R"({"train_batch_size": 8, "bf16": {}, "bfloat16": {}})"), "keep one of them"));
  EXPECT_TRUE(
      contains(refusal(R"({"train_batch_size": 8, "zero_optimization":
    {"stage": 3, "cpu_offload": true, "offload_optimizer": {"device": "cpu"}}})"),
               "cpu_offload, line 2: deprecated, and zero_optimization.offload_optimizer is given too"));
}

TEST(ConfigReader, ReadsAStageThatIsTrueOrFalse) {
  const auto old = read(R"({"train_batch_size": 8, "zero_optimization": true})");
  ASSERT_TRUE(old) << old.error().message();
  EXPECT_EQ(old->stage, 1u);
  EXPECT_EQ(old->notes.front(), "zero_optimization, line 1: deprecated, use an object with \"stage\": 1");
  EXPECT_EQ(read(R"({"train_batch_size": 8, "zero_optimization": false})")->stage, 0u);
  EXPECT_EQ(read(R"({"train_batch_size": 8})")->stage, 0u);
}

TEST(ConfigReader, NotesAnOffloadThatDeepSpeedIgnores) {
  const auto notes = [](const std::string& stage) {
    return read(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}, "zero_optimization": {)" + stage +
                R"("offload_optimizer": {"device": "cpu"}}})")
        ->notes;
  };
  EXPECT_EQ(notes(""), std::vector<std::string>{"zero_optimization.offload_optimizer, line 1: is done here; "
                                                "DeepSpeed ignores it at stage 0, which is the default"});
  EXPECT_EQ(notes(R"("stage": 2, )"), std::vector<std::string>{});
}

TEST(ConfigReader, TakesDeepSpeedsOtherNamesOfTypes) {
  for (const auto& [name, dtype] :
       std::vector<std::pair<std::string, DType>>{{"float32", DType::fp32},
                                                  {"float", DType::fp32},
                                                  {"torch.float32", DType::fp32},
                                                  {"bfloat16", DType::bf16},
                                                  {"torch.bfloat16", DType::bf16}}) {
    const auto config = read(R"({"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {
      "grad_accum_dtype": ")" +
                             name + R"("}})");
    ASSERT_TRUE(config) << name << config.error().message();
    EXPECT_EQ(config->grad_accum_dtype, dtype) << name;
  }
  for (const std::string name : {"float16", "half", "torch.float16"}) {
    const auto config = read(R"({"train_batch_size": 8, "fp16": {"enabled": true}, "data_types": {
      "grad_accum_dtype": ")" +
                             name + R"("}})");
    ASSERT_TRUE(config) << name << config.error().message();
    EXPECT_EQ(config->grad_accum_dtype, DType::fp16) << name;
  }
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "data_types": {"grad_accum_dtype": "double"}})"),
                       R"(wanted "fp32", "fp16" or "bf16", got "double")"));
}

TEST(ConfigReader, NotesNumbersThatActAsOthers) {
  const auto notes = [](const std::string& keys) {
    const auto config = read(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}, )" + keys + "}");
    return config ? config->notes : std::vector<std::string>{config.error().message()};
  };
  EXPECT_EQ(
      notes(R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9,
                    "total_num_steps": 8}})"),
      std::vector<std::string>{"scheduler.params.warmup_num_steps, line 1: more than total_num_steps, 8: "
                               "the warm-up would end after the run"});
  EXPECT_EQ(notes(R"("scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 8,
                    "total_num_steps": 8}})"),
            std::vector<std::string>{});
  EXPECT_EQ(
      notes(R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/a",
                    "buffer_count": 0}})")
          .front(),
      "zero_optimization.offload_optimizer.buffer_count, line 2: 0 acts as 1");
}

TEST(ConfigReader, NotesATileThatIsTooSmall) {
  const auto config = read(R"({"train_batch_size": 8, "optimizer": {"type": "Adam"},
    "zero_optimization": {"stage": 3, "sub_group_size": 0}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->penstock.tile_elements, cpu_adam::block_elements);
  EXPECT_EQ(config->notes, std::vector<std::string>{"zero_optimization.sub_group_size, line 2: 0 acts as "
                                                    "16384, the smallest tile"});
}

TEST(ConfigReader, TakesNoNameWithADotForANestedKey) {
  for (const char* const keys :
       {R"("zero_optimization.stage": 3)", R"("zero_optimization": {"offload_optimizer.device": "cpu"})"}) {
    const std::string text = std::string(R"({"train_batch_size": 8, )") + keys + "}";
    EXPECT_TRUE(contains(refusal(text), "unknown key: no name has a dot; write nested objects")) << text;
  }
}

TEST(ConfigReader, ReportsAMissingParameterOnce) {
  EXPECT_TRUE(
      contains(refusal(R"({"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR"}})"), "1 error: "));
}

TEST(ConfigReader, WantsAnObjectWhereABlockHasNoEffect) {
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "flops_profiler": true})"),
                       "flops_profiler, line 1: wanted an object, got true"));
  EXPECT_TRUE(read(R"({"train_batch_size": 8, "flops_profiler": {"enabled": true}})"));
}

TEST(ConfigReader, WantsTextInUtf8) {
  const auto with_name = [](const std::string& bytes) {
    return "{\"train_batch_size\": 8,\n \"wandb\": {\"team\": \"" + bytes + "\"}}";
  };
  for (const char* const bytes : {"\xe9", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"})
    EXPECT_TRUE(contains(refusal(with_name(bytes)), "line 2: byte 44 is not UTF-8"))
        << refusal(with_name(bytes));
  for (const char* const bytes : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf"})
    EXPECT_TRUE(read(with_name(bytes))) << refusal(with_name(bytes));
}

TEST(ConfigReader, TakesNoFileNameWithANul) {
  EXPECT_EQ(ConfigFile::read(std::string("a\0b", 3), {}).error().code(), ErrorCode::invalid_argument);
}

TEST(ConfigReader, NeedsNoOtherDirectoryForADurableRun) {
  const auto config = read(R"({"train_batch_size": 8, "penstock": {"durable_directory": "/run7"},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->swap_directories(), std::vector<std::filesystem::path>{"/run7"});
}

TEST(ConfigReader, ReadsDeprecatedOffloadKeys) {
  const auto config = read(R"({"train_batch_size": 8, "zero_optimization":
    {"stage": 3, "cpu_offload": true, "cpu_offload_param": true}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->offload_optimizer.device, OffloadDevice::cpu);
  EXPECT_EQ(config->offload_param.device, OffloadDevice::cpu);
}

}  // namespace
}  // namespace penstock::zero
