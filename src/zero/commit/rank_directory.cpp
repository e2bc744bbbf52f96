#include "zero/commit/rank_directory.hpp"

#include "tiers/io/bounded_call.hpp"
#include "zero/commit/small_files.hpp"

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>
#include <utility>

namespace penstock::zero {

namespace {

std::string engine_prefix(std::uint32_t engine) {
  return "engine" + std::to_string(engine) + "-";
}

template <class T, class Call>
Result<T> bounded(const RankDirectory::Options& options, const char* operation,
                  const std::filesystem::path& object, Call call) {
  return tiers::bounded_call<T>(operation, object.string(), options.deadline, std::move(call));
}

std::filesystem::path part_of(const RankDirectory::Options& options, std::uint32_t rank) {
  return options.directories.front() / rank_name(rank);
}

/// Where a file of the rank is now: the durable directories may have other names than when it was committed.
Result<std::string> find_file(const RankDirectory::Options& options, std::uint32_t rank,
                              const std::filesystem::path& committed) {
  std::vector<std::filesystem::path> names;
  for (const std::filesystem::path& directory : options.directories)
    names.push_back(directory / rank_name(rank) / committed.filename());
  std::stable_partition(names.begin(), names.end(), [&](const auto& name) { return name == committed; });
  for (const std::filesystem::path& name : names) {
    const auto found =
        bounded<bool>(options, "RankDirectory::read", name, [files = options.files, name]() -> Result<bool> {
          const auto file = files->open_to_read(name, tiers::DirectIo::off);
          if (file || file.error().code() == ErrorCode::not_found) return file.has_value();
          return file.error();
        });
    if (!found) return found.error();
    if (*found) return name.string();
  }
  return committed.string();
}

/// The number of each directory of the rank: that of its files; of one without, a free one.
Result<std::vector<std::uint32_t>> numbers_of(const RankDirectory::Options& options) {
  std::vector<std::optional<std::uint32_t>> found(options.directories.size());
  std::set<std::uint32_t> taken;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::filesystem::path directory = options.directories[i] / rank_name(options.rank);
    PENSTOCK_TRY_ASSIGN(const auto names,
                        bounded<std::vector<std::string>>(
                            options, "RankDirectory::open", directory,
                            [files = options.files, directory] { return files->list(directory); }));
    for (const std::string& name : names) {
      const auto number = number_of_file(name);
      if (!found[i] && number && taken.insert(*number).second) found[i] = number;
    }
  }
  std::vector<std::uint32_t> numbers;
  std::uint32_t free = 0;
  for (const auto& number : found) {
    while (!number && !taken.insert(free).second) ++free;
    numbers.push_back(number.value_or(free));
  }
  return numbers;
}

}  // namespace

std::string rank_name(std::uint32_t rank) {
  char text[16];
  std::snprintf(text, sizeof text, "rank%04u", rank);
  return text;
}

std::string manifest_name(std::uint32_t engine, std::uint64_t generation) {
  char text[32];
  std::snprintf(text, sizeof text, "%012llu", static_cast<unsigned long long>(generation));
  return engine_prefix(engine) + text + ".manifest";
}

std::optional<std::uint32_t> number_of_file(std::string_view name) {
  if (const auto number = number_in<std::uint32_t>(name, "swap", "")) return number;
  const std::size_t dash = std::min(name.find('-'), name.size());
  if (!number_in<std::uint32_t>(name.substr(0, dash), "copies", "")) return std::nullopt;
  return number_in<std::uint32_t>(name.substr(dash), "-", "");
}

Result<std::unique_ptr<RankDirectory>> RankDirectory::open(Options options) {
  std::unique_ptr<RankDirectory> made(new RankDirectory(std::move(options)));
  const Options& opened = made->options_;
  for (std::size_t i = 0; i < opened.directories.size(); ++i) {
    const std::filesystem::path above = opened.directories[i], own = made->path(i);
    auto lock =
        bounded<tiers::DirectoryLock>(opened, "RankDirectory::open", own,
                                      [files = opened.files, above, own]() -> Result<tiers::DirectoryLock> {
                                        PENSTOCK_TRY(ensure_directory(*files, above));
                                        PENSTOCK_TRY(ensure_directory(*files, own));
                                        return files->lock(own);
                                      });
    if (!lock && lock.error().code() == ErrorCode::in_use) {
      return std::move(lock).error().advice(
          "wait until that run has ended, or end it; each run has a durable directory of its own");
    }
    if (!lock) return lock.error();
    made->locks_.push_back(*std::move(lock));
  }
  PENSTOCK_TRY_ASSIGN(made->numbers_, numbers_of(opened));
  return made;
}

std::filesystem::path RankDirectory::path(std::size_t index) const {
  return options_.directories[index] / rank_name(options_.rank);
}

std::string RankDirectory::swap_name(std::size_t index) const {
  return "swap" + std::to_string(numbers_[index]);
}

std::string RankDirectory::copies_name(std::uint32_t engine, std::size_t index) const {
  return "copies" + std::to_string(engine) + "-" + std::to_string(numbers_[index]);
}

Result<std::vector<std::uint64_t>> RankDirectory::generations(std::uint32_t engine) const {
  return generations_of(options_, options_.rank, engine);
}

Result<Manifest> RankDirectory::read(std::uint32_t engine, std::uint64_t generation) const {
  return read_of(options_, options_.rank, engine, generation);
}

