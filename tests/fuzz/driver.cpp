// Replaces libFuzzer for compilers without it: runs seeded random inputs, or the given files.
//
//   fuzz_target [-seed=N] [-runs=N] [-max_len=BYTES] [-max_total_time=SECONDS] [FILE…]
#include "kit/seeded_random.hpp"

#include <signal.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// The arguments that reproduce the current input, printed when it crashes.
std::array<char, 4096> again;

void say_how_to_repeat(int signal) {
  (void)!::write(STDERR_FILENO, again.data(), std::strlen(again.data()));
  ::raise(signal);  // its handler has been reset: the process ends by it
}

struct Options {
  std::uint64_t seed = 1, runs = 100'000, max_len = 1024, max_total_time = 0;  // 0: no limit
  std::vector<std::string> files;
};

bool parse(int count, char** arguments, Options& options) {
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    bool known = false;
    for (const auto& [name, value] :
         {std::pair("-seed=", &options.seed), std::pair("-runs=", &options.runs),
          std::pair("-max_len=", &options.max_len), std::pair("-max_total_time=", &options.max_total_time)}) {
      if (!argument.starts_with(name)) continue;
      char* end = nullptr;
      const char* const digits = argument.c_str() + std::strlen(name);
      *value = std::strtoull(digits, &end, 10);
      known = end != digits && *end == '\0';
    }
    if (!known && argument.starts_with('-')) {
      std::fprintf(stderr, "error: %s is no option\n", argument.c_str());
      return false;
    }
    if (!known) options.files.push_back(argument);
  }
  return true;
}

/// Short inputs as often as long ones of any power of two.
std::vector<std::uint8_t> random_input(std::uint64_t seed, std::uint64_t max_len) {
  penstock::test::SeededRandom random(seed);
  const std::uint64_t longest =
      random.below(std::uint64_t{1} << random.below(std::bit_width(max_len) + 1u)) + 1;
  std::vector<std::uint8_t> input(std::min(longest, max_len));
  for (std::uint8_t& byte : input) byte = static_cast<std::uint8_t>(random.next());
  return input;
}

}  // namespace

int main(int count, char** arguments) {
  Options options;
  if (!parse(count, arguments, options)) return 2;
  struct sigaction action {};
  action.sa_handler = &say_how_to_repeat;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::sigaction(signal, &action, nullptr);

  for (const std::string& name : options.files) {
    std::ifstream file(name, std::ios::binary);
    if (!file.is_open()) {
      std::fprintf(stderr, "error: cannot read %s\n", name.c_str());
      return 2;
    }
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    std::snprintf(again.data(), again.size(), "again: %s %s\n", arguments[0], name.c_str());
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  if (!options.files.empty()) return 0;

  const auto began = std::chrono::steady_clock::now();
  const std::chrono::seconds limit(options.max_total_time);
  std::uint64_t run = 0;
  for (; run < options.runs; ++run) {
    if (limit.count() > 0 && std::chrono::steady_clock::now() - began > limit) break;
    const std::uint64_t seed = options.seed + run;
    std::snprintf(again.data(), again.size(), "again: %s -seed=%llu -runs=1 -max_len=%llu\n", arguments[0],
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(options.max_len));
    const std::vector<std::uint8_t> input = random_input(seed, options.max_len);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu inputs\n", static_cast<unsigned long long>(run));
  return 0;
}
