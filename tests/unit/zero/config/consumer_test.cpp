// Every accepted key has an effect or produces a note that it has none.
//
// The test varies the key of each row of the table in a file, and compares the output of the part of the library that
// the row names. It detects a supported key that no code reads, a key that a rule overwrites, a row that names the
// wrong part, a key attributed to the trainer that the library uses, and a key accepted with an unsupported value.

#include "kit/cluster.hpp"
#include "kit/print.hpp"
#include "kit/scratch_directory.hpp"
#include "tiers/memory/numa.hpp"
#include "zero/config/schema.hpp"
#include "zero/engine/step_arithmetic.hpp"
#include "zero/engine/wear_limit.hpp"
#include "zero/layout/device_plan.hpp"
#include "zero/layout/flat_residency.hpp"

#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <json/json.h>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <variant>

namespace penstock::zero {
namespace {

using config::Consumer;
using config::Key;
using config::Kind;
using config::Status;

constexpr std::uint32_t ranks = 2;

/// Files in which every supported key matters in at least one.
const char* const scenarios[] = {
    // The optimizer alone on two disks, bf16 masters.
    R"({"train_batch_size": 8, "bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": ["/no/a", "/no/b"]}},
        "optimizer": {"type": "Adam", "params": {"weight_decay": 0.1}},
        "penstock": {"tile_elements": 16384, "path_weights": [1, 2], "path_nodes": [0, 1], "rank_nodes": [0, 1],
                     "path_limits": [1e9, 2e9], "path_endurance": [1e15, 2e15], "threads": 1}})",
    // The parameters on a disk, the optimizer in host memory, fp16, L2 decay.
    R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, "fp16": {"enabled": true, "loss_scale": 64},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/no/a"},
                              "offload_optimizer": {"device": "cpu"}},
        "penstock": {"node_budgets": [67108864, 134217728], "rank_nodes": [0, 1]},
        "optimizer": {"type": "Adam", "params": {"weight_decay": 0.1, "adam_w_mode": false}}})",
    // An update function of the trainer.
    R"({"train_batch_size": 8, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Custom", "params": {"moments": 1}}})",
    // Muon.
    R"({"train_batch_size": 8, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "Muon", "params": {"lr": 0.02, "muon_lr": 0.04, "adam_lr": 1e-3}}})",
    // A dynamic loss scale, and schedulers.
    R"({"train_batch_size": 8, "gradient_accumulation_steps": 2,
        "fp16": {"enabled": true, "initial_scale_power": 4, "loss_scale_window": 3},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}})",
    R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
        "fp16": {"enabled": true, "initial_scale_power": 4, "hysteresis": 1, "min_loss_scale": 8},
        "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 10, "total_num_steps": 30}}})",
    R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 30}}})",
    R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3,
        "cycle_first_step_size": 10, "decay_step_size": 4, "decay_lr_rate": 0.5, "decay_mom_rate": 0.01}}})",
    R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
        "scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 10}}})",
    // Everything in host memory, not pinned.
    R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "fp16": {"loss_scale": 64},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": false, "nvme_path": "/no/a"},
                              "offload_optimizer": {"device": "cpu", "pin_memory": false, "nvme_path": "/no/a"}}})",
    // Limits that the model reaches.
    R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "bf16": {"enabled": true},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": 50000, "prefetch_bucket_size": 1,
                              "max_live_parameters": 60000, "max_reuse_distance": 50000,
                              "param_persistence_threshold": 100},
        "penstock": {"release": "reuse_distance"}})",
    // Gradients that are not finite, as in DeepSpeed.
    R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
        "zero_optimization": {"stage": 2}, "penstock": {"non_finite_gradients": "as_deepspeed"}})",
    // Updates that begin before the norm is known.
    R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "gradient_clipping": 0,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/no/a"}},
        "penstock": {"update_in_backward": true}})",
    // Monitors.
    R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
        "csv_monitor": {"enabled": true}, "tensorboard": {"enabled": true}})",
    // Small flats, of which the device holds some.
    R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "bf16": {"enabled": true},
        "zero_optimization": {"stage": 3, "param_persistence_threshold": 300,
                              "model_persistence_threshold": 1000}})",
};

Json::Value parse(const std::string& text) {
  std::istringstream stream(text);
  Json::Value json;
  stream >> json;
  return json;
}

