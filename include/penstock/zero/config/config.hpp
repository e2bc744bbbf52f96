#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/cpu_adam/adam.hpp>
#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/swap/runtime_options.hpp>
#include <penstock/zero/comm/reduction.hpp>
#include <penstock/zero/config/learning_rate_schedule.hpp>
#include <penstock/zero/config/loss_scaler.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero {

enum class OffloadDevice : std::uint8_t { none, cpu, nvme };

/// `gradient_allreduce_op`: what a step uses of the ranks' gradients.
enum class AllreduceOp : std::uint8_t { mean, sum };

[[nodiscard]] std::string_view to_string(AllreduceOp op);

/// `offload_param` or `offload_optimizer`.
struct OffloadConfig {
  OffloadDevice device = OffloadDevice::none;
  std::vector<std::filesystem::path> nvme_paths;  ///< `nvme_path`, one string or a list
  bool pin_memory = true;
};

/// `optimizer`: "Adam" means AdamW unless adam_w_mode is false, as in DeepSpeed. The CPU alone updates by Lion,
/// Adagrad and Muon, whose states are kept in format fp32 or moments. See cpu_adam/optimizers.hpp for the formulas. The
/// custom types are "Custom" with so many `moments`: a function of the caller, see Rank::Options::update, which gets
/// learning rate, betas, epsilon and weight decay as the configuration and the optimizer group have them, whatever it
/// does with them. Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) moves each matrix of optimizer
/// groups with use_muon by its Nesterov momentum, orthogonalized by 5 Newton-Schulz iterations in fp32 and times
/// sqrt(max(1, rows / columns)), with decoupled decay; its results depend on the BLAS of the machine, which multiplies
/// the matrices.
struct OptimizerConfig {
  cpu_adam::Optimizer type = cpu_adam::Optimizer::adam;
  cpu_adam::AdamDecay decay_mode =
      cpu_adam::AdamDecay::decoupled;  ///< `none` is refused; set weight_decay to 0 instead
  double learning_rate = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};  ///< not of Adagrad
  double epsilon = 1e-8;                       ///< not of Lion
  double weight_decay = 0;                     ///< of Lion decoupled, of Adagrad added to the gradient
  bool bias_correction = true;                 ///< of Adam
  double momentum = 0.95;                      ///< of Muon
  /// Of Muon, for groups with use_muon and for the others, which AdamW updates: rates that stand in the ratio of these
  /// to learning_rate, however that is scheduled. Empty: learning_rate. Muon's own default is 0.02, with 3e-4 for
  /// AdamW.
  std::optional<double> muon_learning_rate, adam_learning_rate;
};

/// The names that the configuration file uses.
[[nodiscard]] std::string_view to_string(OffloadDevice device);

enum class Integrity : std::uint8_t { off, checksum };

[[nodiscard]] std::string_view to_string(Integrity integrity);

/// How the tiles of an update are divided between the CPU and the device, which give the same bits.
enum class UpdateSplit : std::uint8_t {
  ratio,      ///< by Config::cpu_update_ratio
  automatic,  ///< each tile is updated by the processor that is free first
};

[[nodiscard]] std::string_view to_string(UpdateSplit split);

/// When the device drops gathered parameters that are not in use, at stage 3.
enum class Release : std::uint8_t {
  planned,         ///< when their memory is needed, first those whose next use is furthest away
  reuse_distance,  ///< as in DeepSpeed: also once their next use is Config::max_reuse_distance away
};

[[nodiscard]] std::string_view to_string(Release release);

/// What a step does with gradients that are not finite, or so large that a square may overflow fp32.
enum class NonFiniteGradients : std::uint8_t {
  skip,          ///< skips the update, for every dtype
  as_deepspeed,  ///< skips where DeepSpeed does, see Config::skips_non_finite_gradients(); else updates with them
};

[[nodiscard]] std::string_view to_string(NonFiniteGradients policy);

/// `csv_monitor` or `tensorboard`: files in which rank 0 keeps figures of each step.
struct MonitorConfig {
  bool enabled = false;
  std::string output_path = {};               ///< empty: the directory in which the process runs
  std::string job_name = "DeepSpeedJobName";  ///< a directory in it, which is made
};

