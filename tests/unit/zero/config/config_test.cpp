#include "config_text.hpp"

#include "kit/scratch_directory.hpp"
#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>

namespace penstock::zero {
namespace {

TEST(Config, NamesTheLineOfASyntaxErrorAndOfAValueAtItsStart) {
  const std::string unterminated = refusal("{\"train_batch_size\": 8,\n \"bf16\": {\"enabled\": true}\n");
  const std::string twice = refusal("{\"train_batch_size\": 8,\n \"train_batch_size\": 16}");

  EXPECT_TRUE(contains(unterminated, "\n  line 3: ")) << unterminated;
  EXPECT_TRUE(contains(refusal("{\"train_batch_size\":\n\"8\"}"), "train_batch_size, line 2: "));
  EXPECT_TRUE(contains(twice, "\n  train_batch_size, line 2: the key is given twice, first on line 1"))
      << twice;
}

TEST(Config, NamesTheWordThatIsNoValue) {
  const auto of_rate = [](const std::string& word) {
    return refusal("{\"train_batch_size\": 8,\n \"optimizer\": {\"params\": {\"lr\": " + word + "}}}");
  };
  for (const char* const word : {"NaN", "nan", "Infinity", "-Infinity", "-nan", "True", "1e-3f"}) {
    const std::string text = of_rate(word);
    EXPECT_TRUE(contains(text, "\n  optimizer.params.lr, line 2: ")) << text;
    EXPECT_TRUE(contains(text, std::string(", got ") + word)) << text;
  }
  EXPECT_TRUE(refusal("{\"a\": \x1b}").ends_with("got ?"));
  EXPECT_LT(of_rate(std::string(1000, 'x')).size(), 300u);
}

TEST(Config, ReadsTheWordsAndNumbersForTrueAndFalseThatDeepSpeedConverts) {
  const auto bf16 = [](const std::string& value) {
    return read(R"({"train_batch_size": 1, "bf16": {"enabled": )" + value + "}}");
  };
  for (const char* const yes :
       {"1", "1.0", R"("true")", R"("yes")", R"("ON")", R"("1")", R"("y")", R"("T")"}) {
    EXPECT_EQ(bf16(yes).value().dtype, DType::bf16) << yes;
  }
  for (const char* const no : {"0", R"("false")", R"("No")", R"("off")", R"("0")", R"("n")", R"("f")"}) {
    EXPECT_EQ(bf16(no).value().dtype, DType::fp32) << no;
  }
  EXPECT_TRUE(
      contains(refusal(R"({"train_batch_size": 1, "bf16": {"enabled": 2}})"), "wanted true or false"));
  EXPECT_TRUE(read(R"({"train_batch_size": 1, "aio": {"single_submit": "yes"}})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 1, "aio": {"single_submit": 1}})"));
  EXPECT_FALSE(read(R"({"train_batch_size": 1, "optimizer": {"params": {"adam_w_mode": "yes"}}})"));
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
  "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/disk#1//a"},},
})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->offload_param.nvme_paths, std::vector<std::filesystem::path>{"/disk#1//a"});
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
  EXPECT_TRUE(contains(sizes(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 3,
                                 "gradient_accumulation_steps": 1})",
                             2),
                       "10 is not 3 (train_micro_batch_size_per_gpu) * 1 (gradient_accumulation_steps) * 2"));
  EXPECT_TRUE(contains(sizes(R"({"train_micro_batch_size_per_gpu": 4294967295})", 4),
                       "train_micro_batch_size_per_gpu, line 1: the batch of a step is too large: wanted at "
                       "most 4294967295 sequences, got 4294967295 (train_micro_batch_size_per_gpu) * 1"));
}

