#include "zero/commit/checkpoint_directory.hpp"

#include "tiers/io/bounded_call.hpp"
#include "zero/commit/small_files.hpp"

#include <algorithm>
#include <optional>
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

Result<std::unique_ptr<RankDirectory>> CheckpointDirectory::open(std::uint64_t step, std::uint32_t engine) {
  PENSTOCK_TRY(bounded<void>(options_, "Engine::save_checkpoint", options_.directory,
                             [files = options_.files, directory = options_.directory] {
                               return ensure_directory(*files, directory);
                             }));
  PENSTOCK_TRY_ASSIGN(auto part, RankDirectory::open(part_of(step)));
  PENSTOCK_TRY_ASSIGN(const auto left, part->generations(engine));
  for (const std::uint64_t generation : left) PENSTOCK_TRY(part->remove(engine, generation));
  return part;
}

Result<void> CheckpointDirectory::remove_part(std::uint64_t step, std::uint32_t engine) {
  const std::filesystem::path part = path_of(step) / rank_name(options_.rank);
  return bounded<void>(options_, "Engine::save_checkpoint", part,
                       [files = options_.files, part, engine] { return remove_files(*files, part, engine); });
}

void CheckpointDirectory::remove_own(std::uint64_t step, std::uint32_t engine) {
  (void)remove_part(step, engine);
}

Result<void> CheckpointDirectory::check_latest() {
  const std::filesystem::path name = options_.directory / latest;
  auto opened = bounded<void>(options_, "Engine::save_checkpoint", name,
                              [files = options_.files, name]() -> Result<void> {
                                const auto file = files->open_to_read(name, tiers::DirectIo::off);
                                return file ? ok() : Result<void>(file.error());
                              });
  if (opened || opened.error().code() != ErrorCode::invalid_argument) return ok();
  return Error::invalid_argument("Engine::save_checkpoint")
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

Result<std::vector<std::filesystem::path>> CheckpointDirectory::remove_old(
    std::uint64_t step, std::uint32_t engine, const std::array<std::uint64_t, 2>& run, std::uint32_t keep) {
  PENSTOCK_TRY_ASSIGN(const auto names, bounded<std::vector<std::string>>(
                                            options_, "Engine::save_checkpoint", options_.directory,
                                            [files = options_.files, directory = options_.directory] {
                                              return files->list(directory);
                                            }));
  std::vector<std::uint64_t> steps;
  for (const std::string& name : names) {
    const auto found = number_in<std::uint64_t>(name, tag_prefix, "");
    if (!found || *found > step) continue;  // later ones: the run was continued from an earlier one
    const auto generations = RankDirectory::generations_of(part_of(*found), options_.rank, engine);
    if (!generations || generations->empty()) continue;
    const auto manifest = RankDirectory::read_of(part_of(*found), options_.rank, engine, generations->back());
    if (manifest && manifest->run == run) steps.push_back(*found);
  }
  std::sort(steps.begin(), steps.end());
  std::vector<std::filesystem::path> removed;
  for (std::size_t i = 0; i + keep < steps.size(); ++i) {
    PENSTOCK_TRY(remove_part(steps[i], engine));
    removed.push_back(path_of(steps[i]));
  }
  return removed;
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
  if (number_in<std::uint64_t>(*tag, tag_prefix, "")) return directory / *tag;
  return Error::invalid_argument(operation)
      .object(name.string())
      .reason("it names no checkpoint")
      .wanted(std::string(tag_prefix) + " and a number")
      .got(tag->substr(0, 60));
}

}  // namespace penstock::zero