/// The block "penstock": settings for which DeepSpeed has no key.
struct PenstockConfig {
  ByteCount host_budget;  ///< total of all ranks of the machine; 0: chosen by the plan
  /// Instead of host_budget: total of the ranks of each NUMA node, by node number. A rank gets its part of the budget
  /// of its node, see rank_nodes.
  std::vector<ByteCount> node_budgets = {};
  ByteCount device_budget;  ///< of each rank; 0: chosen by the plan
  /// A part of device_budget, where the device's memory is separate: so many bytes of offloaded states stay there.
  ByteCount device_states = {};
  std::optional<ElementCount>
      tile_elements;  ///< a multiple of cpu_adam::block_elements; none: the state format's default
  /// Maximum number of tiles read ahead, and of tiles being written; of a configuration file that does not say it 4 for
  /// each directory of nvme_path.
  std::uint32_t tiles_in_flight = 4;
  ElementCount
      unit_elements_max;  ///< of a unit's parameters, shared ones included; 0: no limit. See cut_rows()
  swap::Eviction eviction = swap::Eviction::planned;
  Release release = Release::planned;
  tiers::EngineChoice io_engine = tiers::EngineChoice::automatic;
  Integrity integrity = Integrity::checksum;
  /// Of masters and moments; split formats support bf16 only. In a file, `moments` is
  /// bf16.bf16_master_weights_and_grads or fp16.fp16_master_weights_and_grads, and `moments_bf16` is
  /// bf16.bf16_optimizer_states: the parameters, in 16 bits, are the masters.
  cpu_adam::StateFormat state_format = cpu_adam::StateFormat::fp32;
  UpdateSplit update_split = UpdateSplit::ratio;
  /// A shard is updated as soon as its last gradient of a step is reduced, beside the rest of the backward; else after
  /// the norm of all gradients is known. Without clipping and loss scale; Engine tells what a step then refuses.
  bool update_in_backward = false;
  NonFiniteGradients non_finite_gradients = NonFiniteGradients::skip;
  /// Of gradients; empty: native if the ranks' transport has one, else exact. A single rank has nothing to reduce.
  std::optional<Reduction> reduction;
  std::vector<double>
      path_weights;  ///< one per directory of nvme_path, in the same order; empty: measured at start
  std::vector<std::uint32_t> path_nodes;  ///< NUMA node of each directory; empty: from sysfs
  std::vector<std::uint32_t> rank_nodes;  ///< NUMA node of each rank of the machine; empty: that of
                                          ///< its cores, see MemoryPlan::runtime_options()
  /// Bytes a second of reads and writes, as measured, one per directory of nvme_path; empty: not known. For reports.
  std::vector<double> path_limits;
  /// Bytes that may still be written to the drive of each directory of nvme_path: its maker's rating (TBW) less what
  /// was written before the run. Ranks that use a directory have equal parts of both. Empty: not known.
  std::vector<ByteCount> path_endurance;
  double endurance_warning = 0.9;  ///< part of path_endurance after which Runtime::take_messages() warns
  /// Part of path_endurance that a run does not exceed: Engine::begin_step() refuses a step that would. None: no limit.
  std::optional<double> endurance_cap;
  /// Of the machine's memory, or of what a control group allows, that its ranks leave to others: where less is
  /// available at the end of a step, they give host memory back, and take it again later, see Runtime::limit_memory().
  /// 0: they do not look.
  ByteCount memory_reserve;
  /// Of Rank::report(): replaced at the end of a step every ten seconds, and when the rank ends; JSON, metrics or
  /// tables by its extension (.json, .prom, any other). Of several ranks, ".rank" and the number are put before it.
  std::filesystem::path report_file = {};
  /// See swap::RuntimeOptions::timeline_file; named as report_file is.
  std::filesystem::path timeline_file = {};
  /// `durable_directory`, one string or a list: where Engine::commit() keeps the run, and where swap files are then;
  /// empty: the run ends with its process.
  std::vector<std::filesystem::path> durable_directories;
  std::uint32_t io_deadline_seconds = 60;  ///< of one request; if exceeded, writes to the swap file stop
  std::uint32_t threads = 0;               ///< workers of a rank; 0: cores / local ranks

  /// Elements of an optimizer tile.
  [[nodiscard]] ElementCount tile() const {
    return tile_elements.value_or(cpu_adam::default_tile_elements(state_format));
  }
};