// 0 and 1, which integer division gives, are in no file.
TEST(Config, NamesThePartOfTheBatchSizeForWhichNoIntegerFits) {
  for (const char* total : {"4", "10"}) {
    const std::string steps = refusal(
        R"({"train_batch_size": )" + std::string(total) + R"(, "train_micro_batch_size_per_gpu": 3})", 2);
    EXPECT_TRUE(contains(steps,
                         "train_batch_size, line 1: train_batch_size is not the product of its parts: no "
                         "integer gradient_accumulation_steps makes 3 (train_micro_batch_size_per_gpu) * "
                         "gradient_accumulation_steps * 2 (ranks) equal to " +
                             std::string(total)))
        << steps;
  }
  const std::string micro = refusal(R"({"train_batch_size": 2})", 4);
  EXPECT_TRUE(contains(micro,
                       "no integer train_micro_batch_size_per_gpu makes train_micro_batch_size_per_gpu * 1 "
                       "(gradient_accumulation_steps) * 4 (ranks) equal to 2"))
      << micro;
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

TEST(Config, RefusesBf16WithFp16) {
  EXPECT_TRUE(contains(refusal(R"({"train_batch_size": 8, "bf16": {"enabled": true},
    "fp16": {"enabled": true, "loss_scale": 8}})"),
                       "cannot both be enabled"));
}

TEST(Config, HasADynamicLossScaleUnlessFp16GivesAStaticOne) {
  const auto fixed = read(R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 1024}})");
  ASSERT_TRUE(fixed) << fixed.error().message();
  EXPECT_EQ(fixed->dtype, DType::fp16);
  EXPECT_EQ(fixed->loss_scaler().scale(), 1024);
  EXPECT_FALSE(fixed->loss_scaler().is_dynamic());

  const auto moving = read(R"({"train_batch_size": 8, "fp16": {"enabled": true, "initial_scale_power": 4}})");
  ASSERT_TRUE(moving) << moving.error().message();
  EXPECT_EQ(moving->loss_scaler().scale(), 16);
  EXPECT_TRUE(moving->loss_scaler().is_dynamic());
  EXPECT_EQ(read(R"({"train_batch_size": 8, "fp16": {"initial_scale_power": 4}})")->loss_scaler().scale(), 1);
}

TEST(Config, TakesSubGroupsAndTheirBuffersForTilesUnlessTheseAreGiven) {
  const auto with = [](const std::string& zero, const std::string& penstock = "") {
    return read(
               R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2, )" +
               zero + R"(}, "penstock": {)" + penstock + "}}")
        .value();
  };
  const ElementCount usual = Config().penstock.tile();
  EXPECT_EQ(with(R"("sub_group_size": 1e9)").penstock.tile(), usual);
  EXPECT_EQ(with(R"("sub_group_size": 40000)").penstock.tile(), ElementCount(32768));
  EXPECT_EQ(with(R"("sub_group_size": 0)").penstock.tile(), ElementCount(16384));
  const Config given = with(R"("sub_group_size": 40000)", R"("tile_elements": 65536)");
  EXPECT_EQ(given.penstock.tile(), ElementCount(65536));
  EXPECT_TRUE(
      contains(given.notes.front(), "sub_group_size, line 1: has no effect: penstock.tile_elements is"));

  const auto buffers = [&](const std::string& count, const std::string& penstock = "") {
    return with(R"("offload_optimizer": {"device": "cpu", "buffer_count": )" + count + "}", penstock);
  };
  EXPECT_EQ(Config().penstock.tiles_in_flight, 4u);
  const auto of_drives = [&](const std::string& directories) {
    return with(R"("offload_optimizer": {"device": "nvme", "nvme_path": )" + directories + "}")
        .penstock.tiles_in_flight;
  };
  EXPECT_EQ(of_drives(R"("/a")"), 4u);
  EXPECT_EQ(of_drives(R"(["/a", "/b", "/c"])"), 12u) << "4 of each drive";
  EXPECT_EQ(buffers("9").penstock.tiles_in_flight, 9u);
  EXPECT_EQ(buffers("0").penstock.tiles_in_flight, 1u);
  EXPECT_EQ(buffers("9", R"("tiles_in_flight": 3)").penstock.tiles_in_flight, 3u);
  EXPECT_TRUE(contains(buffers("9", R"("tiles_in_flight": 3)").notes.front(),
                       "buffer_count, line 1: has no effect: penstock.tiles_in_flight is given"));
}

