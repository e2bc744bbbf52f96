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

std::filesystem::path manifests_of(const RankDirectory::Options& options, std::uint32_t rank) {
  return options.directories.front() / rank_name(rank);
}

/// Where a file of the rank is now: the durable directories may have other names than when it was committed.
Result<std::string> find_file(const RankDirectory::Options& options, std::uint32_t rank,
                              const std::filesystem::path& committed) {
  for (const std::filesystem::path& directory : options.directories) {
    const std::filesystem::path name = directory / rank_name(rank) / committed.filename();
    const auto found =
        bounded<bool>(options, "RankDirectory::read", name, [files = options.files, name]() -> Result<bool> {
          const auto file = files->open(name, tiers::DirectIo::off);
          if (file || file.error().code() == ErrorCode::not_found) return file.has_value();
          return file.error();
        });
    if (!found) return found.error();
    if (*found) return name.string();
  }
  return committed.string();
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

Result<void> RankDirectory::check_lasts(const Options& options, const std::filesystem::path& directory) {
  return bounded<void>(options, "RankDirectory::open", directory,
                       [files = options.files, directory]() -> Result<void> {
                         // The run may have to make it.
                         std::string type = files->type_name(directory);
                         if (type == "unknown")
                           type = files->type_name((directory / "").parent_path().parent_path());
                         if (type != "tmpfs") return ok();
                         return Error::unsupported("RankDirectory::open")
                             .object(directory.string())
                             .reason("it is a tmpfs, in memory, which loses a run with the machine's power")
                             .advice("name a directory on a drive as penstock.durable_directory");
                       });
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
  return made;
}

std::filesystem::path RankDirectory::path(std::size_t index) const {
  return options_.directories[index] / rank_name(options_.rank);
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

namespace {
Result<std::vector<std::string>> names_of(const RankDirectory::Options& options, std::uint32_t rank) {
  const std::filesystem::path directory = manifests_of(options, rank);
  return bounded<std::vector<std::string>>(
      options, "RankDirectory::generations", directory,
      [files = options.files, directory] { return files->list(directory); });
}
}  // namespace

Result<std::vector<std::uint32_t>> RankDirectory::engines_of(const Options& options, std::uint32_t rank) {
  PENSTOCK_TRY_ASSIGN(const auto names, names_of(options, rank));
  std::set<std::uint32_t> engines;
  for (const std::string& name : names) {
    const std::string prefix = name.substr(0, name.find('-'));
    const auto engine = number_in<std::uint32_t>(prefix, "engine", "");
    if (engine && number_in<std::uint64_t>(name, engine_prefix(*engine), ".manifest"))
      engines.insert(*engine);
  }
  return std::vector<std::uint32_t>(engines.begin(), engines.end());
}

Result<std::vector<std::uint64_t>> RankDirectory::generations_of(const Options& options, std::uint32_t rank,
                                                                 std::uint32_t engine) {
  PENSTOCK_TRY_ASSIGN(const auto names, names_of(options, rank));
  std::vector<std::uint64_t> generations;
  for (const std::string& name : names) {
    if (const auto number = number_in<std::uint64_t>(name, engine_prefix(engine), ".manifest"))
      generations.push_back(*number);
  }
  std::sort(generations.begin(), generations.end());
  return generations;
}

Result<Manifest> RankDirectory::read_of(const Options& options, std::uint32_t rank, std::uint32_t engine,
                                        std::uint64_t generation) {
  const std::filesystem::path name = manifests_of(options, rank) / manifest_name(engine, generation);
  PENSTOCK_TRY_ASSIGN(
      const auto bytes,
      bounded<std::vector<std::byte>>(options, "RankDirectory::read", name,
                                      [files = options.files, name]() -> Result<std::vector<std::byte>> {
                                        PENSTOCK_TRY_ASSIGN(const tiers::File file,
                                                            files->open(name, tiers::DirectIo::off));
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
