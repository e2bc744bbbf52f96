#include "unit/arguments/bad_arguments.hpp"

#include <penstock/zero/config/config_file.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/layout/model_layout.hpp>
#include <penstock/zero/layout/row_blocks.hpp>

#include <cmath>
#include <filesystem>

namespace penstock::test {
namespace {

using namespace zero;

const std::string smallest = R"({"train_micro_batch_size_per_gpu": 1})";

void add_text_rows(BadArguments& bad) {
  const std::vector<std::string> texts = {"",
                                          " ",
                                          "null",
                                          "1",
                                          "[]",
                                          "{",
                                          "}",
                                          "\"",
                                          "{\"a\":",
                                          std::string("\0", 1),
                                          "{}",
                                          "{\"nan\": NaN}",
                                          std::string(100'000, '['),
                                          std::string(5'000'000, ' '),
                                          "\xff\xfe",
                                          "/*",
                                          "#",
                                          R"({"train_micro_batch_size_per_gpu": 1e400})",
                                          R"({"train_micro_batch_size_per_gpu": -1})",
                                          R"({"train_micro_batch_size_per_gpu": 99999999999999999999})",
                                          R"({"train_micro_batch_size_per_gpu": {}})"};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    bad("Config::from_text", "text", "number " + std::to_string(i), [text = texts[i]] {
      return refused(Config::from_text(text, "name", 1), "", ErrorCode::invalid_config);
    });
  }
  for (const std::string& name : {std::string(), std::string("a\0\n", 3), std::string(100'000, 'x')}) {
    bad("Config::from_text", "name", "of " + std::to_string(name.size()) + " bytes",
        [=] { return fails(Config::from_text("{", name, 1)); });
  }
  bad("Config::from_text", "world_size", "0",
      [] { return refused(Config::from_text(smallest, "name", 0), "world_size"); });
  bad("Config::from_text", "world_size", "the most", [] {
    (void)Config::from_text(smallest, "name", ~0u);
    return harmless();
  });
  bad("ConfigFile::parse", "options.world_size", "0",
      [] { return refused(ConfigFile::parse(smallest, "name", {.world_size = 0}), "world_size"); });
  bad("ConfigFile::parse", "text", "not closed",
      [] { return refused(ConfigFile::parse("{", "name", {}), "", ErrorCode::invalid_config); });
  for (const std::string& argument : {std::string(), std::string("===="), std::string("a\0b", 3)}) {
    bad("ConfigFile::of_argument", "argument", std::to_string(argument.size()) + " bytes",
        [=] { return fails(ConfigFile::of_argument(argument, {})); });
    bad("ConfigFile::read", "file", std::to_string(argument.size()) + " bytes",
        [=] { return fails(ConfigFile::read(argument, {})); });
  }
  bad("KeyOrigin::from", "source", "unknown",
      [] { return expect(!KeyOrigin{.source = unknown<KeyOrigin::Source>}.from().empty(), "no text"); });
  for (const std::string& file :
       {std::string(), std::string("."), std::string("/proc"), std::string("/dev/null"),
        std::string("/penstock-none"), std::string("/etc/passwd/x"), std::string(5000, 'x'),
        std::string("/dev/zero"), std::string("a\0b", 3)}) {
    bad("Config::from_file", "file", file.substr(0, 20), [=] { return fails(Config::from_file(file, 1)); });
  }
}

/// A configuration that is changed to a wrong one.
void add_value_rows(BadArguments& bad) {
  ModelLayout model;
  model.units.push_back({.name = "u", .parameters = {{"w", ElementCount(1024), 0}}});
  const auto with = [&bad, model](const char* key, auto change) {
    Config config;
    change(config);
    bad("Config::validate", key, "wrong",
        [=] { return refused(config.validate(), "", ErrorCode::invalid_config); });
    bad("plan_memory", std::string("config.") + key, "wrong",
        [=] { return refused(plan_memory(config, model, 1, 1), "", ErrorCode::invalid_config); });
    bad("Config::to_json", key, "wrong", [=] { return expect(!config.to_json().empty(), "no text"); });
  };
  for (const float value : {nan, infinity, -1.0f}) {
    with("optimizer.learning_rate", [=](Config& c) { c.optimizer.learning_rate = value; });
    with("optimizer.betas", [=](Config& c) { c.optimizer.betas = {value, 0.9f}; });
    with("optimizer.epsilon", [=](Config& c) { c.optimizer.epsilon = value; });
    with("optimizer.weight_decay", [=](Config& c) { c.optimizer.weight_decay = value; });
    with("gradient_clipping", [=](Config& c) { c.gradient_clipping = value; });
    with("loss_scale", [=](Config& c) { c.loss_scale = value; });
    with("penstock.path_weights", [=](Config& c) {
      c.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {"/a"}};
      c.penstock.path_weights = {static_cast<double>(value)};
    });
  }
  for (const std::uint64_t step : {std::uint64_t{0}, most}) {
    bad("Config::learning_rate_of", "step", std::to_string(step), [=] {
      Config config;
      config.scheduler = WarmupDecayLR();
      return expect(std::isfinite(config.learning_rate_of(step).rate), "no number");
    });
  }
  bad("LossScaler::LossScaler", "dynamic", "out of their ranges", [] {
    LossScaler scaler(DynamicLossScale{.initial_scale_power = ~0u, .loss_scale_window = 0});
    const bool moved = scaler.update(false).has_value() && scaler.update(false).has_value();
    return expect(moved && std::isfinite(scaler.scale()), "no number");
  });
  for (const double scale : {double{nan}, double{infinity}, -1.0, 0.0}) {
    bad("LossScaler::restore", "state.scale", std::to_string(scale),
        [=] { return refused(LossScaler(DynamicLossScale{}).restore({.scale = scale}), "scale"); });
  }
  bad("LossScaler::update", "overflow", "true at the minimum", [] {
    LossScaler scaler(DynamicLossScale{.initial_scale_power = 0, .hysteresis = 1});
    return refused(scaler.update(true), "fp16.min_loss_scale", ErrorCode::non_finite);
  });
  with("dynamic_loss_scale", [](Config& c) {
    c.dtype = c.grad_accum_dtype = DType::fp16;
    c.loss_scale = 0;
    c.dynamic_loss_scale.loss_scale_window = 0;
  });
  with("scheduler", [](Config& c) { c.scheduler = WarmupDecayLR(); });
  with("scheduler", [](Config& c) { c.scheduler = OneCycle{.cycle_first_step_size = 0}; });
  with("scheduler", [](Config& c) { c.scheduler = LRRangeTest{.lr_range_test_min_lr = nan}; });
  with("train_batch_size", [](Config& c) { c.train_batch_size = 0; });
  with("micro_batch_size", [](Config& c) { c.micro_batch_size = 0; });
  with("gradient_accumulation_steps", [](Config& c) { c.gradient_accumulation_steps = 0; });
  with("stage", [](Config& c) { c.stage = 99; });
  with("dtype", [](Config& c) { c.dtype = unknown<DType>; });
  with("grad_accum_dtype", [](Config& c) { c.grad_accum_dtype = unknown<DType>; });
  with("offload_param.device", [](Config& c) { c.offload_param.device = unknown<OffloadDevice>; });
  with("offload_optimizer.device", [](Config& c) { c.offload_optimizer.device = unknown<OffloadDevice>; });
  with("offload_optimizer.nvme_paths", [](Config& c) { c.offload_optimizer.device = OffloadDevice::nvme; });
  with("optimizer.decay_mode", [](Config& c) { c.optimizer.decay_mode = unknown<cpu_adam::AdamDecay>; });
  with("aio_block_size", [](Config& c) { c.aio_block_size = {}; });
  with("aio_block_size", [](Config& c) { c.aio_block_size = ByteCount(most); });
  with("aio_queue_depth", [](Config& c) { c.aio_queue_depth = 0; });
  with("aio_queue_depth", [](Config& c) { c.aio_queue_depth = ~0u; });
  with("penstock.tile_elements", [](Config& c) { c.penstock.tile_elements = ElementCount(); });
  with("penstock.tile_elements", [](Config& c) { c.penstock.tile_elements = ElementCount(most); });
  with("penstock.tiles_in_flight", [](Config& c) { c.penstock.tiles_in_flight = 0; });
  with("penstock.tiles_in_flight", [](Config& c) { c.penstock.tiles_in_flight = ~0u; });
  with("penstock.eviction", [](Config& c) { c.penstock.eviction = unknown<swap::Eviction>; });
  with("penstock.io_engine", [](Config& c) { c.penstock.io_engine = unknown<tiers::EngineChoice>; });
  with("penstock.integrity", [](Config& c) { c.penstock.integrity = unknown<Integrity>; });
  with("penstock.state_format", [](Config& c) { c.penstock.state_format = unknown<cpu_adam::StateFormat>; });
  with("penstock.update_split", [](Config& c) { c.penstock.update_split = unknown<UpdateSplit>; });
  with("penstock.reduction", [](Config& c) { c.penstock.reduction = unknown<Reduction>; });
  with("penstock.update_split", [](Config& c) {
    c.penstock.update_split = UpdateSplit::automatic;
    c.cpu_update_ratio = 0.5f;
  });
  for (const float ratio : {-1.0f, 1.5f, nan, infinity}) {
    with("offload_optimizer.ratio", [ratio](Config& c) { c.cpu_update_ratio = ratio; });
  }
  with("penstock.io_deadline_seconds", [](Config& c) { c.penstock.io_deadline_seconds = 0; });
  with("penstock.threads", [](Config& c) { c.penstock.threads = ~0u; });
  for (const char* directory : {"", "/penstock-none", "/dev/null"}) {
    bad("Config::check_paths", "offload_param.nvme_paths", directory, [=] {
      Config config;
      config.stage = 3;
      config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {directory}};
      return refused(config.check_paths(), "", ErrorCode::invalid_config);
    });
  }
  bad("to_string", "device", "unknown",
      [] { return expect(!to_string(unknown<OffloadDevice>).empty(), "no text"); });
  bad("to_string", "op", "unknown",
      [] { return expect(!to_string(unknown<AllreduceOp>).empty(), "no text"); });
  bad("to_string", "integrity", "unknown",
      [] { return expect(!to_string(unknown<Integrity>).empty(), "no text"); });
  bad("to_string", "split", "unknown",
      [] { return expect(!to_string(unknown<UpdateSplit>).empty(), "no text"); });
  bad("PenstockConfig::tile", "state_format", "unknown", [] {
    return expect(!PenstockConfig{.state_format = unknown<cpu_adam::StateFormat>}.tile().is_zero(), "0");
  });
}

void add_layout_rows(BadArguments& bad) {
  const auto with = [&bad](const char* argument, const char* value, auto change) {
    ModelLayout model;
    for (const char* name : {"a", "b"}) {
      model.units.push_back({.name = name, .parameters = {{"w", ElementCount(8), 0}}});
    }
    change(model);
    bad("ModelLayout::validate", argument, value, [=] { return refused(model.validate(), ""); });
    bad("plan_memory", std::string("model.") + argument, value,
        [=] { return refused(plan_memory({}, model, 1, 1), ""); });
  };
  with("units", "none", [](ModelLayout& m) { m.units.clear(); });
  with("units", "one without parameters", [](ModelLayout& m) { m.units[0].parameters.clear(); });
  with("groups", "none", [](ModelLayout& m) { m.groups.clear(); });
  with("group", "unknown", [](ModelLayout& m) { m.units[0].parameters[0].group = ~0u; });
  for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1} << 37, std::uint64_t{1} << 63, most}) {
    with("count", "absurd", [=](ModelLayout& m) { m.units[0].parameters[0].count = ElementCount(count); });
  }
  with("checkpoints.size", "0", [](ModelLayout& m) { m.checkpoints = {.count = 1, .size = {}}; });
  with("checkpoints.size", "the most",
       [](ModelLayout& m) { m.checkpoints = {.count = 1, .size = ByteCount(most)}; });
  with("checkpoints.count", "the most", [](ModelLayout& m) { m.checkpoints = {.count = ~0u, .size = 1_B}; });
  with("shared", "unknown unit", [](ModelLayout& m) { m.units[0].shared = {{2, 0}}; });
  with("shared", "unknown index", [](ModelLayout& m) { m.units[0].shared = {{1, ~0u}}; });
  with("shared", "its own", [](ModelLayout& m) { m.units[0].shared = {{0, 0}}; });
  with("shared", "twice", [](ModelLayout& m) { m.units[0].shared = {{1, 0}, {1, 0}}; });
  bad("shared_runtime_options", "engines", "none and null", [] {
    const PlannedEngine null;
    return all({refused(shared_runtime_options({}, 0), "engines"),
                refused(shared_runtime_options(std::span(&null, 1), 0), "engines")});
  });
  for (const std::uint32_t number : {0u, ~0u}) {
    bad("ModelLayout::parameter", "id", std::to_string(number), [=] {
      return expect(ModelLayout().parameter({number, number}).name.empty(), "a parameter");
    });
    bad("ModelLayout::parameters_of", "unit", std::to_string(number),
        [=] { return expect(ModelLayout().parameters_of(number).empty(), "parameters"); });
  }
}

