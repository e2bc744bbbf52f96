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

/// What a key's value must be.
enum class Kind : std::uint8_t {
  flag,     ///< true or false
  count,    ///< an integer, 5e8 and 15.0 included
  real,     ///< a finite number
  text,     ///< one of the choices, in any case; any string where there are none
  paths,    ///< a string or a list of strings
  numbers,  ///< a list of numbers, of `length` where that is given
  bytes,    ///< an integer, or a string such as "160MiB"
  block,    ///< an object of keys listed here
  feature,  ///< an object that is not read, as long as it is empty or says "enabled": false
};

/// What happens to a key that is known.
enum class Status : std::uint8_t {
  supported,     ///< `field` keeps it, and `read_by` acts on it
  deprecated,    ///< accepted in place of the key that `help` names; never written
  no_effect,     ///< accepted after a check of its type, and noted with `help`
  only_default,  ///< not supported yet: `fallback` is accepted, or what a rule finds in `field`; nothing else
  removed,       ///< always refused; `help` says what to do instead
};

/// Which part of the program acts on a supported key. A test varies each key and watches that part.
enum class Consumer : std::uint8_t {
  nobody,
  plan,     ///< plan_memory()
  runtime,  ///< MemoryPlan::runtime_options()
  step,     ///< the arithmetic of Engine::step()
  engine,   ///< what else the Engine does
  trainer,  ///< the library only hands it on
};

/// What was read, before the rules that join several keys. Its members have the defaults of the file.
struct Draft {
  Config config;
  std::optional<std::uint64_t> train_batch_size, micro_batch_size, gradient_accumulation_steps;
  bool bf16 = false, fp16 = false;
  float static_loss_scale = 0;  ///< 0: dynamic
  std::optional<DType> communication_dtype, grad_accum_dtype;
  std::optional<std::string> optimizer_type;
  bool adam_w_mode = true;
  std::optional<std::uint32_t> aio_queue_depth;
  bool cpu_offload = false, cpu_offload_param = false;
};

/// A row of the table: everything about one key.
struct Key {
  std::string_view path;  ///< "zero_optimization.stage"
  Kind kind = Kind::block;
  Status status = Status::supported;
  std::string_view help = {};      ///< for a person: what it says; of no_effect and removed, the reason
  std::string_view fallback = {};  ///< only_default: DeepSpeed's default, as JSON
  std::string_view choices = {};   ///< text: "none|cpu|nvme"; any string where there are none
  bool more_choices = false;       ///< of text: DeepSpeed has others, which are not supported yet
  double least = 0, most = std::numeric_limits<double>::infinity();  ///< of count, real, numbers and bytes
  std::uint64_t multiple_of = 1;                                     ///< of count
  std::size_t length = 0;                                            ///< of numbers; 0: any
  bool whole = false;                                                ///< of numbers: without fractions
  bool nullable = false;                                             ///< null means the default
  bool has_default = true;      ///< "auto" means the default; false: the trainer must have replaced it
  std::string_view unset = {};  ///< the default in words, where `field` is empty until rules fill it
  Field field = {};             ///< where a value is kept
  Consumer read_by = Consumer::nobody;

  [[nodiscard]] bool is_object() const { return kind == Kind::block || kind == Kind::feature; }
};

/// Another name of a key.
struct Alias {
  std::string_view path, stands_for;
  bool deprecated = false;
};

/// Every key of ds_config.json that DeepSpeed 0.19 reads, and our own block.
[[nodiscard]] std::span<const Key> schema();
[[nodiscard]] std::span<const Alias> aliases();

/// A row of the schema by its full path, null if there is none.
[[nodiscard]] const Key* find_key(std::string_view path);
[[nodiscard]] const Alias* find_alias(std::string_view path);

}  // namespace penstock::zero::config
