#include "zero/commit/checkpoint_directory.hpp"

#include "tiers/io/bounded_call.hpp"
#include "zero/commit/small_files.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace penstock::zero {

namespace {

constexpr std::string_view tag_prefix = "global_step";  // as DeepSpeed names its checkpoints
constexpr const char* latest = "latest";
constexpr std::size_t tag_bytes_max = 4096;

template <class T, class Call>
Result<T> bounded(const CheckpointDirectory::Options& options, const char* operation,
                  const std::filesystem::path& object, Call call) {
  return tiers::bounded_call<T>(operation, object.string(), options.deadline, std::move(call));
}

/// Whether other ranks have files in a directory, or have removed it.
bool is_in_use(const Result<void>& done) {
  return !done &&
         (done.error().code() == ErrorCode::invalid_argument || done.error().code() == ErrorCode::not_found);
}

/// Removes a part of a rank: first its manifest, without which it is none.
Result<void> remove_files(tiers::FileSystem& files, const std::filesystem::path& part, std::uint32_t engine) {
  PENSTOCK_TRY_ASSIGN(const auto names, files.list(part));
  const std::string prefix = "engine" + std::to_string(engine) + "-", tensors = tensors_name(engine);
  bool has_others = false;
  for (const std::string& name : names) {
    if (name.starts_with(prefix)) PENSTOCK_TRY(remove_if_there(files, part / name));
    has_others |= !name.starts_with(prefix) && name.starts_with("engine");
  }
  PENSTOCK_TRY(files.sync_directory(part));
  PENSTOCK_TRY(remove_if_there(files, part / tensors));
  if (has_others) return ok();
  PENSTOCK_TRY(remove_if_there(files, part / tiers::DirectoryLock::file_name));
  PENSTOCK_TRY(files.sync_directory(part));
  for (const std::filesystem::path& empty : {part, part.parent_path()}) {
    auto removed = files.remove_directory(empty);
    if (is_in_use(removed)) return ok();
    PENSTOCK_TRY(removed);
    auto synced = files.sync_directory(empty.parent_path());
    if (is_in_use(synced)) return ok();  // the last rank has removed it
    PENSTOCK_TRY(synced);
  }
  return ok();
}

}  // namespace

std::string tensors_name(std::uint32_t engine) {
  return "tensors" + std::to_string(engine);
}

bool is_checkpoint(const Manifest& manifest) {
  return std::any_of(manifest.files.begin(), manifest.files.end(), [&](const std::string& file) {
    return std::filesystem::path(file).filename() == tensors_name(manifest.engine);
  });
}

std::filesystem::path CheckpointDirectory::path_of(std::uint64_t step) const {
  return options_.directory / (std::string(tag_prefix) + std::to_string(step));
}

RankDirectory::Options CheckpointDirectory::part_of(std::uint64_t step) const {
  return {.files = options_.files,
          .directories = {path_of(step)},
          .rank = options_.rank,
          .deadline = options_.deadline};
}

Result<std::vector<std::uint32_t>> CheckpointDirectory::share_of_ranks(std::uint64_t step) const {
  auto ranks = RankDirectory::ranks(part_of(step));
  if (!ranks && ranks.error().code() == ErrorCode::not_found) return std::vector<std::uint32_t>();
  PENSTOCK_TRY(ranks);
  std::erase_if(*ranks, [&](std::uint32_t rank) { return rank % options_.ranks != options_.rank; });
  return ranks;
}

Result<std::unique_ptr<RankDirectory>> CheckpointDirectory::open(std::uint64_t step, std::uint32_t engine) {
  PENSTOCK_TRY(bounded<void>(options_, "Engine::save_checkpoint", options_.directory,
                             [files = options_.files, directory = options_.directory] {
                               return ensure_directory(*files, directory);
                             }));
  PENSTOCK_TRY_ASSIGN(auto part, RankDirectory::open(part_of(step)));
  PENSTOCK_TRY_ASSIGN(const auto left, part->generations(engine));
  for (const std::uint64_t generation : left) PENSTOCK_TRY(part->remove(engine, generation));
  PENSTOCK_TRY_ASSIGN(const auto ranks, share_of_ranks(step));
  for (const std::uint32_t rank : ranks) {
    if (rank != options_.rank) PENSTOCK_TRY(remove_part(step, rank, engine));
  }
  return part;
}

