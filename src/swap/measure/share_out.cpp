#include <penstock/swap/path_load.hpp>
#include <penstock/swap/share_out.hpp>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace penstock::swap {

namespace {

constexpr ByteCount granule = 2_MiB;
constexpr double noise = 1.25;

ByteCount round_down(ByteCount bytes) {
  return granule * (bytes / granule);
}

Error no_room(const SwapNeed& need, std::span<const PathOptions> paths, std::span<const ByteCount> free) {
  Error error = Error(ErrorCode::no_space, "share_out")
                    .reason("the swap files do not fit on their paths")
                    .wanted(need.total + need.tensor_max * paths.size())
                    .got(to_string(std::accumulate(free.begin(), free.end(), ByteCount())) + " free");
  for (std::size_t i = 0; i < paths.size(); ++i) {
    error = std::move(error).note("free    " + to_string(free[i]) + " in " + paths[i].directory.string());
  }
  return std::move(error).advice("free space, add a directory to nvme_path, or keep more in host memory");
}

/// Each path's share by weight; what one has no room for goes to the others, by weight again.
Result<std::vector<ByteCount>> shares(const SwapNeed& need, std::span<const PathOptions> paths) {
  std::vector<ByteCount> free, reserved(paths.size());
  for (const PathOptions& path : paths) {
    auto bytes = path.file_system->free_space(path.directory);
    if (!bytes) return bytes.error();
    free.push_back(round_down(*bytes));
  }
  std::vector<bool> full(paths.size(), false);
  for (std::size_t round = 0; round <= paths.size(); ++round) {
    ByteCount left = need.total;
    double weights = 0;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (!full[i]) weights += paths[i].weight;
      // Its last tensor may find no room.
      if (full[i]) left -= std::min(left, free[i] - std::min(free[i], need.tensor_max));
    }
    bool changed = false;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (full[i]) continue;
      const auto share = static_cast<std::uint64_t>(static_cast<double>(left.value()) * (paths[i].weight / weights));
      reserved[i] = round_up(ByteCount(share) + need.tensor_max, Alignment(granule.value()));
      if (reserved[i] <= free[i]) continue;
      reserved[i] = free[i];
      full[i] = changed = true;
    }
    if (!changed && weights > 0) return reserved;
  }
  return no_room(need, paths, free);
}

}  // namespace

std::vector<double> weights_of(std::span<const double> speeds) {
  const auto [slowest, fastest] = std::minmax_element(speeds.begin(), speeds.end());
  std::vector<double> weights;
  for (const double speed : speeds) weights.push_back(*fastest < *slowest * noise ? 1.0 : speed / *slowest);
  return weights;
}

Result<std::vector<double>> measure_weights(std::span<const PathOptions> paths) {
  PathLoad::Options options{.paths = {paths.begin(), paths.end()}};
  for (PathOptions& path : options.paths) {
    path.weight = 1;
    path.reserved = ByteCount();
    path.capacity = (path.in_flight_max + path.request_max * (options.spare + 1)) * 2;
  }
  auto load = PathLoad::create(std::move(options));
  if (!load) return load.error();
  auto sample = (*load)->run(LoadPattern::mixed, std::chrono::milliseconds(300));
  if (!sample) return sample.error();
  std::vector<double> speeds;
  for (const ByteCount bytes : sample->bytes) speeds.push_back(static_cast<double>(bytes.value()));
  return weights_of(speeds);
}

Result<void> share_out(const SwapNeed& need, std::vector<PathOptions>& paths) {
  if (paths.size() == 1) {
    paths[0].weight = 1;
    paths[0].capacity = round_up(need.total, Alignment(granule.value()));
    paths[0].reserved = ByteCount();
    return ok();
  }
  if (std::any_of(paths.begin(), paths.end(), [](const PathOptions& path) { return path.weight == 0; })) {
    auto weights = measure_weights(paths);
    if (!weights) return weights.error();
    for (std::size_t i = 0; i < paths.size(); ++i) paths[i].weight = (*weights)[i];
  }
  auto reserved = shares(need, paths);
  if (!reserved) return reserved.error();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    paths[i].reserved = (*reserved)[i];
    paths[i].capacity = std::max((*reserved)[i], round_up(need.total + need.tensor_max, Alignment(granule.value())));
  }
  return ok();
}

}  // namespace penstock::swap