/// The effective configuration: ds_config.json with its defaults filled in.
///
///     auto config = zero::Config::from_file("ds_config.json", /*world_size=*/8);
///     if (!config) return fail(config.error().message());      // every error of the file, each with its line
///     for (const std::string& note : config->notes) log(note);
///
/// Strict: an unknown key, a wrong type and a key that is not supported yet are errors that name the key's path and
/// line; for an unknown key also the nearest spelling. All errors of a file are reported at once. Keys that only tune
/// DeepSpeed's own implementation are accepted and listed in `notes`. The text is Hjson, as for DeepSpeed: JSON that
/// may have comments, trailing commas, and strings without quotes; integers may be written as floats (5e8), and "auto"
/// means the default. ConfigFile reads it too, and tells where each value comes from. A value type.
///
/// Config{} is what the smallest file, {"train_micro_batch_size_per_gpu": 1}, means for one rank; for more ranks only
/// train_batch_size differs. An empty file is an error, as in DeepSpeed: it has no batch size.
struct Config {
  std::uint32_t train_batch_size = 1;
  std::uint32_t micro_batch_size = 1;  ///< train_micro_batch_size_per_gpu
  std::uint32_t gradient_accumulation_steps = 1;
  /// zero_optimization.stage, from 0 to 3. At every stage the ranks divide the optimizer's states and the gradients
  /// among them, and give the same bits. At stage 3 also the parameters, which are gathered for their use only; at the
  /// others the device has room for all of them, and gathers each once a step.
  std::uint32_t stage = 0;
  DType dtype = DType::fp32;             ///< of parameters and gradients: bf16, fp16 or fp32
  DType grad_accum_dtype = DType::fp32;  ///< data_types.grad_accum_dtype; in a file, the default is dtype
  bool check_grad_overflow = true;       ///< bf16.check_grad_overflow; for NonFiniteGradients::as_deepspeed
  /// Elements of the full gradients that one collective reduces: at most, where it reduces several. Less where the
  /// device has no room for two such buckets, and a bucket that has 2^24 elements is complete. Above 0.
  ElementCount reduce_bucket_size{500'000'000};
  /// false: the engine waits for a reduction before it opens the next gradients, which takes less memory of the device.
  /// None: true at stage 3 only, as in DeepSpeed.
  std::optional<bool> overlap_comm;
  /// Elements of parameters that are gathered before they are acquired: a gather begins while there are fewer.
  ElementCount prefetch_bucket_size{50'000'000};
  /// Elements of gathered parameters, at most, beside those of the unit in use and of leased units. What is above is
  /// dropped, even where memory is free. At stage 3 only.
  ElementCount max_live_parameters{1'000'000'000};
  /// At stage 3, flats whose parameters all have at most so many elements are dropped last, while all of them together
  /// have at most model_persistence_threshold elements; the default device budget has room for them beside the units in
  /// use. A flat has the parameters of a unit and an optimizer group: give small ones a group of their own.
  ElementCount param_persistence_threshold{100'000};
  ElementCount model_persistence_threshold{std::numeric_limits<std::int64_t>::max()};
  /// Elements that the next units use, up to which a gathered flat is kept for one of them; for
  /// PenstockConfig::release.
  ElementCount max_reuse_distance{1'000'000'000};
  OffloadConfig offload_param, offload_optimizer;
  /// offload_param.max_in_cpu: with offload_param on nvme, elements of a rank's parameter shards that are kept in host
  /// memory, the first ones in the order of the layout. None: the others' copies take what host memory has room for.
  std::optional<ElementCount> max_in_cpu;
  /// offload_optimizer.ratio: the part of the tiles that the CPU updates, from 0 to 1; the device updates the others,
  /// and all that are kept in its memory.
  float cpu_update_ratio = 1;
  OptimizerConfig optimizer;  ///< in double precision, as written; the arithmetic is that of single precision
  SchedulerConfig scheduler;  ///< moves the optimizer's learning rate and betas from step to step
  AllreduceOp gradient_allreduce_op = AllreduceOp::mean;  ///< `sum` below stage 3 only
  float gradient_clipping = 1.0f;                         ///< maximum norm; 0 = off
  float loss_scale = 1.0f;                                ///< static; 0: dynamic; 1 without fp16
  DynamicLossScale dynamic_loss_scale;
  MonitorConfig csv_monitor, tensorboard;
  bool wall_clock_breakdown = false;  ///< rank 0 logs the times of each step, see Rank::Options::log
  ByteCount aio_block_size = 4_MiB;   ///< longest request
  /// aio_block_size * aio_queue_depth is the maximum number of bytes in flight on each path. Default: 16 MiB in flight.
  std::uint32_t aio_queue_depth = 4;
  PenstockConfig penstock;
  /// Notes for the user: keys without effect, defaults used for "auto" or instead of DeepSpeed's.
  std::vector<std::string> notes;

  /// Reads only the text; check_paths() checks the directories.
  ///
  /// Errors: not_found, permission and io, of the file; invalid_config, whose notes list every error, or the first of
  /// the syntax, and for more than 16 MiB; invalid_argument, when `world_size` is 0, for a name that is empty or has a
  /// NUL character, and for no regular file, such as a pipe.
  [[nodiscard]] static Result<Config> from_file(const std::filesystem::path& file, std::uint32_t world_size);
  /// `name` is used as the file's name in messages.
  [[nodiscard]] static Result<Config> from_text(std::string_view text, const std::string& name,
                                                std::uint32_t world_size);

  /// The directories of the swap files: those of offload_param if its device is nvme, else those of
  /// offload_optimizer; empty if neither is on nvme.
  [[nodiscard]] const std::vector<std::filesystem::path>& swap_directories() const;
  [[nodiscard]] bool is_durable() const { return !penstock.durable_directories.empty(); }

  /// Checks that this process can create a file, which it removes, in every directory of `nvme_path`, or of a durable
  /// run in every durable directory, or in the one above if that is to be made. Blocks, for at most
  /// PenstockConfig::io_deadline_seconds for each directory, also if both offload blocks name it.
  ///
  /// Errors: invalid_config, whose notes name every directory that cannot be used.
  [[nodiscard]] Result<void> check_paths() const;

  /// Checks that every value of this configuration, from a file or from code, is in its range and that none contradicts
  /// another. Called by plan_memory() and Engine::create().
  ///
  /// Errors: invalid_config, whose notes name every wrong key with the wanted and the actual value.
  [[nodiscard]] Result<void> validate() const;

  /// Whether a rank's host memory, which is one arena, is pinned: true if pin_memory is set in an offload block whose
  /// device is not none. If both devices are none, true if pin_memory is set in either block.
  [[nodiscard]] bool pins_host_memory() const;

  /// Whether the device holds gathered parameters for their use only: at stage 3.
  [[nodiscard]] bool shards_parameters() const { return stage == 3; }
  /// overlap_comm, or its default.
  [[nodiscard]] bool overlaps_communication() const { return overlap_comm.value_or(stage == 3); }

  /// Whether a step with gradients that are not finite is skipped: always, unless
  /// PenstockConfig::non_finite_gradients is as_deepspeed. Then with fp16, and with bf16 at stages 1 and 2 if
  /// check_grad_overflow. A norm that is not finite clips nothing, as in DeepSpeed.
  [[nodiscard]] bool skips_non_finite_gradients() const;

  /// The loss scale in its first state.
  [[nodiscard]] LossScaler loss_scaler() const;
  /// The learning rate and the betas of step `step`, counted from 1 without steps that were skipped, so that a run that
  /// is resumed after s steps continues with step s + 1; 0 acts as 1. A pure function.
  [[nodiscard]] LearningRate learning_rate_of(std::uint64_t step) const;

  /// The effective configuration as JSON with the keys of ds_config.json. from_text() of it gives this configuration,
  /// where train_batch_size fits its number of ranks and the names of directories are UTF-8.
  [[nodiscard]] std::string to_json() const;
};

/// The documentation of one key of ds_config.json, as text.
struct ConfigKey {
  std::string path;                  ///< "zero_optimization.offload_param.device"
  std::vector<std::string> aliases;  ///< other paths of the same key
  std::string takes;                 ///< "an integer from 1 to 4096"; empty: the key takes no value
  std::string default_value;         ///< as JSON, or in words where it follows from other keys
  std::string status;   ///< "supported", "deprecated", "no effect", "only the default", "removed"
  std::string read_by;  ///< the part of the program that acts on it: "memory plan", "trainer"
  std::string help;     ///< its meaning, or why it has no effect or was removed
  std::string bytes;    ///< its effect on memory, disk or traffic; empty: none
};

/// Every key that is known, in the order of the documentation.
[[nodiscard]] std::vector<ConfigKey> config_keys();

}  // namespace penstock::zero
