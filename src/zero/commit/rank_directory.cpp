#include "zero/commit/rank_directory.hpp"

#include "tiers/io/bounded_call.hpp"
#include "zero/commit/small_files.hpp"

#include <algorithm>
#include <charconv>
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

std::string mark_name(std::uint32_t engine) {
  return engine_prefix(engine).substr(0, engine_prefix(engine).size() - 1) + ".run";
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

/// The bytes of a manifest for decode(). Of a file that is longer, or of another kind, only as many as decode() needs
/// to say so. Errors: truncated.
Result<std::vector<std::byte>> read_manifest(tiers::FileSystem& files, const std::filesystem::path& name) {
  PENSTOCK_TRY_ASSIGN(const tiers::File file, files.open_to_read(name, tiers::DirectIo::off));
  PENSTOCK_TRY_ASSIGN(const ByteCount size, file.size());
  std::vector<std::byte> bytes(std::min<std::uint64_t>(size.value(), Manifest::header_bytes));
  PENSTOCK_TRY(file.read(FileOffset(0), HostSpan(std::span(bytes))));
  const auto whole = Manifest::size_in(bytes);
  if (!whole) return bytes;
  if (*whole > size) return Manifest::too_short(name.string(), *whole, size);
  bytes.resize(std::min(*whole + 1_B, size).value());
  PENSTOCK_TRY(file.read(FileOffset(0), HostSpan(std::span(bytes))));
  return bytes;
}

/// Numbers of the files that the rank's manifests refer to, also where these are in no directory of today.
Result<std::set<std::uint32_t>> committed_numbers(const RankDirectory::Options& options) {
  std::set<std::uint32_t> numbers;
  PENSTOCK_TRY_ASSIGN(const auto manifests, RankDirectory::manifests_of(options, options.rank));
  for (const auto& [engine, generation] : manifests) {
    const auto manifest = RankDirectory::read_of(options, options.rank, engine, generation);
    if (!manifest && !is_damage(manifest.error())) return manifest.error();
    if (!manifest) continue;
    for (const std::string& file : manifest->files) {
      if (const auto number = number_of_file(std::filesystem::path(file).filename().string()))
        numbers.insert(*number);
    }
  }
  return numbers;
}

/// The number of each directory of the rank: that of its files; of one without, a free one.
Result<std::vector<std::uint32_t>> numbers_of(const RankDirectory::Options& options) {
  std::vector<std::optional<std::uint32_t>> found(options.directories.size());
  std::set<std::uint32_t> taken;
  for (std::size_t i = 0; i < found.size(); ++i) {
    PENSTOCK_TRY_ASSIGN(const auto names, RankDirectory::names_of(options, options.rank, i));
    for (const std::string& name : names) {
      const auto number = number_of_file(name);
      if (!found[i] && number && taken.insert(*number).second) found[i] = number;
    }
  }
  PENSTOCK_TRY_ASSIGN(auto committed, committed_numbers(options));
  taken.merge(committed);
  std::vector<std::uint32_t> numbers;
  std::uint32_t free = 0;
  for (const auto& number : found) {
    while (!number && !taken.insert(free).second) ++free;
    numbers.push_back(number.value_or(free));
  }
  return numbers;
}

/// Of a file of mark(): the run's number in hexadecimal digits.
std::string text_of(const RankDirectory::Run& run) {
  char text[40];
  std::snprintf(text, sizeof text, "%016llx%016llx\n", static_cast<unsigned long long>(run[0]),
                static_cast<unsigned long long>(run[1]));
  return text;
}

std::optional<RankDirectory::Run> run_in(const std::string& text) {
  constexpr std::size_t digits = 16;
  RankDirectory::Run run{};
  if (text.size() != 2 * digits + 1) return std::nullopt;
  for (std::size_t i = 0; i < run.size(); ++i) {
    const char *begin = text.data() + i * digits, *end = begin + digits;
    if (std::from_chars(begin, end, run[i], 16).ptr != end) return std::nullopt;
  }
  return run;
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

bool is_damage(const Error& error) {
  return error.code() == ErrorCode::corrupted || error.code() == ErrorCode::truncated ||
         error.code() == ErrorCode::invalid_argument;
}

Result<std::unique_ptr<RankDirectory>> RankDirectory::open(Options options) {
  PENSTOCK_TRY_ASSIGN(auto opened, lock(std::move(options)));
  PENSTOCK_TRY(opened->make());
  return opened;
}

Result<std::unique_ptr<RankDirectory>> RankDirectory::lock(Options options) {
  std::unique_ptr<RankDirectory> made(new RankDirectory(std::move(options)));
  for (std::size_t i = 0; i < made->locks_.size(); ++i) PENSTOCK_TRY(made->lock(i, /*makes_it=*/false));
  return made;
}

Result<void> RankDirectory::make() {
  for (std::size_t i = 0; i < locks_.size(); ++i) {
    if (!locks_[i]) PENSTOCK_TRY(lock(i, /*makes_it=*/true));
  }
  PENSTOCK_TRY_ASSIGN(numbers_, numbers_of(options_));
  return ok();
}

Result<void> RankDirectory::lock(std::size_t index, bool makes_it) {
  const std::filesystem::path above = options_.directories[index], own = path(index);
  auto lock = bounded<tiers::DirectoryLock>(
      options_, "RankDirectory::open", own,
      [files = options_.files, above, own, makes_it]() -> Result<tiers::DirectoryLock> {
        if (!makes_it) PENSTOCK_TRY(files->list(own));
        PENSTOCK_TRY(ensure_directory(*files, above));
        PENSTOCK_TRY(ensure_directory(*files, own));
        return files->lock(own);
      });
  if (!lock && !makes_it && lock.error().code() == ErrorCode::not_found) return ok();
  if (!lock && lock.error().code() == ErrorCode::in_use) {
    return std::move(lock).error().advice(
        "wait until that run has ended, or end it; each run has a durable directory of its own");
  }
  if (!lock) return lock.error();
  locks_[index] = *std::move(lock);
  return ok();
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
                         PENSTOCK_TRY(remove_if_there(*files, name));
                         return files->sync_directory(directory);  // also of an earlier removal
                       });
}