Result<void> RankDirectory::write(const Manifest& manifest) {
  const std::filesystem::path name = path(0) / manifest_name(manifest.engine, manifest.generation);
  return bounded<void>(
      options_, "RankDirectory::write", name, [files = options_.files, name, bytes = manifest.encode()] {
        return replace_file(*files, name, name.filename().string() + ".new", ConstHostSpan(std::span(bytes)));
      });
}

Result<void> RankDirectory::remove(std::uint32_t engine, std::uint64_t generation) {
  const std::filesystem::path directory = path(0), name = directory / manifest_name(engine, generation);
  return bounded<void>(options_, "RankDirectory::remove", name,
                       [files = options_.files, directory, name]() -> Result<void> {
                         auto removed = files->remove(name);
                         if (!removed) return removed.error().code() == ErrorCode::not_found ? ok() : removed;
                         return files->sync_directory(directory);
                       });
}

Result<void> RankDirectory::remove_files(bool (*chosen)(std::string_view)) {
  for (std::size_t i = options_.directories.size(); i-- > 0;) {
    const std::filesystem::path directory = path(i);
    const auto removed = bounded<void>(options_, "RankDirectory::remove_files", directory,
                                       [files = options_.files, directory, chosen]() -> Result<void> {
                                         PENSTOCK_TRY_ASSIGN(const auto names, files->list(directory));
                                         for (const std::string& name : names) {
                                           if (chosen(name))
                                             PENSTOCK_TRY(remove_if_there(*files, directory / name));
                                         }
                                         return ok();
                                       });
    PENSTOCK_TRY(removed);
  }
  return ok();
}

Result<std::vector<std::uint32_t>> RankDirectory::ranks(const Options& options) {
  const std::filesystem::path directory = options.directories.front();
  PENSTOCK_TRY_ASSIGN(const auto names,
                      bounded<std::vector<std::string>>(
                          options, "RankDirectory::ranks", directory,
                          [files = options.files, directory] { return files->list(directory); }));
  std::vector<std::uint32_t> ranks;
  for (const std::string& name : names) {
    if (const auto rank = number_in<std::uint32_t>(name, "rank", "")) ranks.push_back(*rank);
  }
  return ranks;
}

Result<std::vector<std::string>> RankDirectory::names_of(const Options& options, std::uint32_t rank) {
  const std::filesystem::path directory = part_of(options, rank);
  return bounded<std::vector<std::string>>(
      options, "RankDirectory::names_of", directory,
      [files = options.files, directory] { return files->list(directory); });
}

Result<std::vector<ManifestId>> RankDirectory::manifests_of(const Options& options, std::uint32_t rank) {
  PENSTOCK_TRY_ASSIGN(const auto names, names_of(options, rank));
  std::vector<ManifestId> manifests;
  for (const std::string& name : names) {
    const auto engine = number_in<std::uint32_t>(name.substr(0, name.find('-')), "engine", "");
    if (!engine) continue;
    if (const auto generation = number_in<std::uint64_t>(name, engine_prefix(*engine), ".manifest"))
      manifests.push_back({*engine, *generation});
  }
  std::sort(manifests.begin(), manifests.end());
  return manifests;
}

Result<std::vector<std::uint64_t>> RankDirectory::generations_of(const Options& options, std::uint32_t rank,
                                                                 std::uint32_t engine) {
  PENSTOCK_TRY_ASSIGN(const auto manifests, manifests_of(options, rank));
  std::vector<std::uint64_t> generations;
  for (const ManifestId& one : manifests) {
    if (one.engine == engine) generations.push_back(one.generation);
  }
  return generations;
}

Result<Manifest> RankDirectory::read_of(const Options& options, std::uint32_t rank, std::uint32_t engine,
                                        std::uint64_t generation) {
  const std::filesystem::path name = part_of(options, rank) / manifest_name(engine, generation);
  PENSTOCK_TRY_ASSIGN(
      const auto bytes,
      bounded<std::vector<std::byte>>(options, "RankDirectory::read", name,
                                      [files = options.files, name]() -> Result<std::vector<std::byte>> {
                                        PENSTOCK_TRY_ASSIGN(const tiers::File file,
                                                            files->open_to_read(name, tiers::DirectIo::off));
                                        PENSTOCK_TRY_ASSIGN(const ByteCount size, file.size());
                                        std::vector<std::byte> all(size.value());
                                        PENSTOCK_TRY(file.read(FileOffset(0), HostSpan(std::span(all))));
                                        return all;
                                      }));
  PENSTOCK_TRY_ASSIGN(auto manifest, Manifest::decode(name.string(), bytes));
  for (std::string& file : manifest.files) {
    PENSTOCK_TRY_ASSIGN(file, find_file(options, rank, file));
  }
  if (manifest.rank == rank && manifest.engine == engine && manifest.generation == generation)
    return manifest;
  return Error(ErrorCode::corrupted, "RankDirectory::read")
      .object(name.string())
      .reason("its contents are of another rank, engine or generation than its name")
      .wanted("rank " + std::to_string(rank) + ", " + manifest_name(engine, generation))
      .got("rank " + std::to_string(manifest.rank) + ", " +
           manifest_name(manifest.engine, manifest.generation));
}

}  // namespace penstock::zero
