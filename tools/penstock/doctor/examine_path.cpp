#include "findings.hpp"
#include "measure/storage_device.hpp"

#include <penstock/tiers/io/file_system.hpp>
#include "tiers/io/bounded_call.hpp"
#include "tiers/io/choose_engine.hpp"
#include "tiers/memory/numa.hpp"

namespace penstock::tool {

namespace {

using State = Finding::State;

/// ", on NUMA node 1" if the machine has several nodes and the directory's node is known; else empty.
std::string node_of(const std::filesystem::path& directory) {
  const auto topology = tiers::NumaTopology::read();
  const auto node = topology.node_of_directory(directory);
  if (topology.node_count() <= 1 || !node) return {};
  return std::string(", on NUMA node ").append(std::to_string(*node));
}

Finding examine_direct_io(const tiers::File::Properties& file, const measure::StorageDevice& device,
                          const std::string& on) {
  const std::string capability = "direct I/O" + on;
  if (!device.cached_because) {
    return {.capability = capability, .found = "alignment " + std::to_string(file.alignment.bytes()) + " B"};
  }
  return {
      State::reduced, capability, *device.cached_because,
      "transfers go through the page cache, which takes memory from the run and makes rates unpredictable",
      "use a directory on ext4 or xfs on the drive itself"};
}

Finding examine_reserved(const tiers::File::Properties& file, const std::string& on) {
  if (file.reserve_note.empty()) return {.capability = "reserved space" + on, .found = "fallocate works"};
  return {State::reduced, "reserved space" + on, file.reserve_note,
          "if other programs fill the disk, the run fails in the middle",
          "keep the swap files' size free, or use a directory on ext4 or xfs"};
}

Finding examine_free_space(const std::filesystem::path& directory) {
  Finding finding{.capability = "free space of " + directory.string()};
  const auto free = tiers::real_file_system().free_space(directory);
  if (free) {
    finding.found = to_string(*free);
    return finding;
  }
  return {State::unusable, finding.capability, one_line(free.error()), "swap files cannot be sized",
          "mount a file system that reports its free space"};
}

/// Chooses the engine as a run does, for an existing file.
Finding examine_engine(const swap::PathOptions& options, const std::string& on) {
  Finding finding{.capability = "engine" + on};
  const auto path = swap::probe_path(options);
  if (!path) {
    return {State::unusable, finding.capability, one_line(path.error()), "no I/O engine works here",
            "set penstock.io_engine to automatic, which selects the best one that works"};
  }
  finding.found = path->engine;
  if (options.engine != tiers::EngineChoice::automatic) finding.found += ", as the configuration says";
  if (finding.found.starts_with("threads") && options.engine == tiers::EngineChoice::automatic) {
    finding.state = State::reduced;
    finding.why = path->notes;
    finding.remedy = "see io_uring and libaio above";
  }
  return finding;
}

Result<std::vector<Finding>> examine(const swap::PathOptions& options, const std::string& on) {
  const std::filesystem::path& directory = options.directory;
  PENSTOCK_TRY_ASSIGN(const auto file, tiers::real_file_system().create_scratch(directory, options.capacity,
                                                                                tiers::DirectIo::preferred));
  PENSTOCK_TRY_ASSIGN(const auto device, measure::describe_storage(directory, options.deadline));
  return std::vector<Finding>{
      {.capability = "swap files" + on, .found = measure::to_string(device).append(node_of(directory))},
      examine_direct_io(file.properties(), device, on),
      examine_reserved(file.properties(), on),
      examine_free_space(directory),
      examine_engine(options, on),
  };
}

}  // namespace

std::vector<Finding> examine_path(const swap::PathOptions& options) {
  const std::string on = " of " + options.directory.string();
  auto findings = tiers::bounded_call<std::vector<Finding>>(
      "doctor", options.directory.string(), options.deadline, [options, on] { return examine(options, on); });
  if (findings) return std::move(*findings);
  const Error& error = findings.error();
  return {{State::unusable, "swap files" + on, one_line(error), "no swap file can be created here",
           advice_of(error, "use a directory that exists, is writable and has free space")}};
}

}  // namespace penstock::tool
