#include "swap/path/open_paths.hpp"

#include "swap/path/size_swap_files.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <utility>

namespace penstock::swap {

namespace {

/// A file system's error would name no directory. Two paths in one file would overwrite what the other has there.
Result<void> check_directories(const std::vector<PathOptions>& paths) {
  std::set<std::filesystem::path> files;
  for (const PathOptions& path : paths) {
    const auto refused = [&](const char* member) {
      return Error::invalid_argument("Runtime::create")
          .object("RuntimeOptions::paths[" + std::to_string(&path - paths.data()) + "]." + member);
    };
    if (path.directory.empty()) {
      return refused("directory")
          .reason("it is empty")
          .advice("name the directory of the swap file; \".\" is the current one");
    }
    if (path.file_name.empty()) continue;
    const std::filesystem::path file = path.directory / path.file_name;
    if (files.insert(file.lexically_normal()).second) continue;
    return refused("file_name").reason("it is the file of another path too").got(file.string());
  }
  return ok();
}

/// Where a path is left out, the numbers of those behind it change. Nothing overwrites what is pinned in its file.
void renumber(std::vector<PinnedExtent>& pinned, const std::vector<PathOptions>& given,
              const std::vector<PathOptions>& used) {
  if (given.size() == used.size()) return;
  std::erase_if(pinned, [&](PinnedExtent& one) {
    if (one.extent.path >= given.size()) return false;  // refused later
    const PathOptions& path = given[one.extent.path];
    const auto found = std::find_if(used.begin(), used.end(), [&](const PathOptions& each) {
      return each.directory == path.directory && each.file_name == path.file_name;
    });
    one.extent.path = static_cast<std::uint32_t>(found - used.begin());
    return found == used.end();
  });
}

/// By path. What ends beyond 2^60 is refused later.
std::vector<ByteCount> ends_of(const std::vector<PinnedExtent>& pinned, std::size_t paths) {
  constexpr ByteCount most(std::uint64_t{1} << 60);
  std::vector<ByteCount> ends(paths);
  for (const auto& [extent, generation, purpose] : pinned) {
    const ByteCount begin(extent.offset.value());
    if (extent.path < paths && begin < most && extent.length < most)
      ends[extent.path] = std::max(ends[extent.path], begin + extent.length);
  }
  return ends;
}

/// The paths of `options`, which gets the sizes of the swap files and messages.
Result<Paths> open_paths_once(RuntimeOptions& options) {
  if (!options.paths.empty() && !options.swap_need.total.is_zero()) {
    const std::vector<PathOptions> given = options.paths;
    auto messages = size_swap_files(options.swap_need, options.paths);
    if (!messages) return messages.error();
    std::move(messages->begin(), messages->end(), std::back_inserter(options.messages));
    renumber(options.pinned, given, options.paths);
  }
  const std::vector<ByteCount> pinned_ends = ends_of(options.pinned, options.paths.size());
  Paths paths;
  for (const PathOptions& path : options.paths) {
    const ByteCount end = pinned_ends[paths.size()];
    // One tensor may be too long for what is left before the end of the reserved bytes.
    auto created = Path::create(path, end.is_zero() ? end : end + options.swap_need.tensor_max);
    if (!created) return created.error();
    paths.push_back(std::move(*created));
  }
  return paths;
}

}  // namespace

/// Other ranks that start at the same time take the space that one has seen, and space for their measurements, which
/// they give back: paths of which the others can do without are sized again.
Result<Paths> open_paths(RuntimeOptions& options) {
  PENSTOCK_TRY(check_directories(options.paths));
  constexpr int attempts_max = 5;
  const bool is_sized = options.paths.size() > 1 && !options.swap_need.total.is_zero();
  for (int attempt = 1;; ++attempt) {
    RuntimeOptions sized = options;
    auto opened = open_paths_once(sized);
    const bool is_full = !opened && opened.error().code() == ErrorCode::no_space;
    if (is_full && is_sized && attempt < attempts_max) continue;
    options = std::move(sized);
    return opened;
  }
}

}  // namespace penstock::swap
