// cuda_bandwidth: compares the copies of the library's CUDA device with bare cudaMemcpyAsync between the same kind of
// memory, and each of the library's kernels with a copy on the device of as many bytes, alternately in the same run.
#include "copies.hpp"
#include "kernels.hpp"
#include "report.hpp"

#include "measure/command_line.hpp"
#include "measure/run_main.hpp"
#include "tiers/device/cuda_device.hpp"

#include <cstdio>

namespace penstock::bench {
namespace {

struct Options {
  std::vector<std::string> only = {"copies", "kernels"};
  std::uint64_t total = 256 << 20;
  std::uint64_t elements = 64 << 20;
  int launches = 10;
  int rounds = 21;
  bool json = false;
};

/// 256 KiB to 64 MiB, as far as `total` allows.
std::vector<ByteCount> copy_sizes(ByteCount total) {
  std::vector<ByteCount> sizes;
  for (ByteCount size = 256_KiB; size <= std::min(total, 64_MiB); size = size * 4) sizes.push_back(size);
  return sizes;
}

int run(int argc, char** argv) {
  Options options;
  measure::CommandLine app(
      "Measures copies between host and CUDA device 0 against bare cudaMemcpyAsync, and kernels against "
      "copies on the device");
  app.add_option("--only", options.only, "what to measure")
      .show_default()
      .delimiter(',')
      .one_of({"copies", "kernels"});
  app.add_option("--total", options.total, "bytes moved by a measurement of copies, such as 256MiB")
      .show_default()
      .bytes()
      .range(std::uint64_t{256} << 10, std::uint64_t{1} << 40);
  app.add_option("--elements", options.elements, "elements that a kernel processes")
      .show_default()
      .range(std::uint64_t{1}, std::uint64_t{1} << 40);
  app.add_option("--launches", options.launches, "launches in a measurement of kernels")
      .show_default()
      .range(1, 100000);
  app.add_option("--rounds", options.rounds, "interleaved rounds").show_default().range(1, 100000);
  app.add_flag("--json", options.json, "print one line of JSON");
  if (const auto status = app.parse(argc, argv)) return *status;

  Report report{tiers::create_cuda_device(0).value()->name(), options.rounds, {}, {}};
  const ByteCount total(options.total);
  for (const std::string& part : options.only) {
    std::fprintf(stderr, "measuring %s\n", part.c_str());
    if (part == "copies") report.copies = measure_copies({copy_sizes(total), total, options.rounds});
    if (part == "kernels") {
      report.kernels = measure_kernels({ElementCount(options.elements), options.launches, options.rounds});
    }
  }
  options.json ? print_json(report) : print_table(report);
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return penstock::bench::run(argc, argv); });
}