Json::Value& at_path(Json::Value& root, std::string_view path) {
  const std::size_t dot = path.find('.');
  Json::Value& member = root[std::string(path.substr(0, dot))];
  return dot == std::string_view::npos ? member : at_path(member, path.substr(dot + 1));
}

Result<Config> read(const Json::Value& json) {
  return Config::from_text(Json::writeString(Json::StreamWriterBuilder(), json), "ds_config.json", ranks);
}

std::vector<std::string> choices_of(const Key& key) {
  std::vector<std::string> choices;
  std::istringstream list{std::string(key.choices)};
  for (std::string choice; std::getline(list, choice, '|');) choices.push_back(choice);
  return choices;
}

/// Values near `now` that the key might take.
std::vector<Json::Value> variations(const Key& key, const Json::Value& now) {
  switch (key.kind) {
    case Kind::flag: return {!now.asBool(), now.asBool()};  // null is neither
    case Kind::count:
    case Kind::bytes: {
      const Json::UInt64 n = now.isNull() ? 1 : now.asUInt64();
      return {n * 2, n + 1, n / 2, n > 0 ? n - 1 : 1, Json::UInt64{1} << 28};
    }
    case Kind::real: return {now.asDouble() / 2, now.asDouble() + 0.5};
    case Kind::text: {
      if (key.choices.empty()) return {"any", "linear"};  // the second is a warm-up's
      const auto choices = choices_of(key);
      return {choices.begin(), choices.end()};
    }
    case Kind::paths:
    case Kind::numbers: {
      Json::Value reversed(Json::arrayValue), halves(Json::arrayValue);
      for (Json::ArrayIndex i = now.isArray() ? now.size() : 0; i-- > 0;) reversed.append(now[i]);
      for (const Json::Value& one : reversed) {
        if (one.isNumeric()) halves.append(one.asDouble() / 2);
      }
      return {reversed, halves, "/no/other"};
    }
    case Kind::list: return {parse("[1]")};
    case Kind::block: return {};
    case Kind::feature: {
      std::vector<Json::Value> objects{parse(R"({"key": 1})")};
      for (const std::string& member : choices_of(key)) objects.emplace_back()[member] = true;
      return objects;
    }
  }
  return {};
}

std::string observe_plan(const Config& config) {
  const auto plan = plan_memory(config, test::small_model(), ranks, ranks);
  if (!plan) return plan.error().message();
  std::ostringstream text;
  // A model of which the smallest device budget does not hold everything.
  if (const auto deep = plan_memory(config, test::deep_model(), ranks, ranks))
    text << deep->device_budget.value() << ' ';
  for (const ByteCount bytes : {plan->host_budget,          plan->host_minimum,
                                plan->device_budget,        plan->device_minimum,
                                plan->swap_bytes,           plan->swap_tensor_max,
                                plan->swap_committed,       plan->committed_copies,
                                plan->device_gathered,      plan->device_gradients,
                                plan->host_shards,          plan->host_gradients,
                                plan->host_tiles,           plan->host_staging(),
                                plan->host_staging_min,     plan->disk_shards,
                                plan->disk_gradients,       plan->disk_tiles,
                                plan->tile_reads,           plan->tile_writes,
                                plan->shard_reads_max,      plan->update_shard_reads_max,
                                plan->shard_writes,         plan->tile_rereads_max,
                                plan->update.device_bytes()}) {
    text << bytes.value() << ' ';
  }
  text << plan->tile_elements.value() << ' ' << plan->tiles << ' ' << plan->tiles_in_host << ' '
       << plan->tiles_ahead << ' ' << plan->tiles_ahead_next_flats << ' ' << plan->shards_on_disk
       << plan->gradients_on_disk << ' ' << to_string(plan->update.split) << ' '
       << plan->update.tiles_by_device << ' ' << plan->update.flats;
  return text.str();
}

std::string observe_runtime(const Config& config) {
  const auto plan = plan_memory(config, test::small_model(), ranks, ranks);
  if (!plan) return plan.error().message();
  const auto options = plan->runtime_options(config, 0, tiers::NumaTopology::read("/no/sysfs"));
  std::ostringstream text;
  text << static_cast<int>(options.pinning) << ' ' << to_string(options.eviction);
  for (const auto& path : options.paths) {
    text << ' ' << path.directory << ' ' << path.weight << ' ' << path.request_max.value() << ' '
         << path.in_flight_max.value() << ' ' << path.deadline.count() << ' ' << to_string(path.engine) << ' '
         << path.rate_limit << ' ' << path.endurance.value();
  }
  return text.str();
}

