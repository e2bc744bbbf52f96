#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fstream>
#include <map>
#include <ranges>
#include <regex>
#include <string>

namespace penstock::test {
namespace {

using testing::Contains;
using testing::Key;

/// How often each floating-point instruction is in the PTX that the kernels were compiled to, by its name.
/// What only moves or compares is left out.
std::map<std::string, int> floating_point_instructions() {
  const std::regex instruction(
      R"(^\s*(?:@\S+\s+)?([a-z]+(?:\.[a-z0-9]+)*\.(?:f16|bf16|f32|f64)(?:x2)?(?:\.\w+)*)\s)");
  const std::regex moves(R"((ld|st|mov|selp|setp)\..*)");
  std::map<std::string, int> counts;
  for (const auto part : std::views::split(std::string_view(PENSTOCK_KERNELS_PTX), ':')) {
    const std::string path(part.begin(), part.end());
    std::ifstream file(path);
    EXPECT_TRUE(file) << path;
    for (std::string line; std::getline(file, line);) {
      std::smatch match;
      if (!std::regex_search(line, match, instruction)) continue;
      const std::string name = match.str(1);
      if (!std::regex_match(name, moves)) ++counts[name];
    }
  }
  return counts;
}

// PTX ISA, "Floating Point Instructions": with .rn these round once, to nearest even, and are never fused;
// without it the assembler may fuse them. No .ftz, no .approx.
TEST(CudaRounding, IsOnceForEveryOperationOfEveryKernel) {
  const auto counts = floating_point_instructions();
  for (const char* wanted : {"add.rn.f32", "mul.rn.f32", "div.rn.f32", "sqrt.rn.f32", "add.rn.f64"}) {
    EXPECT_THAT(counts, Contains(Key(wanted)));
  }
  const std::regex rounds_once(
      R"((add|sub|mul|div|sqrt)\.rn\.f(32|64)|cvt\.rn\.f32\.u16|cvt\.f64\.f32|neg\.f32|abs\.f32)");
  for (const auto& [name, count] : counts) {
    EXPECT_TRUE(std::regex_match(name, rounds_once)) << count << " of " << name;
  }
}

}  // namespace
}  // namespace penstock::test
