#include <penstock/zero/config/config.hpp>

#include "zero/config/check.hpp"
#include "zero/config/rules.hpp"
#include "zero/config/scheduled.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>

namespace penstock::zero {

namespace {

using config::Problem;

Error to_error(const char* operation, const std::string& name, std::vector<Problem> problems) {
  // Problems without a line come last.
  std::stable_sort(problems.begin(), problems.end(),
                   [](const Problem& a, const Problem& b) { return a.line - 1 < b.line - 1; });
  Error error = Error::invalid_config(operation).object(name).reason(
      "the configuration cannot be used: " + std::to_string(problems.size()) +
      (problems.size() == 1 ? " error" : " errors"));
  for (const Problem& problem : problems) {
    std::string place = problem.path;
    if (problem.line > 0) {
      place += (place.empty() ? "line " : ", line ") + std::to_string(problem.line);
    }
    error = std::move(error).note(place.empty() ? problem.text : place + ": " + problem.text);
  }
  return error;
}

/// The contents of a file. Bounded, since a device has no end.
Result<std::string> read_all(const std::filesystem::path& file) {
  constexpr std::size_t size_max = 16 << 20;
  constexpr const char* operation = "Config::from_file";
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  if (!stream.is_open()) return Error::from_errno(operation, errno).object(file.string());
  std::string text;
  std::array<char, 65536> part;
  while (stream.good() && text.size() <= size_max) {
    stream.read(part.data(), part.size());  // sets badbit where the system call fails, for a directory too
    text.append(part.data(), static_cast<std::size_t>(stream.gcount()));
  }
  if (stream.bad()) {
    return Error::from_errno(operation, errno != 0 ? errno : EIO)
        .object(file.string())
        .reason("the configuration cannot be read");
  }
  if (text.size() > size_max) {
    return Error::invalid_config(operation)
        .object(file.string())
        .reason("the file is too long for a configuration")
        .wanted("at most " + to_string(ByteCount(size_max)));
  }
  return text;
}

/// Reports violations for keys without a reported problem; the others may be consequences of that problem.
void report_violations(const Config& config, config::Reader& reader) {
  for (const config::Violation& violation : config::check(config)) {
    const auto reported = [&](std::string_view key) { return reader.has_problem(key); };
    if (std::any_of(violation.keys.begin(), violation.keys.end(), reported)) continue;
    reader.report(violation.keys.front(), violation.text);
  }
}

}  // namespace

std::string_view to_string(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::none: return "none";
    case OffloadDevice::cpu: return "cpu";
    case OffloadDevice::nvme: return "nvme";
  }
  return "unknown";
}

std::string_view to_string(Integrity integrity) {
  switch (integrity) {
    case Integrity::off: return "off";
    case Integrity::checksum: return "checksum";
  }
  return "unknown";
}

std::string_view to_string(UpdateSplit split) {
  switch (split) {
    case UpdateSplit::ratio: return "ratio";
    case UpdateSplit::automatic: return "automatic";
  }
  return "unknown";
}

std::string_view to_string(WarmupType type) {
  switch (type) {
    case WarmupType::log: return "log";
    case WarmupType::linear: return "linear";
  }
  return "unknown";
}

LearningRate Config::learning_rate_of(std::uint64_t step) const {
  return config::scheduled(scheduler, {optimizer.learning_rate, optimizer.betas}, step);
}

LossScaler Config::loss_scaler() const {
  return loss_scale > 0 ? LossScaler(loss_scale) : LossScaler(dynamic_loss_scale);
}

Result<Config> Config::from_text(std::string_view text, const std::string& name, std::uint32_t world_size) {
  if (world_size == 0)
    return Error::invalid_argument("Config::from_text").object("world_size").wanted("at least 1").got(0u);

  const auto refuse = [&](std::vector<Problem> problems) {
    return to_error("Config::from_text", name, std::move(problems));
  };
  if (const auto nul = text.find('\0'); nul != text.npos) {
    return refuse({{.text = "byte " + std::to_string(nul) + " is NUL: it is no text"}});
  }
  std::vector<Problem> problems;
  const Json::Value root = config::parse_json(text, problems);
  if (problems.empty() && !root.isObject()) problems.push_back({.text = "wanted an object of keys"});
  if (!problems.empty()) return refuse(std::move(problems));

  const config::LineIndex lines(text);
  config::Reader reader(lines, problems);
  config::Draft draft;
  reader.read(root, draft);
  config::apply_rules(draft, reader, world_size);
  report_violations(draft.config, reader);
  if (!problems.empty()) return refuse(std::move(problems));
  draft.config.notes = reader.take_notes();
  return std::move(draft.config);
}

Result<void> Config::validate() const {
  std::vector<Problem> problems;
  for (const config::Violation& violation : config::check(*this)) {
    problems.push_back({.path = std::string(violation.keys.front()), .text = violation.text});
  }
  if (problems.empty()) return ok();
  return to_error("Config::validate", {}, std::move(problems));
}

const std::vector<std::filesystem::path>& Config::swap_directories() const {
  static const std::vector<std::filesystem::path> none;
  if (offload_param.device == OffloadDevice::nvme) return offload_param.nvme_paths;
  return offload_optimizer.device == OffloadDevice::nvme ? offload_optimizer.nvme_paths : none;
}

bool Config::pins_host_memory() const {
  const bool none_in_use =
      offload_param.device == OffloadDevice::none && offload_optimizer.device == OffloadDevice::none;
  const auto asks = [&](const OffloadConfig& offload) {
    return offload.pin_memory && (none_in_use || offload.device != OffloadDevice::none);
  };
  return asks(offload_param) || asks(offload_optimizer);
}

Result<Config> Config::from_file(const std::filesystem::path& file, std::uint32_t world_size) {
  PENSTOCK_TRY_ASSIGN(const std::string text, read_all(file));
  return from_text(text, file.string(), world_size);
}

}  // namespace penstock::zero
