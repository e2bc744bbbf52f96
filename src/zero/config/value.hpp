#pragma once

#include "zero/config/schema.hpp"

#include <json/json.h>
#include <optional>
#include <string>
#include <tl/expected.hpp>

namespace penstock::zero::config {

/// Parses the value of a key of the schema. Returns the value, or a text with the wanted and the actual value.
///
/// Numbers and booleans written as strings are accepted only in the blocks that DeepSpeed reads with pydantic, an
/// integer only as digits; booleans also in aio, where DeepSpeed's tuner writes them so.
[[nodiscard]] tl::expected<Value, std::string> read_value(const Key& key, const Json::Value& json);

/// Converts a value to JSON that read_value() accepts; null if there is none.
[[nodiscard]] Json::Value write_value(const Key& key, const std::optional<Value>& value);

/// Describes the values that read_value() accepts: "an integer from 1 to 4096".
[[nodiscard]] std::string what_it_takes(const Key& key);

/// The names in `choices`, in their order.
[[nodiscard]] std::vector<std::string_view> choices_of(const Key& key);

/// Whether a feature's object has the member "enabled" in DeepSpeed.
[[nodiscard]] bool has_switch(const Key& key);

/// Whether the value is the key's default, which requires no support.
[[nodiscard]] bool is_fallback(const Key& key, const Json::Value& json, const Value& value);

/// A value as messages show it: the type of an object, other values as written, up to 60 bytes.
[[nodiscard]] std::string shown(const Json::Value& json);

/// Parses `text` as a number of bytes: "160MiB", "1.5 GiB", "4096", "2 GB" (2e9); not "1.5" or "1.5 B".
[[nodiscard]] tl::expected<std::uint64_t, std::string> parse_bytes(const std::string& text);

}  // namespace penstock::zero::config
