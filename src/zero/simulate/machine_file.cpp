#include "zero/simulate/machine_file.hpp"

#include "zero/config/strict_reader.hpp"
#include "zero/config/value.hpp"
#include "zero/exchange/bounded_file.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace penstock::zero::simulate {

namespace {

constexpr const char* operation = "MachineFile::parse";
/// Of a rate: faster than any memory, so that a unit was meant otherwise.
constexpr double rate_max = 1e15;
constexpr double endurance_max = 1e19;

std::string key_of(tiers::Purpose purpose) {
  std::string key(to_string(purpose));
  std::replace(key.begin(), key.end(), ' ', '_');
  return key;
}

constexpr double flops_max = 1e18;

std::string got(const Json::Value& json) {
  return ", got " + (json.isNull() ? "nothing" : config::shown(json));
}

/// A number of bytes, a second or in all. Reports one that cannot be used; it is 1 then.
double number(config::StrictReader& reader, const Json::Value& object, const std::string& path,
              const std::string& key, double most) {
  const Json::Value& json = object[key];
  double value = json.isNumeric() ? json.asDouble() : 0;
  if (json.isString()) value = static_cast<double>(config::parse_bytes(json.asString()).value_or(0));
  if (value >= 1 && value <= most) return value;
  const auto most_bytes = static_cast<std::uint64_t>(most);
  reader.report(
      json.isNull() ? object : json, path.empty() ? key : path + "." + key,
      "wanted bytes, such as \"3.4 GB\", from 1 to " + to_string(ByteCount(most_bytes)) + got(json));
  return 1;
}

void read_disk(config::StrictReader& reader, const Json::Value& disk, Machine& machine) {
  if (!reader.is_object(disk, "disk", std::array<std::string_view, 4>{"read", "write", "mixed", "endurance"}))
    return;
  machine.costs.disk = {.read = number(reader, disk, "disk", "read", rate_max),
                        .write = number(reader, disk, "disk", "write", rate_max),
                        .mixed = number(reader, disk, "disk", "mixed", rate_max)};
  const swap::DiskRates& rates = machine.costs.disk;
  if (rates.mixed > rates.read + rates.write)
    reader.report(disk["mixed"], "disk.mixed",
                  "wanted at most the sum of disk.read and disk.write" + got(disk["mixed"]));
  if (!disk.isMember("endurance")) return;
  const double endurance = number(reader, disk, "disk", "endurance", endurance_max);
  machine.endurance = ByteCount(static_cast<std::uint64_t>(endurance));
}

void read_use(config::StrictReader& reader, const Json::Value& use, Machine& machine) {
  std::array<std::string, tiers::purpose_count> keys;
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = key_of(static_cast<tiers::Purpose>(i));
  const std::vector<std::string_view> known(keys.begin(), keys.end());
  if (!reader.is_object(use, "use", known)) return;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (use.isMember(keys[i])) machine.costs.use[i] = number(reader, use, "use", keys[i], rate_max);
  }
}

void read_device(config::StrictReader& reader, const Json::Value& device, Machine& machine) {
  if (!reader.is_object(device, "device", std::array<std::string_view, 3>{"flops", "link", "host_copy"}))
    return;
  const Json::Value& flops = device["flops"];
  machine.device.flops = flops.isNumeric() ? flops.asDouble() : 0;
  if (!(machine.device.flops >= 1 && machine.device.flops <= flops_max))
    reader.report(flops.isNull() ? device : flops, "device.flops",
                  "wanted floating-point operations a second, such as 1.2e14, from 1 to 1e18" + got(flops));
  for (const auto& [key, rate] :
       {std::pair("link", &machine.device.link), {"host_copy", &machine.device.host_copy}})
    if (device.isMember(key)) *rate = number(reader, device, "device", key, rate_max);
}

void read_root(config::StrictReader& reader, const Json::Value& root, Machine& machine) {
  const std::array<std::string_view, 5> known = {"disk", "use", "update", "device", "shared_processor"};
  if (!reader.is_object(root, "", known)) return;
  read_disk(reader, root["disk"], machine);
  if (root.isMember("use")) read_use(reader, root["use"], machine);
  if (root.isMember("update")) machine.update = number(reader, root, "", "update", rate_max);
  if (root.isMember("device")) read_device(reader, root["device"], machine);
  if (const Json::Value& shared = root["shared_processor"]; shared.isBool()) {
    machine.costs.shared_processor = shared.asBool();
  } else if (!shared.isNull()) {
    reader.report(shared, "shared_processor", "wanted true or false" + got(shared));
  }
}

}  // namespace

Result<Machine> MachineFile::parse(std::string_view text, const std::string& name) {
  return config::read_strictly(operation, name, "the machine", "\"disk\"", text,
                               [](config::StrictReader& reader, const Json::Value& root) {
                                 Machine machine;
                                 read_root(reader, root, machine);
                                 return machine;
                               });
}

Result<Machine> MachineFile::read(const std::filesystem::path& file) {
  PENSTOCK_TRY_ASSIGN(const std::string text, exchange::read_text_file(operation, file, "a machine"));
  return parse(text, file.string());
}

}  // namespace penstock::zero::simulate
