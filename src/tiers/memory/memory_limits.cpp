#include <penstock/tiers/memory/memory_limits.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::tiers {

namespace {

namespace fs = std::filesystem;

constexpr ByteCount unlimited(std::numeric_limits<std::uint64_t>::max());

/// The names of a version's files in the directory of a control group.
struct Version {
  const char* limit;
  const char* throttle;  // above it the kernel slows allocations down until they take hours; null: none
  const char* usage;
  /// Lines of memory.stat: page cache of the group and of those below it.
  std::string_view inactive_cache, active_cache;
};
constexpr Version version_1 = {"memory.limit_in_bytes", nullptr, "memory.usage_in_bytes",
                               "total_inactive_file", "total_active_file"};
constexpr Version version_2 = {"memory.max", "memory.high", "memory.current", "inactive_file", "active_file"};

/// A mounted hierarchy of control groups.
struct Hierarchy {
  const Version* version;
  std::string top;     // the group that is mounted
  fs::path directory;  // where it is mounted
};

std::string_view take_word(std::string_view& line, char separator = ' ') {
  const std::string_view word = line.substr(0, line.find(separator));
  line.remove_prefix(std::min(word.size() + 1, line.size()));
  return word;
}

bool lists(std::string_view words, std::string_view wanted) {
  while (!words.empty()) {
    if (take_word(words, ',') == wanted) return true;
  }
  return false;
}

/// The number at the beginning of `text`. None for rubbish and for a number beyond 64 bits.
std::optional<std::uint64_t> number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<ByteCount> read_bytes(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  const auto bytes = number(line);
  return bytes ? std::optional(ByteCount(*bytes)) : std::nullopt;
}

/// "\040" is a space: https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
std::string unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, code, 8).ptr == text.data() + i + 4) {
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::vector<Hierarchy> mounted_hierarchies(const fs::path& root) {
  std::vector<Hierarchy> hierarchies;
  std::ifstream mounts(root / "proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::string_view mount = line;
    for (int skipped = 0; skipped < 3; ++skipped) take_word(mount);
    const std::string_view top = take_word(mount), directory = take_word(mount);
    const std::size_t separator = mount.find(" - ");
    if (separator == mount.npos) continue;
    mount.remove_prefix(separator + 3);
    const std::string_view type = take_word(mount);
    take_word(mount);
    const Version* version = type == "cgroup2"                            ? &version_2
                             : type == "cgroup" && lists(mount, "memory") ? &version_1
                                                                          : nullptr;
    if (version == nullptr) continue;
    hierarchies.push_back({version, unescape(top), unescape(directory)});
  }
  return hierarchies;
}

/// The name of this process's group in the hierarchy of memory of that version; none if there is none.
std::optional<std::string> own_group(const fs::path& root, const Version* version) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::string_view group = line;
    const std::string_view hierarchy = take_word(group, ':'), controllers = take_word(group, ':');
    if (version == &version_2 ? hierarchy == "0" && controllers.empty() : lists(controllers, "memory")) {
      return std::string(group);
    }
  }
  return std::nullopt;
}

/// The part of `group` below `top`, a relative path. Empty for `top` itself, and for a group outside it, which is not
/// visible here: the limits of `top` stand for its own.
fs::path below(const std::string& group, const std::string& top) {
  const std::string prefix = top == "/" ? "" : top;
  if (!group.starts_with(prefix + "/") || group.find("..") != group.npos) return {};
  return fs::path(group.substr(prefix.size())).relative_path();
}

/// The bytes that the group uses, without the page cache that the kernel drops before it ends a process.
ByteCount used_by(const fs::path& directory, const Version& version) {
  ByteCount used = read_bytes(directory / version.usage).value_or(ByteCount());
  std::ifstream statistics(directory / "memory.stat");
  for (std::string line; std::getline(statistics, line);) {
    std::string_view value = line;
    const std::string_view name = take_word(value);
    if (name != version.inactive_cache && name != version.active_cache) continue;
    used -= std::min(used, ByteCount(number(value).value_or(0)));
  }
  return used;
}

