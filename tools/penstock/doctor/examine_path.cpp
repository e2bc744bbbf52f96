#include "findings.hpp"
#include "measure/storage_device.hpp"

#include <penstock/tiers/io/file_system.hpp>
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

Finding examine_direct_io(const tiers::File::Properties& file, const std::filesystem::path& directory) {
  Finding finding{.capability = "direct I/O of " + directory.string()};
  const auto cached = measure::page_cache_because(directory);
  const std::string why = !cached ? one_line(cached.error()) : cached->value_or("");
  if (why.empty()) {
    finding.found = "alignment " + std::to_string(file.alignment.bytes()) + " B";
    return finding;
  }
  finding.state = State::reduced;
  finding.found = why;
  finding.why =
      "transfers go through the page cache, which takes memory from the run and makes rates unpredictable";
  finding.remedy = "use a directory on ext4 or xfs on the drive itself";
  return finding;
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

}  // namespace

std::vector<Finding> examine_path(const swap::PathOptions& options) {
  const std::filesystem::path& directory = options.directory;
  const std::string on = " of " + directory.string();
  const auto file =
      tiers::real_file_system().create_scratch(directory, options.capacity, tiers::DirectIo::preferred);
  if (!file) {
    return {{State::unusable, "swap files" + on, one_line(file.error()), "no swap file can be created here",
             advice_of(file.error(), "use a directory that exists, is writable and has free space")}};
  }
  return {
      {.capability = "swap files" + on,
       .found =
           measure::to_string(measure::describe_storage(directory), directory).append(node_of(directory))},
      examine_direct_io(file->properties(), directory),
      examine_reserved(file->properties(), on),
      examine_free_space(directory),
      examine_engine(options, on),
  };
}

}  // namespace penstock::tool