std::string observe_step(const Config& config) {
  std::ostringstream text;
  for (const OptimizerGroup& group :
       {OptimizerGroup{}, OptimizerGroup{.weight_decay = 0}, OptimizerGroup{.use_muon = true}}) {
    const auto settings = group_hyperparameters(config.optimizer, group, config.learning_rate_of(1));
    text << settings.learning_rate << ' ' << settings.beta1 << ' ' << settings.weight_decay << ' ';
    if (cpu_adam::is_custom(config.optimizer.type)) continue;
    const auto configured = hyperparameters(config.optimizer, settings);
    text << configured.index() << ' ';
    if (!std::holds_alternative<cpu_adam::AdamConfig>(configured)) continue;
    const auto& adam = std::get<cpu_adam::AdamConfig>(configured);
    text << adam.learning_rate << ' ' << adam.beta1 << ' ' << adam.beta2 << ' ' << adam.epsilon << ' '
         << adam.weight_decay << ' ' << static_cast<int>(adam.decay_mode) << ' ' << adam.bias_correction
         << ' ';
  }
  for (std::uint64_t step = 1; step < 40; ++step) {
    const LearningRate now = config.learning_rate_of(step);
    text << now.rate << ' ' << now.betas[0] << ' ' << now.betas[1] << ' ';
  }
  LossScaler scaler = config.loss_scaler();
  for (const char overflow : std::string_view("0000101101001111")) {
    text << scaler.scale() << ' ' << (scaler.update(overflow == '1') ? "" : "at its minimum ");
  }
  const double divisor = gradient_divisor(config, config.loss_scaler().scale(), ranks);
  const GradientNorm gradients = gradient_norm(config, divisor, 1e10);
  text << gradients.norm << ' ' << gradients.clip_factor << ' '
       << gradient_factor(divisor, gradients.clip_factor);
  if (config.skips_non_finite_gradients()) text << " skips";
  return text.str();
}

/// A rank that trains alone in host memory, with the other settings of `config`.
Result<std::unique_ptr<Rank>> rank_in_memory(Config config, std::function<void(std::string_view)> log = {}) {
  config.offload_param = config.offload_optimizer = {.pin_memory = false};
  config.penstock.path_weights.clear();
  config.penstock.path_nodes.clear();
  config.penstock.rank_nodes.clear();
  config.penstock.node_budgets.clear();
  config.penstock.path_limits.clear();
  config.penstock.path_endurance.clear();
  config.penstock.endurance_cap.reset();
  config.train_batch_size /= ranks;
  return Rank::create({.config = std::move(config),
                       .model = test::small_model(),
                       .hooks = {.memory_limit = [] { return tiers::MemoryLimit{}; }},
                       .log = std::move(log)});
}

/// Reduces the gradients of one micro-batch, without begin_step(), and steps.
Result<StepOutcome> step_after_one_micro_batch(Rank& rank) {
  Engine& engine = rank.engine();
  PENSTOCK_TRY_ASSIGN(auto stream, rank.device().create_stream());
  PENSTOCK_TRY(engine.initialize([](ParameterId, std::uint64_t, std::span<float>) {}));
  for (std::uint32_t unit = 0; unit < rank.model().units.size(); ++unit) {
    PENSTOCK_TRY_ASSIGN(auto gradients, engine.gradients(unit, *stream));
    for (const GradientSlot& slot : gradients.slots()) {
      PENSTOCK_TRY(rank.device().fill_zero(stream->handle(), slot.tensor.bytes));
    }
    PENSTOCK_TRY(engine.reduce(std::move(gradients), *stream));
  }
  return engine.step();
}

/// Writes down what FlatResidency decides.
class Decisions final : public FlatResidency::Effects {
 public:
  std::string text;

 private:
  Result<void> gather(std::uint32_t flat) override { return add("gather", {&flat, 1}); }
  Result<void> drop(std::uint32_t flat) override { return add("drop", {&flat, 1}); }
  Result<void> open_gradient(std::uint32_t flat) override { return add("open", {&flat, 1}); }
  Result<void> reduce(std::span<const std::uint32_t> flats) override { return add("reduce", flats); }
  Result<void> finish_gradient(std::uint32_t flat) override { return add("finish", {&flat, 1}); }
  Result<void> add(const char* what, std::span<const std::uint32_t> flats) {
    text += what;
    for (const std::uint32_t flat : flats) text.append(" ").append(std::to_string(flat));
    text += '\n';
    return ok();
  }
};