void apply_group(const fs::path& root, const fs::path& directory, const Version& version,
                 MemoryLimit& least) {
  const fs::path host_directory = root / directory.relative_path();
  const char* file = version.limit;
  auto allowed = read_bytes(host_directory / file);
  const auto throttled = version.throttle ? read_bytes(host_directory / version.throttle) : std::nullopt;
  if (throttled && throttled < allowed.value_or(unlimited)) {
    file = version.throttle;
    allowed = throttled;
  }
  if (!allowed) return;  // "max"
  const ByteCount available = *allowed - std::min(*allowed, used_by(host_directory, version));
  if (available >= least.available) return;
  least = {.available = available, .allowed = *allowed, .file = (directory / file).string()};
}

using MemoryInfo = std::map<std::string, ByteCount, std::less<>>;

MemoryInfo read_meminfo(const fs::path& root) {
  MemoryInfo info;
  std::ifstream lines(root / "proc/meminfo");
  for (std::string line; std::getline(lines, line);) {
    std::string_view value = line;
    const std::string_view name = take_word(value, ':');
    const auto kib = number(value);
    if (kib && *kib <= unlimited.value() / 1024) info.emplace(name, ByteCount(*kib * 1024));
  }
  return info;
}

std::optional<ByteCount> find(const MemoryInfo& info, std::string_view name) {
  const auto found = info.find(name);
  return found == info.end() ? std::nullopt : std::optional(found->second);
}

/// What kernels before 3.14 and some sandboxes do not add up: free memory and droppable page cache. None if they do not
/// report even that.
std::optional<ByteCount> free_memory(const MemoryInfo& info) {
  auto free = find(info, "MemFree");
  if (!free) return std::nullopt;
  const ByteCount cached = find(info, "Cached").value_or(ByteCount());
  const ByteCount shared = find(info, "Shmem").value_or(ByteCount());  // counted as cached, but not droppable
  return *free + (cached - std::min(cached, shared));
}

MemoryLimit machine_limit(const MemoryInfo& info) {
  MemoryLimit machine{.available = unlimited, .allowed = unlimited, .file = "/proc/meminfo"};
  if (const auto total = find(info, "MemTotal")) machine.allowed = *total;
  auto available = find(info, "MemAvailable");
  if (!available) available = free_memory(info);
  if (available) machine.available = *available;
  machine.allowed = std::max(machine.allowed, machine.available);
  return machine;
}

/// With vm.overcommit_memory 2 the kernel refuses allocations beyond CommitLimit, whether memory is free or not.
void apply_commit_limit(const fs::path& root, const MemoryInfo& info, MemoryLimit& least) {
  const auto allowed = find(info, "CommitLimit"), used = find(info, "Committed_AS");
  const auto policy = read_bytes(root / "proc/sys/vm/overcommit_memory");
  if (policy != ByteCount(2) || !allowed || !used) return;
  const ByteCount available = *allowed - std::min(*allowed, *used);
  if (available >= least.available) return;
  least = {.available = available,
           .allowed = *allowed,
           .file = "CommitLimit of /proc/meminfo (vm.overcommit_memory is 2)"};
}

}  // namespace

MemoryLimit memory_limit(const fs::path& root) {
  const MemoryInfo info = read_meminfo(root);
  MemoryLimit least = machine_limit(info);
  apply_commit_limit(root, info, least);
  for (const auto& [version, top, directory] : mounted_hierarchies(root)) {
    const auto group = own_group(root, version);
    if (!group) continue;
    for (fs::path name = below(*group, top);; name = name.parent_path()) {
      apply_group(root, name.empty() ? directory : directory / name, *version, least);
      if (name.empty()) break;
    }
  }
  return least;
}

Result<void> check_memory(const char* operation, ByteCount wanted, const MemoryLimit& limit) {
  if (wanted <= limit.available) return ok();
  return Error(ErrorCode::no_space, operation)
      .reason("host memory does not suffice")
      .wanted(wanted)
      .got(to_string(limit.available) + " available")
      .note("short   by " + to_string(wanted - limit.available))
      .note("limit   " + limit.file + ": " + to_string(limit.allowed) + ", of which " +
            to_string(limit.used()) + " are in use")
      .advice(
          "set a lower host budget (penstock.host_budget), offload more to nvme, raise that limit, or stop "
          "what else uses memory");
}

}  // namespace penstock::tiers
