#include "fio.hpp"

#include <fmt/format.h>
#include <json/json.h>
#include <array>
#include <cstdio>
#include <memory>
#include <sstream>

namespace penstock::bench {

namespace {

/// Runs the command and returns its standard output. Errors: unsupported, when it fails.
Result<std::string> output_of(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return Error::from_errno("bench::run_fio", errno).object(command);
  std::string text;
  std::array<char, 4096> chunk;
  while (const std::size_t count = std::fread(chunk.data(), 1, chunk.size(), pipe)) {
    text.append(chunk.data(), count);
  }
  if (::pclose(pipe) != 0) {
    return Error::unsupported("bench::run_fio")
        .reason("the command failed")
        .object(command)
        .advice("install fio (apt-get install fio), or run without --fio");
  }
  return text;
}

/// Jobs and directions are reported as one: only then does fio give percentiles over all requests.
std::string fio_command(const FioVariant& variant, const char* operation, std::span<const std::string> files,
                        ByteCount file_size, bool direct, double seconds) {
  std::string command = fmt::format(
      "{}fio --output-format=json --group_reporting --unified_rw_reporting=mixed --thread --ioengine={} "
      "--direct={} --rw={} --bs={} --iodepth={} --size={} --time_based --runtime={}ms",
      variant.huge_pages ? "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 " : "", variant.engine, direct ? 1 : 0,
      operation, variant.request_size.value(), variant.depth, file_size.value(),
      static_cast<std::uint64_t>(seconds * 1000));
  if (variant.huge_pages) command += " --mem_align=2m --scramble_buffers=0";
  for (const std::string& file : files) command += fmt::format(" --name=swap --filename={}", file);
  return command;
}

}  // namespace

std::string FioVariant::name() const {
  return fmt::format("fio {} {} MiB x {}{}", engine, request_size / 1_MiB, depth,
                     huge_pages ? "" : " default buffers");
}

std::span<const FioVariant> fio_variants() {
  // Depths are powers of two: fio silently rounds the depth of io_uring up to one.
  static const std::vector<FioVariant> variants = {
      {.engine = "io_uring", .request_size = 4_MiB, .depth = 4},
      {.engine = "io_uring", .request_size = 4_MiB, .depth = 8},
      {.engine = "io_uring", .request_size = 1_MiB, .depth = 16},
      {.engine = "io_uring", .request_size = 1_MiB, .depth = 32},
      {.engine = "libaio", .request_size = 1_MiB, .depth = 32},
      {.engine = "io_uring", .request_size = 4_MiB, .depth = 4, .huge_pages = false},
  };
  return variants;
}

Result<std::string> fio_version() {
  auto version = output_of("fio --version");
  if (version) version->erase(version->find_last_not_of('\n') + 1);
  return version;
}

Result<Sample> run_fio(const FioVariant& variant, const char* operation, std::span<const std::string> files,
                       ByteCount file_size, bool direct, double seconds) {
  const std::string command = fio_command(variant, operation, files, file_size, direct, seconds);
  PENSTOCK_TRY_ASSIGN(auto text, output_of(command));

  Json::Value root;
  std::string problem;
  std::istringstream stream(text.substr(std::min(text.find('{'), text.size())));
  if (!Json::parseFromStream(Json::CharReaderBuilder(), stream, &root, &problem)) {
    return Error(ErrorCode::io, "bench::run_fio").reason(problem).object(command).got(text.substr(0, 200));
  }
  const Json::Value& job = root["jobs"][0];
  if (job["error"].asInt() != 0) {
    return Error::from_errno("bench::run_fio", job["error"].asInt()).object(command);
  }
  const Json::Value& moved = job["mixed"];
  const double gigabytes = moved["io_bytes"].asDouble() * 1e-9;
  if (!(gigabytes > 0)) {
    return Error(ErrorCode::io, "bench::run_fio").reason("fio transferred no bytes").object(command);
  }
  const double cpu_seconds =
      (job["usr_cpu"].asDouble() + job["sys_cpu"].asDouble()) / 100 * job["job_runtime"].asDouble() / 1000;
  const Json::Value& percentile = moved["clat_ns"]["percentile"];
  return Sample{.gb_per_second = moved["bw_bytes"].asDouble() * 1e-9,
                .cpu_s_per_gb = cpu_seconds / gigabytes,
                .p50_us = percentile["50.000000"].asDouble() * 1e-3,
                .p99_us = percentile["99.000000"].asDouble() * 1e-3,
                .p999_us = percentile["99.900000"].asDouble() * 1e-3,
                .requests = moved["total_ios"].asUInt64()};
}

}  // namespace penstock::bench
