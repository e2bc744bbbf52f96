#pragma once

#include "zero/config/schema.hpp"

#include <json/json.h>
#include <string>
#include <tl/expected.hpp>

namespace penstock::zero::config {

/// The value of a key of the schema, or what was wanted and got, for a person.
///
/// Inside zero_optimization, bf16 and fp16 DeepSpeed takes numbers and booleans written as strings, and in
/// aio its own tuner writes booleans so; they are taken here too, and nowhere else.
[[nodiscard]] tl::expected<Value, std::string> read_value(const Key& key, const Json::Value& json);

/// Whether the key's value is the one that needs no support.
[[nodiscard]] bool is_fallback(const Key& key, const Json::Value& json, const Value& value);

/// `text` as a number of bytes: "160MiB", "1.5 GiB", "4096", "2 GB" (of 1000).
[[nodiscard]] tl::expected<std::uint64_t, std::string> parse_bytes(const std::string& text);

}  // namespace penstock::zero::config
