#include "unit/arguments/bad_arguments.hpp"

#include <penstock/base/compute.hpp>
#include <penstock/base/executor.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/stream.hpp>
#include <penstock/base/units.hpp>
#include <penstock/kernels/variants.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/tiers/memory/memory_limits.hpp>
#include <penstock/tiers/tier.hpp>

#include <array>
#include <utility>

namespace penstock::test {
namespace {

void add_span_rows(BadArguments& bad) {
  static std::array<std::byte, 16> bytes{};
  const HostSpan host(bytes.data(), 16_B);
  const DeviceSpan device(DeviceAddress(4096), 16_B);
  const DeviceTensor tensor{device, DType::fp32};
  const std::array<std::pair<std::uint64_t, std::uint64_t>, 6> ranges = {
      {{17, 0}, {16, 1}, {0, 17}, {most, 1}, {1, most}, {most, most}}};
  for (const auto& [offset, length] : ranges) {
    const std::string value = std::to_string(offset) + " and " + std::to_string(length) + " of 16";
    bad("BasicHostSpan::subspan", "offset and length", value,
        [=] { return expect(host.subspan(ByteCount(offset), ByteCount(length)).empty(), "not empty"); });
    bad("DeviceSpan::subspan", "offset and length", value,
        [=] { return expect(device.subspan(ByteCount(offset), ByteCount(length)).empty(), "not empty"); });
    bad("DeviceTensor::slice", "first and length", value, [=] {
      return expect(tensor.slice(ElementCount(offset), ElementCount(length)).bytes.empty(), "not empty");
    });
  }
  bad("DeviceTensor::slice", "first", "2^62, whose bytes wrap around to 0", [=] {
    return expect(tensor.slice(ElementCount(std::uint64_t{1} << 62), ElementCount(1)).bytes.empty(),
                  "not empty");
  });
  bad("BasicHostSpan::as", "the span", "misaligned",
      [=] { return expect(host.subspan(1_B, 8_B).as<double>().empty(), "not empty"); });
  bad("BasicHostSpan::as", "the span", "not whole elements",
      [=] { return expect(host.subspan(0_B, 9_B).as<double>().empty(), "not empty"); });
  bad("BasicHostSpan::as", "the span", "a default one",
      [] { return expect(HostSpan().as<double>().empty(), "not empty"); });
}

void add_number_rows(BadArguments& bad) {
  for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{3}, most}) {
    bad("Alignment::Alignment", "bytes", std::to_string(value), [=] {
      const std::uint64_t bytes = Alignment(value).bytes();
      return expect(std::has_single_bit(bytes) && (bytes <= value || value == 0), "no power of two");
    });
    bad("is_aligned", "alignment", std::to_string(value),
        [=] { return expect(is_aligned(std::uint64_t{0}, Alignment(value)), "0 is aligned to everything"); });
    bad("round_up", "value", std::to_string(value),
        [=] { return expect(round_up(value, 1) == value, "not the value"); });
    bad("ceil_divide", "a", std::to_string(value),
        [=] { return expect(ceil_divide(value, 1) == value, "not the value"); });
  }
  bad("round_up", "multiple", "0",
      [] { return expect(round_up(std::uint64_t{5}, 0) == 5, "not the value"); });
  bad("ceil_divide", "b", "0", [] { return expect(ceil_divide(5, 0) == 0, "not 0"); });
  bad("ceil_divide", "a", "the most, by 2",
      [] { return expect(ceil_divide(most, 2) == std::uint64_t{1} << 63, "wrapped around"); });
  bad("sum_tree", "partials", "empty", [] { return expect(sum_tree({}) == 0, "not 0"); });
  bad("sum_tree", "partials", "NaN", [] {
    const std::array<double, 3> partials = {1, nan, 2};
    return expect(sum_tree(partials) != sum_tree(partials), "not NaN");
  });
  for (const std::uint64_t count : {std::uint64_t{1} << 62, std::uint64_t{1} << 63, most}) {
    bad("bytes_of", "elements", std::to_string(count),
        [=] { return refused(bytes_of(ElementCount(count), DType::fp32), ""); });
  }
  bad("elements_of", "bytes", "3", [] { return refused(elements_of(3_B, DType::fp32), ""); });
  bad("elements_of", "bytes", "the most",
      [] { return refused(elements_of(ByteCount(most), DType::bf16), ""); });
}

