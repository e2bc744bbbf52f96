#include "zero/simulate/machine_file.hpp"

#include "base/bounded_file.hpp"
#include "zero/config/strict_reader.hpp"
#include "zero/config/value.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace penstock::zero::simulate {

namespace {

constexpr const char* operation = "MachineFile::parse";
struct Bounds {
  double least = 0, most = 0;
  bool is_rate = true;  // bytes a second, or else bytes
};
/// Beyond what there is, so that a unit was meant otherwise.
constexpr Bounds disk_rate{64 << 10, 1e12}, other_rate{64 << 10, 1e14}, endurance_bounds{1e9, 1e19, false},
    memory_size{1 << 20, 1e15, false};
/// A disk that reads and writes is slower than one that does either, but not by more.
constexpr double mixed_least = 0.05;
constexpr std::uint32_t disks_max = 64;
constexpr double weight_min = 1e-6, weight_max = 1e6;  // as penstock.path_weights

std::string key_of(tiers::Purpose purpose) {
  std::string key(to_string(purpose));
  std::replace(key.begin(), key.end(), ' ', '_');
  return key;
}

constexpr double flops_min = 1e6, flops_max = 1e18;

std::string got(const Json::Value& json) {
  return ", got " + (json.isNull() ? "nothing" : config::shown(json));
}

/// A number of bytes, a second or in all. Reports one that cannot be used; it is the least then.
double number(config::StrictReader& reader, const Json::Value& object, const std::string& path,
              const std::string& key, Bounds bounds) {
  const Json::Value& json = object[key];
  double value = json.isNumeric() ? json.asDouble() : 0;
  if (json.isString()) value = static_cast<double>(config::parse_bytes(json.asString()).value_or(0));
  if (value >= bounds.least && value <= bounds.most) return value;
  const auto text = [](double bytes) { return to_string(ByteCount(static_cast<std::uint64_t>(bytes))); };
  reader.report(json.isNull() ? object : json, path.empty() ? key : path + "." + key,
                "wanted bytes" + std::string(bounds.is_rate ? " a second" : "") +
                    ", such as \"3.4 GB\", from " + text(bounds.least) + " to " + text(bounds.most) +
                    got(json));
  return bounds.least;
}

/// The disks that one object describes, `count` of them, each with the same rates.
void read_disk(config::StrictReader& reader, const Json::Value& json, const std::string& path,
               Machine& machine) {
  if (!reader.is_object(
          json, path,
          std::array<std::string_view, 6>{"read", "write", "mixed", "endurance", "count", "weight"}))
    return;
  const std::size_t problems = reader.problem_count();
  swap::ReplayCosts::Disk disk{.rates = {.read = number(reader, json, path, "read", disk_rate),
                                         .write = number(reader, json, path, "write", disk_rate),
                                         .mixed = number(reader, json, path, "mixed", disk_rate)}};
  const auto& [read, write, mixed] = disk.rates;
  const bool has_rates = reader.problem_count() == problems;
  if (has_rates && mixed > read + write)
    reader.report(json["mixed"], path + ".mixed",
                  "wanted at most the sum of " + path + ".read and " + path + ".write" + got(json["mixed"]));
  if (has_rates && mixed < mixed_least * std::min(read, write))
    reader.report(json["mixed"], path + ".mixed",
                  "wanted at least 0.05 of " + path + ".read or " + path + ".write, whichever is less" +
                      got(json["mixed"]));
  disk.weight = mixed;  // as measured at the start of a run
  if (json.isMember("weight")) {
    const Json::Value& weight = json["weight"];
    disk.weight = weight.isNumeric() ? weight.asDouble() : 0;
    if (!(disk.weight >= weight_min && disk.weight <= weight_max))
      reader.report(weight, path + ".weight", "wanted a number from 1e-06 to 1e+06" + got(weight));
  }
  if (json.isMember("endurance")) {
    const double endurance = number(reader, json, path, "endurance", endurance_bounds);
    disk.endurance = ByteCount(static_cast<std::uint64_t>(endurance));
  }
  std::uint64_t count = 1;
  if (json.isMember("count")) {
    const Json::Value& json_count = json["count"];
    count = json_count.isUInt64() ? json_count.asUInt64() : 0;
    if (count == 0 || count > disks_max) {
      reader.report(json_count, path + ".count",
                    "wanted a number of disks from 1 to " + std::to_string(disks_max) + got(json_count));
      return;
    }
  }
  machine.costs.disks.insert(machine.costs.disks.end(), count, disk);
}

/// Exactly one of "disk", for disks that are alike, and "disks", a list of such objects.
void read_disks(config::StrictReader& reader, const Json::Value& root, Machine& machine) {
  if (!root.isMember("disks") && !root.isMember("disk"))
    return reader.report(root, "disk",
                         "wanted its rates, {\"read\": …, \"write\": …, \"mixed\": …}, or disks");
  if (!root.isMember("disks")) return read_disk(reader, root["disk"], "disk", machine);
  const Json::Value& disks = root["disks"];
  if (root.isMember("disk")) reader.report(root["disk"], "disk", "wanted disk or disks, got both");
  if (!disks.isArray() || disks.empty() || disks.size() > disks_max) {
    return reader.report(
        disks, "disks",
        "wanted a list of 1 to " + std::to_string(disks_max) + " objects as disk is one" + got(disks));
  }
  for (Json::ArrayIndex i = 0; i < disks.size(); ++i)
    read_disk(reader, disks[i], "disks[" + std::to_string(i) + "]", machine);
  const auto weights = [&](bool given) {
    return std::any_of(disks.begin(), disks.end(), [=](const Json::Value& one) {
      return one.isObject() && one.isMember("weight") == given;
    });
  };
  if (weights(true) && weights(false))
    reader.report(disks, "disks", "wanted a weight of each disk or of none");
}

void read_use(config::StrictReader& reader, const Json::Value& use, Machine& machine) {
  std::array<std::string, tiers::purpose_count> keys;
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = key_of(static_cast<tiers::Purpose>(i));
  const std::vector<std::string_view> known(keys.begin(), keys.end());
  if (!reader.is_object(use, "use", known)) return;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (use.isMember(keys[i])) machine.costs.use[i] = number(reader, use, "use", keys[i], other_rate);
  }
}

