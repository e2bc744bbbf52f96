#include "findings.hpp"
#include "measure/storage_device.hpp"

#include <penstock/tiers/io/file_system.hpp>
#include "tiers/io/choose_engine.hpp"
#include "tiers/memory/numa.hpp"

namespace penstock::tool {

namespace {

using State = Finding::State;

/// ", on NUMA node 1", where the machine has several and says it.
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
  finding.why = "every byte passes through memory that the run could use, and no rate is the disk's";
  finding.remedy = "use a directory on ext4 or xfs on the drive itself";
  return finding;
}

Finding examine_reserved(const tiers::File::Properties& file, const std::string& on) {
  if (file.reserve_note.empty()) return {.capability = "reserved space" + on, .found = "fallocate works"};
  return {State::reduced, "reserved space" + on, file.reserve_note,
          "a disk that others fill shows in the middle of a run",
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
          "mount a file system that tells"};
}

/// Chosen as a run chooses it, on a file that stands there.
Finding examine_engine(const swap::PathOptions& options, const std::string& on) {
  Finding finding{.capability = "engine" + on};
  const auto path = swap::probe_path(options);
  if (!path) {
    return {State::unusable, finding.capability, one_line(path.error()), "no engine moves swap files here",
            "set penstock.io_engine to automatic, which takes the best one that works"};
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
    return {{State::unusable, "swap files" + on, one_line(file.error()), "no swap file can stand here",
             "give a directory that exists, can be written and has free space"}};
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