/// What the engine gathers ahead, keeps and reduces together, with room for everything.
std::string observe_limits(const Config& config) {
  const ShardLayout shards(test::small_model(), ranks);
  tiers::Ledger ledger;
  tiers::MemoryBudget memory(tiers::Tier::device, 1_MiB, ledger);
  const auto order = unit_order(shards.unit_count(), 1);
  FlatResidency residency(shards, config.dtype, {}, limits_of({}, config, shards),
                          {.gathered = memory, .gradients = memory}, order);
  Decisions decisions;
  for (std::size_t i = 0; i < order.size(); ++i) {
    decisions.text += "acquire\n";
    residency.acquire(order[i], decisions).value();
    residency.lease(order[i]);
    residency.release(order[i]);
    if (i < shards.unit_count()) continue;
    residency.open_gradients(order[i], decisions).value();
    for (const std::uint32_t flat : shards.trained_by(order[i])) (void)residency.close_gradient(flat);
    residency.reduce_buckets(decisions).value();
  }
  return decisions.text;
}

/// What a drive of which half is written makes of a step.
std::string observe_wear(const Config& config) {
  swap::PathReport drive{.weight = 1, .endurance = 1_GiB};
  drive.counters.bytes_written = 512_MiB;
  WearLimit wear(config.penstock);
  return std::to_string(wear.take_warnings({drive}).size()) + wear.end_step({drive}, 0_B).reason;
}

/// The engine's tensors, which of them are sealed in a separate pass, and whether one micro-batch completes a step.
std::string observe_engine(const Config& config) {
  Config on_one_thread = config;
  on_one_thread.penstock.threads = 1;
  on_one_thread.csv_monitor = on_one_thread.tensorboard = {};  // which make files
  const auto rank = rank_in_memory(std::move(on_one_thread));
  if (!rank) return observe_wear(config) + rank.error().message();
  std::ostringstream text;
  text << observe_limits(config) << observe_wear(config);
  for (const tiers::TensorId id : (*rank)->runtime().tensors()) {
    const tiers::TensorDescription tensor = (*rank)->runtime().describe(id);
    text << tensor.name << ' ' << tensor.size.value() << ' ' << tensor.sealed_in_pass << '\n';
  }
  const auto stepped = step_after_one_micro_batch(**rank);
  text << (stepped ? "updated" : stepped.error().message());
  return text.str();
}

/// Its threads, what it logs of a step on a machine without memory, and the files that it makes where it runs, without
/// the digits in their names.
std::string observe_rank(const Config& config) {
  const penstock::test::ScratchDirectory scratch;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  std::string text;
  {
    const auto rank = rank_in_memory(config, [&](std::string_view) { text += "logs "; });
    text += rank ? std::to_string((*rank)->workers().threads()) : rank.error().message();
    if (rank) {
      (void)step_after_one_micro_batch(**rank);
      for (const std::string& message : (*rank)->runtime().take_messages()) text += message;
    }
  }
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("."))
    names.insert(std::regex_replace(entry.path().string(), std::regex("[0-9]+"), "N"));
  for (const std::string& name : names) text += ' ' + name;
  std::filesystem::current_path(before);
  return text;
}

std::string observe(Consumer consumer, const Config& config) {
  switch (consumer) {
    case Consumer::plan: return observe_plan(config);
    case Consumer::runtime: return observe_runtime(config);
    case Consumer::step: return observe_step(config);
    case Consumer::engine: return observe_engine(config);
    case Consumer::rank: return observe_rank(config);
    case Consumer::trainer:
      return observe_plan(config) + observe_runtime(config) + observe_step(config) + observe_engine(config) +
             observe_rank(config);
    case Consumer::none: break;
  }
  return {};
}

/// A key in a scenario, with a value that it does not have there.
struct Variation {
  Config before;
  Json::Value value;
  Result<Config> after;
};

