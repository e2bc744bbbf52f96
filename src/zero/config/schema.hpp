#pragma once

#include "zero/config/field.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::config {

/// The kind of value that a key takes.
enum class Kind : std::uint8_t {
  flag,     ///< true or false
  count,    ///< an integer, 5e8 and 15.0 included
  real,     ///< a finite number
  text,     ///< one of the choices; any string where there are none
  paths,    ///< a string or a list of strings
  numbers,  ///< a list of numbers, of `length` where that is given
  bytes,    ///< an integer, or a string such as "160MiB"
  list,     ///< a list of any values
  block,    ///< an object of keys listed here
  feature,  ///< an object of an unsupported feature: must be empty or, where there is a switch, say "enabled": false
};

/// How a known key is handled.
enum class Status : std::uint8_t {
  supported,   ///< `field` keeps it, and `read_by` acts on it
  deprecated,  ///< accepted in place of the key that `help` names; never written
  no_effect,   ///< accepted after a check of its type, and noted with `help`
  only_default,  ///< not supported yet: only `fallback` is accepted, or the values that a rule accepts in `field`
  removed,       ///< always refused; `help` names the alternative
};

/// Which part of the program acts on a supported key. A test varies each key and watches that part.
enum class Consumer : std::uint8_t {
  none,
  plan,     ///< plan_memory()
  runtime,  ///< MemoryPlan::runtime_options()
  step,     ///< the arithmetic of Engine::step()
  engine,   ///< other parts of Engine
  rank,     ///< Rank::create()
  trainer,  ///< only the trainer; the library passes it on
};

/// The members of `scheduler` that were read: type, and the parameters of all types.
struct SchedulerDraft {
  std::optional<std::string> type, warmup_type;
  std::optional<double> warmup_min_lr, warmup_max_lr, warmup_min_ratio, cos_min_ratio;
  std::optional<std::uint64_t> warmup_num_steps, total_num_steps;
  std::optional<double> cycle_min_lr, cycle_max_lr, decay_lr_rate, cycle_first_step_size,
      cycle_second_step_size, decay_step_size, cycle_min_mom, cycle_max_mom, decay_mom_rate;
  std::optional<std::uint64_t> cycle_first_stair_count, cycle_second_stair_count;
  std::optional<bool> cycle_momentum;
  std::optional<double> lr_range_test_min_lr, lr_range_test_step_rate;
  std::optional<std::uint64_t> lr_range_test_step_size;
  std::optional<bool> lr_range_test_staircase;
};

/// The values that were read, before the rules between keys are applied. Initialised with the defaults of the file.
struct Draft {
  Config config;
  std::optional<std::uint64_t> train_batch_size, micro_batch_size, gradient_accumulation_steps;
  bool bf16 = false, fp16 = false;
  float static_loss_scale = 0;  ///< 0: dynamic
  std::optional<DType> communication_dtype, grad_accum_dtype;
  std::optional<std::string> optimizer_type;
  std::optional<std::uint64_t> custom_moments;  ///< of optimizer.type Custom
  std::optional<double> momentum;               ///< of Muon
  bool adam_w_mode = true;
  bool bf16_masters = false, fp16_masters = false;    ///< *_master_weights_and_grads
  bool bf16_states = false, fp32_states = true;       ///< *_optimizer_states
  std::optional<cpu_adam::StateFormat> state_format;  ///< empty where the keys above determine it
  SchedulerDraft scheduler;
  std::optional<std::uint32_t> aio_queue_depth;
  std::optional<std::uint64_t> sub_group_size, buffer_count;
  std::optional<std::uint32_t> tiles_in_flight;
  bool cpu_offload = false, cpu_offload_param = false;
};

/// `choices` of a block that DeepSpeed passes on, whatever its members are.
constexpr std::string_view any_member = "*";

/// A row of the table: everything about one key.
struct Key {
  std::string_view path;  ///< "zero_optimization.stage"
  Kind kind = Kind::block;
  Status status = Status::supported;
  std::string_view help = {};      ///< for the user: its meaning; for no_effect and removed, the reason
  std::string_view bytes = {};     ///< for the user: its effect on memory, disk or traffic; empty: none
  std::string_view fallback = {};  ///< only_default: DeepSpeed's default, as JSON
  std::string_view choices =
      {};  ///< text: "none|cpu|nvme", any string if empty; feature: its members in DeepSpeed, or any_member
  bool any_case = false;      ///< text: DeepSpeed ignores the case of this key's choices
  bool is_dtype = false;      ///< text: DeepSpeed has other names of these types, such as "torch.float32"
  bool more_choices = false;  ///< text: DeepSpeed has others, which are not supported yet
  double least = 0, most = std::numeric_limits<double>::infinity();  ///< count, real, numbers and bytes
  bool zero_is_special = false;   ///< real: 0 is no small number, such as "no clipping"
  std::uint64_t multiple_of = 1;  ///< count
  std::size_t length = 0;         ///< numbers: how many; 0: any number
  bool whole = false;             ///< numbers: integers only
  bool nullable = false;          ///< null means the default
  bool has_default = true;        ///< true: "auto" means the default; false: "auto" is an error
  std::string_view unset = {};    ///< the default in words, for keys whose `field` is filled by rules
  Field field = {};               ///< accessors of the member that keeps the value
  Consumer read_by = Consumer::none;

  [[nodiscard]] bool is_object() const { return kind == Kind::block || kind == Kind::feature; }
};

/// Another name of a key.
struct Alias {
  std::string_view path, stands_for;
  bool deprecated = false;
};

/// A name that other libraries give to a key. It is an error here, as in DeepSpeed, and its message names the key.
struct ForeignName {
  std::string_view path, key;
};

/// Every key of ds_config.json that DeepSpeed 0.19 reads, and those of the block "penstock".
[[nodiscard]] std::span<const Key> schema();
[[nodiscard]] std::span<const Alias> aliases();
[[nodiscard]] std::span<const ForeignName> foreign_names();

/// The row of the key with this full path; null if there is none.
[[nodiscard]] const Key* find_key(std::string_view path);
[[nodiscard]] const Alias* find_alias(std::string_view path);
[[nodiscard]] const ForeignName* find_foreign_name(std::string_view path);

}  // namespace penstock::zero::config
