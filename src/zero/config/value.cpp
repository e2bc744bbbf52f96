#include "zero/config/value.hpp"

#include "zero/config/json_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>

namespace penstock::zero::config {

namespace {

using Fault = tl::unexpected<std::string>;

constexpr double two_to_64 = 18446744073709551616.0;

bool takes_numbers_as_strings(std::string_view path) {
  return path.starts_with("zero_optimization.") || path.starts_with("bf16.") || path.starts_with("fp16.");
}
bool takes_booleans_as_strings(std::string_view path) {
  return takes_numbers_as_strings(path) || path.starts_with("aio.");
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); });
  return text;
}

/// What a person sees of a value: a number or a short string as it is, else its type.
std::string shown(const Json::Value& json) {
  if (json.isObject()) return "an object";
  if (json.isArray()) return "a list";
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "";
  writer["precision"] = 9;
  std::string text = Json::writeString(writer, json);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

std::string range_text(const Key& key) {
  if (std::isinf(key.most)) return " of at least " + number_text(key.least);
  return " from " + number_text(key.least) + " to " + number_text(key.most);
}

Fault wanted(const std::string& what, const Json::Value& json) {
  return Fault("wanted " + what + ", got " + shown(json));
}

std::optional<double> number_of(const Key& key, const Json::Value& json) {
  if (json.isNumeric()) return json.asDouble();
  if (!json.isString() || !takes_numbers_as_strings(key.path)) return std::nullopt;
  const std::string text = json.asString();
  double value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

bool in_range(const Key& key, double value) {
  return std::isfinite(value) && value >= key.least && value <= key.most;
}

tl::expected<Value, std::string> read_flag(const Key& key, const Json::Value& json) {
  if (json.isBool()) return Value{.flag = json.asBool()};
  if (takes_booleans_as_strings(key.path) && json.isString()) {
    const std::string text = lower(json.asString());
    for (const char* yes : {"true", "yes", "on", "1", "y", "t"}) {
      if (text == yes) return Value{.flag = true};
    }
    for (const char* no : {"false", "no", "off", "0", "n", "f"}) {
      if (text == no) return Value{.flag = false};
    }
  }
  if (takes_numbers_as_strings(key.path) && json.isNumeric()) {
    if (json.asDouble() == 0.0) return Value{.flag = false};
    if (json.asDouble() == 1.0) return Value{.flag = true};
  }
  return wanted("true or false", json);
}

tl::expected<Value, std::string> read_count(const Key& key, const Json::Value& json) {
  const auto number = number_of(key, json);
  const bool integral = number && std::floor(*number) == *number;
  if (!integral || !in_range(key, *number) || *number >= two_to_64) {
    return wanted("an integer" + range_text(key), json);
  }
  return Value{.count = json.isUInt64() ? json.asUInt64() : static_cast<std::uint64_t>(*number)};
}

tl::expected<Value, std::string> read_real(const Key& key, const Json::Value& json) {
  const auto number = number_of(key, json);
  if (!number || !in_range(key, *number)) return wanted("a number" + range_text(key), json);
  return Value{.real = *number};
}

tl::expected<Value, std::string> read_text(const Key& key, const Json::Value& json) {
  if (json.isString() && key.choices.empty()) return Value{.text = json.asString()};
  std::string listed;
  for (std::size_t begin = 0; begin <= key.choices.size();) {
    const std::size_t end = std::min(key.choices.find('|', begin), key.choices.size());
    std::string choice(key.choices.substr(begin, end - begin));
    if (json.isString() && lower(json.asString()) == lower(choice)) return Value{.text = std::move(choice)};
    if (!listed.empty()) listed.append(end == key.choices.size() ? " or " : ", ");
    listed.append(1, '"').append(choice).append(1, '"');
    begin = end + 1;
  }
  return wanted(key.choices.empty() ? "a string" : listed, json);
}

tl::expected<Value, std::string> read_paths(const Json::Value& json) {
  Value value;
  const auto add = [&](const Json::Value& path) {
    const bool usable = path.isString() && !path.asString().empty();
    if (usable) value.texts.push_back(path.asString());
    return usable;
  };
  const bool usable =
      json.isArray() ? !json.empty() && std::all_of(json.begin(), json.end(), add) : add(json);
  if (!usable) return wanted("a directory, or a list of directories", json);
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
  const std::string what = key.length == 2 ? "two numbers"
                           : key.whole     ? "a list of integers"
                                           : "a list of numbers";
  if (!usable) return wanted(what + range_text(key), json);
  return value;
}

tl::expected<Value, std::string> read_bytes(const Key& key, const Json::Value& json) {
  if (!json.isString()) {
    auto count = read_count(key, json);
    if (!count) return wanted("a number of bytes, or a string such as \"160MiB\"", json);
    return count;
  }
  const auto count = parse_bytes(json.asString());
  if (!count) return Fault(count.error());
  return Value{.count = *count};
}

}  // namespace

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
    if (bytes >= 0 && bytes < two_to_64) return static_cast<std::uint64_t>(bytes);
  }
  return Fault("wanted a number of bytes such as \"160MiB\" (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB), got \"" +
               text + "\"");
}

tl::expected<Value, std::string> read_value(const Key& key, const Json::Value& json) {
  switch (key.kind) {
    case Kind::flag: return read_flag(key, json);
    case Kind::count: return read_count(key, json);
    case Kind::real: return read_real(key, json);
    case Kind::text: return read_text(key, json);
    case Kind::paths: return read_paths(json);
    case Kind::numbers: return read_numbers(key, json);
    case Kind::bytes: return read_bytes(key, json);
    case Kind::block:
    case Kind::feature: break;
  }
  if (!json.isObject()) return wanted("an object", json);
  return Value{};
}

bool is_fallback(const Key& key, const Json::Value& json, const Value& value) {
  std::vector<Problem> none;
  std::string list("[");  // a lone value is no document
  list.append(key.fallback).append("]");
  const Json::Value fallback = parse_json(list, none)[0];
  if (fallback.isNull() || json.isNull()) return fallback.isNull() && json.isNull();
  const auto accepted = read_value(key, fallback);
  return accepted && accepted->flag == value.flag && accepted->count == value.count &&
         accepted->real == value.real && accepted->text == value.text;
}

}  // namespace penstock::zero::config