Result<void> RankDirectory::remove_files(const std::function<bool(std::string_view)>& chosen) {
  for (std::size_t i = options_.directories.size(); i-- > 0;) {
    const std::filesystem::path directory = path(i);
    PENSTOCK_TRY_ASSIGN(auto names, names_of(options_, options_.rank, i));
    std::erase_if(names, [&](const std::string& name) { return !chosen(name); });
    if (names.empty()) continue;
    const auto removed = bounded<void>(options_, "RankDirectory::remove_files", directory,
                                       [files = options_.files, directory, names]() -> Result<void> {
                                         for (const std::string& name : names)
                                           PENSTOCK_TRY(remove_if_there(*files, directory / name));
                                         return files->sync_directory(directory);
                                       });
    PENSTOCK_TRY(removed);
  }
  return ok();
}

Result<void> RankDirectory::mark(std::uint32_t engine, const Run& run) {
  for (std::size_t i = 0; i < options_.directories.size(); ++i) {
    PENSTOCK_TRY_ASSIGN(const auto marks, marks_of(options_, options_.rank, i));
    if (const auto found = marks.find(engine); found != marks.end() && found->second == run) continue;
    const std::filesystem::path name = path(i) / mark_name(engine);
    const auto written = bounded<void>(options_, "RankDirectory::mark", name,
                                       [files = options_.files, name, text = text_of(run)] {
                                         return replace_file(*files, name, name.filename().string() + ".new",
                                                             ConstHostSpan(std::span(text)));
                                       });
    PENSTOCK_TRY(written);
  }
  return ok();
}

Result<void> RankDirectory::unmark(std::uint32_t engine) {
  return remove_files([name = mark_name(engine)](std::string_view one) { return one == name; });
}

Result<std::map<std::uint32_t, RankDirectory::Run>> RankDirectory::marks_of(const Options& options,
                                                                            std::uint32_t rank,
                                                                            std::size_t index) {
  std::map<std::uint32_t, Run> marks;
  PENSTOCK_TRY_ASSIGN(const auto names, names_of(options, rank, index));
  for (const std::string& name : names) {
    const auto engine = number_in<std::uint32_t>(name, "engine", ".run");
    if (!engine) continue;
    const std::filesystem::path file = options.directories[index] / rank_name(rank) / name;
    const auto text =
        bounded<std::string>(options, "RankDirectory::marks_of", file,
                             [files = options.files, file] { return read_text(*files, file, 64); });
    if (!text) return text.error();
    const auto run = run_in(*text);
    if (!run) {
      return Error(ErrorCode::corrupted, "RankDirectory::marks_of")
          .object(file.string())
          .reason("it has no number of a run")
          .advice("remove this file, if the manifests beside it are those of the run");
    }
    marks.emplace(*engine, *run);
  }
  return marks;
}

Result<std::vector<std::uint32_t>> RankDirectory::ranks(const Options& options) {
  const std::filesystem::path directory = options.directories.front();
  PENSTOCK_TRY_ASSIGN(const auto names,
                      bounded<std::vector<std::string>>(
                          options, "RankDirectory::ranks", directory,
                          [files = options.files, directory] { return files->list(directory); }));
  std::vector<std::uint32_t> ranks;
  for (const std::string& name : names) {
    const auto rank = number_in<std::uint32_t>(name, "rank", "");
    if (rank && rank_name(*rank) == name) ranks.push_back(*rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Result<std::vector<std::string>> RankDirectory::names_of(const Options& options, std::uint32_t rank,
                                                         std::size_t index) {
  const std::filesystem::path directory = options.directories[index] / rank_name(rank);
  auto names = bounded<std::vector<std::string>>(
      options, "RankDirectory::names_of", directory,
      [files = options.files, directory] { return files->list(directory); });
  if (!names && names.error().code() == ErrorCode::not_found) return std::vector<std::string>();
  return names;
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
  const std::filesystem::path name =
      options.directories.front() / rank_name(rank) / manifest_name(engine, generation);
  PENSTOCK_TRY_ASSIGN(const auto bytes, bounded<std::vector<std::byte>>(options, "RankDirectory::read", name,
                                                                        [files = options.files, name] {
                                                                          return read_manifest(*files, name);
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