TEST(Config, AddsGradientsInTheCommunicationType) {
  const auto with = [](const std::string& keys) {
    return R"({"train_batch_size": 8, "optimizer": {"type": "Adam"}, "bf16": {"enabled": true}, )" + keys +
           "}";
  };
  const auto exact = read(with(R"("communication_data_type": "FP32")"));
  ASSERT_TRUE(exact) << exact.error().message();
  EXPECT_EQ(exact->penstock.reduction, Reduction::exact);
  EXPECT_TRUE(contains(exact->notes.front(), "communication_data_type, line 1: gradients are exchanged in"));

  const auto own = read(with(R"("communication_data_type": "bf16")"));
  ASSERT_TRUE(own) << own.error().message();
  EXPECT_EQ(own->penstock.reduction, std::nullopt);
  EXPECT_EQ(own->notes, std::vector<std::string>{});
  EXPECT_TRUE(contains(
      refusal(with(R"("communication_data_type": "fp16")")),
      "communication_data_type, line 1: not supported; only fp32 and bf16, the type of the parameters"));
  EXPECT_TRUE(
      contains(refusal(with(R"("communication_data_type": "fp32", "penstock": {"reduction": "native"})")),
               "communication_data_type, line 1: fp32 sums need penstock.reduction \"exact\""));
}

TEST(Config, TrainsInSinglePrecisionUnlessToldOtherwise) {
  EXPECT_EQ(read(R"({"train_batch_size": 8})")->dtype, DType::fp32);
  EXPECT_EQ(read(R"({"train_batch_size": 8, "bfloat16": {"enabled": true}})")->dtype, DType::bf16);
}

TEST(Config, ReadsItsOwnBlockWithBytesAsNumbersOrStrings) {
  const auto config = read(R"({"train_batch_size": 8, "penstock": {"host_budget": "160MiB",
    "device_budget": 4096, "tile_elements": 32768, "tiles_in_flight": 8,
    "unit_elements_max": 1e6, "eviction": "lru", "io_engine": "threads", "integrity": "off",
    "io_deadline_seconds": 7, "reduction": "exact", "threads": 2}})");

  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->penstock.host_budget, 160_MiB);
  EXPECT_EQ(config->penstock.device_budget, 4_KiB);
  EXPECT_EQ(config->penstock.tile_elements, ElementCount(32768));
  EXPECT_EQ(config->penstock.tiles_in_flight, 8u);
  EXPECT_EQ(config->penstock.unit_elements_max, ElementCount(1'000'000));
  EXPECT_EQ(config->penstock.eviction, swap::Eviction::lru);
  EXPECT_EQ(config->penstock.io_engine, tiers::EngineChoice::threads);
  EXPECT_EQ(config->penstock.integrity, Integrity::off);
  EXPECT_EQ(config->penstock.io_deadline_seconds, 7u);
  EXPECT_EQ(config->penstock.reduction, Reduction::exact);
  EXPECT_EQ(config->penstock.threads, 2u);
  for (const char* bad :
       {R"({"host_budget": "160 apples"})", R"({"host_budget": "-1MiB"})", R"({"host_budget": ""})",
        R"({"host_budget": "1.5"})", R"({"host_budget": "0.5 B"})", R"({"host_budget": "99999999TiB"})",
        R"({"tile_elements": 20000})", R"({"unit_elements_max": -1})", R"({"tiles_in_flight": 0})",
        R"({"io_deadline_seconds": 0})", R"({"reduction": "Exact"})"}) {
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
  const auto config = read(R"({"train_batch_size": 1, "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": ["/a", "/b"]}},
    "penstock": {"path_weights": [1, 2, 3], "path_nodes": [0]}})");

  ASSERT_FALSE(config);
  const std::string message = config.error().message();
  EXPECT_NE(message.find("wanted one number for each directory of swap files, 2, got 3"), std::string::npos)
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
  EXPECT_EQ(again->optimizer.betas[0], 0.8);
  EXPECT_EQ(again->optimizer.learning_rate, 3e-5);
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