std::vector<Variation> vary(const Key& key) {
  std::vector<Variation> all;
  for (const char* const scenario : scenarios) {
    const Config before = read(parse(scenario)).value();
    Json::Value effective = parse(before.to_json());
    Json::Value now = at_path(effective, key.path);
    if (!key.fallback.empty()) now = parse(std::string("[").append(key.fallback).append("]"))[0];
    for (const Json::Value& value : variations(key, now)) {
      if (value == now || (value.isNumeric() && now.isNumeric() && value.asDouble() == now.asDouble()))
        continue;
      Json::Value varied = parse(scenario);
      at_path(varied, key.path) = value;
      all.push_back({before, value, read(varied)});
    }
  }
  return all;
}

std::vector<const Key*> keys_of(Status status) {
  std::vector<const Key*> keys;
  for (const Key& key : config::schema()) {
    if (key.status == status && key.kind != Kind::block) keys.push_back(&key);
  }
  return keys;
}

TEST(ConfigConsumers, ActOnEverySupportedKeyThatIsTheirs) {
  for (const Key* const key : keys_of(Status::supported)) {
    if (key->read_by == Consumer::trainer) continue;
    bool differs = false;
    for (const Variation& one : vary(*key)) {
      if (!one.after || differs) continue;
      differs = observe(key->read_by, one.before) != observe(key->read_by, *one.after);
    }
    EXPECT_TRUE(differs) << key->path << " is accepted, and the part that its row names does not read it";
  }
}

TEST(ConfigConsumers, LeaveAloneExactlyTheKeysThatAreTheTrainers) {
  std::set<std::string_view> of_trainer;
  for (const Key* const key : keys_of(Status::supported)) {
    if (key->read_by != Consumer::trainer) continue;
    of_trainer.insert(key->path);
    std::size_t accepted = 0;
    for (const Variation& one : vary(*key)) {
      if (!one.after) continue;
      ++accepted;
      EXPECT_TRUE(one.after->to_json() != one.before.to_json()) << key->path << " as " << one.value;
      EXPECT_EQ(observe(key->read_by, *one.after), observe(key->read_by, one.before))
          << key->path << " is not the trainer's alone";
    }
    EXPECT_GT(accepted, 0u) << key->path;
  }
  EXPECT_EQ(of_trainer, (std::set<std::string_view>{"train_batch_size", "train_micro_batch_size_per_gpu"}));
}

TEST(ConfigConsumers, MissNothingBecauseOtherValuesOfUnsupportedKeysAreRefusedByName) {
  for (const Key* const key : keys_of(Status::only_default)) {
    std::size_t refused = 0;
    for (const Variation& one : vary(*key)) {
      ASSERT_FALSE(one.after) << key->path << " is accepted as " << one.value;
      EXPECT_NE(one.after.error().message().find(std::string("\n  ").append(key->path)), std::string::npos)
          << one.after.error().message();
      ++refused;
    }
    EXPECT_GT(refused, 0u) << key->path;
  }
}

TEST(ConfigConsumers, AreNotExpectedOfKeysThatAreNotedToHaveNoEffect) {
  for (const Key* const key : keys_of(Status::no_effect)) {
    std::size_t accepted = 0;
    for (const Variation& one : vary(*key)) {
      if (!one.after) continue;
      ++accepted;
      const auto noted = [&](const std::string& note) {
        return note.starts_with(key->path) && note.ends_with(key->help);
      };
      EXPECT_TRUE(std::any_of(one.after->notes.begin(), one.after->notes.end(), noted)) << key->path;
      EXPECT_TRUE(one.after->to_json() == one.before.to_json()) << key->path;
    }
    EXPECT_GT(accepted, 0u) << key->path;
  }
}

TEST(ConfigText, IsReadBackAsTheConfigurationThatItWasWrittenFrom) {
  for (const Key* const key : keys_of(Status::supported)) {
    for (const Variation& one : vary(*key)) {
      if (!one.after) continue;
      const auto again = read(parse(one.after->to_json()));
      ASSERT_TRUE(again) << again.error().message();
      EXPECT_EQ(again->to_json(), one.after->to_json()) << key->path;
      const bool is_cheap = key->read_by == Consumer::runtime || key->read_by == Consumer::step;
      const Consumer consumer = is_cheap ? key->read_by : Consumer::plan;
      EXPECT_EQ(observe(consumer, *again), observe(consumer, *one.after)) << key->path;
    }
  }
}

}  // namespace
}  // namespace penstock::zero