void add_enumerator_rows(BadArguments& bad) {
  const auto some_text = [](std::string_view text) { return expect(!text.empty(), "no text"); };
  bad("to_string", "dtype", "unknown", [=] { return some_text(to_string(unknown<DType>)); });
  bad("to_string", "code", "unknown", [=] { return some_text(to_string(unknown<ErrorCode>)); });
  bad("to_string", "tier", "unknown", [=] { return some_text(to_string(unknown<tiers::Tier>)); });
  bad("to_string", "purpose", "unknown", [=] { return some_text(to_string(unknown<tiers::Purpose>)); });
  bad("to_string", "isa", "unknown", [=] { return some_text(to_string(unknown<Isa>)); });
  bad("to_string", "format", "unknown",
      [=] { return some_text(kernels::to_string(unknown<kernels::StateFormat>)); });
  bad("size_of", "dtype", "unknown", [] { return expect(!size_of(unknown<DType>).is_zero(), "0 B"); });
  bad("bytes_of", "dtype", "unknown", [] {
    (void)bytes_of(ElementCount(8), unknown<DType>);
    return harmless();
  });
  bad("elements_of", "dtype", "unknown", [] {
    (void)elements_of(8_B, unknown<DType>);
    return harmless();
  });
  bad("is_runnable", "isa", "unknown", [] { return expect(!is_runnable(unknown<Isa>), "it is runnable"); });
}

void add_error_rows(BadArguments& bad) {
  const auto printable = [](const Error& error) { return expect(!error.message().empty(), "no message"); };
  bad("Error::Error", "operation", "null", [=] { return printable(Error(ErrorCode::io, nullptr)); });
  bad("Error::Error", "code", "unknown", [=] { return printable(Error(unknown<ErrorCode>, "x")); });
  bad("Error::invalid_argument", "operation", "null",
      [=] { return printable(Error::invalid_argument(nullptr)); });
  bad("Error::invalid_config", "operation", "null",
      [=] { return printable(Error::invalid_config(nullptr)); });
  bad("Error::unsupported", "operation", "null", [=] { return printable(Error::unsupported(nullptr)); });
  bad("Error::would_block", "operation", "null", [=] { return printable(Error::would_block(nullptr)); });
  for (const int number : {-1, 0, 99999, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    bad("Error::from_errno", "errno_value", std::to_string(number),
        [=] { return printable(Error::from_errno("x", number)); });
  }
  bad("Error::from_errno", "operation", "null", [=] { return printable(Error::from_errno(nullptr, 5)); });
}

void add_task_rows(BadArguments& bad) {
  bad("InlineExecutor::post", "task", "empty", [] {
    InlineExecutor().post({});
    return harmless();
  });
  for (const std::uint32_t threads : {0u, 1025u, ~0u}) {
    bad("Workers::create", "threads", std::to_string(threads),
        [=] { return refused(parallel::Workers::create({.threads = threads}), "threads"); });
  }
  for (const std::uint32_t threads : {1u, 2u}) {
    bad("Workers::post", "task", "empty, with " + std::to_string(threads) + " threads", [=] {
      parallel::Workers::create({.threads = threads}).value().post({});
      return harmless();
    });
    bad("Workers::post", "the workers", "moved from", [=] {
      auto workers = parallel::Workers::create({.threads = threads}).value();
      const parallel::Workers kept = std::move(workers);
      bool ran = false;
      workers.post([&] { ran = true; });
      return expect(ran, "the task did not run");
    });
    bad("Workers::parallel_blocks", "the workers", "moved from", [=] {
      auto workers = parallel::Workers::create({.threads = threads}).value();
      const parallel::Workers kept = std::move(workers);
      std::size_t covered = 0;
      workers.parallel_blocks(8, [&](std::size_t first, std::size_t last) { covered += last - first; });
      return expect(covered == 8, "the range is not covered");
    });
    bad("Workers::parallel_blocks", "count", "0", [=] {
      bool ran = false;
      parallel::Workers::create({.threads = threads})
          .value()
          .parallel_blocks(0, [&](std::size_t, std::size_t) { ran = true; });
      return expect(!ran, "the body ran");
    });
  }
}

void add_memory_limit_rows(BadArguments& bad) {
  for (const std::string& root :
       {std::string(), std::string("."), std::string("/proc"), std::string("/none"), std::string("/dev/null"),
        std::string(100'000, 'x'), std::string("a\0b\nc", 5)}) {
    bad("memory_limit", "root", root.substr(0, 20), [=] {
      (void)tiers::memory_limit(root);
      return harmless();
    });
  }
  bad("check_memory", "operation", "null",
      [] { return refused(tiers::check_memory(nullptr, ByteCount(most), {}), "", ErrorCode::no_space); });
  for (const std::uint64_t wanted : absurd_counts) {
    bad("check_memory", "wanted", std::to_string(wanted), [=] {
      return refused(tiers::check_memory("x", ByteCount(wanted), {.available = 1_GiB, .allowed = 2_GiB}), "",
                     ErrorCode::no_space);
    });
  }
}

}  // namespace

void add_base_rows(BadArguments& bad) {
  add_span_rows(bad);
  add_number_rows(bad);
  add_enumerator_rows(bad);
  add_error_rows(bad);
  add_task_rows(bad);
  add_memory_limit_rows(bad);
}

}  // namespace penstock::test
