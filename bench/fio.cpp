#include "fio.hpp"

#include <fmt/format.h>
#include <json/json.h>
#include <array>
#include <cstdio>
#include <memory>
#include <sstream>

namespace penstock::bench {

namespace {

/// What the command prints on standard output. Errors: unsupported, when it fails.
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

}  // namespace

std::string fio_command(const FioVariant& variant, const char* operation, std::span<const std::string> files,
                        ByteCount file_size, bool direct, double seconds) {
  std::string command = fmt::format(
      "{}fio --output-format=json --thread --ioengine=io_uring --direct={} --rw={} --bs={} "
      "--iodepth={} --size={} --time_based --runtime={}ms",
      variant.huge_pages ? "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 " : "", direct ? 1 : 0, operation,
      variant.request_size.value(), variant.depth, file_size.value(),
      static_cast<std::uint64_t>(seconds * 1000));
  if (variant.huge_pages) command += " --mem_align=2m --scramble_buffers=0";
  for (const std::string& file : files) command += fmt::format(" --name=swap --filename={}", file);
  return command;
}

Result<std::string> fio_version() {
  auto version = output_of("fio --version");
  if (version) version->erase(version->find_last_not_of('\n') + 1);
  return version;
}

Result<Sample> run_fio(const FioVariant& variant, const char* operation, std::span<const std::string> files,
                       ByteCount file_size, bool direct, double seconds) {
  const std::string command = fio_command(variant, operation, files, file_size, direct, seconds);
  auto text = output_of(command);
  if (!text) return text.error();

  Json::Value root;
  std::string problem;
  std::istringstream stream(text->substr(std::min(text->find('{'), text->size())));
  if (!Json::parseFromStream(Json::CharReaderBuilder(), stream, &root, &problem)) {
    return Error(ErrorCode::io, "bench::run_fio").reason(problem).object(command).got(text->substr(0, 200));
  }
  Sample sample;
  double bytes = 0, cpu_seconds = 0;
  for (const Json::Value& job : root["jobs"]) {
    if (job["error"].asInt() != 0) {
      return Error::from_errno("bench::run_fio", job["error"].asInt()).object(command);
    }
    for (const char* direction : {"read", "write"}) {
      const Json::Value& moved = job[direction];
      bytes += moved["io_bytes"].asDouble();
      sample.gb_per_second += moved["bw_bytes"].asDouble() * 1e-9;
      sample.requests += moved["total_ios"].asUInt64();
    }
    cpu_seconds +=
        (job["usr_cpu"].asDouble() + job["sys_cpu"].asDouble()) / 100 * job["job_runtime"].asDouble() / 1000;
  }
  if (bytes > 0) sample.cpu_s_per_gb = cpu_seconds / (bytes * 1e-9);
  return sample;
}

}  // namespace penstock::bench