Result<void> CheckpointDirectory::remove_part(std::uint64_t step, std::uint32_t rank, std::uint32_t engine) {
  const std::filesystem::path part = path_of(step) / rank_name(rank);
  return bounded<void>(options_, "Engine::save_checkpoint", part,
                       [files = options_.files, part, engine] { return remove_files(*files, part, engine); });
}

void CheckpointDirectory::remove_own(std::uint64_t step, std::uint32_t engine) {
  (void)remove_part(step, options_.rank, engine);
}

Result<void> CheckpointDirectory::remove_parts(std::uint64_t step, std::uint32_t engine) {
  PENSTOCK_TRY_ASSIGN(const auto ranks, share_of_ranks(step));
  for (const std::uint32_t rank : ranks) {
    RankDirectory::Options part = part_of(step);
    part.rank = rank;
    const auto lock = RankDirectory::lock(part);
    if (!lock && lock.error().code() == ErrorCode::in_use) continue;
    if (!lock) return lock.error();
    PENSTOCK_TRY(remove_part(step, rank, engine));
  }
  return ok();
}

Result<void> CheckpointDirectory::check_usable() {
  constexpr const char* operation = "Engine::save_checkpoint";
  auto names = bounded<std::vector<std::string>>(
      options_, operation, options_.directory,
      [files = options_.files, directory = options_.directory] { return files->list(directory); });
  if (!names && names.error().code() == ErrorCode::not_found) return ok();
  PENSTOCK_TRY_ASSIGN(const auto present, std::move(names));
  const auto is_of_a_run = [](const std::string& name) {
    const auto rank = number_in<std::uint32_t>(name, "rank", "");
    return (rank && rank_name(*rank) == name) || name == tiers::DirectoryLock::file_name;
  };
  if (std::any_of(present.begin(), present.end(), is_of_a_run)) {
    return Error::invalid_argument(operation)
        .object(options_.directory.string())
        .reason("it is a durable directory, a checkpoint, or a part of one")
        .advice("name another directory, for checkpoints alone");
  }
  const std::filesystem::path name = options_.directory / latest;
  auto opened = bounded<void>(options_, operation, name, [files = options_.files, name]() -> Result<void> {
    const auto file = files->open_to_read(name, tiers::DirectIo::off);
    return file ? ok() : Result<void>(file.error());
  });
  if (opened || opened.error().code() != ErrorCode::invalid_argument) return ok();
  return Error::invalid_argument(operation)
      .object(name.string())
      .reason("it is no file, and cannot be made to name the checkpoint")
      .advice("move it away, or name another directory");
}

Result<void> CheckpointDirectory::set_latest(std::uint64_t step) {
  const std::filesystem::path name = options_.directory / latest;
  return bounded<void>(
      options_, "Engine::save_checkpoint", name,
      [files = options_.files, name, unfinished = std::string(latest) + "." + rank_name(options_.rank),
       tag = path_of(step).filename().string()] {
        return replace_file(*files, name, unfinished, ConstHostSpan(std::span(tag)));
      });
}

