#include "zero/commit/durable_directories.hpp"

#include "base/notes.hpp"
#include "tiers/io/bounded_call.hpp"
#include "zero/commit/checkpoint_directory.hpp"
#include "zero/commit/small_files.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

namespace fs = std::filesystem;
using Options = RankDirectory::Options;

constexpr const char* operation = "Rank::create";
constexpr const char* own_directory = "give each run a directory of its own";

template <class T, class Call>
Result<T> bounded(const Options& options, const fs::path& object, Call call) {
  return tiers::bounded_call<T>(operation, object.string(), options.deadline, std::move(call));
}

Options only(const Options& options, const fs::path& directory) {
  Options one = options;
  one.directories = {directory};
  return one;
}

Result<void> check_lasts(const Options& options, const fs::path& directory) {
  return bounded<void>(options, directory, [files = options.files, directory]() -> Result<void> {
    std::string type = files->type_name(directory);
    // The run may have to make it.
    if (type == "unknown") type = files->type_name(directory_above(directory));
    if (type != "tmpfs") return ok();
    return Error::unsupported(operation)
        .object(directory.string())
        .reason("it is a tmpfs, in memory, which loses a run with the machine's power")
        .advice("name a directory on a drive as penstock.durable_directory");
  });
}

Result<void> check_differ(const Options& options, const fs::path& a, const fs::path& b) {
  return bounded<void>(options, b, [a, b]() -> Result<void> {
    std::error_code not_there;
    if (!fs::equivalent(a, b, not_there) || not_there) return ok();
    return Error::invalid_argument(operation)
        .object(b.string())
        .reason("it is the same directory as " + a.string())
        .advice("name each durable directory once");
  });
}

/// None, where the directory does not exist.
Result<std::vector<std::uint32_t>> ranks_in(const Options& options) {
  auto ranks = RankDirectory::ranks(options);
  if (!ranks && ranks.error().code() == ErrorCode::not_found) return std::vector<std::uint32_t>();
  return ranks;
}

/// Errors: invalid_argument.
Result<void> check_no_checkpoint(const Options& options, const fs::path& directory) {
  const Options one = only(options, directory);
  PENSTOCK_TRY_ASSIGN(const auto ranks, ranks_in(one));
  for (const std::uint32_t rank : ranks) {
    PENSTOCK_TRY_ASSIGN(const auto ids, RankDirectory::manifests_of(one, rank));
    for (const auto& [engine, generation] : ids) {
      const auto manifest = RankDirectory::read_of(one, rank, engine, generation);
      if (!manifest) continue;  // the run reads its own again
      if (!is_checkpoint(*manifest)) return ok();
      return Error::invalid_argument(operation)
          .object(directory.string())
          .reason("it is a checkpoint, which the run would overwrite")
          .advice("name another durable directory, and call load_checkpoint() with this one");
    }
  }
  return ok();
}

/// Errors: invalid_argument, for a directory with a `latest` of checkpoints.
Result<void> check_no_checkpoints(const Options& options, const fs::path& directory) {
  const auto names = bounded<std::vector<std::string>>(
      options, directory, [files = options.files, directory] { return files->list(directory); });
  if (!names && names.error().code() == ErrorCode::not_found) return ok();
  PENSTOCK_TRY(names);
  if (std::find(names->begin(), names->end(), "latest") == names->end()) return ok();
  const auto found =
      CheckpointDirectory({.files = options.files, .directory = directory, .deadline = options.deadline})
          .find(operation);
  const ErrorCode code = found ? ErrorCode() : found.error().code();
  if (!found && code != ErrorCode::not_found && code != ErrorCode::invalid_argument) return found.error();
  const bool has_checkpoint = std::any_of(
      names->begin(), names->end(), [](const std::string& name) { return name.starts_with("global_step"); });
  // A text that names no checkpoint may be the user's.
  if (code == ErrorCode::invalid_argument && !has_checkpoint) return ok();
  return Error::invalid_argument(operation)
      .object(directory.string())
      .reason("it has checkpoints, of which one is named by the file \"latest\"")
      .advice("name another durable directory, and call load_checkpoint() with this one");
}

/// Whether any rank has a manifest in the first directory.
Result<bool> has_manifests(const Options& options) {
  PENSTOCK_TRY_ASSIGN(const auto ranks, ranks_in(options));
  for (const std::uint32_t rank : ranks) {
    PENSTOCK_TRY_ASSIGN(const auto manifests, RankDirectory::manifests_of(options, rank));
    if (!manifests.empty()) return true;
  }
  return false;
}

/// Where the last of the manifest's tensors in `file` ends.
FileOffset end_in(const Manifest& manifest, std::size_t file) {
  FileOffset end;
  for (const CommittedTensor& tensor : manifest.tensors) {
    if (tensor.file == file) end = std::max(end, tensor.offset + tensor.size);
  }
  return end;
}

