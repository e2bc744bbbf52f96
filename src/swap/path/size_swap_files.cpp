#include "swap/path/size_swap_files.hpp"
#include <penstock/swap/disk_benchmark.hpp>

#include "swap/path/path.hpp"
#include "tiers/io/bounded_call.hpp"

#include <sys/stat.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace penstock::swap {

namespace {

constexpr ByteCount granule = 2_MiB;
constexpr double noise = 1.25;

/// A path and the space that it may use of its file system.
struct Candidate {
  PathOptions path;
  ByteCount free;  ///< with what its file has already
  ByteCount unused;
};

ByteCount round_up(ByteCount bytes) {
  return penstock::round_up(bytes, Alignment(granule.value()));
}

using FileSystemKey = std::pair<tiers::FileSystem*, std::string>;
struct FileSystemSpace {
  FileSystemKey key;
  ByteCount free;
  ByteCount own;  ///< of a file with a name, which an earlier process has made
};

/// A path that is not a directory of this machine (simulated) counts as its own file system.
Result<FileSystemSpace> space_of(tiers::FileSystem& files, const std::filesystem::path& directory,
                                 const std::string& file_name) {
  struct stat status {
  }, of_file{};
  const bool known = ::stat(directory.c_str(), &status) == 0;
  const bool has_file = known && !file_name.empty() && ::stat((directory / file_name).c_str(), &of_file) == 0;
  PENSTOCK_TRY_ASSIGN(auto free, files.free_space(directory));
  return FileSystemSpace{
      {&files, known ? std::to_string(status.st_dev) : directory.string()},
      free,
      has_file ? ByteCount(512) * static_cast<std::uint64_t>(of_file.st_blocks) : ByteCount()};
}

Result<std::vector<Candidate>> candidates(std::span<const PathOptions> paths) {
  std::vector<FileSystemSpace> spaces;
  std::map<FileSystemKey, std::uint64_t> sharers;
  for (const PathOptions& path : paths) {
    const auto examine = [files = path.file_system, directory = path.directory, name = path.file_name] {
      return space_of(*files, directory, name);
    };
    PENSTOCK_TRY_ASSIGN(auto space, tiers::bounded_call<FileSystemSpace>(
                                        "size_swap_files", path.directory.string(), path.deadline, examine));
    ++sharers[space.key];
    spaces.push_back(std::move(space));
  }
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const ByteCount unused = spaces[i].free / sharers[spaces[i].key];
    candidates.push_back({paths[i], granule * ((unused + spaces[i].own) / granule), unused});
  }
  return candidates;
}

/// `usable` are those of the candidates that have room for the largest tensor.
Error no_room(const SwapNeed& need, std::span<const Candidate> candidates,
              std::span<const Candidate> usable) {
  ByteCount free;
  for (const Candidate& each : usable) free += each.free;
  Error error =
      Error(ErrorCode::no_space, "size_swap_files")
          .reason("the swap files do not fit on their paths")
          .wanted("at least " +
                  to_string(need.total + need.tensor_max * std::max<std::size_t>(usable.size(), 1)))
          .got(to_string(free) + " free where the largest tensor, " + to_string(need.tensor_max) + ", fits");
  for (const Candidate& each : candidates) {
    error = std::move(error).note("free    " + to_string(each.free) + " in " + each.path.directory.string());
  }
  return std::move(error).advice("free space, add a directory to nvme_path, or keep more in host memory");
}

/// Gives each path its share by weight. Bytes that a path has no room for go to the others, by weight. False if the
/// paths together have no room for all bytes.
bool reserve_shares(const SwapNeed& need, std::vector<Candidate>& candidates) {
  std::vector<bool> full(candidates.size(), false);
  while (true) {
    ByteCount left = need.total;
    double weights = 0;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      // The last tensor_max bytes of a full path may stay unused, because the next tensor may not fit. So only
      // free - tensor_max bytes count as placed on it.
      if (full[i]) left -= std::min(left, candidates[i].free - need.tensor_max);
      if (!full[i]) weights += candidates[i].path.weight;
    }
    if (weights == 0) return left.is_zero();
    bool changed = false;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (full[i]) continue;
      PathOptions& path = candidates[i].path;
      const double share = static_cast<double>(left.value()) * (path.weight / weights);
      path.reserved = round_up(ByteCount(static_cast<std::uint64_t>(std::ceil(share))) + need.tensor_max);
      if (*path.reserved <= candidates[i].free) continue;
      path.reserved = candidates[i].free;
      full[i] = changed = true;
    }
    if (!changed) return true;
  }
}