void read_memory(config::StrictReader& reader, const Json::Value& object, const std::string& path,
                 ByteCount& memory) {
  if (object.isMember("memory"))
    memory = ByteCount(static_cast<std::uint64_t>(number(reader, object, path, "memory", memory_size)));
}

void read_device(config::StrictReader& reader, const Json::Value& device, Machine& machine) {
  if (!reader.is_object(device, "device",
                        std::array<std::string_view, 5>{"flops", "link", "host_copy", "update", "memory"}))
    return;
  const Json::Value& flops = device["flops"];
  machine.device.flops = flops.isNumeric() ? flops.asDouble() : 0;
  if (!(machine.device.flops >= flops_min && machine.device.flops <= flops_max))
    reader.report(flops.isNull() ? device : flops, "device.flops",
                  "wanted floating-point operations a second, such as 1.2e14, from 1e6 to 1e18" + got(flops));
  for (const auto& [key, rate] : {std::pair("link", &machine.device.link),
                                  {"host_copy", &machine.device.host_copy},
                                  {"update", &machine.device.update}})
    if (device.isMember(key)) *rate = number(reader, device, "device", key, other_rate);
  read_memory(reader, device, "device", machine.device.memory);
}

void read_root(config::StrictReader& reader, const Json::Value& root, Machine& machine) {
  const std::array<std::string_view, 7> known = {"disk",   "disks",           "use", "update", "device",
                                                 "memory", "shared_processor"};
  if (!reader.is_object(root, "", known)) return;
  read_disks(reader, root, machine);
  if (root.isMember("use")) read_use(reader, root["use"], machine);
  if (root.isMember("update")) machine.update = number(reader, root, "", "update", other_rate);
  if (root.isMember("device")) read_device(reader, root["device"], machine);
  read_memory(reader, root, "", machine.memory);
  if (const Json::Value& shared = root["shared_processor"]; shared.isBool()) {
    machine.costs.shared_processor = shared.asBool();
  } else if (!shared.isNull()) {
    reader.report(shared, "shared_processor", "wanted true or false" + got(shared));
  }
}

}  // namespace

Result<Machine> MachineFile::parse(std::string_view text, const std::string& name) {
  return config::read_strictly(operation, name, "the machine", "\"disk\"", text,
                               [&](config::StrictReader& reader, const Json::Value& root) {
                                 Machine machine;
                                 machine.file = name;
                                 read_root(reader, root, machine);
                                 return machine;
                               });
}

Result<Machine> MachineFile::read(const std::filesystem::path& file) {
  PENSTOCK_TRY_ASSIGN(const std::string text, read_text_file(operation, file, {"a machine"}));
  return parse(text, file.string());
}

}  // namespace penstock::zero::simulate