TEST(Config, NotesWhoUpdatesTheStatesWhereTheyAreNotOffloaded) {
  const auto notes = [](const std::string& offload, const std::string& penstock) {
    const auto config =
        read(R"({"train_batch_size": 1, "zero_optimization": {"stage": 3, "offload_optimizer": {)" + offload +
             R"(}}, "penstock": {)" + penstock + "}}");
    std::string all;
    for (const std::string& note : config->notes) all += note + "\n";
    return all;
  };
  const char* const why = "has no effect: offload_optimizer.device is none";

  EXPECT_TRUE(contains(notes(R"("device": "none", "ratio": 0.5)", ""), why));
  EXPECT_TRUE(contains(notes(R"("device": "none", "ratio": 0.5)", ""), "offload_optimizer.ratio, line 1: "));
  EXPECT_TRUE(contains(notes("", R"("update_split": "automatic")"), why));
  EXPECT_TRUE(contains(notes("", R"("device_states": 4096)"), "penstock.device_states, line 1: "));
  EXPECT_FALSE(contains(notes(R"("device": "cpu")", R"("device_states": 4096)"), "penstock.device_states"));
  EXPECT_TRUE(contains(notes("", R"("update_split": "automatic")"), "penstock.update_split, line 1: "));
  EXPECT_FALSE(contains(notes(R"("device": "none", "ratio": 1)", R"("update_split": "ratio")"), why));
  EXPECT_FALSE(contains(notes(R"("device": "cpu", "ratio": 0.5)", ""), why));
  EXPECT_FALSE(contains(notes(R"("device": "cpu")", R"("update_split": "automatic")"), why));
}

TEST(Config, NotesPathWeightsWithoutPaths) {
  const auto noted = [](const std::string& offload) {
    const auto config = Config::from_text(
        R"({"train_batch_size": 1, "bf16": {"enabled": true}, "penstock": {"path_weights": [1]},
            "zero_optimization": {"stage": 3)" +
            offload + "}}",
        "test", 1);
    return std::any_of(config->notes.begin(), config->notes.end(),
                       [](const std::string& note) { return contains(note, "path_weights"); });
  };

  EXPECT_TRUE(noted(""));
  EXPECT_FALSE(noted(R"(, "offload_param": {"device": "nvme", "nvme_path": "/tmp"})"));
}

TEST(Config, ReportsAFileThatCannotBeReadToItsEnd) {
  const auto unreadable = Config::from_file("/proc/self/mem", 1);
  test::ScratchDirectory directory;
  std::ofstream(directory.path() / "long.json") << std::string((16 << 20) + 1, ' ');
  const auto endless = Config::from_file("/dev/zero", 1);
  const auto long_one = Config::from_file(directory.path() / "long.json", 1);

  ASSERT_FALSE(unreadable);
  EXPECT_EQ(unreadable.error().code(), ErrorCode::io);
  EXPECT_TRUE(contains(unreadable.error().message(), "/proc/self/mem")) << unreadable.error().message();
  ASSERT_FALSE(endless);
  EXPECT_EQ(endless.error().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(contains(endless.error().message(), "wanted a regular file")) << endless.error().message();
  ASSERT_FALSE(long_one);
  EXPECT_EQ(long_one.error().code(), ErrorCode::invalid_config);
  EXPECT_TRUE(contains(long_one.error().message(), "too long")) << long_one.error().message();
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

TEST(Config, SwapsToTheDurableDirectoriesOfARunThatHasThem) {
  using Directories = std::vector<std::filesystem::path>;
  Config config;
  EXPECT_FALSE(config.is_durable());

  config.penstock.durable_directories = {"run0", "run1"};
  EXPECT_TRUE(config.is_durable());
  EXPECT_EQ(config.swap_directories(), Directories());

  config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"swap"}};
  EXPECT_EQ(config.swap_directories(), (Directories{"run0", "run1"}));
}

}  // namespace
}  // namespace penstock::zero