Result<void> check_file(tiers::FileSystem& files, const std::string& name, FileOffset end) {
  const auto file = files.open_to_read(name, tiers::DirectIo::off);
  if (!file && file.error().code() == ErrorCode::not_found) {
    return Error(ErrorCode::not_found, operation)
        .object(name)
        .reason("the last commit refers to this file, which is not there")
        .advice("bring it back; or name another durable directory for a new run");
  }
  if (!file) return file.error();
  PENSTOCK_TRY_ASSIGN(const ByteCount size, file->size());
  if (FileOffset(0) + size >= end) return ok();
  return Error(ErrorCode::truncated, operation)
      .object(name)
      .reason("the last commit refers to bytes behind the end of this file")
      .wanted(end - FileOffset(0))
      .got(size)
      .advice("bring the whole file back; or name another durable directory for a new run");
}

Result<void> check_files(const Options& options, const Manifest& manifest) {
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const FileOffset end = end_in(manifest, i);
    if (end == FileOffset(0)) continue;
    const std::string& name = manifest.files[i];
    PENSTOCK_TRY(bounded<void>(options, name,
                               [files = options.files, name, end] { return check_file(*files, name, end); }));
  }
  return ok();
}

using Manifests = std::map<std::uint32_t, std::vector<Manifest>>;

/// Where a run's number is, a manifest of it must be. Errors: not_found; invalid_argument, for directories of two runs.
Result<void> check_marks(const Options& options, const std::vector<ManifestId>& ids,
                         const Manifests& manifests) {
  for (std::size_t i = 0; i < options.directories.size(); ++i) {
    PENSTOCK_TRY_ASSIGN(const auto marks, RankDirectory::marks_of(options, options.rank, i));
    for (const auto& [engine, run] : marks) {
      const std::string part = (options.directories[i] / rank_name(options.rank)).string();
      const auto found = manifests.find(engine);
      if (found != manifests.end() && found->second.front().run != run) {
        return Error::invalid_argument(operation)
            .object(part)
            .reason("it belongs to another run than " + options.directories.front().string())
            .advice(own_directory);
      }
      const auto is_of_engine = [engine = engine](const ManifestId& id) { return id.engine == engine; };
      if (std::any_of(ids.begin(), ids.end(), is_of_engine)) continue;
      return Error(ErrorCode::not_found, operation)
          .object(part)
          .reason("it belongs to a run of which no commit is here")
          .wanted("a manifest of engine " + std::to_string(engine) + " in one of the durable directories")
          .advice(
              "name all directories of that run, mount their drives, and bring back what was removed; for a "
              "new run, name another directory");
    }
  }
  return ok();
}

/// A rank may remove its files meanwhile.
bool is_gone(const Error& error) {
  return error.code() == ErrorCode::not_found;
}

/// The ranks of which it has something.
std::set<std::uint32_t> ranks_of(const CommitView& view) {
  std::set<std::uint32_t> ranks;
  for (const FoundManifest& one : view.manifests) ranks.insert(one.rank);
  for (const CommitView::Mark& one : view.marks) ranks.insert(static_cast<std::uint32_t>(one.rank));
  return ranks;
}

/// Errors: invalid_argument.
Result<void> check_one_run(const Options& options, const std::vector<Manifest>& manifests) {
  for (const Manifest& manifest : manifests) {
    if (manifest.run == manifests.front().run) continue;
    return Error::invalid_argument(operation)
        .object((options.directories.front() / rank_name(options.rank)).string())
        .reason("it has manifests of two runs")
        .advice(std::string(own_directory) + "; move the files of one of them away");
  }
  return ok();
}

/// An incomplete commit may refer to files that are gone. Errors: not_found, truncated.
Result<void> check_files_of_any(const Options& options, const std::vector<Manifest>& manifests) {
  Result<void> checked = ok();
  for (const Manifest& manifest : manifests) {
    auto one = check_files(options, manifest);
    if (one) return one;
    checked = std::move(one);
  }
  return checked;
}

}  // namespace

Result<std::vector<fs::path>> absolute_names(const std::vector<fs::path>& directories) {
  std::vector<fs::path> names;
  for (const fs::path& one : directories) {
    if (one.empty())
      return Error::invalid_argument(operation).object("directory").reason("its name is empty");
    std::error_code error;
    names.push_back(fs::absolute(one, error));
    if (!error) continue;
    return Error(ErrorCode::not_found, operation)
        .object(one.string())
        .reason("it is a relative name, and this process's own directory is not there")
        .advice("give an absolute name");
  }
  return names;
}

Result<void> check_directories(const Options& options) {
  for (std::size_t i = 0; i < options.directories.size(); ++i) {
    const fs::path& directory = options.directories[i];
    PENSTOCK_TRY(check_lasts(options, directory));
    for (std::size_t j = 0; j < i; ++j)
      PENSTOCK_TRY(check_differ(options, options.directories[j], directory));
    PENSTOCK_TRY(check_no_checkpoint(options, directory));
    PENSTOCK_TRY(check_no_checkpoints(options, directory));
  }
  return ok();
}