void add_plan_rows(BadArguments& bad) {
  ModelLayout model;
  model.units.push_back({.name = "u", .parameters = {{"w", ElementCount(1024), 0}}});
  bad("validate", "groups", "a negative decay", [] {
    const std::vector<OptimizerGroup> groups = {{.weight_decay = -1}};
    return refused(validate("somewhere", groups), "groups[0].weight_decay");
  });
  const auto ranks = [&bad, model](std::uint32_t all, std::uint32_t local) {
    bad("plan_memory", "ranks and local_ranks", std::to_string(all) + " and " + std::to_string(local),
        [=] { return refused(plan_memory({}, model, all, local), "ranks"); });
  };
  ranks(0, 0);
  ranks(0, 1);
  ranks(1, 0);
  ranks(1, 2);
  ranks(1, ~0u);
  bad("plan_memory", "ranks", "the most", [=] {
    (void)plan_memory({}, model, ~0u, 1);
    return harmless();
  });
  for (const std::uint32_t rank : {2u, ~0u}) {
    bad("plan_memory", "local_rank", std::to_string(rank) + " of 2", [=] {
      return refused(plan_memory({}, model, 2, 2, tiers::DeviceMemory::separate, rank), "local_rank");
    });
  }
  bad("plan_memory", "device_memory", "unknown", [=] {
    return expect(plan_memory({}, model, 1, 1, unknown<tiers::DeviceMemory>).has_value(), "refused");
  });
  bad("plan_memory", "config.penstock.unit_elements_max", "below a unit", [=] {
    Config config;
    config.penstock.unit_elements_max = ElementCount(1023);
    return refused(plan_memory(config, model, 1, 1), "unit_elements_max");
  });
  const auto cut = [&](const char* argument, const char* value, auto change) {
    bad("cut_rows", argument, value, [change] {
      RowBlockOptions matrix{
          .name = "w", .rows = 100, .row_elements = 10, .elements_max = ElementCount(100), .multiple = 8};
      change(matrix);
      return refused(cut_rows(matrix), "w");
    });
  };
  cut("matrix.rows", "0", [](RowBlockOptions& m) { m.rows = 0; });
  cut("matrix.rows", "the most", [](RowBlockOptions& m) { m.rows = ~std::uint64_t{}; });
  cut("matrix.row_elements", "0", [](RowBlockOptions& m) { m.row_elements = 0; });
  cut("matrix.row_elements", "the most", [](RowBlockOptions& m) { m.row_elements = ~std::uint64_t{}; });
  cut("matrix.multiple", "0", [](RowBlockOptions& m) { m.multiple = 0; });
  cut("matrix.multiple", "the most", [](RowBlockOptions& m) { m.multiple = ~std::uint64_t{}; });
  cut("matrix.elements_max", "one row of many", [](RowBlockOptions& m) {
    m.rows = std::uint64_t{1} << 40;
    m.elements_max = ElementCount(80);
  });
  cut("matrix.elements_max", "below a row", [](RowBlockOptions& m) { m.elements_max = ElementCount(9); });
  bad("plan_memory", "config.penstock.host_budget", "1 B", [=] {
    Config config;
    config.penstock.host_budget = 1_B;
    return refused(plan_memory(config, model, 1, 1), "", ErrorCode::budget_too_small);
  });
  for (const std::uint64_t tile : {std::uint64_t{0}, std::uint64_t{7}, most}) {
    bad("MemoryPlan::in_host", "tile", std::to_string(tile) + " of none",
        [=] { return expect(!MemoryPlan().in_host(tile), "a tile"); });
    bad("MemoryPlan::tile_kept", "tile", std::to_string(tile) + " of none",
        [=] { return expect(!MemoryPlan().tile_kept(tile), "a tile"); });
    bad("MemoryPlan::tile_at_home", "tile", std::to_string(tile) + " of none",
        [=] { return expect(!MemoryPlan().tile_at_home(tile), "a tile"); });
    bad("MemoryPlan::updated_on_device", "tile", std::to_string(tile) + " of none",
        [=] { return expect(!MemoryPlan().updated_on_device(tile), "a tile"); });
    bad("MemoryPlan::shard_on_disk", "flat", std::to_string(tile) + " of none",
        [=] { return expect(!MemoryPlan().shard_on_disk(tile), "a flat"); });
    bad("MemoryPlan::shard_at_home", "flat", std::to_string(tile) + " of none",
        [=] { return expect(!MemoryPlan().shard_at_home(tile), "a flat"); });
  }
  for (const std::uint32_t local_rank : {0u, 1u, ~0u}) {
    for (const std::uint32_t local_ranks : {0u, 1u}) {
      bad("MemoryPlan::runtime_options", "local_rank",
          std::to_string(local_rank) + " of " + std::to_string(local_ranks), [=] {
            Config config;
            config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {"/a", "/b"}};
            config.penstock.rank_nodes = {0};
            config.penstock.path_nodes = {0, 0, 0};
            config.penstock.path_weights = {1};
            MemoryPlan plan;
            plan.swap_bytes = 1_MiB;
            plan.local_ranks = local_ranks;
            return expect(plan.runtime_options(config, local_rank).paths.size() <= 2,
                          "a path of no directory");
          });
    }
  }
}

}  // namespace

void add_configuration_rows(BadArguments& bad) {
  add_text_rows(bad);
  add_value_rows(bad);
  add_layout_rows(bad);
  add_plan_rows(bad);
}

}  // namespace penstock::test
