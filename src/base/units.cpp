#include <penstock/base/units.hpp>

#include <array>
#include <cstdio>

namespace penstock {

std::string to_string(ByteCount bytes) {
  static constexpr std::array<const char*, 6> prefixes = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes.value());
  std::size_t prefix = 0;
  // From 1023.95 on, "%.1f" would print 1024.0 of the smaller unit.
  while (value >= 1023.95 && prefix + 1 < prefixes.size()) value /= 1024.0, ++prefix;
  char text[32];
  std::snprintf(text, sizeof text, prefix == 0 ? "%.0f %s" : "%.1f %s", value, prefixes[prefix]);
  return text;
}

std::string to_exact_string(ByteCount bytes) {
  const std::string exact = std::to_string(bytes.value()) + " B";
  return bytes < 1_KiB ? exact : to_string(bytes) + " (" + exact + ")";
}

std::string to_string(ElementCount elements) {
  std::string digits = std::to_string(elements.value());
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), 1, ' ');
  }
  return digits;
}

}  // namespace penstock
