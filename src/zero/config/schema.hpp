#pragma once

#include <penstock/zero/config/config.hpp>

#include <cstdint>
#include <limits>
#include <map>
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
  supported,     ///< `set` puts it where it goes
  no_effect,     ///< accepted after a check of its type, and noted with `why`
  only_default,  ///< not supported yet: `fallback` is accepted, anything else is refused
  removed,       ///< always refused; `why` says what to do instead
};

/// A value of the right kind and range.
struct Value {
  bool flag = false;
  std::uint64_t count = 0;
  double real = 0;
  std::string text;                ///< the choice as the schema spells it
  std::vector<std::string> texts;  ///< of `paths`
  std::vector<double> numbers;
};

/// What was read, before the rules that join several keys.
struct Draft {
  Config config;
  std::optional<std::uint64_t> train_batch_size, micro_batch_size, gradient_accumulation_steps;
  std::optional<std::uint64_t> stage;
  bool bf16 = false, fp16 = false;
  double static_loss_scale = 0;  ///< 0: dynamic
  std::optional<DType> communication_dtype, grad_accum_dtype;
  std::string optimizer_type;
  bool adam_w_mode = true;
  std::optional<std::uint32_t> aio_queue_depth;
};

struct Key {
  std::string_view path;  ///< "zero_optimization.stage"
  Kind kind = Kind::block;
  Status status = Status::supported;
  std::string_view why = {};       ///< no_effect and removed: the reason, for a person
  std::string_view fallback = {};  ///< only_default: DeepSpeed's default, as JSON
  std::string_view choices = {};   ///< text: "none|cpu|nvme"
  double least = 0, most = std::numeric_limits<double>::infinity();  ///< of count, real, numbers and bytes
  std::size_t length = 0;                                            ///< of numbers; 0: any
  bool whole = false;                                                ///< of numbers: without fractions
  bool nullable = false;                                             ///< null means the default
  bool has_default = true;  ///< "auto" means the default; false: the trainer must have replaced it
  void (*set)(Draft&, const Value&) = nullptr;
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