/// Options for the measurement: short queues suffice. It writes to a file of its own: one with a name has the bytes of
/// an earlier process.
PathOptions as_measured(const PathOptions& path) {
  PathOptions options = path;
  options.file_name.clear();
  options.weight = 1;
  options.request_max = std::min(path.request_max, 4_MiB);
  options.in_flight_max = std::min(path.in_flight_max, 16_MiB);
  options.reserved.reset();
  options.capacity = (options.in_flight_max + options.request_max * 3) * 2;
  return options;
}

/// Measures the paths that have room for it; the others get the lowest speed.
Result<void> weigh(std::vector<Candidate>& candidates) {
  std::vector<PathOptions> paths;
  std::vector<Candidate*> measured;
  for (Candidate& each : candidates) {
    each.path.weight = 1;
    PathOptions options = as_measured(each.path);
    if (options.capacity > each.unused) continue;
    paths.push_back(std::move(options));
    measured.push_back(&each);
  }
  if (paths.size() < 2) return ok();
  PENSTOCK_TRY_ASSIGN(auto weights, measure_weights(paths));
  for (std::size_t i = 0; i < measured.size(); ++i) measured[i]->path.weight = weights[i];
  return ok();
}

}  // namespace

std::vector<double> weights_of(std::span<const double> speeds) {
  const auto [slowest, fastest] = std::minmax_element(speeds.begin(), speeds.end());
  std::vector<double> weights;
  for (const double speed : speeds) weights.push_back(*fastest < *slowest * noise ? 1.0 : speed / *slowest);
  return weights;
}

Result<std::vector<double>> measure_weights(std::span<const PathOptions> paths) {
  DiskBenchmark::Options options;
  for (const PathOptions& path : paths) options.paths.push_back(as_measured(path));
  PENSTOCK_TRY_ASSIGN(auto load, DiskBenchmark::create(std::move(options)));
  PENSTOCK_TRY_ASSIGN(auto sample, load->run(BenchmarkPattern::mixed, std::chrono::milliseconds(300)));
  std::vector<double> speeds;
  for (const ByteCount bytes : sample.bytes) speeds.push_back(static_cast<double>(bytes.value()));
  return weights_of(speeds);
}

namespace {

/// Sums of these stay below 2^64.
Result<void> check_need(const SwapNeed& need) {
  constexpr ByteCount most(std::uint64_t{1} << 60);
  if (need.total <= most && need.tensor_max <= most) return ok();
  return Error(ErrorCode::no_space, "size_swap_files")
      .object("swap_need")
      .wanted("at most " + to_string(most))
      .got(std::max(need.total, need.tensor_max));
}

}  // namespace

Result<std::vector<std::string>> size_swap_files(const SwapNeed& need, std::vector<PathOptions>& paths) {
  PENSTOCK_TRY(check_need(need));
  std::vector<std::string> left_out;
  bool unweighed = false;
  for (PathOptions& path : paths) {
    if (path.weight == 0) {
      unweighed = true;
      path.weight = 1;
    }
    PENSTOCK_TRY(check_weight(path));
    PENSTOCK_TRY(check_options(path));
  }
  if (paths.size() == 1) {
    paths[0].capacity = round_up(need.total);
    paths[0].reserved = paths[0].capacity;
    return left_out;
  }
  PENSTOCK_TRY_ASSIGN(auto all, candidates(paths));
  std::vector<Candidate> chosen;
  for (const Candidate& each : all) {
    if (each.free >= round_up(need.tensor_max)) {
      chosen.push_back(each);
    } else {
      left_out.push_back(each.path.directory.string() + " is not used: " + to_string(each.free) +
                         " are free, but the largest tensor needs " + to_string(need.tensor_max));
    }
  }
  if (unweighed) PENSTOCK_TRY(weigh(chosen));
  if (chosen.empty() || !reserve_shares(need, chosen)) return no_room(need, all, chosen);
  paths.clear();
  for (Candidate& each : chosen) {
    each.path.capacity = std::max(*each.path.reserved, round_up(need.total + need.tensor_max));
    paths.push_back(std::move(each.path));
  }
  return left_out;
}

}  // namespace penstock::swap