Result<std::vector<CheckpointPart>> CheckpointDirectory::parts(std::uint64_t step, std::uint32_t engine,
                                                               const RankDirectory::Run& run) {
  PENSTOCK_TRY_ASSIGN(const auto names, bounded<std::vector<std::string>>(
                                            options_, "Engine::save_checkpoint", options_.directory,
                                            [files = options_.files, directory = options_.directory] {
                                              return files->list(directory);
                                            }));
  std::vector<CheckpointPart> found;
  for (const std::string& name : names) {
    const auto of_step = number_in<std::uint64_t>(name, tag_prefix, "");
    if (!of_step || *of_step > step) continue;  // later ones: the run was continued from an earlier one
    PENSTOCK_TRY_ASSIGN(const auto ranks, share_of_ranks(*of_step));
    for (const std::uint32_t rank : ranks) {
      PENSTOCK_TRY_ASSIGN(const auto manifests, RankDirectory::manifests_of(part_of(*of_step), rank));
      PENSTOCK_TRY_ASSIGN(const auto files, RankDirectory::names_of(part_of(*of_step), rank));
      const bool has_tensors = std::find(files.begin(), files.end(), tensors_name(engine)) != files.end();
      if (manifests.empty() && has_tensors) found.push_back({.step = *of_step, .rank = rank});
      PENSTOCK_TRY_ASSIGN(const auto generations,
                          RankDirectory::generations_of(part_of(*of_step), rank, engine));
      if (generations.empty()) continue;
      const auto manifest = RankDirectory::read_of(part_of(*of_step), rank, engine, generations.back());
      if (manifest && manifest->run == run)
        found.push_back({*of_step, manifest->attempt, manifest->ranks, rank});
    }
  }
  return found;
}

std::vector<std::uint64_t> old_checkpoints(std::span<const CheckpointPart> parts, std::uint32_t keep) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::set<std::uint32_t>> ranks;  // by step and attempt
  std::set<std::uint64_t> complete;
  for (const CheckpointPart& part : parts) {
    auto& of_checkpoint = ranks[{part.step, part.attempt}];
    of_checkpoint.insert(part.rank);
    if (of_checkpoint.size() == part.ranks) complete.insert(part.step);
  }
  std::set<std::uint64_t> old;
  for (const CheckpointPart& part : parts) {
    if (!complete.empty() && part.step < *complete.rbegin() && !complete.contains(part.step))
      old.insert(part.step);
  }
  const std::size_t kept = std::min<std::size_t>(keep, complete.size());
  old.insert(complete.begin(), std::prev(complete.end(), static_cast<std::ptrdiff_t>(kept)));
  return {old.begin(), old.end()};
}

Result<std::filesystem::path> CheckpointDirectory::find(const char* operation) {
  const std::filesystem::path directory = options_.directory, name = directory / latest;
  auto tag = bounded<std::string>(options_, operation, name, [files = options_.files, name] {
    return read_text(*files, name, tag_bytes_max);
  });
  if (!tag && tag.error().code() == ErrorCode::not_found) {
    PENSTOCK_TRY_ASSIGN(const auto ranks, RankDirectory::ranks({.files = options_.files,
                                                                .directories = {directory},
                                                                .deadline = options_.deadline}));
    if (!ranks.empty()) return directory;
    return Error(ErrorCode::not_found, operation)
        .object(directory.string())
        .reason("it has neither the file \"latest\" nor the parts of ranks")
        .advice("name the directory of save_checkpoint(), or a checkpoint in it");
  }
  PENSTOCK_TRY(tag);
  tag->erase(tag->find_last_not_of(" \t\r\n") + 1);  // of an editor, as DeepSpeed reads it
  if (number_in<std::uint64_t>(*tag, tag_prefix, "")) {
    const std::filesystem::path named = directory / *tag;
    const auto listed = bounded<std::vector<std::string>>(
        options_, operation, named, [files = options_.files, named] { return files->list(named); });
    if (listed || listed.error().code() != ErrorCode::not_found) return named;
    return Error(ErrorCode::not_found, operation)
        .object(name.string())
        .reason("it names a checkpoint that is not there")
        .got(*tag)
        .advice("name one of the checkpoints beside it, or write its name into this file");
  }
  return Error::invalid_argument(operation)
      .object(name.string())
      .reason("it names no checkpoint")
      .wanted(std::string(tag_prefix) + " and a number")
      .got(tag->substr(0, 60));
}

}  // namespace penstock::zero
