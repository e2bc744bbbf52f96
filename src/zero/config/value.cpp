#include "zero/config/value.hpp"

#include "zero/config/hjson.hpp"
#include "zero/config/json_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

namespace penstock::zero::config {

namespace {

using Fault = tl::unexpected<std::string>;

constexpr double count_max = 18446744073709549568.0;  // the largest double below 2^64

/// Whether DeepSpeed reads the key with pydantic, which converts strings to numbers and booleans.
bool is_converted(std::string_view path) {
  static constexpr std::string_view blocks[] = {"zero_optimization", "bf16",    "fp16",  "tensorboard",
                                                "csv_monitor",       "wandb",   "comet", "comms_logger",
                                                "hybrid_engine",     "compile", "timers"};
  const std::string_view block = path.substr(0, path.find('.'));
  return std::find(std::begin(blocks), std::end(blocks), block) != std::end(blocks);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  return text;
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

/// The largest number that the key takes.
double most_of(const Key& key) {
  const bool counts = key.kind == Kind::count || key.kind == Kind::bytes;
  return counts ? std::min(key.most, count_max) : key.most;
}

/// " to 4096".
std::string limit_text(const Key& key) {
  const double most = most_of(key);
  if (most == count_max) return " to " + std::to_string(static_cast<std::uint64_t>(count_max));
  const bool is_of_float = static_cast<float>(most) == std::numeric_limits<float>::max();
  return " to " + number_text(most) + (is_of_float ? ", the largest in single precision" : "");
}

enum class Limit : bool { if_it_matters, always };

/// " from 1 to 4096, a multiple of 4"; an upper limit that is too large to matter only on demand.
std::string range_text(const Key& key, Limit limit) {
  const bool ends = limit == Limit::always || key.most < double{std::numeric_limits<float>::max()};
  std::string text = (ends ? " from " : " of at least ") + number_text(key.least);
  if (ends) text += limit_text(key);
  if (key.multiple_of > 1) text += ", a multiple of " + std::to_string(key.multiple_of);
  return text;
}

/// `"lru" or "planned"`, or `Adam and AdamW`.
std::string listed(const Key& key, std::string_view before_last, std::string_view quote) {
  const auto choices = choices_of(key);
  std::string text;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text.append(i + 1 == choices.size() ? before_last : ", ");
    text.append(quote).append(choices[i]).append(quote);
  }
  return text;
}

/// The number that the whole text is.
template <class T>
std::optional<T> parsed(const std::string& text) {
  T value{};
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

Fault too_many_bytes(const std::string& got) {
  const auto most = static_cast<std::uint64_t>(count_max);
  return Fault("wanted at most " + std::to_string(most) + " bytes (16384 PiB), got " + got);
}

/// Whether the value is, or contains, a number above the key's limit.
bool exceeds_limit(const Key& key, const Json::Value& json) {
  if (json.isArray() && key.kind == Kind::numbers) {
    return std::any_of(json.begin(), json.end(), [&](const auto& one) { return exceeds_limit(key, one); });
  }
  std::optional<double> number;
  if (json.isNumeric()) number = json.asDouble();
  if (json.isString()) number = parsed<double>(json.asString());
  return number && std::isfinite(*number) && *number > most_of(key);
}

std::string taken(const Key& key, Limit limit) {
  switch (key.kind) {
    case Kind::flag: return "true or false";
    case Kind::count: return "an integer" + range_text(key, limit);
    case Kind::real: return "a number" + range_text(key, limit);
    case Kind::text: return key.choices.empty() ? "a string" : listed(key, " or ", "\"");
    case Kind::paths: return "a directory, or a list of directories";
    case Kind::numbers:
      return (key.length == 2 ? "two numbers"
              : key.whole     ? "a list of integers"
                              : "a list of numbers") +
             range_text(key, limit);
    case Kind::bytes: return "a number of bytes, or a string such as \"160MiB\"";
    case Kind::list: return "a list";
    case Kind::feature:
      if (key.status == Status::no_effect) break;
      if (key.fallback == "null") return "null";
      return has_switch(key) ? "an object that is empty or says \"enabled\": false" : "an empty object";
    case Kind::block: break;
  }
  return "an object";
}

Fault wanted(const Key& key, const Json::Value& json, const std::string& advice = {}) {
  const Limit limit = exceeds_limit(key, json) ? Limit::always : Limit::if_it_matters;
  return Fault("wanted " + taken(key, limit) + ", got " + shown(json) + advice);
}

/// A string is a number only where DeepSpeed converts it, and only digits are an integer: "5e8" is none for pydantic.
std::optional<double> number_of(const Key& key, const Json::Value& json) {
  if (json.isNumeric()) return json.asDouble();
  if (!json.isString() || !is_converted(key.path)) return std::nullopt;
  if (key.kind == Kind::count) return parsed<std::uint64_t>(json.asString());
  return parsed<double>(json.asString());
}

bool in_range(const Key& key, double value) {
  return std::isfinite(value) && value >= key.least && value <= most_of(key);
}

/// As wanted(), with the advice to unquote a string that would be accepted without quotes.
Fault wanted_number(const Key& key, const Json::Value& json) {
  const auto number = json.isString() ? parsed<double>(json.asString()) : std::nullopt;
  const bool fits =
      number && in_range(key, *number) && (key.kind == Kind::real || std::floor(*number) == *number);
  return wanted(key, json, fits ? "; write it without quotes" : "");
}

tl::expected<Value, std::string> read_flag(const Key& key, const Json::Value& json) {
  if (json.isBool()) return Value{.flag = json.asBool()};
  if ((is_converted(key.path) || key.path.starts_with("aio.")) && json.isString()) {
    const std::string text = lower(json.asString());
    for (const char* yes : {"true", "yes", "on", "1", "y", "t"}) {
      if (text == yes) return Value{.flag = true};
    }
    for (const char* no : {"false", "no", "off", "0", "n", "f"}) {
      if (text == no) return Value{.flag = false};
    }
  }
  if (is_converted(key.path) && json.isNumeric()) {
    if (json.asDouble() == 0.0) return Value{.flag = false};
    if (json.asDouble() == 1.0) return Value{.flag = true};
  }
  return wanted(key, json);
}

tl::expected<Value, std::string> read_count(const Key& key, const Json::Value& json) {
  const auto number = number_of(key, json);
  const bool integral = number && std::floor(*number) == *number;
  if (!integral || !in_range(key, *number)) return wanted_number(key, json);
  const std::uint64_t count = json.isUInt64() ? json.asUInt64() : static_cast<std::uint64_t>(*number);
  if (count % key.multiple_of != 0) return wanted(key, json);
  return Value{.count = count};
}

tl::expected<Value, std::string> read_real(const Key& key, const Json::Value& json) {
  const auto number = number_of(key, json);
  if (!number || !in_range(key, *number)) return wanted_number(key, json);
  if (key.zero_is_special && *number != 0 && static_cast<float>(*number) == 0) {
    return Fault("wanted 0, or a number that is not 0 in single precision, got " + shown(json));
  }
  return Value{.real = *number};
}

/// The short name of a type that DeepSpeed's DtypeEnum has other names for; any other text as it is.
std::string short_dtype(std::string text) {
  static constexpr std::pair<std::string_view, const char*> names[] = {
      {"float32", "fp32"}, {"float", "fp32"},         {"torch.float32", "fp32"}, {"float16", "fp16"},
      {"half", "fp16"},    {"torch.float16", "fp16"}, {"bfloat16", "bf16"},      {"torch.bfloat16", "bf16"}};
  for (const auto& [name, short_name] : names) {
    if (text == name) return short_name;
  }
  return text;
}

tl::expected<Value, std::string> read_text(const Key& key, const Json::Value& json) {
  if (!json.isString()) return wanted(key, json);
  const std::string text = key.is_dtype ? short_dtype(json.asString()) : json.asString();
  if (key.choices.empty()) return Value{.text = text};
  for (const std::string_view choice : choices_of(key)) {
    if (lower(text) != lower(std::string(choice))) continue;
    if (text == choice || key.any_case) return Value{.text = std::string(choice)};
    return wanted(key, json, "; did you mean \"" + std::string(choice) + "\"?");
  }
  if (key.more_choices) return Fault("not supported yet; only " + listed(key, " and ", "") + " are");
  return wanted(key, json);
}

tl::expected<Value, std::string> read_paths(const Key& key, const Json::Value& json) {
  Value value;
  const auto add = [&](const Json::Value& path) {
    const bool usable = path.isString() && !path.asString().empty();
    if (usable) value.texts.push_back(path.asString());
    return usable;
  };
  const bool usable =
      json.isArray() ? !json.empty() && std::all_of(json.begin(), json.end(), add) : add(json);
  if (!usable) return wanted(key, json);
  return value;
}

tl::expected<Value, std::string> read_numbers(const Key& key, const Json::Value& json) {
  Value value;
  const auto add = [&](const Json::Value& number) {
    const bool usable = number.isNumeric() && in_range(key, number.asDouble()) &&
                        (!key.whole || number.asDouble() == std::floor(number.asDouble()));
    if (usable) value.numbers.push_back(number.asDouble());
    return usable;
  };
  const bool usable = json.isArray() && (key.length == 0 ? !json.empty() : json.size() == key.length) &&
                      std::all_of(json.begin(), json.end(), add);
  if (!usable) return wanted(key, json);
  return value;
}

tl::expected<Value, std::string> read_bytes(const Key& key, const Json::Value& json) {
  if (!json.isString()) {
    auto count = read_count(key, json);
    if (!count && exceeds_limit(key, json)) return too_many_bytes(shown(json));
    if (!count) return wanted(key, json);
    return count;
  }
  const auto count = parse_bytes(json.asString());
  if (!count) return Fault(count.error());
  return Value{.count = *count};
}

}  // namespace

std::string shown(const Json::Value& json) {
  if (json.isObject()) return "an object";
  const auto is_nested = [](const Json::Value& one) { return one.isObject() || one.isArray(); };
  if (json.isArray() && std::any_of(json.begin(), json.end(), is_nested)) return "a list";
  std::string text = write_json(json);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::vector<std::string_view> choices_of(const Key& key) {
  std::vector<std::string_view> choices;
  for (std::size_t begin = 0; begin < key.choices.size();) {
    const std::size_t end = std::min(key.choices.find('|', begin), key.choices.size());
    choices.push_back(key.choices.substr(begin, end - begin));
    begin = end + 1;
  }
  return choices;
}

bool has_switch(const Key& key) {
  const auto names = choices_of(key);
  return std::find(names.begin(), names.end(), "enabled") != names.end();
}

tl::expected<std::uint64_t, std::string> parse_bytes(const std::string& text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  static constexpr Unit units[] = {{"", 1},         {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
                                   {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},     {"MB", 1e6},
                                   {"GB", 1e9},     {"TB", 1e12}};
  double number = 0;
  const char* const end = text.data() + text.size();
  auto parsed = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  while (parsed.ptr != end && *parsed.ptr == ' ') ++parsed.ptr;
  const std::string unit = lower(std::string(parsed.ptr, end));
  for (const Unit& known : units) {
    if (parsed.ec != std::errc() || unit != lower(std::string(known.name))) continue;
    const double bytes = number * known.bytes;
    if (known.bytes == 1 && number != std::floor(number)) break;
    if (bytes > count_max) return too_many_bytes('"' + text + '"');
    if (bytes >= 0) return static_cast<std::uint64_t>(bytes);
  }
  return Fault(
      "wanted a whole number of bytes such as \"160MiB\" (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB), got \"" +
      text + "\"");
}

tl::expected<Value, std::string> read_value(const Key& key, const Json::Value& json) {
  switch (key.kind) {
    case Kind::flag: return read_flag(key, json);
    case Kind::count: return read_count(key, json);
    case Kind::real: return read_real(key, json);
    case Kind::text: return read_text(key, json);
    case Kind::paths: return read_paths(key, json);
    case Kind::numbers: return read_numbers(key, json);
    case Kind::bytes: return read_bytes(key, json);
    case Kind::list:
      if (!json.isArray()) return wanted(key, json);
      return Value{};
    case Kind::block:
    case Kind::feature: break;
  }
  if (!json.isObject()) return wanted(key, json);
  return Value{};
}

Json::Value write_value(const Key& key, const std::optional<Value>& value) {
  if (!value) return Json::nullValue;
  Json::Value list(Json::arrayValue);
  for (const std::string& text : value->texts) list.append(text);
  for (const double number : value->numbers) list.append(number);
  switch (key.kind) {
    case Kind::flag: return value->flag;
    case Kind::count:
    case Kind::bytes: return Json::UInt64(value->count);
    case Kind::real: return value->real;
    case Kind::text: return value->text;
    case Kind::paths: return list.size() == 1 ? list[0] : list;
    case Kind::numbers: return list;
    case Kind::list:
    case Kind::block:
    case Kind::feature: break;
  }
  return Json::nullValue;
}

std::string what_it_takes(const Key& key) {
  return taken(key, Limit::if_it_matters);
}

bool is_fallback(const Key& key, const Json::Value& json, const Value& value) {
  std::vector<Problem> none;
  std::string list("[");  // the parser requires an array or an object at the top level
  list.append(key.fallback).append("]");
  const Json::Value fallback = parse_hjson(list, none)[0];
  if (fallback.isNull() || json.isNull()) return fallback.isNull() && json.isNull();
  const auto accepted = read_value(key, fallback);
  return accepted && accepted->flag == value.flag && accepted->count == value.count &&
         accepted->real == value.real && accepted->text == value.text;
}

}  // namespace penstock::zero::config
