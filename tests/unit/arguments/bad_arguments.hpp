#pragma once

#include "kit/sanitizer.hpp"

#include <penstock/base/result.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

// Every public function that takes arguments, called with each bad value of each argument. The rule `arguments` of
// tests/package/tidy.py finds functions without a row.
namespace penstock::test {

/// Sanitizers end a process that asks for more memory than they support, before the library can refuse.
inline constexpr bool huge_allocations_end_the_process = any_sanitizer;

struct BadArgument {
  const char* function;  // as in the headers, with its class
  std::string argument, value;
  std::function<std::string()> call;  // what is wrong with the outcome; empty: as documented
};

/// Collects rows: bad("function", "argument", "value", call).
class BadArguments {
 public:
  void operator()(const char* function, std::string argument, std::string value,
                  std::function<std::string()> call) {
    rows_.push_back({function, std::move(argument), std::move(value), std::move(call)});
  }
  [[nodiscard]] const std::vector<BadArgument>& rows() const { return rows_; }

 private:
  std::vector<BadArgument> rows_;
};

void add_base_rows(BadArguments& bad);
void add_compute_rows(BadArguments& bad);
void add_adam_rows(BadArguments& bad);
void add_optimizer_rows(BadArguments& bad);
void add_device_adam_rows(BadArguments& bad);
void add_cuda_device_adam_rows(BadArguments& bad);  ///< of CUDA device 0
void add_device_rows(BadArguments& bad);
void add_file_rows(BadArguments& bad);
void add_transfer_rows(BadArguments& bad);
void add_simulation_rows(BadArguments& bad);
void add_runtime_rows(BadArguments& bad);
void add_trace_rows(BadArguments& bad);
void add_report_rows(BadArguments& bad);
void add_group_rows(BadArguments& bad);
void add_configuration_rows(BadArguments& bad);
void add_launch_rows(BadArguments& bad);
void add_process_group_rows(BadArguments& bad);
void add_rank_rows(BadArguments& bad);
void add_exchange_rows(BadArguments& bad);

inline constexpr std::uint64_t most = ~std::uint64_t{0};
inline constexpr std::array absurd_counts = {std::uint64_t{1} << 40, std::uint64_t{1} << 63, most - 4095,
                                             most};
inline constexpr float nan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float infinity = std::numeric_limits<float>::infinity();

/// An enumerator that does not exist.
template <class Enum>
inline constexpr Enum unknown = static_cast<Enum>(99);

/// Whether the call was refused with `code`, by a message that contains `names`.
template <class T>
std::string refused(const Result<T>& result, std::string_view names,
                    ErrorCode code = ErrorCode::invalid_argument) {
  if (result) return "it was accepted";
  const std::string message = result.error().message();
  if (result.error().code() != code) return "another error: " + message;
  return message.find(names) != std::string::npos ? "" : "it is not named: " + message;
}

/// Whether the call returned some error.
template <class T>
std::string fails(const Result<T>& result) {
  return result ? "it was accepted" : "";
}

inline std::string expect(bool condition, const char* complaint) {
  return condition ? "" : complaint;
}

/// A documented effect without a result to check: the call returned.
inline std::string harmless() {
  return "";
}

/// The first complaint.
inline std::string all(std::initializer_list<std::string> complaints) {
  for (const std::string& complaint : complaints) {
    if (!complaint.empty()) return complaint;
  }
  return "";
}

}  // namespace penstock::test
