#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

/// Instruction sets that the Adam kernel is compiled for. All give the same bits.
enum class Isa : std::uint8_t { scalar, x86_64_v2, x86_64_v3, x86_64_v4, neon };

[[nodiscard]] std::string_view to_string(Isa isa);

/// Whether this build holds the kernel and this machine can run it.
[[nodiscard]] bool is_runnable(Isa isa);

struct IsaChoice {
  Isa isa;
  std::string_view reason;  ///< why not a wider one; lives for ever
};

/// The widest that is_runnable, decided once.
[[nodiscard]] IsaChoice best_isa();

}  // namespace penstock
