#pragma once

#include <penstock/zero/config/config.hpp>

#include <string>
#include <string_view>

namespace penstock::zero {

inline Result<Config> read(std::string_view text, std::uint32_t world_size = 1) {
  return Config::from_text(text, "ds_config.json", world_size);
}

/// The message of a refusal, or what it was accepted as.
inline std::string refusal(std::string_view text, std::uint32_t world_size = 1) {
  const auto config = read(text, world_size);
  return config ? "accepted: " + config->to_json() : config.error().message();
}

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace penstock::zero
