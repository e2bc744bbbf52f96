#pragma once

#include "zero/config/schema.hpp"

#include <json/json.h>
#include <optional>
#include <string>
#include <tl/expected.hpp>

namespace penstock::zero::config {

/// The value of a key of the schema, or what was wanted and got, for a person.
///
/// Inside zero_optimization, bf16 and fp16 DeepSpeed takes numbers and booleans written as strings, and in
/// aio its own tuner writes booleans so; they are taken here too, and nowhere else.
[[nodiscard]] tl::expected<Value, std::string> read_value(const Key& key, const Json::Value& json);

/// A value as read_value() takes it; null where there is none.
[[nodiscard]] Json::Value write_value(const Key& key, const std::optional<Value>& value);

/// What read_value() wants, for a person: "an integer from 1 to 4096".
[[nodiscard]] std::string what_it_takes(const Key& key);

/// Whether the key's value is the one that needs no support.
[[nodiscard]] bool is_fallback(const Key& key, const Json::Value& json, const Value& value);

/// `text` as a number of bytes: "160MiB", "1.5 GiB", "4096", "2 GB" (of 1000).
[[nodiscard]] tl::expected<std::uint64_t, std::string> parse_bytes(const std::string& text);

}  // namespace penstock::zero::config