Result<std::vector<fs::path>> manifests_first(const Options& options) {
  std::vector<fs::path> ordered = options.directories;
  std::size_t found = ordered.size();
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    PENSTOCK_TRY_ASSIGN(const bool is_home, has_manifests(only(options, ordered[i])));
    if (!is_home) continue;
    if (found != ordered.size()) {
      PENSTOCK_TRY(check_differ(options, ordered[found], ordered[i]));
      return Error::invalid_argument(operation)
          .object(ordered[i].string())
          .reason("it has a run of its own, or a copy of that in " + ordered[found].string())
          .advice(std::string(own_directory) + "; of a copy, name one");
    }
    found = i;
  }
  if (found != ordered.size())
    std::rotate(ordered.begin(), ordered.begin() + static_cast<std::ptrdiff_t>(found),
                ordered.begin() + static_cast<std::ptrdiff_t>(found) + 1);
  return ordered;
}

Result<std::map<std::uint32_t, std::vector<Manifest>>> committed_manifests(const Options& options) {
  Manifests manifests;
  PENSTOCK_TRY_ASSIGN(const auto ids, RankDirectory::manifests_of(options, options.rank));
  for (const auto& [engine, generation] : ids) {
    auto manifest = RankDirectory::read_of(options, options.rank, engine, generation);
    if (!manifest && !is_damage(manifest.error())) return manifest.error();
    if (manifest) manifests[engine].push_back(*std::move(manifest));
  }
  PENSTOCK_TRY(check_marks(options, ids, manifests));
  for (auto& [engine, of_engine] : manifests) {
    const std::vector<Manifest> all = of_engine;
    std::erase_if(of_engine, [&](const Manifest& one) {
      return std::any_of(all.begin(), all.end(), [&](const Manifest& by) { return is_superseded(one, by); });
    });
    PENSTOCK_TRY(check_one_run(options, of_engine));
    PENSTOCK_TRY(check_files_of_any(options, of_engine));
  }
  return manifests;
}

Result<CommitView> view_commits(const Options& options, std::uint32_t engine,
                                std::vector<std::string>& damaged) {
  CommitView view;
  PENSTOCK_TRY_ASSIGN(const auto ranks, ranks_in(options));
  for (const std::uint32_t rank : ranks) {
    const auto marks = RankDirectory::marks_of(options, rank);
    if (!marks && !is_gone(marks.error())) return marks.error();
    if (marks && marks->contains(engine)) view.marks.push_back({marks->at(engine), rank});
    PENSTOCK_TRY_ASSIGN(const auto generations, RankDirectory::generations_of(options, rank, engine));
    for (const std::uint64_t generation : generations) {
      const auto one = RankDirectory::read_of(options, rank, engine, generation);
      if (one) {
        view.manifests.push_back(found_of(*one));
      } else if (is_damage(one.error())) {
        damaged.push_back(first_line(one.error()));
      } else if (!is_gone(one.error())) {
        return one.error();
      }
    }
  }
  return view;
}

Result<void> check_commit(const Options& options, std::uint32_t engine, const RankIdentity& identity) {
  std::vector<std::string> damaged;
  PENSTOCK_TRY_ASSIGN(const CommitView view, view_commits(options, engine, damaged));
  const fs::path& directory = options.directories.front();
  PENSTOCK_TRY_ASSIGN(const auto whole, choose_generation(view.manifests, directory.string()));
  const std::set<std::uint32_t> seen = ranks_of(view);
  const auto last =
      std::max_element(view.manifests.begin(), view.manifests.end(),
                       [](const auto& a, const auto& b) { return a.generation < b.generation; });
  const bool needs_own = !whole && !view.marks.empty() && last != view.manifests.end() &&
                         identity.rank < last->ranks && !seen.contains(identity.rank);
  if (needs_own) {
    const std::string ranks = std::to_string(last->ranks), own = rank_name(identity.rank);
    return with_damaged(
        Error(ErrorCode::corrupted, operation)
            .object((directory / own).string())
            .reason("it is away, and beside it are parts of commit " + std::to_string(last->generation) +
                    " of " + ranks + " ranks")
            .advice(
                last->ranks == identity.ranks
                    ? "bring it back, or start the rank where it is; or name another directory for a new run"
                    : "start " + ranks + " ranks where they were; or name another directory for a new run"),
        damaged);
  }
  if (identity.ranks > 1) return ok();  // the others may see other directories
  const auto chosen = choose_commit(operation, directory, {&view, 1}, identity.ranks);
  return chosen ? ok() : Result<void>(with_damaged(chosen.error(), damaged));
}

Error with_damaged(Error error, const std::vector<std::string>& damaged) {
  for (const std::string& one : damaged) error = std::move(error).note("damaged " + one);
  return error;
}

}  // namespace penstock::zero
